"""Claims of packs: each message is settled by itself, and nobody is given more than was asked for."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from pawnqueue import InvalidArgumentError, LeaseLostError
from pawnqueue.catalog import letters, units
from pawnqueue.domain import layout, numbers, pack
from pawnqueue.events import GivenBack, MessageBuried, QueueClosed
from tests.pawnqueue.virtual import TOPIC, Died, Fault, World, numbered
from tests.pawnqueue.virtual import numbers as shown

if TYPE_CHECKING:
    from pawnqueue.events import Event
    from tests.pawnqueue.virtual import Process


@pytest.fixture
def world(packed_world: World) -> World:
    """A bucket with a topic that allows packs."""
    return packed_world


async def drained(process: Process, *, most: int = 1000, rounds: int = 30) -> dict[int, int]:
    """Claim and ack until two polls find nothing; return the deliveries of each message, by its number."""
    had: dict[int, int] = {}
    empty = 0
    for _ in range(rounds):
        claim = await process.queue.claim(TOPIC, "drain", max_messages=most)
        had.update({message.payload["n"]: message.deliveries for message in claim})
        await process.queue.ack(claim)
        empty = 0 if claim else empty + 1
        if empty > 1:
            return had
        await process.queue._context.clock.sleep(15)
    raise AssertionError("it is not drained")


def is_empty(world: World) -> bool:
    """Say whether neither a pack nor a lease is left."""
    return not world.bucket.below("packs/") and not world.bucket.below("leases/")


# --- what a claim has ---


@pytest.mark.parametrize("most", [1, 3, 10, 11, 1000])
async def test_nobody_is_given_more_than_was_asked_for(world: World, most: int) -> None:
    """A claim has at most ``max_messages``, in order, of as many packs as fit it whole, or a part of the first."""
    for first in (0, 5, 10):
        world.plant_pack(5, first)
        await world.later(1)
    ann = await world.process()
    had: list[int] = []
    while claim := await ann.queue.claim(TOPIC, "c", max_messages=most):
        assert len(claim) <= most
        had += shown(claim)
        await ann.queue.ack(claim)
    assert had == list(range(15))
    assert is_empty(world)


async def test_a_claim_of_packs_keeps_to_its_bytes(world: World) -> None:
    """⚑ A claim with ``max_bytes`` has no more than that of lines, but for its first message; the rest is delivered."""
    world.plant_pack(40)
    line = len(pack.lines_of(world.bucket.body(f"{TOPIC}/packs/{world.bucket.below('packs/')[0]}"), 40, "")[0])
    ann = await world.process()
    had: list[int] = []
    while claim := await ann.queue.claim(TOPIC, "c", max_messages=100, max_bytes=5 * line + 20):
        assert len(claim) <= 5
        assert {message.deliveries for message in claim} == {1}
        had += shown(claim)
        await ann.queue.ack(claim)
    assert sorted(had) == list(range(40))
    assert is_empty(world)


async def test_a_claim_of_packs_costs_a_few_requests(world: World) -> None:
    """Claim and ack of a pack take as many requests as of one message, however many it has."""
    ann = await world.process()
    costs = []
    for count in (1, 1, 1000):
        world.plant_pack(count)
        await world.later(15)
        before = len(ann.client.requests)
        claim = await ann.queue.claim(TOPIC, "c", max_messages=1000)
        assert len(claim) == count
        assert (await ann.queue.ack(claim)).complete
        costs.append(ann.client.requests[before:])
    assert [kind for kind, _ in costs[1]] == [kind for kind, _ in costs[2]]


async def test_single_messages_and_packs_are_claimed_apart(world: World) -> None:
    """A claim has single messages or packs: versions that know no packs see the leases of the first."""
    ann = await world.process()
    world.plant_pack(5)
    await world.later(1)
    world.fill([json.dumps({"id": f"s{n}", "payload": {"n": 5 + n}}) for n in range(2)])
    kinds = []
    while claim := await ann.queue.claim(TOPIC, "c", max_messages=100):
        kinds.append({layout.is_of_pack(message.unit) for message in claim})
        record = world.bucket.record(claim.stem)
        assert json.loads(world.bucket.body(layout.claim(TOPIC, claim.stem)))["v"] == (2 if record.has_packs else 1)
        await ann.queue.ack(claim)
    assert sorted(kinds, key=str) == [{False}, {True}]


async def test_messages_of_a_claim_are_read_as_they_are_needed(world: World) -> None:
    """A claim of packs is a sequence like any other: length, iteration, indices, slices, ids."""
    for first in (0, 3):
        world.plant_pack(3, first)
        await world.later(1)
    ann = await world.process()
    claim = await ann.queue.claim(TOPIC, "c", max_messages=10)
    assert len(claim) == 6
    assert shown(claim) == shown(claim.messages) == list(range(6))
    assert claim[-1].payload == {"n": 5}
    assert shown(claim[1:4]) == [1, 2, 3]
    assert claim.ids == [message.id for message in claim]
    assert len({message.unit for message in claim}) == 6
    with pytest.raises(IndexError):
        claim[6]


# --- settling ---


async def test_each_message_is_settled_by_itself(world: World) -> None:
    """Of one pack, some messages are acked, some buried, some given back; only the last are delivered again."""
    unit = world.plant_pack(10)
    ann = await world.process()
    claim = await ann.queue.claim(TOPIC, "c", max_messages=10)
    assert (await ann.queue.ack(claim, [claim[0], claim[1].id])).acked == [claim[0].id, claim[1].id]
    assert (await ann.queue.nack(claim, [claim[2]], reason="bad", error="it")).buried == [claim[2].id]
    assert (await ann.queue.requeue(claim, [claim[3].id], reason="later")).released == [claim[3].id]
    done = await ann.queue.ack(claim)
    assert done.acked == [claim[0].id, claim[1].id, *claim.ids[4:]]
    assert (done.buried, done.released, done.complete) == ([claim[2].id], [claim[3].id], True)
    assert await drained(ann) == {3: 2}
    assert is_empty(world)
    [letter] = await ann.queue.dead_letters(TOPIC)
    assert letter.message is not None
    assert (letter.reason, letter.error, letter.deliveries, letter.message.payload) == ("bad", "it", 1, {"n": 2})
    assert letter.id == pack.letter_id(layout.uuid_of(unit), 2)


async def test_what_was_decided_first_stays(world: World) -> None:
    """A message that was acked is not given back by a later call, and the answer says so."""
    world.plant_pack(4)
    ann = await world.process()
    claim = await ann.queue.claim(TOPIC, "c", max_messages=4)
    await ann.queue.ack(claim, claim[0])
    done = await ann.queue.requeue(claim)
    assert (done.acked, done.released) == ([claim[0].id], claim.ids[1:])
    again = await ann.queue.ack(claim)
    assert (again.acked, again.released) == ([claim[0].id], claim.ids[1:])
    assert await drained(ann) == {1: 2, 2: 2, 3: 2}


async def test_the_rest_is_acked_beside_what_is_named(world: World) -> None:
    """``settle`` acks all messages but those that are named, once each."""
    for first in (0, 3):
        world.plant_pack(3, first)
        await world.later(1)
    ann = await world.process()
    claim = await ann.queue.claim(TOPIC, "c", max_messages=6)
    done = await ann.queue.settle(claim, requeue={claim[1]: "again"}, bury={claim[5].id: "never"})
    assert sorted(done.acked) == sorted(claim.ids[n] for n in (0, 2, 3, 4))
    assert (done.released, done.buried) == ([claim.ids[1]], [claim.ids[5]])
    assert await drained(ann) == {1: 2}
    assert is_empty(world)


async def test_a_delay_concerns_its_message_alone(world: World) -> None:
    """A message that is given back with a delay waits for it, and the others of its pack do not wait."""
    world.plant_pack(4)
    ann = await world.process()
    claim = await ann.queue.claim(TOPIC, "c", max_messages=4)
    await ann.queue.requeue(claim, claim[0], delay=3000)
    await ann.queue.requeue(claim, claim[1])
    await ann.queue.ack(claim)
    assert await drained(ann) == {1: 2}
    await world.later(2500)
    assert await drained(ann) == {}
    await world.later(600)
    assert await drained(ann) == {0: 2}
    assert is_empty(world)


async def test_a_stranger_is_refused(world: World) -> None:
    """An id, and a message of another claim, are refused before anything is settled."""
    ann = await world.process()
    world.plant_pack(4)
    claim = await ann.queue.claim(TOPIC, "c", max_messages=2)
    for strange in ("e93663a6-9c83-4699-bf1a-737f04681b17", f"{layout.parse_entry(claim[0].unit)[0]}#3"):
        with pytest.raises(InvalidArgumentError, match="has no message"):
            await ann.queue.ack(claim, [claim[0].id, strange])
    assert not claim.decided
    await ann.queue.ack(claim)
    assert await drained(ann) == {2: 1, 3: 1}


async def test_a_claim_without_payloads_knows_its_messages_by_id(world: World) -> None:
    """A process that attaches without payloads settles by the ids that the first process saw."""
    world.plant_pack(5)
    ann, bob = await world.process(), await world.process()
    claim = await ann.queue.claim(TOPIC, "c", max_messages=5)
    ids = claim.ids
    attached = await bob.queue.attach(claim.hand_over(), payloads=False)
    assert len(attached) == 5
    done = await bob.queue.nack(attached, [ids[3]], reason="bad")
    assert done.buried == [ids[3]]
    assert (await bob.queue.ack(attached)).complete
    assert await drained(bob) == {}
    assert is_empty(world)


# --- what is not settled ---


async def test_what_is_given_back_by_closing_was_not_lost(world: World) -> None:
    """A queue that is closed gives its packs back; what was acked stays acked."""
    world.plant_pack(6)
    ann, bob = await world.process(), await world.process()
    claim = await ann.queue.claim(TOPIC, "c", max_messages=4)
    await ann.queue.ack(claim, [claim[0], claim[2]])
    told: list[Event] = []
    ann.queue._context.events._listener = told.append
    await ann.queue.aclose()
    assert [event.messages for event in told if isinstance(event, GivenBack | QueueClosed)] == [2, 2]
    assert await drained(bob) == {1: 2, 3: 2, 4: 1, 5: 1}
    assert is_empty(world)


@pytest.mark.parametrize("by", ["a poll", "a sweep"])
async def test_what_was_decided_is_carried_out_when_the_claim_lapses(world: World, by: str) -> None:
    """⚑ §5.4: of a pack that was settled in part, the next claim gets only what is undecided."""
    world.plant_pack(6)
    ann, bob = await world.process(), await world.process()
    claim = await ann.queue.claim(TOPIC, "c", max_messages=5)
    await ann.queue.ack(claim, [claim[0], claim[4]])
    await ann.queue.nack(claim, [claim[1]], reason="bad")
    await world.later()
    if by == "a sweep":
        await bob.queue.sweep(TOPIC)
    assert await drained(bob) == {2: 2, 3: 2, 5: 1}
    assert len(world.bucket.below("dead-letter/")) == 2
    assert is_empty(world)
    with pytest.raises(LeaseLostError):
        await ann.queue.ack(claim)


async def test_hand_outs_are_counted_for_each_message(world: World) -> None:
    """⚑ §4: a claim that dies before its record counts for nothing, and one that lapses for the messages it had."""
    world.plant_pack(4)
    ann, bob = await world.process(), await world.process()
    ann.client.faults.append(Fault("dies", "PUT", layout.claims(TOPIC) + "*"))
    with pytest.raises(Died):
        await ann.queue.claim(TOPIC, "c", max_messages=3)
    await world.later()
    claim = await bob.queue.claim(TOPIC, "c", max_messages=2)
    assert [message.deliveries for message in claim] == [1, 1]
    await world.later()
    assert await drained(bob) == {0: 2, 1: 2, 2: 1, 3: 1}


@pytest.mark.parametrize("most", [2, 3, 10])
async def test_one_poison_message_ends_alone(world: World, most: int) -> None:
    """⚑ §5.6: a message whose consumers die is tried in ever smaller groups: in the end it alone is buried."""
    world.topic(packs=True, max_deliveries=most)
    world.plant_pack(40)
    poison = 17
    acked: set[int] = set()
    for _ in range(100):
        ann = await world.process()
        claim = await ann.queue.claim(TOPIC, "c", max_messages=100)
        if poison in shown(claim):
            await world.later()  # its consumer is gone
        else:
            acked.update(shown(claim))
            await ann.queue.ack(claim)
    assert acked == set(range(40)) - {poison}
    ann = await world.process()
    [letter] = await ann.queue.dead_letters(TOPIC)
    assert letter.message is not None
    assert (letter.message.payload, letter.deliveries, letter.max_deliveries) == ({"n": poison}, most, most)
    assert is_empty(world)


# --- what others put there ---


async def test_a_malformed_line_is_buried_alone(world: World) -> None:
    """⚑ §5.6: a line that is not a message is buried byte for byte, and the others are delivered."""
    lines = [b'{"id":"a","payload":{"n":0}}', b"not json", b'{"id":"c","payload":{"n":2}}']
    uuid = layout.uuid_of(world.plant_lines(lines))
    ann = await world.process()
    assert await drained(ann) == {0: 1, 2: 1}
    letter = pack.letter_id(uuid, 1)
    assert world.bucket.body(letters.key_of(TOPIC, letter)) == b"not json"
    assert json.loads(world.bucket.body(letters.reason_key_of(TOPIC, letter)))["reason"] == "malformed"
    assert is_empty(world)


async def test_after_bad_packs_nobody_is_given_more_than_was_asked_for(world: World) -> None:
    """Many bad packs in a row do not make a claim of good ones larger."""
    for _ in range(12):
        name = units.pack_name_at(world.clock.server(), world.clock.uuid(), 3)
        world.bucket.plant(units.key_of(TOPIC, name), b"bad")
        await world.later(0.01)
    await world.later(1)
    world.plant_pack(100)
    ann = await world.process()
    sizes = []
    while sum(sizes) < 100:
        claim = await ann.queue.claim(TOPIC, "c", max_messages=2)
        sizes.append(len(claim))
        await ann.queue.ack(claim)
    assert max(sizes) == 2


@pytest.mark.parametrize("body", [b"", b"x" * 100, pack.pack_body([b"{}"] * 2), pack.pack_body([b"{}"] * 4)[:-40]])
async def test_an_object_that_is_not_a_pack_is_buried_as_it_is(world: World, body: bytes) -> None:
    """⚑ §5.6: garbage in a pack's place becomes one dead letter, byte for byte, and blocks nothing."""
    uuid = world.clock.uuid()
    world.bucket.plant(units.key_of(TOPIC, units.pack_name_at(1e9, uuid, 3)), body)
    world.plant_pack(3)
    ann = await world.process()
    told: list[Event] = []
    ann.queue._context.events._listener = told.append
    assert await drained(ann) == {0: 1, 1: 1, 2: 1}
    buried = [(event.message, event.reason) for event in told if isinstance(event, MessageBuried)]
    assert buried == [(uuid, "malformed")]
    assert world.bucket.body(letters.key_of(TOPIC, uuid)) == body
    assert is_empty(world)


