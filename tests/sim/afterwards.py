"""After a schedule: everything is calm, two consumers and a janitor finish, and the bucket is looked at."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from pawnqueue import PawnQueue, StoreError
from pawnqueue.catalog import letters as dead_letters
from pawnqueue.catalog import units
from pawnqueue.domain import layout, pack
from pawnqueue.domain.record import UnreadableRecordError
from tests.sim.actors import ack, claimed, note, shaken
from tests.sim.prepared import TOPIC
from tests.sim.stage import RETENTION, SETTINGS, STRANGER, Stage
from tests.sim.sweeps import sweep
from tests.sim.truth import Bounds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.sim.processes import Process

#: How long the two consumers pause at most.
POLL = 16.0
#: The same where they take all that they find before they pause: one after the other, as claims of packs are small.
UNTIL_ALL_IS_TAKEN = POLL + 90.0


async def afterwards(stage: Stage, poll: float = POLL) -> list[str]:
    """Let two consumers and a janitor finish in calm weather, and judge.

    :param poll: how long a message waits at most until both have looked, and have taken all that they found.
    """
    world = stage.world
    for name in ("X", "Y"):
        process = world.process(name)
        process.spawn(_finish(stage, process, poll))
    sweeper = world.process("J9")
    sweeper.spawn(_sweep_up(sweeper))
    stage.truth.judge(Bounds(poll, late=world.first_weather.lateness))
    finished = await world.until_idle(at_most=50_000.0)
    broken = [] if finished else ["waits for ever: somebody has not come to an end in calm weather"]
    return broken + stage.violations(left=set(ids_left(stage))) + garbage(stage)


async def quiet(stage: Stage) -> None:
    """End everybody, and everything that goes wrong."""
    for process in stage.world.processes.values():
        process.kill()
    await stage.world.calm()


async def _finish(stage: Stage, process: Process, poll: float) -> None:
    """Consume until nothing is left to wait for."""
    chance = stage.world.stream(f"actor {process.name}")
    async with PawnQueue.open(SETTINGS, store=process.store, clock=process.clock) as queue:
        for _ in range(60 if poll == POLL else 240):
            try:
                most = 10 if poll == POLL else chance.choice((1, 4, 12, 20))
                claim = await claimed(stage, process, queue, max_messages=most, ttl=30.0)
            except StoreError as error:
                await shaken(stage, process, error)  # without conditional writes, a write that took long proves nothing
                continue
            if claim:
                stage.believe(process, claim)
                stage.stops(process, claim)
                note(stage, claim, await ack(stage, queue, claim, claim.ids))
                if poll > POLL:
                    continue
            elif not _is_there_work(stage):
                break
            await process.clock.sleep(chance.uniform(8, POLL))
    stage.truth.judge_no_more()


def _is_there_work(stage: Stage) -> bool:
    folders = (units.folder(TOPIC), units.packs_folder(TOPIC), layout.leases(TOPIC))
    return any(not is_exempt(stage, key) for folder in folders for key in stage.world.bucket.below(folder))


async def _sweep_up(process: Process) -> None:
    """Sweep through what has to be waited for: claims that end, locks of redrives, retention, the age of leftovers."""
    async with PawnQueue.open(SETTINGS, store=process.store, clock=process.clock) as queue:
        for pause in (60.0, 60.0, 120.0, 600.0, RETENTION + 60, RETENTION + 60, 3700.0, RETENTION + 60, 10.0):
            await process.clock.sleep(pause)
            with suppress(StoreError):
                await sweep(queue, TOPIC)


def ids_left(stage: Stage) -> Iterable[str]:
    """Return the ids of what is in the topic, messages and dead letters, and of what its limits have removed."""
    bucket = stage.world.bucket
    yield from stage.removed
    for key in bucket.below(units.packs_folder(TOPIC)):
        unit = units.parse(key)
        with suppress(UnreadableRecordError, AttributeError):
            for line in pack.lines_of(bucket.body(key) or b"", unit.count if unit else 0, key):
                with suppress(ValueError):
                    yield json.loads(line).get("id", "")
    for folder in (units.folder(TOPIC), dead_letters.folder(TOPIC)):
        for key in bucket.below(folder):
            if not key.endswith(".reason.json"):
                with suppress(ValueError, AttributeError):
                    yield json.loads(bucket.body(key) or b"").get("id", "")


def garbage(stage: Stage) -> list[str]:
    """Promises 5 and 7: in calm weather no message and no garbage is left."""
    bucket = stage.world.bucket
    left = [
        key
        for folder in (
            units.folder(TOPIC),
            units.packs_folder(TOPIC),
            layout.leases(TOPIC),
            layout.claims(TOPIC),
            layout.PROBES,
        )
        for key in bucket.below(folder)
        if not is_exempt(stage, key)
    ]
    if bucket.body(STRANGER) not in (None, b"not ours"):
        left.append("a stranger's object was changed")
    letters = set(bucket.below(dead_letters.folder(TOPIC)))
    lone = [key for key in letters if key.endswith(".reason.json") and key.replace(".reason", "") not in letters]
    left += [key for key in lone if not is_exempt(stage, key)]
    return [f"left over: {key}" for key in sorted(left)]


def is_exempt(stage: Stage, key: str) -> bool:
    """Say whether a fault that stays keeps an object: a message, what belongs to it, a claim that had it."""
    if key == STRANGER:
        return True
    if not stage.exempt:
        return False
    if any(unit in key for unit in stage.exempt):
        return True
    if not key.startswith(layout.claims(TOPIC)):
        return False
    body = stage.world.bucket.body(key) or b""
    return any(unit.encode() in body for unit in stage.exempt)
