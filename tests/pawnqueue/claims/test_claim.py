"""Claim: which messages a claim gets, what it costs, and what is in the bucket afterwards."""

from __future__ import annotations

import asyncio
import copy
import math
import pickle
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pawnqueue import (
    InvalidArgumentError,
    InvalidTopicError,
    LeaseLostError,
    NewMessage,
    PawnQueueError,
    QueueClosedError,
    StoreError,
    TopicNotFoundError,
)
from pawnqueue.catalog import units
from pawnqueue.domain import layout
from tests.pawnqueue.virtual import MARGIN, OVERDUE, TOPIC, TTL, Process, World, numbered, numbers
from tests.support.clock import EPOCH

UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"


async def test_one_consumer_is_given_messages_in_publish_order(ann: Process) -> None:
    """Alone, a consumer has first what was published first, over as many claims as it takes."""
    await ann.queue.publish(TOPIC, numbered(35))
    seen = []
    while claim := await ann.queue.claim(TOPIC, "c", max_messages=10):
        seen += numbers(claim)
        await ann.queue.ack(claim)
    assert seen == list(range(35))


async def test_a_claim_has_at_most_what_was_asked_for(ann: Process) -> None:
    """``max_messages`` is the most; without it, the setting is; and a claim takes what there is."""
    await ann.queue.publish(TOPIC, numbered(20))
    assert len(await ann.queue.claim(TOPIC, "c", max_messages=3)) == 3
    assert len(await ann.queue.claim(TOPIC, "c")) == 10
    assert len(await ann.queue.claim(TOPIC, "c", max_messages=1_000_000)) == 7


async def test_a_claim_over_many_pages(ann: Process) -> None:
    """More messages than one page of a listing are claimed at once, in order."""
    await ann.queue.publish(TOPIC, numbered(2500))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=2400)
    assert numbers(claim) == list(range(2400))
    assert numbers(await ann.queue.claim(TOPIC, "c", max_messages=200)) == list(range(2400, 2500))


async def test_no_more_requests_are_under_way_than_the_setting_allows(world: World) -> None:
    """``concurrency.max_in_flight`` bounds what one claim does at once."""
    process = await world.process(concurrency={"max_in_flight": 4})
    await process.queue.publish(TOPIC, numbered(50))
    busy, most = 0, 0

    async def watch() -> None:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await world.clock.sleep(0.001)
        busy -= 1

    process.client.meanwhile = lambda *_: watch()
    claim = await process.queue.claim(TOPIC, "c", max_messages=50)
    await process.queue.nack(claim)
    assert most == 4


async def test_a_claim_is_a_collection_of_its_messages(ann: Process) -> None:
    """It iterates over them, counts them, gives them by number, gives their ids, and is falsy without any."""
    ids = await ann.queue.publish(TOPIC, numbered(3))
    claim = await ann.queue.claim(TOPIC, "c")
    assert [message.id for message in claim] == claim.ids == ids
    assert len(claim) == 3
    assert claim
    assert (claim[0].id, claim[-1].id, [one.id for one in claim[1:]]) == (ids[0], ids[2], ids[1:])
    with pytest.raises(IndexError):
        claim[3]
    assert claim.state == "open"
    empty = await ann.queue.claim(TOPIC, "c")
    assert not empty
    assert list(empty) == empty.ids == []


