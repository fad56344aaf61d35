"""A schedule of deduplication: publishers of the same keys that die, consumers that ack at once, sweeps; then calm.

What the bucket showed is judged: in a topic's window, no two messages of one key; a message that a call returned, new
or as a duplicate, was in the topic. What was consumed is published again by a request that lands late, and by no other.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING
from unittest import mock  # it patches numbers, and fakes nothing

from pawnqueue import PawnQueue, PawnQueueError, PublishError, QueueClosedError, TopicNotEmptyError, TopicNotFoundError
from pawnqueue.catalog import units
from pawnqueue.domain import layout
from pawnqueue.domain.pack import lines_of, read_entry
from pawnqueue.maintenance import sweep_claims, sweep_dedup
from pawnqueue.publish import dedup_log, publish_once
from tests.sim.prepared import TOPIC, establish
from tests.sim.stage import ALL_SETTINGS, SETTINGS, SHORT_RETENTION
from tests.sim.store import TIMEOUT
from tests.sim.writing import consume, consume_in_parts, sweep

if TYPE_CHECKING:
    import random

    from pawnqueue.stores.port import StoredObject
    from tests.sim.processes import Process
    from tests.sim.world import World

LASTS = 150.0
#: The keys change after this time.
EACH = 25.0
KEYS = 6
#: Nothing is over in the first; in the others a key may be published again.
WINDOWS = (600.0, 600.0, 600.0, 20.0)


def keys(world: World) -> list[str]:
    """Run one such schedule to its end, and return every promise that it broke."""
    chance = world.stream("about")
    packs = True if chance.random() < 0.6 else None
    window = chance.choice(WINDOWS)
    with ExitStack() as stack:
        for module, name, value in (
            (dedup_log, "SEAL_ROWS", chance.choice((2, 5, 2048))),
            (publish_once, "MAX_SINGLES", chance.choice((2, 250))),
            # Longer than a reservation: a publisher whose PUT has no answer looks for traces until that is over.
            (sweep_claims, "TRACE_RETENTION_SECONDS", chance.choice((35.0, 60.0))),
            (sweep_dedup, "KEPT_AFTER_WINDOW_SECONDS", 40.0),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        return world.run(partial(_keys, packs=packs, window=window))


class _Seen:
    """What the bucket showed of each message, and what was said of each call."""

    def __init__(self, world: World, *, packs: bool | None, window: float) -> None:
        self._world = world
        self.packs = packs
        self.window = window
        self.made_anew = False
        self.created = 0.0  # when the topic was created last
        self.returned: list[tuple[str, str, float]] = []  # key, id, and when the call began
        self._stored: dict[str, float] = {}  # when each message was stored last
        self._ids: dict[str, set[str]] = defaultdict(set)  # of each key
        self._again: set[str] = set()
        self._late: set[str] = set()

    def see(self, who: str, key: str, before: StoredObject | None, after: StoredObject | None) -> None:
        """See :attr:`tests.sim.bucket.SimBucket.observers`."""
        del who
        parsed = units.parse(key) if key.startswith((units.folder(TOPIC), units.packs_folder(TOPIC))) else None
        request = self._world.landing
        if parsed is None or after is None or before is not None or (request is not None and request.kind == "COPY"):
            return  # a redrive copies a message, under the same id
        is_pack = layout.is_pack_name(parsed.name)
        lines = lines_of(after.body, parsed.count, key) if is_pack else [after.body]
        # §7: it belongs to a dead process, or to one that has given it up.
        is_late = request is None or not request.process.alive or request.sent + TIMEOUT < self._world.loop.now
        for entry in (read_entry(line, key) for line in lines):
            assert entry.dedup_key is not None
            if entry.id in self._stored:
                self._again.add(entry.id)
            if is_late:
                self._late.add(entry.id)
            self._stored[entry.id] = self._world.loop.now
            self._ids[entry.dedup_key].add(entry.id)

    def violations(self, world: World) -> list[str]:
        """Return every promise that was broken."""
        broken = []
        for key, message_id, began in self.returned:
            stored = self._stored.get(message_id)
            if stored is None or (self.made_anew and began > self.created > stored):
                broken.append(f"swallowed: message {message_id} of key {key} was never in the topic")
        if not self.made_anew and self.window > LASTS:
            broken += [f"twice: {len(ids)} messages of key {key}" for key, ids in self._ids.items() if len(ids) > 1]
            broken += [f"again: message {one} was published once more" for one in sorted(self._again - self._late)]
        if left := [*world.bucket.below(units.folder(TOPIC)), *world.bucket.below(units.packs_folder(TOPIC))]:
            broken.append(f"waits for ever: {len(left)} messages or packs are left")
        return broken


async def _keys(world: World, *, packs: bool | None, window: float) -> list[str]:
    chance = world.stream("keys")
    establish(world.bucket, TOPIC, packs=packs, dedup_window_seconds=window)
    seen = _Seen(world, packs=packs, window=window)
    world.bucket.observers.append(seen.see)
    actors = {"P1": _publish, "P2": _publish, "P3": _publish, "C1": consume, "C2": consume, "J1": sweep}
    if chance.random() < 0.3:
        actors["D1"] = _make_anew
    if world.stream("parts").random() < 0.5:
        actors["C3"] = consume_in_parts
    for name, actor in actors.items():
        process = world.process(name)
        process.spawn(_again(process, world.stream(f"actor {name}"), actor, seen))
        process.trouble(LASTS, 60)
    await world.until_idle(at_most=600.0)
    for process in world.processes.values():
        process.kill()
    await world.calm()
    last = world.process("X")
    last.spawn(_finish(last, seen))
    if not await world.until_idle(at_most=50_000.0):
        return ["waits for ever: somebody has not come to an end in calm weather"]
    return seen.violations(world)


async def _again(process: Process, chance: random.Random, actor: object, seen: _Seen) -> None:
    world, settings = process.world, chance.choice(ALL_SETTINGS[SHORT_RETENTION])
    while world.loop.now < LASTS:
        try:
            async with PawnQueue.open(settings, store=process.store, clock=process.clock) as queue:
                while world.loop.now < LASTS:
                    await actor(process, queue, chance, seen)  # type: ignore[operator]
                    await process.clock.sleep(chance.uniform(0, 6))
        except (PawnQueueError, QueueClosedError):
            await process.clock.sleep(chance.uniform(0, 4))


async def _publish(process: Process, queue: PawnQueue, chance: random.Random, seen: _Seen) -> None:
    epoch = int(process.world.loop.now // EACH)
    names = [f"k{epoch}-{number}" for number in range(KEYS)]
    some = [chance.choice(names)] if chance.random() < 0.5 else [chance.choice(names) for _ in range(KEYS)]
    await _publish_keys(process, queue, some, seen, pack=bool(seen.packs) and chance.random() < 0.5)


async def _publish_keys(process: Process, queue: PawnQueue, some: list[str], seen: _Seen, *, pack: bool) -> None:
    began = process.world.loop.now
    payloads = [{"key": key} for key in some]
    try:
        ids = await queue.publish(TOPIC, payloads, dedup_key=lambda payload: payload["key"], pack=pack)
    except PublishError as error:
        good = set(error.published)
        seen.returned += [(key, each, began) for key, each in zip(some, error.ids, strict=True) if each in good]
        return
    seen.returned += [(key, each, began) for key, each in zip(some, ids, strict=True)]


async def _make_anew(process: Process, queue: PawnQueue, chance: random.Random, seen: _Seen) -> None:
    await process.clock.sleep(chance.uniform(0, LASTS / 2))
    seen.made_anew = True
    try:
        await queue.delete_topic(TOPIC, force=chance.random() < 0.5)
        seen.created = process.world.loop.now
    except (TopicNotEmptyError, TopicNotFoundError):
        pass
    finally:
        await queue.create_topic(TOPIC, packs=seen.packs, dedup_window_seconds=seen.window)


async def _finish(process: Process, seen: _Seen) -> None:
    """Publish all keys once more, and sweep and consume until every message has come to its end."""
    async with PawnQueue.open(SETTINGS, store=process.store, clock=process.clock) as queue:
        await queue.create_topic(TOPIC, packs=seen.packs)
        for round_ in range(12):
            await process.clock.sleep(60)
            if round_ == 1:
                for epoch in range(int(LASTS // EACH) + 1):
                    names = [f"k{epoch}-{number}" for number in range(KEYS)]
                    await _publish_keys(process, queue, names, seen, pack=False)
            await queue.sweep(TOPIC)
            await queue.redrive(TOPIC)
            while claim := await queue.claim(TOPIC, "c", max_messages=100):
                await queue.ack(claim)
