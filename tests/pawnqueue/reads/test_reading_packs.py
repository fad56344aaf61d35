"""Packs to those that only look: counted, peeked at, found and read by portions, a message at a time."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import CompatibilityError, LeaseLostError, Portion
from pawnqueue.catalog import units
from pawnqueue.domain import pack
from tests.pawnqueue.virtual import TOPIC, TTL, World
from tests.pawnqueue.virtual import numbers as shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pawnqueue import FetchedPortion, Message
    from tests.pawnqueue.virtual import Process


@pytest.fixture
def world(packed_world: World) -> World:
    """A bucket with a topic that allows packs."""
    return packed_world


def single(world: World, number: int) -> str:
    """Put a single message there, and return its uuid."""
    uuid = world.clock.uuid()
    name = units.name_at(world.clock.server(), uuid)
    world.bucket.plant(units.key_of(TOPIC, name), json.dumps({"id": uuid, "payload": {"n": number}}))
    return uuid


async def mixed(world: World) -> list[str]:
    """A pack, a single message, and another pack: five messages, in this order. Return the units' ids."""
    found = [world.plant_pack(2)]
    await world.later(1)
    found.append(single(world, 2))
    await world.later(1)
    return [*found, world.plant_pack(2, 3)]


async def counted(process: Process) -> tuple[int, int, int]:
    """Return how many messages are pending, in flight and delayed, and check that the backlog agrees."""
    stats = await process.queue.stats(TOPIC)
    assert (await process.queue.backlog(TOPIC)).pending == stats.pending
    return stats.pending, stats.in_flight, stats.delayed


# --- what it costs ---


@pytest.mark.parametrize("packs", [None, False, True])
async def test_only_a_topic_that_may_have_packs_costs_their_list(world: World, packs: Any) -> None:  # noqa: ANN401 - a setting
    """A topic that never allowed packs is listed as it always was; one that forbids new ones may still have some."""
    world.topic("mine", packs=packs)
    ann = await world.process()
    more = packs is not None
    await ann.queue._topic("mine", "test")
    for look, lists in (
        (ann.queue.stats("mine"), 3),  # one of them shows both kinds
        (ann.queue.backlog("mine"), 1),
        (ann.queue.peek("mine"), 1 + more),
        (ann.queue.find("mine", world.clock.uuid()), 1 + 2 * more),  # and the letters, by their ids
        (ann.queue.portions("mine"), 1 + more),
    ):
        with ann.client.counting() as requests:
            await look
        assert requests["LIST"] == lists


# --- counting ---


async def test_messages_of_packs_are_counted(world: World, ann: Process) -> None:
    """A pack counts as its messages: pending, and once it is claimed, in flight."""
    await mixed(world)
    assert await counted(ann) == (5, 0, 0)
    claim = await ann.queue.claim(TOPIC, "c", max_messages=4)
    assert len(claim) == 4
    assert await counted(ann) == (1, 4, 0)
    await ann.queue.ack(claim)
    assert await counted(ann) == (1, 0, 0)


async def test_of_a_pack_that_was_given_back_only_what_is_left_counts(world: World, ann: Process) -> None:
    """Its lease is read: it names the messages that are not finished, and those that wait."""
    world.plant_pack(100)
    claim = await ann.queue.claim(TOPIC, "c", max_messages=100)
    await ann.queue.requeue(claim, list(claim[:3]))
    await ann.queue.requeue(claim, [claim[3]], delay=1000)
    await ann.queue.nack(claim, [claim[4]], reason="bad")
    await ann.queue.ack(claim)
    assert await counted(ann) == (3, 0, 1)
    assert (await ann.queue.stats(TOPIC)).dead == 1
    await world.later(2000)
    assert await counted(ann) == (4, 0, 0)
    with ann.client.counting() as requests:
        await ann.queue.stats(TOPIC)
    assert requests == {"LIST": 3, "GET": 1}