async def test_a_claim_tells_how_long_it_is_trusted(world: World, ann: Process) -> None:
    """In seconds, and as a date of this machine's clock, until the margin before its time; then, or lost, no more."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=1, ttl=100)
    given = claim.seconds_left
    assert 97 - MARGIN < given <= 100 - MARGIN
    assert claim.deadline == datetime.fromtimestamp(world.clock.wall(), UTC) + timedelta(seconds=given)
    await world.later(40)
    assert claim.seconds_left == pytest.approx(given - 40, abs=1)
    await ann.queue.renew(claim)
    assert claim.seconds_left == pytest.approx(given, abs=1)
    await world.later(100)
    assert claim.seconds_left == 0.0
    assert claim.deadline == datetime.fromtimestamp(world.clock.wall(), UTC)


async def test_a_claim_that_is_not_ours_is_trusted_for_no_time(world: World, ann: Process) -> None:
    """Neither lost, nor handed over, nor without a message."""
    await ann.queue.publish(TOPIC, numbered(2))
    lost, handed_over = [await ann.queue.claim(TOPIC, "c", max_messages=1) for _ in range(2)]
    world.fence(lost)
    with pytest.raises(LeaseLostError):
        await ann.queue.renew(lost)
    handed_over.hand_over()
    empty = await ann.queue.claim(TOPIC, "c")
    assert [one.seconds_left for one in (lost, handed_over, empty)] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("given", [None, "id", 7, ["id"], {"claim_id": "run"}], ids=repr)
@pytest.mark.parametrize("operation", ["ack", "nack", "requeue", "renew", "keep_alive"])
async def test_what_is_no_claim_is_not_taken_for_one(ann: Process, operation: str, given: object) -> None:
    """The sentence says what was expected, without a request; and it is a ValueError."""
    before = len(ann.client.requests)
    with pytest.raises(InvalidArgumentError, match=f"{operation} takes a claim") as caught:
        await getattr(ann.queue, operation)(given)
    assert isinstance(caught.value, ValueError)
    assert caught.value.operation == operation
    assert len(ann.client.requests) == before


async def test_a_claims_repr_tells_no_payload(ann: Process) -> None:
    """What a log shows of a claim is which one it is, and how many messages it has."""
    await ann.queue.publish(TOPIC, [{"password": "geheim"}])
    claim = await ann.queue.claim(TOPIC, "c", claim_id="nightly")
    assert repr(claim) == "<Claim nightly.0 of 'orders': 1 messages, open>"


async def test_a_message_tells_all_about_itself(world: World, ann: Process) -> None:
    """Id, topic, producer, time, payload, headers and the count of its deliveries are on it."""
    [one] = await ann.queue.publish(TOPIC, [{"a": 1}], producer="shop", headers={"h": "1"})
    [message] = await ann.queue.claim(TOPIC, "c")
    assert (message.id, message.topic, message.payload, dict(message.headers), message.deliveries) == (
        one,
        TOPIC,
        {"a": 1},
        {"h": "1"},
        1,
    )
    assert message.producer_id == (await ann.queue.register_producer("shop")).id
    assert timedelta() <= message.created_at - datetime.fromtimestamp(EPOCH, UTC) < timedelta(minutes=10)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("2026-01-01T01:02:03.000004+00:00", datetime(2026, 1, 1, 1, 2, 3, 4, UTC)),
        ("2026-01-01T01:02:03Z", datetime(2026, 1, 1, 1, 2, 3, 0, UTC)),
        ("2026-01-01T01:02:03", datetime(2026, 1, 1, 1, 2, 3, 0, UTC)),
        ("2026-01-01T01:02:03+02:00", datetime(2025, 12, 31, 23, 2, 3, 0, UTC)),
        ("yesterday", datetime(2026, 3, 4, 5, 6, 7, 8, UTC)),
        ("", datetime(2026, 3, 4, 5, 6, 7, 8, UTC)),
        ("0001-01-01T00:00:00+14:00", datetime(2026, 3, 4, 5, 6, 7, 8, UTC)),
        ("0001-01-01T00:00:00", datetime(2026, 3, 4, 5, 6, 7, 8, UTC)),
        ("1969-12-31T23:59:59.999999", datetime(2026, 3, 4, 5, 6, 7, 8, UTC)),
        ("1970-01-01T00:00:00", datetime(1970, 1, 1, tzinfo=UTC)),
        ("9999-01-01T00:00:00", datetime(9999, 1, 1, tzinfo=UTC)),
        ("9999-01-01T00:00:00.000001", datetime(2026, 3, 4, 5, 6, 7, 8, UTC)),
        ("9999-12-31T23:59:59.999999", datetime(2026, 3, 4, 5, 6, 7, 8, UTC)),
    ],
)
async def test_a_message_says_when_it_was_made(world: World, ann: Process, text: str, told: datetime) -> None:
    """In UTC, whichever library wrote it; an invalid time loses no message: then its key's time is shown."""
    name = f"20260304T050607_000008-{UUID}.json"
    world.bucket.plant(units.key_of(TOPIC, name), {"id": "theirs", "created_at": text, "payload": {}})
    [peeked] = await ann.queue.peek(TOPIC)
    [message] = await ann.queue.claim(TOPIC, "c")
    assert (message.created_at, message.created_at.utcoffset()) == (told, timedelta())
    assert peeked.created_at == told


