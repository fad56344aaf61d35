"""What somebody forges about packs by hand: it concerns its own object, and the others are delivered."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from itertools import groupby, pairwise

import pytest

from pawnqueue.catalog import letters, units
from pawnqueue.claims import burying
from pawnqueue.domain import layout, pack, share
from pawnqueue.domain import lease as leases
from pawnqueue.domain.size_hint import padded
from tests.pawnqueue.virtual import TOPIC, World, numbers


@pytest.fixture
def world(packed_world: World) -> World:
    """A bucket with a topic that allows packs."""
    return packed_world


async def test_a_message_is_buried_over_a_letter_that_is_not_its_own(world: World) -> None:
    """⚑ §5.1: somebody who knows a pack's uuid can plant a letter in the place of another: it is not taken for that."""
    uuid = layout.uuid_of(world.plant_pack(3))
    letter_id = pack.letter_id(uuid, 1)
    world.fill([])
    planted = units.key_of(TOPIC, units.name_at(world.clock.server() - 60, letter_id))
    world.bucket.plant(planted, "not a message")
    ann = await world.process()
    for _ in range(2):
        claim = await ann.queue.claim(TOPIC, "c", max_messages=9)
        await ann.queue.ack(claim, [each for each in claim if each.payload["n"] != 1])
        await ann.queue.nack(claim, reason="bad")
    assert json.loads(world.bucket.body(letters.key_of(TOPIC, letter_id)))["payload"] == {"n": 1}