async def test_a_pack_that_is_delayed_as_a_whole_is_delayed(world: World, ann: Process) -> None:
    """Nothing of it is pending before the first of its messages is due."""
    world.plant_pack(10)
    claim = await ann.queue.claim(TOPIC, "c", max_messages=10)
    await ann.queue.ack(claim, [claim[0]])
    await ann.queue.requeue(claim, delay=1000)
    assert await counted(ann) == (0, 0, 9)
    assert (await ann.queue.backlog(TOPIC)).oldest_age_seconds is None


async def test_slices_of_a_pack_are_counted_apart(world: World, ann: Process) -> None:
    """Of a pack that is split, one slice is in flight, one finished, one waits for its delay, and the others wait."""
    world.plant_pack(50)
    held = await ann.queue.claim(TOPIC, "c", max_messages=10)
    await ann.queue.ack(await ann.queue.claim(TOPIC, "c", max_messages=10))
    later = await ann.queue.claim(TOPIC, "c", max_messages=10)
    await ann.queue.ack(later, [later[0]])
    await ann.queue.requeue(later, delay=1000)
    assert await counted(ann) == (20, 10, 9)
    await world.later()
    assert await counted(ann) == (30, 0, 9)
    assert held.lost is None


async def test_what_a_claim_that_is_over_leaves_is_pending(world: World, ann: Process) -> None:
    """⚑ §5.7: a program that waits for pending messages sees what a dead process has not settled, and nothing else."""
    world.plant_pack(10)
    claim = await ann.queue.claim(TOPIC, "c", max_messages=10)
    await ann.queue.ack(claim, [claim[0], claim[1]])
    await ann.queue.requeue(claim, [claim[2]])
    await world.later()
    bob = await world.process()
    stats = await bob.queue.stats(TOPIC)
    assert (stats.pending, stats.in_flight) == (8, 2)
    await bob.queue.sweep(TOPIC)
    assert await counted(bob) == (8, 0, 0)


async def test_a_claim_that_was_renewed_keeps_its_packs_in_flight(world: World, ann: Process) -> None:
    """Its leases look overdue, and its record says that it lives."""
    world.plant_pack(10)
    claim = await ann.queue.claim(TOPIC, "c", max_messages=10)
    for _ in range(4):
        await world.later(15)
        await ann.queue.renew(claim)
    await ann.queue.ack(claim, [claim[0]])
    assert await counted(ann) == (0, 10, 0)


async def test_a_backlog_has_enough_with_one_pack(world: World, ann: Process) -> None:
    """It stops at the first page on which there are enough messages, however few objects these are."""
    world.plant_pack(500)
    assert (await ann.queue.backlog(TOPIC, at_least=100)).pending == 500


# --- peek and find ---


async def test_peek_shows_single_messages_and_packs_in_publish_order(world: World, ann: Process) -> None:
    """It shows as many as are wanted, and no more."""
    await mixed(world)
    for most in range(1, 7):
        assert shown(await ann.queue.peek(TOPIC, most)) == list(range(min(most, 5)))
    assert {message.deliveries for message in await ann.queue.peek(TOPIC)} == {0}


@pytest.mark.parametrize("most", [4, 10])
async def test_peek_shows_nothing_that_is_finished(world: World, ann: Process, most: int) -> None:
    """Of a pack, whether it is split or not, only messages that are not finished are shown, claimed or not."""
    world.plant_pack(10)
    claim = await ann.queue.claim(TOPIC, "c", max_messages=most)
    await ann.queue.requeue(claim, [claim[1]], delay=100)
    await ann.queue.nack(claim, [claim[2]], reason="bad")
    await ann.queue.ack(claim)
    assert shown(await ann.queue.peek(TOPIC)) == [1, *range(most, 10)]
    if most == 4:
        assert len(await ann.queue.claim(TOPIC, "c", max_messages=most)) == most
        assert shown(await ann.queue.peek(TOPIC)) == [1, *range(most, 10)]