async def test_a_message_without_any_time_is_given_out(world: World, ann: Process) -> None:
    """Neither its body nor its key tells one: it is as old as can be."""
    world.bucket.plant(units.key_of(TOPIC, f"now-{UUID}.json"), {"id": "theirs", "created_at": "x", "payload": {}})
    [message] = await ann.queue.claim(TOPIC, "c")
    assert message.created_at == datetime.fromtimestamp(0, UTC)


async def test_a_message_of_pawn_queues_is_a_message(world: World, ann: Process) -> None:
    """An envelope with pawn-queue's five fields, and with one that nobody knows, is delivered."""
    body = {"id": "theirs", "topic": TOPIC, "producer_id": "p", "created_at": "x", "payload": {"a": 1}, "new": [1]}
    world.fill([body])
    claim = await ann.queue.claim(TOPIC, "c")
    [message] = claim
    assert (message.id, message.payload, dict(message.headers)) == ("theirs", {"a": 1}, {})
    assert (await ann.queue.ack(claim)).acked == ["theirs"]
    assert world.bucket.below("messages/") == []


async def test_consumers_never_share_a_message(world: World) -> None:
    """Eight consumers that claim at once have, together, each message once."""
    processes = [await world.process() for _ in range(8)]
    await processes[0].queue.publish(TOPIC, numbered(300))
    seen: list[int] = []

    async def consume(process: Process) -> None:
        empty = 0
        while empty < 3:
            claim = await process.queue.claim(TOPIC, "c", max_messages=7)
            empty = 0 if claim else empty + 1
            seen.extend(numbers(claim))
            await process.queue.ack(claim)

    await asyncio.gather(*map(consume, processes))
    assert sorted(seen) == list(range(300))


async def test_two_claims_of_one_process_share_nothing(ann: Process) -> None:
    """Claims that one queue makes concurrently are kept apart like those of two."""
    await ann.queue.publish(TOPIC, numbered(40))
    claims = await asyncio.gather(*(ann.queue.claim(TOPIC, "c", max_messages=10) for _ in range(4)))
    seen = [number for claim in claims for number in numbers(claim)]
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("packs", [None, True, False])
async def test_an_idle_look_is_one_list(world: World, *, packs: bool | None) -> None:
    """A topic without messages costs a request a claim, however often, whether it may have packs or not."""
    world.topic(packs=packs)
    ann = await world.process()
    began = world.clock.elapsed()
    ann.client.latency = 1.0
    with ann.client.counting() as requests:
        for _ in range(5):
            assert not await ann.queue.claim(TOPIC, "c")
    assert requests == {"LIST": 5}
    assert world.clock.elapsed() - began == pytest.approx(5)


async def test_a_look_at_claimed_messages_reads_none_of_them(world: World, ann: Process, bob: Process) -> None:
    """A topic whose messages others have costs its listings, and the record that covers them is read once."""
    await ann.queue.publish(TOPIC, numbered(500))
    await ann.queue.claim(TOPIC, "c", max_messages=500)
    await world.later(TTL - MARGIN)  # a lease of thirty seconds may be over after sixteen, by what LIST tells
    with bob.client.counting() as first:
        assert not await bob.queue.claim(TOPIC, "d")
    with bob.client.counting() as second:
        assert not await bob.queue.claim(TOPIC, "d")
    assert first == {"LIST": 3, "GET": 1}
    assert second == {"LIST": 1}