async def test_a_line_of_a_newer_format_waits_for_newer_consumers(world: World) -> None:
    """⚑ §5.6: a message of a newer format is not buried, and the others of its pack are delivered."""
    lines = [b'{"id":"a","payload":{"n":0}}', b'{"id":"b","payload":{"n":1},"v":99}']
    world.plant_lines(lines)
    ann = await world.process()
    assert await drained(ann) == {0: 1}
    assert not world.bucket.below("dead-letter/")
    [lease] = [world.bucket.lease(name.removesuffix(".lease")) for name in world.bucket.below("leases/")]
    assert [(numbers.each(one.of), one.deliveries) for one in lease.shares] == [([1], 0)]


async def test_another_pack_under_the_same_uuid_does_not_undo_a_settlement(world: World) -> None:
    """⚑ §5.6: what is finished of a pack is known from its lease, which stays that pack's."""
    unit = world.plant_pack(3)
    [name] = world.bucket.below("packs/")
    ann, bob = await world.process(), await world.process()
    claim = await ann.queue.claim(TOPIC, "c", max_messages=2)
    await ann.queue.ack(claim)
    twin = units.pack_name_at(1e9, layout.uuid_of(unit), 3)
    world.bucket.plant(units.key_of(TOPIC, twin), pack.pack_body([b'{"id":"x","payload":{"n":9}}'] * 3))
    had: list[int] = []
    for _ in range(6):
        claim = await bob.queue.claim(TOPIC, "c", max_messages=10)
        had += shown(claim)
        await bob.queue.ack(claim)
        await world.later(15)
    assert sorted(had) == [2, 9, 9, 9]
    assert name not in world.bucket.below("packs/")