async def test_peek_leaves_out_what_it_cannot_read(world: World) -> None:
    """⚑ §5.6: garbage concerns its own message, or its own pack."""
    too_large = json.dumps({"id": "l", "payload": {"n": 8, "x": "x" * 100_000}}).encode()
    world.plant_lines([b'{"id":"a","payload":{"n":0}}', b"no json", b'{"id":"c","payload":{"n":2},"v":99}', too_large])
    await world.later(1)
    name = units.pack_name_at(world.clock.server(), world.clock.uuid(), 2)
    world.bucket.plant(units.key_of(TOPIC, name), b"garbage")
    world.bucket.plant(f"{TOPIC}/packs/stranger", b"")
    await world.later(1)
    world.plant_pack(1, 1)
    ann = await world.process(limits={"max_payload_bytes": 1000})
    assert shown(await ann.queue.peek(TOPIC)) == [0, 1]
    stats = await ann.queue.stats(TOPIC)
    assert (stats.pending, stats.strangers) == (7, 1)


async def test_a_message_is_found_in_its_pack(world: World, ann: Process) -> None:
    """Wherever it is in its life: pending, in flight, delayed, dead, or nowhere any more."""
    await mixed(world)
    peeked = await ann.queue.peek(TOPIC)
    key = units.key_of(TOPIC, world.bucket.below("packs/")[0])
    acked, later, dead = peeked[0].id, peeked[1].id, peeked[3].id
    found = await ann.queue.find(TOPIC, acked)
    assert found is not None
    assert (found.id, found.state, found.key, found.deliveries) == (acked, "pending", key, 0)

    claim = await ann.queue.claim(TOPIC, "ann", max_messages=4)
    found = await ann.queue.find(TOPIC, acked)
    assert found is not None
    assert (found.state, found.deliveries, found.consumer) == ("in_flight", 1, "ann")
    assert found.until is not None

    await ann.queue.ack(claim, [acked])
    await ann.queue.requeue(claim, [later], delay=100)
    await ann.queue.nack(claim, [dead], reason="bad", error="it")
    await ann.queue.requeue(claim)
    assert await ann.queue.find(TOPIC, acked) is None
    found = await ann.queue.find(TOPIC, later)
    assert found is not None
    assert (found.state, found.deliveries) == ("delayed", 1)
    assert found.until is not None
    assert 90 < found.until.timestamp() - world.clock.server() < 110
    found = await ann.queue.find(TOPIC, dead)
    assert found is not None
    assert (found.state, found.reason, found.error, found.deliveries) == ("dead", "bad", "it", 1)
    assert found.key == f"{TOPIC}/dead-letter/{found.id}.json"
    assert await ann.queue.find(TOPIC, found.id) == found
    assert await ann.queue.find(TOPIC, world.clock.uuid()) is None
    await world.later(200)
    found = await ann.queue.find(TOPIC, later)
    assert found is not None
    assert (found.state, found.until) == ("pending", None)


async def test_a_message_is_found_in_a_slice(world: World, ann: Process) -> None:
    """The slice that it is in says what became of it."""
    world.plant_pack(9)
    ids = [message.id for message in await ann.queue.peek(TOPIC)]
    await ann.queue.ack(await ann.queue.claim(TOPIC, "c", max_messages=3))
    await ann.queue.claim(TOPIC, "c", max_messages=3)
    states = [await ann.queue.find(TOPIC, each) for each in ids]
    assert [found and found.state for found in states] == [None] * 3 + ["in_flight"] * 3 + ["pending"] * 3
    assert [found.deliveries for found in states if found] == [1] * 3 + [0] * 3


async def test_a_single_message_is_found_without_reading_packs(world: World, ann: Process) -> None:
    """The LIST tells where it is."""
    uuid = (await mixed(world))[1]
    with ann.client.counting() as requests:
        found = await ann.queue.find(TOPIC, uuid)
    assert found is not None
    assert found.state == "pending"
    assert requests == {"GET": 1, "LIST": 2}