async def test_the_record_of_a_claim_tells_its_members_and_its_time(world: World, ann: Process) -> None:
    """The record names owner, consumer and members with their keys, and the time that the leases have."""
    ids = await ann.queue.publish(TOPIC, numbered(4))
    claim = await ann.queue.claim(TOPIC, "worker", claim_id="run", owner="dag", ttl=100)
    record = world.bucket.record("run.0")
    assert (record.claim_id, record.generation, record.owner, record.consumer) == ("run", 0, "dag", "worker")
    assert (record.state, record.ttl, record.session, record.settled) == ("open", 100, claim.session, {})
    assert abs(record.until - (world.clock.server() + 100)) < 1
    names = world.bucket.below("messages/")
    assert {uuid: member.name for uuid, member in record.members.items()} == dict(zip(ids, names, strict=True))
    for one in ids:
        lease = world.bucket.lease(one)
        assert (lease.claim, lease.state, lease.until, lease.consumer_id) == ("run.0", "held", record.until, "worker")
    assert abs(claim.seconds_left - (100 - MARGIN)) < 1


async def test_without_messages_there_is_no_record(world: World, ann: Process) -> None:
    """A claim that found nothing leaves nothing in the bucket."""
    before = world.bucket.snapshot()
    await ann.queue.claim(TOPIC, "c", claim_id="run")
    assert world.bucket.snapshot() == before


async def test_claim_and_ack_of_a_batch_stay_under_the_budget(ann: Process) -> None:
    """A hundred messages in a batch cost at most 2.3 requests each; each is one PUT and one GET."""
    await ann.queue.publish(TOPIC, numbered(300))
    with ann.client.counting() as requests:
        for _ in range(3):
            claim = await ann.queue.claim(TOPIC, "c", max_messages=100)
            assert len(claim) == 100
            await ann.queue.ack(claim)
    assert sum(requests.values()) / 300 <= 2.3
    assert requests["GET"] == 300
    assert requests["PUT"] == 300 + 2 * 3  # the leases; and each batch's record: created, settled
    assert requests["DELETE"] == 2 * 3  # messages; and leases with the record, as its id was made up
    assert requests["LIST"] == 2  # what the first look has shown free is taken by the others


@pytest.mark.parametrize("size", [1, 1000])
async def test_renewing_is_one_request_whatever_the_size(ann: Process, size: int) -> None:
    """One message or a thousand: a renewal is one PUT of the record."""
    await ann.queue.publish(TOPIC, numbered(size))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=size)
    assert len(claim) == size
    with ann.client.counting() as requests:
        await ann.queue.renew(claim)
    assert requests == {"PUT": 1}


@pytest.mark.parametrize(
    "options",
    [
        {"max_messages": 0},
        {"max_messages": -1},
        {"max_messages": 1.5},
        {"max_messages": "3"},
        {"max_messages": True},
        {"ttl": 0},
        {"ttl": MARGIN},
        {"ttl": -5},
        {"ttl": math.nan},
        {"ttl": math.inf},
        {"ttl": 1e12},
        {"ttl": "30"},
        {"wait": math.nan},
        {"wait": -1},
        {"wait": "5"},
        {"claim_id": ""},
        {"claim_id": "a/b"},
        {"claim_id": ".a"},
        {"claim_id": "a."},
        {"claim_id": "a b"},
        {"claim_id": "x" * 129},
        {"claim_id": "ü"},
        {"claim_id": 5},
        {"owner": 5, "claim_id": "a"},
        {"consumer": ""},
        {"consumer": None},
        {"consumer": 5},
        {"consumer": "\ud800"},
        {"consumer": "x" * 10_000},
    ],
    ids=lambda options: str(options)[:40],
)
async def test_what_cannot_be_asked_for_is_refused_without_a_request(ann: Process, options: dict[str, Any]) -> None:
    """A wrong argument is a InvalidArgumentError that names it, before anything is asked of the store."""
    await ann.queue.publish(TOPIC, numbered(1))
    arguments = {"consumer": "c", **options}
    with ann.client.counting() as requests, pytest.raises(InvalidArgumentError):
        await ann.queue.claim(TOPIC, **arguments)
    assert not requests