# --- claims by their ids ---


async def test_the_same_id_gets_the_same_messages(world: World) -> None:
    """A retry under a claim's id gets what is left of its packs, and never a second batch."""
    world.plant_pack(10)
    ann, bob = await world.process(), await world.process()
    claim = await ann.queue.claim(TOPIC, "c", max_messages=4, claim_id="run")
    await ann.queue.ack(claim, claim[1])
    await world.later()
    again = await bob.queue.claim(TOPIC, "c", max_messages=100, claim_id="run")
    assert shown(again) == [0, 2, 3]
    assert (await bob.queue.ack(again)).complete
    assert await drained(bob) == dict.fromkeys(range(4, 10), 1)


async def test_leases_of_a_dead_attempt_are_adopted(world: World) -> None:
    """A claim that died before its record is begun again from the leases that name it, with the same messages."""
    world.plant_pack(10)
    ann, bob = await world.process(), await world.process()
    ann.client.faults.append(Fault("dies", "PUT", layout.claims(TOPIC) + "*"))
    with pytest.raises(Died):
        await ann.queue.claim(TOPIC, "c", max_messages=4, claim_id="run")
    await world.later(3)
    claim = await bob.queue.claim(TOPIC, "c", max_messages=4, claim_id="run")
    assert shown(claim) == [0, 1, 2, 3]
    assert [message.deliveries for message in claim] == [1] * 4
    await bob.queue.ack(claim)
    assert set(await drained(bob)) == set(range(4, 10))
    assert is_empty(world)