async def test_a_pack_that_takes_long_to_read_lets_others_work(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """⚑ §5.6: a small object may have 64 MiB of lines. While they are read, claims of the process are renewed.

    ⚑ §1: one pack at a time is expanded.
    """
    line = b'{"id":"a","payload":{"x":"' + b"x" * 2**18 + b'"}}'
    for second in (1e9, 1e9 + 1):
        name = units.pack_name_at(second, world.clock.uuid(), 12)
        world.bucket.plant(units.key_of(TOPIC, name), pack.pack_body([line] * 12))
    turns = 0
    read: list[tuple[str, int]] = []
    read_entry = pack.read_entry

    def take_turn() -> None:
        nonlocal turns
        turns += 1

    def reading(line: bytes, key: str) -> pack.PackEntry:
        read.append((key, turns))
        asyncio.get_running_loop().call_soon(take_turn)
        return read_entry(line, key)

    ann = await world.process()
    monkeypatch.setattr(pack, "read_entry", reading)
    assert len(await ann.queue.claim(TOPIC, "c", max_messages=100)) == 24
    keys = [key for key, _ in read]
    assert keys == [keys[0]] * 12 + [keys[-1]] * 12
    for key in (keys[0], keys[-1]):
        assert len({turn for each, turn in read if each == key}) >= 3


async def test_garbage_in_a_slice_s_lease_does_not_hold_it_for_ever(world: World) -> None:
    """⚑ §5.7: a size that says that a slice is finished is believed until all others are: then the lease is read."""
    unit_id = world.plant_pack(4)
    ann = await world.process()
    claim = await ann.queue.claim(TOPIC, "c", max_messages=2)
    await ann.queue.ack(claim)
    other = layout.slice_id(layout.uuid_of(unit_id), 2, 4)
    world.bucket.plant(layout.lease(TOPIC, other), padded(b"garbage", 3, 0.0))
    await world.later(60)
    for _ in range(4):
        claim = await ann.queue.claim(TOPIC, "c", max_messages=2)
        assert set(numbers(claim)) <= {2, 3}
        if claim:
            break
        await world.later(60)
    assert numbers(claim) == [2, 3]


async def test_two_packs_under_one_uuid_that_are_both_split_stop_nobody(world: World) -> None:
    """⚑ §5.6: slices of two packs may have the same names. Each is judged by the lease that split its pack."""
    uuid = world.clock.uuid()
    for first, count in ((0, 12), (100, 9)):
        lines = [json.dumps({"id": f"{first + n}", "payload": {"n": first + n}}).encode() for n in range(count)]
        name = units.pack_name_at(1e9 + first, uuid, count)
        world.bucket.plant(units.key_of(TOPIC, name), pack.pack_body(lines))
        unit = units.parse(name)
        assert unit is not None
        split = leases.split(unit.id, name, share.fresh(unit.numbers), 3, consumer="c", now=world.clock.server())
        world.bucket.plant(layout.lease(TOPIC, unit.id), split.encode())
    ann = await world.process()
    had: list[int] = []
    for _ in range(20):
        claim = await ann.queue.claim(TOPIC, "c", max_messages=3)
        had += numbers(claim)
        await ann.queue.ack(claim)
        await world.later(60)
    assert sorted(had) == [*range(12), *range(100, 109)]
    assert not world.bucket.below("leases/")


@pytest.mark.parametrize("seconds", [-60, 60])
async def test_a_pack_under_the_uuid_of_another_one_can_only_keep_it_waiting(world: World, seconds: float) -> None:
    """⚑ §5.4: what was acked of a pack is not delivered again, whatever else is published under its uuid."""
    unit_id = world.plant_pack(3)
    planted = units.pack_name_at(world.clock.server() + seconds, layout.uuid_of(unit_id), 3)
    newer = b'{"id":"a","payload":{},"v":99}'
    ann = await world.process()
    if seconds > 0:
        claim = await ann.queue.claim(TOPIC, "c", max_messages=3)
        await ann.queue.ack(claim, claim[:1])
        await ann.queue.requeue(claim)
    world.bucket.plant(units.key_of(TOPIC, planted), pack.pack_body([newer, b'{"id":"b","payload":{"n":9}}', newer]))
    had: list[int] = []
    for _ in range(9):
        await world.later(60)
        claim = await ann.queue.claim(TOPIC, "c", max_messages=9)
        had += numbers(claim)
        await ann.queue.ack(claim)
    assert sorted(had) == ([1, 2, 9] if seconds > 0 else [9])
    world.bucket.remove(units.key_of(TOPIC, planted))
    if seconds < 0:
        world.bucket.remove(layout.lease(TOPIC, unit_id))
    for _ in range(12):
        await world.later(60)
        claim = await ann.queue.claim(TOPIC, "c", max_messages=9)
        had += numbers(claim)
        await ann.queue.ack(claim)
    assert sorted(had) == ([1, 2, 9] if seconds > 0 else [0, 1, 2, 9])


async def test_packs_that_are_looked_at_are_read_one_after_the_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """⚑ §1: one pack at a time is expanded, for those who only look, too."""
    line = b'{"id":"a","payload":{"x":"' + b"x" * 2**18 + b'"}}'
    for second in (1e9, 1e9 + 1):
        name = units.pack_name_at(second, world.clock.uuid(), 12)
        world.bucket.plant(units.key_of(TOPIC, name), pack.pack_body([line] * 12))
    keys: list[str] = []
    read_entry = pack.read_entry

    def reading(line: bytes, key: str) -> pack.PackEntry:
        keys.append(key)
        return read_entry(line, key)

    ann = await world.process()
    monkeypatch.setattr(pack, "read_entry", reading)
    assert len(await ann.queue.peek(TOPIC, 24)) == 24
    changes = sum(one != other for one, other in pairwise(key for key, _ in groupby(keys)))
    assert changes <= 3  # each is read, and its messages are made


async def test_bad_lines_of_many_packs_are_not_in_memory_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """⚑ §1: small objects may expand to 64 MiB of bad lines each. What is buried at once has 64 MiB together."""
    count, size = 12, 2**20
    for number in range(12):
        name = units.pack_name_at(1e9 + number, world.clock.uuid(), count)
        world.bucket.plant(units.key_of(TOPIC, name), pack.pack_body([bytes([65 + number]) * size] * count))
    left: Counter[int] = Counter()
    most = 0

    async def create(_context: object, _key: str, line: bytes) -> None:
        nonlocal most
        left.setdefault(line[0], count)
        most = max(most, sum(count * size for each in left.values() if each))
        await asyncio.sleep(0)
        left[line[0]] -= 1

    monkeypatch.setattr(burying, "_create", create)
    ann = await world.process()
    for _ in range(9):
        assert not await ann.queue.claim(TOPIC, "c", max_messages=1000)
        await world.later(60)
    assert not world.bucket.below("packs/")
    assert len(left) == 12
    assert most <= 64 * 2**20
