"""A schedule of staged writes: committers that die, sweeps, an abort, a topic made anew; then calm, and judgement.

What the bucket showed is judged: all of a write was published, or nothing of it; none stays undone. What was consumed
is published again by a request that lands late, and by no other one.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING
from unittest import mock  # it patches a number, and fakes nothing

from pawnqueue import PawnQueue, PawnQueueError, QueueClosedError, TopicNotEmptyError, TopicNotFoundError
from pawnqueue.catalog import units
from pawnqueue.domain import layout
from pawnqueue.domain.pack import lines_of, read_entry
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.domain.write_record import WriteRecord
from pawnqueue.publish import decided_writes
from tests.sim.prepared import TOPIC, establish
from tests.sim.stage import ALL_SETTINGS, RETENTION, SETTINGS

if TYPE_CHECKING:
    import random

    from pawnqueue.stores.port import StoredObject
    from tests.sim.processes import Process
    from tests.sim.world import World

LASTS = 150.0
#: Three to a note of progress: eight rows have three chunks. Staged as packs, they are two, with a note for each.
CHUNK, ROWS, PARTS = 3, 8, 2
#: Each is written for a while: what nobody decides then is never decided.
EACH = 25.0
IDS = tuple(f"w{number}" for number in range(int(LASTS // EACH) + 1))


def writing(world: World) -> list[str]:
    """Run one such schedule to its end, and return every promise that it broke."""
    packs = True if world.stream("packs").random() < 0.5 else None
    with mock.patch.object(decided_writes, "PIECES_PER_NOTE", 1 if packs else CHUNK):
        return world.run(partial(_writing, packs=packs))


class _Seen:
    """What the bucket showed of each write."""

    def __init__(self, world: World, *, packs: bool | None) -> None:
        self._world = world
        self.packs = packs
        self.published: dict[str, set[str]] = defaultdict(set)
        self.committed: set[str] = set()
        self.made_anew = False
        self._names: dict[str, set[str]] = defaultdict(set)  # under which each message was published
        self._again: set[str] = set()  # names that were published again
        self._late: set[str] = set()  # and those of which a late request was one
        self._expected = {write_id: set(_ids(write_id)) for write_id in IDS}

    def see(self, who: str, key: str, before: StoredObject | None, after: StoredObject | None) -> None:
        """See :attr:`tests.sim.bucket.SimBucket.observers`."""
        del who
        parsed = units.parse(key) if key.startswith((units.folder(TOPIC), units.packs_folder(TOPIC))) else None
        if parsed is None or after is None or parsed.name == _stranger(parsed.id):
            return
        is_pack = layout.is_pack_name(parsed.name)
        shown = (
            {read_entry(line, key).id for line in lines_of(after.body, parsed.count, key)} if is_pack else {parsed.id}
        )
        for write_id, ids in self._expected.items():
            self.published[write_id] |= shown & ids
            for one in shown & ids:
                if before is None and parsed.name in self._names[one]:
                    self._again.add(parsed.name)
                self._names[one].add(parsed.name)
        # §7: it belongs to a dead process, or to one that has given it up: it has heard a failure, and sent it again.
        request = self._world.landing
        if request is None or not request.process.alive or request.future.done():
            self._late.add(parsed.name)

    def violations(self, world: World) -> list[str]:
        """Return every promise that was broken."""
        broken = []
        for write_id, ids in self._expected.items():
            found = self.published[write_id]
            if write_id in self.committed and found != ids:
                broken.append(f"lost: write {write_id} was committed, and {len(ids - found)} rows were never published")
            if found not in (set(), ids) and not self.made_anew:
                broken.append(f"half: of write {write_id} {len(found)} of {len(ids)} rows were published")
        if not self.made_anew:
            broken += [
                f"again: {name} was published after it was consumed" for name in sorted(self._again - self._late)
            ]
            twice = {one: names for one, names in self._names.items() if len(names) > 1}
            broken += [f"twice: {one} was published under {len(names)} names" for one, names in twice.items()]
        for key in world.bucket.below(layout.writes(TOPIC)):
            try:
                state = WriteRecord.decode(world.bucket.body(key) or b"", key).state
            except UnreadableRecordError:
                state = "begun"
            if state == "begun":
                broken.append(f"waits for ever: {key} is not done")
        if left := [*world.bucket.below(units.folder(TOPIC)), *world.bucket.below(units.packs_folder(TOPIC))]:
            broken.append(f"waits for ever: {len(left)} messages or packs are left")
        return broken


def _stranger(uuid: str) -> str:
    """Return the name of a message that no write has published."""
    return units.name_at(0.0, uuid)


def _ids(write_id: str) -> list[str]:
    return [layout.written_id(TOPIC, write_id, part, place) for part in range(PARTS) for place in range(ROWS // PARTS)]


async def _writing(world: World, *, packs: bool | None) -> list[str]:
    chance = world.stream("writing")
    establish(world.bucket, TOPIC, packs=packs)
    seen = _Seen(world, packs=packs)
    world.bucket.observers.append(seen.see)
    actors = {"W1": _commit, "W2": _commit, "W3": _commit, "C1": consume, "C2": consume, "J1": sweep}
    if chance.random() < 0.3:
        actors["D1"] = _make_anew
    if world.stream("parts").random() < 0.5:
        actors["C3"] = consume_in_parts
    if world.stream("strangers").random() < 0.3:
        actors["P1"] = _publish_under_a_rows_uuid
    for name, actor in actors.items():
        process = world.process(name)
        process.spawn(_again(process, world.stream(f"actor {name}"), actor, seen))
        process.trouble(LASTS, 80)
    await world.until_idle(at_most=600.0)
    for process in world.processes.values():
        process.kill()
    await world.calm()
    last = world.process("X")
    last.spawn(_finish(last, packs=packs))
    if not await world.until_idle(at_most=50_000.0):
        return ["waits for ever: somebody has not come to an end in calm weather"]
    return seen.violations(world)


async def _again(process: Process, chance: random.Random, actor: object, seen: _Seen) -> None:
    world, settings = process.world, chance.choice(ALL_SETTINGS[RETENTION])
    while world.loop.now < LASTS:
        try:
            async with PawnQueue.open(settings, store=process.store, clock=process.clock) as queue:
                while world.loop.now < LASTS:
                    await actor(process, queue, chance, seen)  # type: ignore[operator]
                    await process.clock.sleep(chance.uniform(0, 6))
        except (PawnQueueError, QueueClosedError):
            await process.clock.sleep(chance.uniform(0, 4))


async def _commit(process: Process, queue: PawnQueue, chance: random.Random, seen: _Seen) -> None:
    write_id = IDS[int(process.world.loop.now // EACH)]
    size = ROWS // PARTS
    parts = [
        await queue.stage(TOPIC, write_id, part, [{"n": part * size + place} for place in range(size)])
        for part in range(PARTS)
    ]
    if chance.random() < 0.2:
        await queue.abort_write(TOPIC, write_id, parts)
        return
    written = await queue.commit_write(TOPIC, write_id, parts, wait=chance.choice((0, 40)))
    assert written.count == ROWS
    if not seen.made_anew:
        seen.committed.add(write_id)


async def consume(_: Process, queue: PawnQueue, chance: random.Random, __: object) -> None:
    """Claim some messages, and ack them."""
    claim = await queue.claim(TOPIC, "c", max_messages=chance.choice((1, 3, 10)), ttl=8.0)
    if claim:
        await queue.ack(claim)


async def consume_in_parts(process: Process, queue: PawnQueue, chance: random.Random, __: object) -> None:
    """Settle in all the ways there are: packs are split, given back in part, and buried."""
    claim_id = None if chance.random() < 0.6 else f"{process.name}-{chance.randrange(10**9)}"
    claim = await queue.claim(TOPIC, "c", max_messages=chance.choice((1, 2, 10)), ttl=8.0, claim_id=claim_id)
    some = [message for message in claim if chance.random() < 0.5]
    if some:
        await queue.ack(claim, some)
    how = chance.choice(("ack", "requeue", "bury", "leave"))
    if len(some) < len(claim) and how == "ack":
        await queue.ack(claim)
    elif len(some) < len(claim) and how != "leave":
        await queue.nack(claim, reason="bad", requeue=how == "requeue")
    if chance.random() < 0.3:
        await queue.redrive(TOPIC)


async def sweep(_: Process, queue: PawnQueue, __: random.Random, ___: object) -> None:
    """Sweep the topic."""
    await queue.sweep(TOPIC)


async def _publish_under_a_rows_uuid(process: Process, _: PawnQueue, chance: random.Random, __: _Seen) -> None:
    """Publish a message under the uuid of a row, which anybody can tell beforehand; half of them are malformed."""
    uuid = chance.choice(_ids(chance.choice(IDS[int(process.world.loop.now // EACH) :])))
    body = chance.choice((b"x", b'{"id":"stranger","payload":{}}'))
    await process.store.put(units.key_of(TOPIC, _stranger(uuid)), body)


async def _make_anew(process: Process, queue: PawnQueue, chance: random.Random, seen: _Seen) -> None:
    await process.clock.sleep(chance.uniform(0, LASTS / 2))
    seen.made_anew = True  # what was committed before goes with the topic
    seen.committed.clear()
    try:
        await queue.delete_topic(TOPIC, force=chance.random() < 0.5)
    except (TopicNotEmptyError, TopicNotFoundError):
        pass
    finally:
        await queue.create_topic(TOPIC, packs=seen.packs)


async def _finish(process: Process, *, packs: bool | None) -> None:
    """Create the topic if it is gone, and sweep and consume until every claim and every write has come to its end."""
    async with PawnQueue.open(SETTINGS, store=process.store, clock=process.clock) as queue:
        await queue.create_topic(TOPIC, packs=packs)
        for _ in range(12):
            await process.clock.sleep(60)
            await queue.sweep(TOPIC)
            await queue.redrive(TOPIC)
            while claim := await queue.claim(TOPIC, "c", max_messages=100):
                await queue.ack(claim)