async def test_redriven_messages_of_packs_are_single_ones(world: World) -> None:
    """A dead letter of a pack is moved back as a message of its own, once."""
    world.plant_pack(3)
    ann = await world.process()
    claim = await ann.queue.claim(TOPIC, "c", max_messages=3)
    await ann.queue.nack(claim, claim[1], reason="bad")
    await ann.queue.ack(claim)
    assert len((await ann.queue.redrive(TOPIC)).moved) == 1
    await world.later(15)
    assert await drained(ann) == {1: 1}
    assert is_empty(world)
    assert not world.bucket.below("dead-letter/")


async def test_the_record_of_many_packs_is_small(world: World) -> None:
    """A pack takes a few hundred bytes of its claim's record, settled or not."""
    for first in range(50):
        world.plant_pack(100, first * 100)
        await world.later(1)
    ann = await world.process()
    claim = await ann.queue.claim(TOPIC, "c", max_messages=5000)
    assert len(claim) == len(numbered(5000))
    assert len(world.bucket.body(layout.claim(TOPIC, claim.stem))) < 50 * 300 + 1000


# --- many consumers of one pack ---


@pytest.mark.parametrize("is_buried", [True, False])
async def test_many_slices_of_a_pack_cost_one_look_at_its_end(world: World, *, is_buried: bool) -> None:
    """A claim with all slices of a pack reads each lease once to find that the pack is finished, not for each slice."""
    world.plant_pack(200)
    ann, bob = await world.process(), await world.process()
    assert (await ann.queue.ack(await ann.queue.claim(TOPIC, "c", max_messages=4))).complete
    claim = await bob.queue.claim(TOPIC, "c", max_messages=1000)
    assert len(claim) == 196
    if is_buried:
        await bob.queue.bury(claim, [claim[0]], reason="bad")
    with bob.client.counting() as requests:
        assert (await bob.queue.ack(claim)).complete
    assert requests["GET"] <= 2 * 50 + 5  # on csprng_verify each lease is read twice
    assert requests["LIST"] <= 8
    assert world.bucket.below("packs/") == world.bucket.below("leases/") == []