# --- portions ---


async def read(process: Process, portions: Sequence[Portion]) -> list[Any]:
    """Read them all, as another process gets them."""
    passed: list[Portion] = pickle.loads(pickle.dumps(list(portions)))  # noqa: S301
    return [message for portion in passed for message in await process.queue.read(portion)]


async def packed_claim(world: World, process: Process, most: int = 100) -> Any:  # noqa: ANN401 - a claim
    """Claim from three packs of ten messages each."""
    for first in (0, 10, 20):
        world.plant_pack(10, first)
    return await process.queue.claim(TOPIC, "c", max_messages=most)


@pytest.mark.parametrize("most", [4, 10, 25, 30])
async def test_a_claim_of_packs_is_read_by_others(world: World, ann: Process, most: int) -> None:
    """Its portions are its messages, in order, as its holder has them, and reading them changes nothing."""
    claim = await packed_claim(world, ann, most)
    bob = await world.process()
    before = world.bucket.snapshot()
    portions = await bob.queue.portions(claim.reference, parts=3)
    assert await read(bob, portions) == list(claim)
    assert await bob.queue.messages(claim.reference) == list(claim)
    assert sum(map(len, portions)) == len(claim)
    assert world.bucket.snapshot() == before


async def test_deliveries_are_told_by_message(world: World, ann: Process) -> None:
    """A pack of which one message was given back has messages with different deliveries."""
    world.plant_pack(3)
    await ann.queue.requeue(await ann.queue.claim(TOPIC, "c", max_messages=3))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=3)
    await ann.queue.ack(claim, [claim[0]])
    found = await read(ann, await ann.queue.portions(claim.reference))
    assert found == list(claim)[1:]
    assert [message.deliveries for message in found] == [2, 2]
    assert await ann.queue.messages(claim.reference) == found


async def test_a_portion_with_a_settled_message_fails(world: World, ann: Process) -> None:
    """⚑ §4: all or none: a job does not make a result of messages that its claim has not."""
    claim = await packed_claim(world, ann)
    portions = await ann.queue.portions(claim.reference, parts=3)
    await ann.queue.requeue(claim, [claim[12]])
    assert await read(ann, [portions[0], portions[2]]) == [*claim[:10], *claim[20:]]
    with pytest.raises(LeaseLostError, match="was settled in part since these portions were made"):
        await ann.queue.read(portions[1])


async def test_a_portion_of_a_claim_that_has_ended_fails(world: World, ann: Process) -> None:
    """⚑ §4: others may have its messages, although its packs are where they were."""
    claim = await packed_claim(world, ann)
    portions = await ann.queue.portions(claim.reference, parts=1)
    await world.later()
    bob = await world.process()
    assert await bob.queue.claim(TOPIC, "bob", max_messages=100)
    with pytest.raises(LeaseLostError, match="has ended since these portions were made"):
        await read(bob, portions)
    with pytest.raises(LeaseLostError, match="was taken over"):
        await bob.queue.portions(claim.reference)


@pytest.mark.parametrize("body", [None, b"garbage", pack.pack_body([b"x"] * 10)])
async def test_a_portion_with_a_pack_that_was_overwritten_fails(world: World, ann: Process, body: bytes | None) -> None:
    """It is said which pack, and that it is not what was claimed."""
    claim = await packed_claim(world, ann)
    portions = await ann.queue.portions(claim.reference, parts=1)
    key = units.key_of(TOPIC, world.bucket.below("packs/")[1])
    world.bucket.remove(key)
    if body is not None:
        world.bucket.plant(key, body)
    with pytest.raises(LeaseLostError, match="does not exist any more" if body is None else "was overwritten"):
        await read(ann, portions)


