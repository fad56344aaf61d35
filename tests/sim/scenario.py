"""One schedule: everyone against each other in bad weather, then calm, then judgement.

Everyone uses the engine's own front door. What they believe is written into a :class:`~tests.support.history.History`,
and what the bucket holds in the end is looked at directly.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from airflow_provider_pawnqueue.engine import (
    Claim,
    ClaimBusyError,
    ClaimReference,
    LeaseLostError,
    PawnQueue,
    PublishError,
    Settings,
    StoreError,
    layout,
)
from airflow_provider_pawnqueue.engine.records import TopicRecord, TopicSettings
from tests.sim.prepared import establish
from tests.support.history import History, Holder

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Iterable

    from airflow_provider_pawnqueue.engine.janitor import Verdict
    from airflow_provider_pawnqueue.engine.records import ClaimRecord
    from airflow_provider_pawnqueue.engine.store.port import StoredObject
    from tests.sim.processes import Process
    from tests.sim.world import World

    Actor: TypeAlias = Callable[["Stage", Process, PawnQueue, random.Random], Awaitable[None]]

TOPIC = "orders"
RETENTION = 900.0
#: Some topics forget closed claims as soon as they may.
SHORT_RETENTION = 20.0
BAD_UUID = "00000000-0000-4000-8000-000000000bad"
BAD_NAME = f"20260101T000000_000000-{BAD_UUID}.json"
STRANGER = f"{TOPIC}/messages/notes.txt"
#: How long everything of a schedule may be troubled, in virtual seconds.
TROUBLED = 150.0

#: A claim's time may be hardly longer than the margin: what is safe at the edge is safe everywhere.
TTLS = (4.5, 8.0, 20.0)


def _settings(patience: float, retention: float) -> Settings:
    return Settings(
        s3={"bucket_name": "simulated"},
        claims={"margin_seconds": 2.0, "max_claim_age_seconds": 240.0, "record_retention_seconds": retention},
        polling={"visibility_timeout_seconds": 20.0, "lease_refresh_interval_seconds": 5.0},
        retry={"budget_seconds": patience, "initial_delay_seconds": 0.1},
    )


#: Patient processes try failed requests again; those without patience meet every failure themselves.
SETTINGS = _settings(15.0, RETENTION)
ALL_SETTINGS = {
    retention: [_settings(patience, retention) for patience in (15.0, 3.0, 0.0)]
    for retention in (RETENTION, SHORT_RETENTION)
}


@dataclass
class Stage:
    """What the actors of one schedule share."""

    world: World
    chance: random.Random
    history: History = field(default_factory=History)
    references: list[ClaimReference] = field(default_factory=list)
    reborn: set[str] = field(default_factory=set)
    retention: float = RETENTION
    _names: dict[str, str] = field(default_factory=dict)

    def virtual(self, process: Process, deadline: float) -> float:
        """Return the world's time at which a process's clock shows its deadline."""
        return self.world.loop.now + (deadline - process.clock.elapsed()) / process.clock.rate

    def watch(self, who: str, key: str, before: StoredObject | None, after: StoredObject | None) -> None:
        """Notice a publisher that sends a message again after it was settled: the duplicate that section 7 names."""
        parsed = layout.parse_message(key) if key.startswith(layout.messages(TOPIC)) else None
        if parsed is None or before is not None or after is None:
            return
        if parsed.uuid in self._names and who.startswith("P"):
            self.reborn.add(parsed.uuid)  # a publisher's key has the message's id in it
        self._names[parsed.uuid] = key


def schedule(world: World) -> list[str]:
    """Run one schedule to its end, and return every promise that it broke."""
    return world.run(_schedule)


async def _schedule(world: World) -> list[str]:
    stage = Stage(world, world.stream("scenario"))
    world.bucket.observers.append(stage.watch)
    establish(world.bucket)
    stage.retention = stage.chance.choice((RETENTION, SHORT_RETENTION))
    most = stage.chance.choice((None, 1, 3, 10))
    record = TopicRecord(topic=TOPIC, settings=TopicSettings(max_deliveries=most))
    world.bucket.plant(layout.topic_marker(TOPIC), record.encode())
    _plant_bad_things(stage)
    for name in ("P1", "P2"):
        _start(stage, name, publisher)
    for name in ("A", "B", "C"):
        _start(stage, name, consumer)
    if stage.chance.random() < 0.4:  # a zombie and its retry: one claim id, one owner, two processes
        for name in ("Z1", "Z2"):
            _start(stage, name, forked)
    for name in ("R1", "R2"):
        _start(stage, name, redriver)
    _start(stage, "J1", janitor)
    _start(stage, "J2", dag_janitor)
    await world.until_idle(at_most=600.0)
    for process in world.processes.values():
        process.kill()
    await world.calm()
    return await _afterwards(stage)


def _plant_bad_things(stage: Stage) -> None:
    """Put into the topic what no publisher of ours wrote: promise 6 says that none of it blocks the others."""
    bucket, chance = stage.world.bucket, stage.chance
    if chance.random() < 0.3:
        bucket.plant(layout.message(TOPIC, BAD_NAME), chance.choice((b"", b"{", b"[1]", b'{"id":7}', b"\xff")))
        if chance.random() < 0.5:
            bucket.plant(layout.lease(TOPIC, BAD_UUID), chance.choice((b"", b"null", b'{"v":1,"until":"x"}')))
    if chance.random() < 0.2:
        bucket.plant(STRANGER, b"not ours")


def _start(stage: Stage, name: str, actor: Actor) -> None:
    process = stage.world.process(name)
    process.spawn(_act(stage, process, actor))
    process.trouble(TROUBLED, 120)


async def _act(stage: Stage, process: Process, actor: Actor) -> None:
    chance = stage.world.stream(f"actor {process.name}")
    settings = chance.choice(ALL_SETTINGS[stage.retention])
    await process.clock.sleep(chance.uniform(0, 5))
    for _ in range(20):
        with suppress(StoreError):
            async with PawnQueue.open(settings, store=process.store, clock=process.clock) as queue:
                try:
                    await actor(stage, process, queue, chance)
                finally:
                    stage.history.leave(process.name, stage.world.loop.now)  # closing gives back what it has
                return


# --- who acts ---


async def publisher(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Publish a few messages."""
    for _ in range(chance.choice((1, 2))):
        await process.clock.sleep(chance.uniform(0, 15))
        try:
            ids = await queue.publish(TOPIC, [{"n": number} for number in range(chance.choice((1, 2)))])
        except PublishError as error:
            ids = error.published
        except StoreError:
            continue
        stage.history.published.update(ids)