async def test_consumers_of_one_pack_do_not_wait_for_each_other(world: World) -> None:
    """⚑ §4: consumers that want a few messages each have them of one pack at the same time, each message once."""
    world.plant_pack(100)
    claims = []
    for number in range(10):
        consumer = await world.process()
        claims.append((consumer, await consumer.queue.claim(TOPIC, f"c{number}", max_messages=10)))
    assert sorted(n for _, claim in claims for n in shown(claim)) == list(range(100))
    for consumer, claim in claims:
        assert (await consumer.queue.ack(claim)).complete
    assert is_empty(world)


@pytest.mark.parametrize("died_at", ["the pack", "the leases", "the last lease"])
@pytest.mark.parametrize("by", ["a poll", "a sweep"])
async def test_a_pack_whose_last_consumer_died_is_deleted(world: World, died_at: str, by: str) -> None:
    """⚑ §5.5: the next process deletes a pack of which all slices are finished, and its leases."""
    world.plant_pack(6)
    ann, bob = await world.process(), await world.process()
    for number in range(3):
        claim = await ann.queue.claim(TOPIC, "c", max_messages=2)
        assert len(claim) == 2
        if number == 2:
            kind, key = {
                "the pack": ("DELETE", f"{TOPIC}/packs/*"),
                "the leases": ("DELETE", f"{TOPIC}/leases/*"),
                "the last lease": ("LIST", f"{TOPIC}/leases/*"),
            }[died_at]
            ann.client.faults.append(Fault("dies", kind, key))
            with pytest.raises(Died):
                await ann.queue.ack(claim)
        else:
            await ann.queue.ack(claim)
    await world.later(120)
    if by == "a sweep" or died_at == "the leases":
        await bob.queue.sweep(TOPIC)
        await world.later(120)
        await bob.queue.sweep(TOPIC)
    assert await drained(bob) == {}
    assert is_empty(world)