@pytest.mark.parametrize("line", [b"no json", b'{"id":"x","payload":{"n":0},"v":99}'])
async def test_what_was_overwritten_is_settled_and_the_others_are_read(world: World, ann: Process, line: bytes) -> None:
    """As a stream does it: it takes out what is no longer a message, or none for it, and reads the others again."""
    claim = await packed_claim(world, ann)
    portions = await ann.queue.portions(claim.reference, parts=3)
    key = units.key_of(TOPIC, world.bucket.below("packs/")[1])
    lines = pack.lines_of(world.bucket.body(key), 10, key)
    await world.later(5)
    world.bucket.plant(key, pack.pack_body([*lines[:3], line, *lines[4:]]))
    with pytest.raises((LeaseLostError, CompatibilityError)):
        await read(ann, portions)
    bad = claim[13].unit
    assert await ann.queue.settle_overwritten(claim) == [bad]
    again = await ann.queue.portions(claim.reference)
    assert shown(await read(ann, again)) == [n for n in range(30) if n != 13]
    await ann.queue.ack(claim)
    assert (await ann.queue.stats(TOPIC)).dead == (line == b"no json")


#: Lines as other programs may write them, each with the payload that a consumer is given; None: it is malformed.
LINES = {
    b' { "id" : "a" , "payload" : { "n" : 7 } } ': {"n": 7},
    b'{"id":"a","payload":{"n":1e999},"payload":{"n":7}}': None,
    b'{"id":"a","payload":{"n":1,"n":7}}': {"n": 7},
    b'{"id":"a","created_at":"yesterday","payload":{"n":7}}': {"n": 7},
    b'{"id":"a","created_at":"2026-02-30T00:00:00.000000+00:00","payload":{"n":7}}': {"n": 7},
    b'{"id":"a","created_at":"2026-02-03T01:02:03.000004+00:00","payload":{"n":7}}': {"n": 7},
    b'{"id":"a","created_at":"0001-01-01T00:00:00.000000+05:00","payload":{"n":7}}': {"n": 7},
    b'{"id":"a","headers":{"x":"y"},"producer_id":"p","payload":{"n":7},"mine":[]}': {"n": 7},
    b'{"id":"a","payload":' + b'{"n":' * 600 + b"7" + b"}" * 601: None,
    b"no json": None,
}


@pytest.mark.parametrize("line", LINES)
async def test_columns_have_what_messages_have(world: World, ann: Process, line: bytes) -> None:
    """A line may be written by any program. Of a topic, what is malformed is left out."""
    world.plant_pack(30)
    key = units.key_of(TOPIC, world.bucket.below("packs/")[0])
    lines = pack.lines_of(world.bucket.body(key), 30, key)
    world.bucket.plant(key, pack.pack_body([*lines[:3], line, *lines[4:]]))
    single(world, 30)
    [portion] = await ann.queue.portions(TOPIC, parts=1)

    messages = await ann.queue.read(portion)
    payload = LINES[line]
    assert [message.payload for message in messages if message.id == "a"] == ([] if payload is None else [payload])
    assert len(messages) == 30 + (payload is not None)
    assert table(await ann.queue.fetch(portion)) == [row(message) for message in messages]


async def test_columns_of_a_claim_are_its_unsettled_messages(world: World, ann: Process) -> None:
    """Also where some of a pack's messages were delivered more often than others."""
    claim = await packed_claim(world, ann)
    await ann.queue.requeue(claim, [message.id for message in claim][:25])
    again = await ann.queue.claim(TOPIC, "c", max_messages=100, ttl=TTL)
    await ann.queue.ack(again, [message.id for message in again][1::2])
    [portion] = await ann.queue.portions(again.reference, parts=1)

    messages = await ann.queue.read(portion)
    assert messages
    assert table(await ann.queue.fetch(portion)) == [row(message) for message in messages]