@pytest.mark.parametrize("claim_id", ["a", "x" * 128, "manual__2026-01-01T00:00:00+00:00", "1.2.3", "_-:+"])
async def test_claim_ids_may_be_those_of_airflow(world: World, ann: Process, claim_id: str) -> None:
    """Run ids of Airflow's, and anything else without a slash or a blank, are claim ids."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", claim_id=claim_id)
    assert claim.claim_id == claim_id
    assert world.bucket.below("claims/") == [f"{claim_id}.0.json"]


@pytest.mark.parametrize("topic", ["", "a/b", "../x", "_registry", 5, None], ids=repr)
async def test_an_invalid_topic_is_refused_without_a_request(ann: Process, topic: str) -> None:
    """A name that no topic can have is an error before any request."""
    with ann.client.counting() as requests, pytest.raises(InvalidTopicError):
        await ann.queue.claim(topic, "c")
    assert not requests


async def test_an_unknown_topic_is_an_error(ann: Process) -> None:
    """Claiming from a topic that does not exist says so."""
    with pytest.raises(TopicNotFoundError, match="'nowhere'"):
        await ann.queue.claim("nowhere", "c")


async def test_a_time_just_above_the_margin_will_do(ann: Process) -> None:
    """The shortest time that leaves something after the margin is allowed."""
    await ann.queue.publish(TOPIC, numbered(1))
    assert await ann.queue.claim(TOPIC, "c", ttl=MARGIN + 0.5)


async def test_waiting_ends_when_a_message_arrives(world: World, ann: Process, bob: Process) -> None:
    """A claim that waits has the message soon after it was published, long before its time is over."""
    waiting = asyncio.create_task(ann.queue.claim(TOPIC, "c", wait=600))
    await world.later(100)
    await bob.queue.publish(TOPIC, numbered(1))
    assert numbers(await waiting) == [0]
    assert world.clock.elapsed() < 1000 + 120


async def test_waiting_ends_when_its_time_is_over(world: World, ann: Process) -> None:
    """A claim that waited in vain is empty, and looked less and less often. It reads the topic once a minute."""
    started = world.clock.elapsed()
    with ann.client.counting() as requests:
        assert not await ann.queue.claim(TOPIC, "c", wait=60)
    assert 60 <= world.clock.elapsed() - started < 61
    assert set(requests) == {"LIST", "GET"}
    assert requests["GET"] == 1
    assert requests["LIST"] < 25


async def test_waiting_ends_when_a_claim_of_somebodys_is_over(world: World, ann: Process, bob: Process) -> None:
    """A waiting consumer takes over what another one left."""
    await ann.queue.publish(TOPIC, numbered(2))
    await ann.queue.claim(TOPIC, "c")
    assert numbers(await bob.queue.claim(TOPIC, "d", wait=TTL * 3)) == [0, 1]


async def test_waiting_goes_on_past_bad_messages(world: World, ann: Process, bob: Process) -> None:
    """A waiting consumer that found only what must be buried waits on for a message to work on."""
    world.fill(["not JSON"])
    waiting = asyncio.create_task(ann.queue.claim(TOPIC, "c", wait=600))
    await world.later(50)
    await bob.queue.publish(TOPIC, numbered(1))
    assert numbers(await waiting) == [0]
    assert [name for name in world.bucket.below("dead-letter/") if "reason" not in name]


async def test_closing_ends_waiting(world: World, ann: Process) -> None:
    """A claim that waits while its queue is closed ends with an error that says so."""
    waiting = asyncio.create_task(ann.queue.claim(TOPIC, "c", wait=600))
    await world.later(30)
    await ann.queue.aclose()
    with pytest.raises(QueueClosedError):
        await waiting
    with pytest.raises(QueueClosedError):
        await ann.queue.claim(TOPIC, "c")


async def test_a_lease_whose_outcome_nobody_knows_is_not_in_the_claim(world: World, ann: Process, bob: Process) -> None:
    """A message whose lease may or may not be ours is not handed out, and comes to somebody when its time is over."""
    ids = await ann.queue.publish(TOPIC, numbered(3))
    ann.client.inject("answer lost", key=layout.lease(TOPIC, ids[1]))
    claim = await ann.queue.claim(TOPIC, "c", ttl=300)
    assert numbers(claim) == [0, 2]
    ann.client.heal()
    assert not await bob.queue.claim(TOPIC, "d")
    await world.later(300 + OVERDUE)
    assert 1 in numbers(await bob.queue.claim(TOPIC, "d"))


async def test_a_record_that_cannot_be_written_hands_nothing_out(world: World, ann: Process, bob: Process) -> None:
    """Without a record there is no claim: the error is raised, and others get the messages in time."""
    await ann.queue.publish(TOPIC, numbered(3))
    ann.client.inject("lost", "PUT", "*/claims/*")
    with pytest.raises(StoreError):
        await ann.queue.claim(TOPIC, "c", ttl=120)
    await world.later(120 + OVERDUE)
    assert numbers(await bob.queue.claim(TOPIC, "d")) == [0, 1, 2]


async def test_a_claim_that_was_too_slow_hands_nothing_out(world: World, ann: Process, bob: Process) -> None:
    """Messages that took longer to read than the claim's time are not handed out: others may have them."""
    await ann.queue.publish(TOPIC, numbered(3))

    async def slow(kind: str, key: str) -> None:
        if kind == "GET" and "/messages/" in key:
            await world.clock.sleep(TTL)

    ann.client.meanwhile = slow
    claim = await ann.queue.claim(TOPIC, "c")
    assert not claim
    assert claim.lost
    await world.later()
    assert numbers(await bob.queue.claim(TOPIC, "d")) == [0, 1, 2]