async def test_a_pack_is_read_once_by_a_process_that_takes_little_of_it(world: World) -> None:
    """A process that takes ten messages at a time downloads the pack once, and asks each time whether it exists."""
    world.plant_pack(50)
    ann = await world.process()
    assert set(await drained(ann, most=10)) == set(range(50))
    asked = [kind for kind, key in ann.client.requests if "/packs/" in key and kind in {"GET", "HEAD"}]
    assert (asked.count("GET"), asked.count("HEAD")) == (1, 4)


async def test_a_waiting_claim_sees_that_its_topic_has_packs_now(world: World) -> None:
    """All processes follow a topic's settings within a minute, and a claim that waits does too."""
    world.topic()
    ann = await world.process()

    async def allow() -> None:
        await world.later(30)
        world.topic(packs=True)
        world.plant_pack(3)

    began = world.clock.elapsed()
    claim, _ = await asyncio.gather(ann.queue.claim(TOPIC, "c", max_messages=3, wait=300), allow())
    assert shown(claim) == [0, 1, 2]
    assert world.clock.elapsed() - began < 100


async def test_what_is_released_by_its_id_is_no_suspect(world: World) -> None:
    """A claim that is given back by its id has not died of its messages: the next one gets as many."""
    world.plant_pack(20)
    ann, bob = await world.process(), await world.process()
    for number in range(3):
        run = f"run{number}"
        claim = await ann.queue.claim(TOPIC, "c", max_messages=20, claim_id=run, owner="o", ttl=10)
        assert len(claim) == 20
        await ann.queue.leave(claim)
        await bob.queue.release(TOPIC, run, owner="o")
        await world.later(15)
    assert len(await bob.queue.claim(TOPIC, "c", max_messages=20)) == 20


async def test_a_retry_that_settles_an_ended_claim_by_its_ids_has_the_first_answer(world: World) -> None:
    """The packs of an ended claim are gone: ids of their messages are answered alike, or unknown if that differs."""
    ann, bob = await world.process(), await world.process()
    for run, bad in (("alike", []), ("apart", [1])):
        world.plant_pack(3)
        claim = await ann.queue.claim(TOPIC, "c", max_messages=3, claim_id=run)
        ids = claim.ids
        await ann.queue.nack(claim, [claim[number] for number in bad], reason="bad")
        await ann.queue.ack(claim)
        again = await bob.queue.claim(TOPIC, "c", max_messages=3, claim_id=run)
        assert not again
        done = await bob.queue.ack(again, ids)
        assert (done.unknown if bad else done.acked) == ids
        await world.later(15)