async def consumer(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Claim, work, settle, in all the ways there are."""
    claim_id: str | None = None
    for number in range(6):
        await process.clock.sleep(chance.uniform(0, 12))
        ttl = chance.choice(TTLS)
        try:
            if stage.references and chance.random() < 0.5:
                claim = await queue.attach(stage.references.pop(), ttl=ttl)
            else:
                # Half of them claim by an id, and by the same one again after a failure, as a task's retry does.
                if claim_id is None and chance.random() < 0.5:
                    claim_id = f"{process.name}-{number}"
                most = chance.choice((1, 2, 3))
                claim = await queue.claim(TOPIC, process.name, max_messages=most, ttl=ttl, claim_id=claim_id)
            if claim:
                claim_id = None
            await _work(stage, process, queue, claim, chance, ttl)
        except (StoreError, LeaseLostError, ClaimBusyError):
            continue


async def forked(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Claim by an id that another process uses as well, as a zombie and its retry do."""
    for attempt in range(5):
        await process.clock.sleep(chance.uniform(0, 8))
        owner = f"run-{attempt}" if chance.random() < 0.3 else "run"
        ttl = chance.choice(TTLS)
        with suppress(StoreError, LeaseLostError, ClaimBusyError):
            claim = await queue.claim(TOPIC, process.name, max_messages=2, ttl=ttl, claim_id="job", owner=owner)
            await _work(stage, process, queue, claim, chance, ttl)


async def redriver(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Give dead letters back."""
    for _ in range(5):
        await process.clock.sleep(chance.uniform(2, 25))
        with suppress(StoreError):
            await queue.redrive(TOPIC)


async def janitor(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Sweep."""
    for _ in range(4):
        await process.clock.sleep(chance.uniform(0, 30))
        with suppress(StoreError):
            await queue.sweep(TOPIC, dry_run=chance.random() < 0.1)


async def dag_janitor(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Sweep on behalf of DAG runs: some go on, some have ended although their process is alive and knows nothing."""

    async def ask(record: ClaimRecord) -> Verdict | None:
        await process.clock.sleep(chance.uniform(0, 1))
        return chance.choice(("going", "ended", None))

    for _ in range(8):
        await process.clock.sleep(chance.uniform(0, 15))
        with suppress(StoreError):
            await queue.sweep(TOPIC, ask=ask)


async def _work(  # noqa: PLR0913, PLR0917 - who works, on what, and for how long
    stage: Stage, process: Process, queue: PawnQueue, claim: Claim, chance: random.Random, ttl: float
) -> None:
    """Work on a claim, keeping it, and settle it somehow; what is believed is written down on the way."""
    if not claim:
        return
    holder = holder_of(process, claim)
    unit_of = units(claim)
    deadline = stage.virtual(process, claim.deadline)
    for one in claim.ids:
        stage.history.hold(holder, unit_of[one], one, stage.world.loop.now, deadline)
    if chance.random() < 0.3:  # some work without ever renewing, up to their time and past it
        await process.clock.sleep(chance.uniform(0, 1.3) * ttl)
    if not await _keep(stage, process, queue, claim, chance, ttl) and chance.random() < 0.5:
        return  # it was lost; the other half tries to settle all the same
    if chance.random() < 0.1:
        return  # it forgets what it has
    stage.history.drop(holder, stage.world.loop.now)  # who settles, or hands over, has stopped working
    if chance.random() < 0.15:
        stage.references.append(claim.hand_over())
        return
    await _settle(stage, process, queue, claim, chance)


async def _keep(  # noqa: PLR0913, PLR0917 - as above
    stage: Stage, process: Process, queue: PawnQueue, claim: Claim, chance: random.Random, ttl: float
) -> bool:
    """Renew a claim some times, and say whether it is still ours as far as is known."""
    holder = holder_of(process, claim)
    for _ in range(chance.choice((0, 0, 1, 3, 6))):
        await process.clock.sleep(min(chance.expovariate(3 / ttl), ttl))
        try:
            await queue.renew(claim, ttl=chance.choice(TTLS))
        except LeaseLostError:
            stage.history.drop(holder, stage.world.loop.now)
            return False
        except StoreError:
            if chance.random() < 0.5:  # nobody knows whether it was renewed: work on for as long as it is trusted
                await process.clock.sleep(max(0.0, 0.9 * (claim.deadline - process.clock.elapsed())))
            continue
        stage.history.extend(holder, stage.virtual(process, claim.deadline))
    return True


def holder_of(process: Process, claim: Claim) -> Holder:
    """Return who has the claim, as the history knows them."""
    return Holder(process.name, f"{claim.claim_id}.{claim.generation}", claim.session)


def units(claim: Claim) -> dict[str, str]:
    """Return under which unit each of the claim's messages is kept."""
    return {one: uuid for uuid, one in claim._uuids.items()}


async def _settle(stage: Stage, process: Process, queue: PawnQueue, claim: Claim, chance: random.Random) -> None:
    unit_of = units(claim)
    ids = list(claim.ids)
    while ids:
        some, ids = (ids, []) if chance.random() < 0.6 else (ids[:1], ids[1:])
        draw = chance.random()
        if draw < 0.65:
            stage.history.asked_to_ack.update(some)
            result = await queue.ack(claim, some)
        elif draw < 0.8:
            result = await queue.nack(claim, some, reason="drawn")
        else:
            result = await queue.nack(claim, some, requeue=True, delay=chance.choice((0, 0, 5, 25)))
        now = stage.world.loop.now
        stage.history.acked += [(now, one, claim.claim_id) for one in result.acked]
        for how in ("acked", "buried", "released"):
            for one in getattr(result, how):
                stage.history.settled.append((now, unit_of[one], claim.claim_id, how))
        if chance.random() < 0.3:
            await process.clock.sleep(chance.uniform(0, 3))


# --- afterwards ---


async def _afterwards(stage: Stage) -> list[str]:
    """Let two consumers and a janitor finish in calm weather, and judge."""
    world = stage.world
    for name in ("X", "Y"):
        process = world.process(name)
        process.spawn(_finish(stage, process))
    sweeper = world.process("J9")
    sweeper.spawn(_sweep_up(sweeper))
    finished = await world.until_idle(at_most=50_000.0)
    broken = [] if finished else ["waits for ever: somebody has not come to an end in calm weather"]
    return broken + stage.history.violations(left=set(_ids_left(stage)), reborn=stage.reborn) + _garbage(stage)


async def _finish(stage: Stage, process: Process) -> None:
    """Consume until nothing is left to wait for."""
    chance = stage.world.stream(f"actor {process.name}")
    async with PawnQueue.open(SETTINGS, store=process.store, clock=process.clock) as queue:
        for _ in range(60):
            try:
                claim = await queue.claim(TOPIC, process.name, max_messages=10, ttl=30.0)
            except StoreError:
                continue  # without conditional writes, a write that took long proves nothing
            if claim:
                holder = holder_of(process, claim)
                unit_of = units(claim)
                for one in claim.ids:
                    deadline = stage.virtual(process, claim.deadline)
                    stage.history.hold(holder, unit_of[one], one, stage.world.loop.now, deadline)
                stage.history.drop(holder, stage.world.loop.now)
                await _ack_all(stage, queue, claim, unit_of)
            elif not _is_there_work(stage):
                return
            await process.clock.sleep(chance.uniform(8, 16))


def _is_there_work(stage: Stage) -> bool:
    folders = (layout.messages(TOPIC), layout.leases(TOPIC))
    return any(key != STRANGER for folder in folders for key in stage.world.bucket.below(folder))


async def _ack_all(stage: Stage, queue: PawnQueue, claim: Claim, unit_of: dict[str, str]) -> None:
    stage.history.asked_to_ack.update(claim.ids)
    result = await queue.ack(claim)
    now = stage.world.loop.now
    stage.history.acked += [(now, one, claim.claim_id) for one in result.acked]
    stage.history.settled += [(now, unit_of[one], claim.claim_id, "acked") for one in result.acked]


async def _sweep_up(process: Process) -> None:
    """Sweep through what has to be waited for: claims that end, locks of redrives, retention, the age of leftovers."""
    async with PawnQueue.open(SETTINGS, store=process.store, clock=process.clock) as queue:
        for pause in (60.0, 60.0, 120.0, 600.0, RETENTION + 60, RETENTION + 60, 3700.0, RETENTION + 60, 10.0):
            await process.clock.sleep(pause)
            with suppress(StoreError):
                await queue.sweep(TOPIC)


def _ids_left(stage: Stage) -> Iterable[str]:
    bucket = stage.world.bucket
    for folder in (layout.messages(TOPIC), layout.dead_letters(TOPIC)):
        for key in bucket.below(folder):
            if not key.endswith(".reason.json"):
                with suppress(ValueError, AttributeError):
                    yield json.loads(bucket.body(key) or b"").get("id", "")


def _garbage(stage: Stage) -> list[str]:
    """Promises 5 and 7: in calm weather no message and no garbage is left."""
    bucket = stage.world.bucket
    left = [
        key
        for folder in (layout.messages(TOPIC), layout.leases(TOPIC), layout.claims(TOPIC), layout.PROBES)
        for key in bucket.below(folder)
        if key != STRANGER
    ]
    if bucket.body(STRANGER) not in (None, b"not ours"):
        left.append("a stranger's object was changed")
    letters = set(bucket.below(layout.dead_letters(TOPIC)))
    left += [key for key in letters if key.endswith(".reason.json") and key.replace(".reason", "") not in letters]
    return [f"left over: {key}" for key in sorted(left)]