async def test_the_time_of_a_claim_is_counted_from_before_its_first_request(world: World, ann: Process) -> None:
    """However slowly its leases are won, a holder stops trusting them the margin before their time."""
    await ann.queue.publish(TOPIC, numbered(3))
    ann.client.latency = 3
    claim = await ann.queue.claim(TOPIC, "c")
    until = world.bucket.record(f"{claim.claim_id}.0").until
    assert claim
    assert claim.seconds_left <= until - MARGIN - world.clock.server() + 0.6


async def test_a_message_that_was_settled_between_listing_and_lease(world: World, ann: Process) -> None:
    """A message that is gone when its body is read is no part of the claim, and its new lease is dropped."""
    ids = await ann.queue.publish(TOPIC, numbered(3))
    names = world.bucket.below("messages/")

    def settle(kind: str, key: str) -> None:
        if kind == "PUT" and key == layout.lease(TOPIC, ids[1]):
            world.bucket.remove(units.key_of(TOPIC, names[1]))

    ann.client.meanwhile = settle
    claim = await ann.queue.claim(TOPIC, "c")
    assert numbers(claim) == [0, 2]
    assert f"{ids[1]}.lease" not in world.bucket.below("leases/")
    assert claim.decided == {}
    assert (await ann.queue.ack(claim)).complete
    assert claim.state == "closed"


async def test_what_others_were_faster_at_is_replaced_by_the_next_ones(world: World, ann: Process) -> None:
    """Refused leases do not make a claim smaller while there are other messages."""
    ids = await ann.queue.publish(TOPIC, numbered(40))
    ann.queue._claims._topic(TOPIC).contention._factor = 2
    taken: list[str] = []

    def take(kind: str, key: str) -> None:
        if kind == "PUT" and "/leases/" in key and len(taken) < 5:
            taken.append(key)
            world.bucket.plant(key, "{}")

    ann.client.meanwhile = take
    claim = await ann.queue.claim(TOPIC, "c", max_messages=10)
    assert len(claim) == 10
    assert not {layout.lease(TOPIC, one) for one in claim.ids} & set(taken)
    assert set(claim.ids) <= set(ids)