async def test_slices_of_a_pack_are_read_in_their_order(world: World, ann: Process) -> None:
    """A pack that was split has its first messages first, and its tenth before its second hundred."""
    world.plant_pack(20)
    await ann.queue.requeue(await ann.queue.claim(TOPIC, "c", max_messages=5, ttl=TTL))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=100, ttl=TTL)
    portions = await ann.queue.portions(claim.reference)
    assert shown(await read(ann, portions)) == list(range(20))


async def test_large_messages_of_packs_are_made_into_columns_a_few_at_a_time(world: World, ann: Process) -> None:
    """⚑ §1: small objects may expand to more than memory has room for, one after the other."""
    line = b'{"id":"a","payload":{"x":"' + b"x" * 10**6 + b'"}}'
    for _ in range(2):
        world.plant_lines([line] * 6 + [b'{"id":"b"}'] + [line] * 3)
        await world.later(1)
    [portion] = await ann.queue.portions(TOPIC, parts=1)
    assert [len(columns) for columns in (await ann.queue.fetch(portion)).columns()] == [4, 4, 1, 4, 4, 1]


def row(message: Message) -> tuple[Any, ...]:
    """Return what a message has in the columns of a table."""
    told = message.id, message.producer_id, message.created_at, message.payload
    return *told, message.headers, message.deliveries


def table(fetched: FetchedPortion) -> list[tuple[Any, ...]]:
    """Return the rows of a portion."""
    rows: list[tuple[Any, ...]] = []
    for of in fetched.columns(at_least=1):
        told = of.ids, of.producer_ids, of.times(), of.payloads
        rows += zip(*told, of.headers, of.deliveries, strict=True)
    return rows


async def test_a_pack_is_never_cut(world: World, ann: Process) -> None:
    """However few messages a portion is to have, it has whole packs."""
    claim = await packed_claim(world, ann)
    [portion] = await ann.queue.portions(claim.reference, parts=1)
    for most, begin in ((15, 10), (20, 20), (5, 10)):
        first, rest = portion.split_off(most)
        assert (len(first), len(rest)) == (begin, 30 - begin)
    assert [len(each) for each in await ann.queue.portions(claim.reference, parts=50)] == [10, 10, 10]


async def test_a_topic_is_read_by_portions(world: World, ann: Process) -> None:
    """Single messages and packs, in order, but for what is finished; and again what has come since, each once."""
    await mixed(world)
    await ann.queue.ack(await ann.queue.claim(TOPIC, "c", max_messages=1))
    portions = await ann.queue.portions(TOPIC, parts=3)
    assert len(portions) == 3
    assert shown(await read(ann, portions)) == [1, 2, 3, 4]
    world.plant_pack(2, 5)
    single(world, 7)
    fresh = [await ann.queue.look_again(portion) for portion in portions]
    assert sorted(shown(await read(ann, fresh))) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("most", [1, 2, 3, 4, 5, 9])
async def test_of_a_topic_so_many_messages(world: World, ann: Process, most: int, parts: int) -> None:
    """``max_messages`` counts messages, also within a pack, and looking again does not add to them."""
    await mixed(world)
    portions = await ann.queue.portions(TOPIC, parts=parts, max_messages=most)
    assert shown(await read(ann, portions)) == list(range(min(most, 5)))
    again = [await ann.queue.look_again(portion) for portion in portions]
    assert shown(await read(ann, again)) == list(range(min(most, 5)))


async def test_what_was_read_is_settled_by_its_holder(world: World, ann: Process) -> None:
    """A message that another process has read, by a portion, names itself to the claim."""
    claim = await packed_claim(world, ann, 4)
    found: list[Message] = await read(ann, await ann.queue.portions(claim.reference))
    done = await ann.queue.settle(claim, bury={found[1]: "bad"}, requeue={found[2]: "again"})
    assert (done.buried, done.released) == ([found[1].id], [found[2].id])
    assert sorted(done.acked) == sorted([found[0].id, found[3].id])