@pytest.mark.parametrize(("most", "sizes"), [(10_000, [2, 2, 1]), (100_000, [5]), (1, [1] * 5)])
async def test_a_claim_has_at_most_so_many_bytes(ann: Process, most: int, sizes: list[int]) -> None:
    """As the messages are stored; one that is larger by itself comes alone, so that somebody has it."""
    ids = await ann.queue.publish(TOPIC, [{"text": "x" * 4000}] * 5)
    claims = [await ann.queue.claim(TOPIC, "c", max_messages=10, max_bytes=most) for _ in sizes]
    assert [len(claim) for claim in claims] == sizes
    assert [one for claim in claims for one in claim.ids] == ids
    assert not await ann.queue.claim(TOPIC, "c", max_bytes=most)


async def test_what_was_given_back_is_trusted_for_no_time(world: World, ann: Process, bob: Process) -> None:
    """A caller that is waiting on the clock while the queue is closed, or all is settled, stops at once."""
    await ann.queue.publish(TOPIC, numbered(4))
    requeued = await ann.queue.claim(TOPIC, "c", max_messages=2)
    assert requeued.seconds_left > 20
    await ann.queue.nack(requeued, requeue=True)
    assert requeued.seconds_left == 0
    held = await bob.queue.claim(TOPIC, "c", max_messages=2)
    assert held.seconds_left > 20
    await bob.queue.aclose()
    assert held.seconds_left == 0
    assert held.deadline <= datetime.fromtimestamp(world.clock.wall(), UTC)


@pytest.mark.parametrize("send", [pickle.dumps, copy.deepcopy])
async def test_a_claim_stays_in_its_process(ann: Process, send: Callable[[object], object]) -> None:
    """Sending it elsewhere raises an error that says how it is handed over."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    with pytest.raises(PawnQueueError, match=r"stays in its process: pass claim.hand_over\(\)"):
        send(claim)


async def test_a_payload_shows_in_no_repr(ann: Process) -> None:
    """Of a message, a claim, a letter and what is to be published: payloads are nobody's business in a log."""
    secret = {"text": "nobody's business"}
    await ann.queue.publish(TOPIC, [secret])
    claim = await ann.queue.claim(TOPIC, "c")
    shown = [repr(claim), repr(claim[0]), repr(NewMessage(secret)), repr(await ann.queue.peek(TOPIC))]
    await ann.queue.nack(claim)
    shown.append(repr(await ann.queue.dead_letters(TOPIC)))
    assert not [text for text in shown if "business" in text]


async def test_who_settles_what_he_handed_over_is_told_so(ann: Process) -> None:
    """It was his own doing: no advice about times to live."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    claim.hand_over()
    with pytest.raises(LeaseLostError, match="this process has handed it over: settle them where it was attached to"):
        await ann.queue.ack(claim)


async def test_a_claim_that_was_lost_says_so_once_it_is_known(world: World, ann: Process, bob: Process) -> None:
    """An ack that comes too late finds it out, too."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    await world.later()
    assert await bob.queue.claim(TOPIC, "d")
    assert claim.lost is None
    with pytest.raises(LeaseLostError):
        await ann.queue.ack(claim)
    assert claim.lost == "it was taken over"
    assert "lost" in repr(claim)


async def test_a_record_that_was_renewed_before_its_claimer_heard_of_it_is_the_claimers(
    world: World, ann: Process
) -> None:
    """A janitor may renew a claim for its run as soon as its record is stored: the claim is handed out all the same."""
    await ann.queue.publish(TOPIC, numbered(2))
    ann.client.inject("answer lost", "PUT", "*/claims/*", times=1)
    renewed: list[str] = []

    def renew(kind: str, key: str) -> None:
        if kind == "GET" and "/claims/" in key and not renewed:
            parsed = layout.parse_claim(key)
            assert parsed is not None
            renewed.append(layout.claim_stem(*parsed))
            world.alter(renewed[0], until=world.clock.server() + 500)

    ann.client.meanwhile = renew
    claim = await ann.queue.claim(TOPIC, "c")
    assert numbers(claim) == [0, 1]
    assert (await ann.queue.ack(claim)).acked == claim.ids
    assert renewed
