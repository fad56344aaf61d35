"""Looking without taking: peek, find and stats change nothing and return what is stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pawnqueue import InvalidArgumentError, InvalidTopicError, Location, Stats, StoreError, TopicNotFoundError
from pawnqueue.catalog import letters, units
from pawnqueue.domain import layout
from pawnqueue.domain.claim_record import ClaimRecord
from tests.pawnqueue.virtual import MARGIN, TOPIC, TTL, Died, Effect, Process, World, numbered, numbers

NOBODY = "11111111-2222-4333-8444-555555555555"


async def in_every_state(process: Process) -> dict[str, str]:
    """Make a message in each state, and return their ids by state."""
    ids = await process.queue.publish(TOPIC, numbered(6))
    claim = await process.queue.claim(TOPIC, "worker", max_messages=5, ttl=300)
    await process.queue.ack(claim, ids[0])
    await process.queue.nack(claim, ids[1], reason="bad", error="details")
    await process.queue.nack(claim, ids[2], requeue=True, delay=250)
    await process.queue.nack(claim, ids[3], requeue=True)
    return dict(zip(["gone", "dead", "delayed", "released", "in_flight", "pending"], ids, strict=True))


async def test_stats_count_each_state(world: World, ann: Process) -> None:
    """Pending, in flight, delayed and dead are counted separately, with the age of the oldest."""
    await in_every_state(ann)
    await world.later(100)
    stats = await ann.queue.stats(TOPIC)
    assert (stats.pending, stats.in_flight, stats.delayed, stats.dead, stats.strangers) == (2, 1, 1, 1, 0)
    assert stats.oldest_age_seconds == pytest.approx(100, abs=1)


async def test_stats_of_what_is_not_overdue_are_lists_alone(world: World, ann: Process) -> None:
    """They cost one request for each folder and page, whatever is in it."""
    await in_every_state(ann)
    await ann.queue.publish(TOPIC, numbered(2500))
    with ann.client.counting() as requests:
        await ann.queue.stats(TOPIC)
    assert requests == {"LIST": 1 + 1 + 3}


async def test_stats_of_an_empty_topic(ann: Process) -> None:
    """There are no messages, and nothing is old."""
    assert await ann.queue.stats(TOPIC) == Stats(0, 0, 0, 0, None)


async def test_the_oldest_is_the_oldest_that_is_there(world: World, ann: Process) -> None:
    """What was consumed is not old any more; a clock that runs ahead gives no negative age."""
    await ann.queue.publish(TOPIC, numbered(1))
    await world.later(50)
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.ack(await ann.queue.claim(TOPIC, "c", max_messages=1))
    await world.later(10)
    assert (await ann.queue.stats(TOPIC)).oldest_age_seconds == pytest.approx(10, abs=1)
    world.topic("future")
    world.bucket.plant(units.key_of("future", f"99981231T235959_999999-{NOBODY}.json"), "{}")
    assert (await ann.queue.stats("future")).oldest_age_seconds == 0
    world.topic("timeless")
    world.bucket.plant(units.key_of("timeless", f"00000000T000000_000000-{NOBODY}.json"), "{}")
    assert await ann.queue.stats("timeless") == Stats(1, 0, 0, 0, None)


@pytest.mark.parametrize("state", ["dead", "delayed", "released", "in_flight", "pending", "gone", "unheard of"])
async def test_find_says_where_a_message_is(world: World, ann: Process, state: str) -> None:
    """By its id, in each state, with what is known of it; what is nowhere is None."""
    ids = {**await in_every_state(ann), "unheard of": NOBODY}
    before = world.bucket.snapshot()
    found = await ann.queue.find(TOPIC, ids[state])
    assert world.bucket.snapshot() == before
    if state in ("gone", "unheard of"):
        assert found is None
        return
    assert found is not None
    assert found.id == ids[state]
    assert found.key in world.bucket.below()
    assert found.state == {"released": "pending"}.get(state, state)
    if state == "dead":
        assert (found.reason, found.error, found.deliveries, found.consumer) == ("bad", "details", 1, "worker")
    if state in ("in_flight", "delayed"):
        assert (found.deliveries, found.consumer) == (1, "worker")
        assert found.until is not None
        end = world.clock.server() + (300 if state == "in_flight" else 250)
        assert found.until.timestamp() == pytest.approx(end, abs=1)
    if state == "pending":
        assert found == Location(ids[state], "pending", found.key)


async def test_a_delayed_message_is_pending_when_its_time_has_come(world: World, ann: Process) -> None:
    """After the delay it is found and counted among those that anyone may have."""
    [one] = await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"), requeue=True, delay=20)
    for seconds, state in ((0, "delayed"), (60, "pending")):
        await world.later(seconds)
        found = await ann.queue.find(TOPIC, one)
        assert found is not None
        assert found.state == state
        stats = await ann.queue.stats(TOPIC)
        assert getattr(stats, state) == 1


@pytest.mark.parametrize("delay", [2, 20, 33, 100, 1000])
async def test_stats_and_find_agree_when_a_delay_is_over(
    world: World, ann: Process, bob: Process, delay: float
) -> None:
    """However little the LIST tells of it: to the second before it, and from the second after it."""
    [one] = await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"), requeue=True, delay=delay)
    await world.later(delay - 1)
    assert await judged(bob, one) == ("delayed", "delayed")
    await world.later(2)
    assert await judged(bob, one) == ("pending", "pending")


async def test_a_delay_is_judged_by_its_lease_and_not_by_whom_the_message_was_taken_from(
    world: World, ann: Process, bob: Process
) -> None:
    """The record of a claim that was fenced early still lists the message; its taker has given it back."""
    [one] = await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    await ann.queue.renew(claim, ttl=1000)
    world.fence(claim, session_until=world.clock.server())
    await world.later()
    await bob.queue.nack(await bob.queue.claim(TOPIC, "d"), requeue=True, delay=33)
    await bob.queue.publish(TOPIC, numbered(1))
    await bob.queue.claim(TOPIC, "d", ttl=15)  # records are read as this one looks overdue
    await world.later(32)
    found = await bob.queue.find(TOPIC, one)
    assert found is not None
    assert (found.state, (await bob.queue.stats(TOPIC)).delayed) == ("delayed", 1)
    await world.later(3)
    assert (await bob.queue.stats(TOPIC)).delayed == 0


async def test_of_many_delays_that_may_be_over_a_thousand_are_read(world: World, ann: Process, bob: Process) -> None:
    """The others are judged by what the LIST tells of them."""
    await ann.queue.publish(TOPIC, numbered(1100))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=1100)
    await ann.queue.nack(claim, requeue=True, delay=33)
    await world.later(36)
    with bob.client.counting() as requests:
        stats = await bob.queue.stats(TOPIC)
    assert (stats.pending, stats.delayed) == (1000, 100)
    assert requests == {"LIST": 2 + 2 + 1, "GET": 1000}


async def test_find_reads_dead_letters_without_a_reason(world: World, ann: Process) -> None:
    """pawn-queue's dead letters have none, and somebody's may be garbage: the message is found all the same."""
    world.bucket.plant(letters.key_of(TOPIC, NOBODY), '{"id":"x","payload":{}}')
    for body in (None, "garbage", "{}"):
        if body is not None:
            world.bucket.plant(letters.reason_key_of(TOPIC, NOBODY), body)
        found = await ann.queue.find(TOPIC, NOBODY)
        assert found == Location(NOBODY, "dead", letters.key_of(TOPIC, NOBODY))


async def test_find_on_a_page_further_behind(ann: Process) -> None:
    """A message is found however many are before it."""
    ids = await ann.queue.publish(TOPIC, numbered(2100))
    found = await ann.queue.find(TOPIC, ids[-1])
    assert found is not None
    assert found.state == "pending"


async def test_peek_reads_from_the_head_and_takes_nothing(world: World, ann: Process) -> None:
    """The first messages in order, claimed or not; nothing is changed, and they are delivered as if nobody looked."""
    await ann.queue.publish(TOPIC, numbered(20))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=5)
    before = world.bucket.snapshot()
    peeked = await ann.queue.peek(TOPIC)
    assert numbers(peeked) == list(range(10))
    assert {message.deliveries for message in peeked} == {0}
    assert numbers(await ann.queue.peek(TOPIC, 1)) == [0]
    assert len(await ann.queue.peek(TOPIC, 1000)) == 20
    assert world.bucket.snapshot() == before
    assert (await ann.queue.ack(claim)).complete
    assert numbers(await ann.queue.peek(TOPIC, 2)) == [5, 6]


async def test_peek_reads_no_more_than_it_needs(ann: Process) -> None:
    """Ten messages of three thousand are one page and ten reads."""
    await ann.queue.publish(TOPIC, numbered(3000))
    with ann.client.counting() as requests:
        await ann.queue.peek(TOPIC, 10)
    assert requests == {"LIST": 1, "GET": 10}


async def test_peek_looks_past_what_it_cannot_read(world: World, ann: Process) -> None:
    """Bad messages and strangers at the head do not hide the good ones behind them."""
    world.fill(["bad"] * 15)
    world.bucket.plant(f"{TOPIC}/messages/0", "")
    await ann.queue.publish(TOPIC, numbered(5))
    assert numbers(await ann.queue.peek(TOPIC, 3)) == [0, 1, 2]
    assert numbers(await ann.queue.peek(TOPIC, 100)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("effect", ["lost", "denied"])
@pytest.mark.parametrize("bad", [1, 3, 100])
async def test_peek_looks_past_what_the_store_does_not_give(
    world: World, ann: Process, effect: Effect, bad: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A body that is refused, or answers 500 for ever, is left out within seconds, however many of them there are."""
    ids = await ann.queue.publish(TOPIC, numbered(bad + 2))
    for one in ids[:bad]:
        ann.client.inject(effect, "GET", f"*/messages/*{one}*")
    started = world.clock.elapsed()
    assert numbers(await ann.queue.peek(TOPIC, 2)) == [bad, bad + 1]
    assert world.clock.elapsed() - started < 15
    assert all(f"{one}.json is left out" in caplog.text for one in ids[:bad])


async def test_peek_tells_a_store_that_gives_nothing_from_messages_that_it_does_not_give(ann: Process) -> None:
    """Where no message can be read there are none to show; where nothing can be read that is an error."""
    await ann.queue.publish(TOPIC, numbered(2))
    ann.client.inject("lost", "GET", "*/messages/*")
    assert await ann.queue.peek(TOPIC) == []
    ann.client.inject("lost", "GET")
    with pytest.raises(StoreError):
        await ann.queue.peek(TOPIC)


@pytest.mark.parametrize("most", [0, -1, 1.5, "3", None])
async def test_peek_wants_a_number(ann: Process, most: Any) -> None:  # noqa: ANN401 - anything
    """A wrong number of messages is an InvalidArgumentError without a request."""
    with ann.client.counting() as requests, pytest.raises(InvalidArgumentError):
        await ann.queue.peek(TOPIC, most)
    assert not requests


@pytest.mark.parametrize(
    "look",
    [
        lambda queue, topic: queue.stats(topic),
        lambda queue, topic: queue.find(topic, NOBODY),
        lambda queue, topic: queue.peek(topic),
    ],
    ids=["stats", "find", "peek"],
)
async def test_a_topic_that_does_not_exist_is_an_error(ann: Process, look: Callable[..., Awaitable[Any]]) -> None:
    """Looking at nothing says that it is nothing."""
    with pytest.raises(TopicNotFoundError):
        await look(ann.queue, "nowhere")
    with pytest.raises(InvalidTopicError):
        await look(ann.queue, "a/b")


async def judged(process: Process, message_id: str) -> tuple[str, str]:
    """Return in which state a message is, as ``find`` and as ``stats`` have it, where it is the only one."""
    found = await process.queue.find(TOPIC, message_id)
    assert found is not None
    stats = await process.queue.stats(TOPIC)
    [counted] = [state for state in ("pending", "in_flight", "delayed") if getattr(stats, state)]
    return found.state, counted


async def test_an_abandoned_message_is_pending(world: World, ann: Process, bob: Process) -> None:
    """A message is pending as soon as anybody may take it, and not before."""
    [one] = await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.claim(TOPIC, "c")
    await world.later(TTL + MARGIN - 1)
    assert await judged(bob, one) == ("in_flight", "in_flight")
    await world.later(3)
    assert await judged(bob, one) == ("pending", "pending")
    assert len(await bob.queue.claim(TOPIC, "d")) == 1
    assert await judged(bob, one) == ("in_flight", "in_flight")


async def test_a_message_whose_claim_is_renewed_is_in_flight(world: World, ann: Process, bob: Process) -> None:
    """However long its lease is over: the claim's record says so, and until when."""
    [one] = await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    for _ in range(5):
        await world.later(TTL - 5)
        await ann.queue.renew(claim)
        assert await judged(bob, one) == ("in_flight", "in_flight")
    found = await bob.queue.find(TOPIC, one)
    assert found is not None
    assert found.until is not None
    assert found.until.timestamp() == pytest.approx(world.clock.server() + TTL, abs=1)
    await world.later()
    assert await judged(bob, one) == ("pending", "pending")


async def test_a_fenced_claim_has_its_messages_until_its_sessions_time_is_over(
    world: World, ann: Process, bob: Process
) -> None:
    """Its run has ended, its process may be alive: they are in flight until that can believe in them no more."""
    [one] = await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    await ann.queue.renew(claim, ttl=600)
    world.fence(claim, session_until=world.clock.server() + 100)
    await world.later(90)
    assert await judged(bob, one) == ("in_flight", "in_flight")
    await world.later(20)
    assert await judged(bob, one) == ("pending", "pending")


async def test_what_a_live_claim_has_given_back_is_not_its_own(world: World, ann: Process, bob: Process) -> None:
    """Released by a claim that goes on with the rest, taken by another one and abandoned: it is pending."""
    first, _ = await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c")
    await ann.queue.nack(claim, first, requeue=True)
    await ann.queue.renew(claim, ttl=1000)
    assert numbers(await bob.queue.claim(TOPIC, "d")) == [0]
    await world.later()
    stats = await bob.queue.stats(TOPIC)
    assert (stats.pending, stats.in_flight) == (1, 1)
    found = await bob.queue.find(TOPIC, first)
    assert found is not None
    assert found.state == "pending"


@pytest.mark.parametrize("how", ["acked", "dead"])
@pytest.mark.parametrize("seconds", [50, 100, 100_000])
async def test_what_is_settled_and_cannot_be_carried_out_is_in_flight(
    world: World, ann: Process, bob: Process, how: str, seconds: float
) -> None:
    """It is not pending, however long its claim is over, because nobody will be given it."""
    [one] = await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    for process in (ann, bob):
        process.client.inject("denied", "DELETE", "*/messages/*")
        process.client.inject("denied", "COPY")
    await (ann.queue.ack(claim) if how == "acked" else ann.queue.nack(claim))
    await world.later(seconds)
    assert await judged(bob, one) == ("in_flight", "in_flight")
    found = await bob.queue.find(TOPIC, one)
    assert found is not None
    assert (found.until, found.deliveries, found.consumer) == (None, 1, "c")
    assert not await bob.queue.claim(TOPIC, "d")
    assert await judged(bob, one) == ("in_flight", "in_flight")


async def test_what_was_taken_from_a_claim_that_is_over_is_not_judged_by_its_record(
    world: World, ann: Process, bob: Process
) -> None:
    """Somebody else has it now, though that one's record cannot be read."""
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.claim(TOPIC, "c", claim_id="old")
    await world.later(100)
    await bob.queue.claim(TOPIC, "d", claim_id="new", ttl=60)
    await world.later(50)
    ann.client.inject("denied", "GET", "*/claims/new.0.json")
    stats = await ann.queue.stats(TOPIC)
    assert (stats.pending, stats.in_flight) == (0, 1)


async def test_records_that_are_read_for_stats_are_bounded(world: World, ann: Process, bob: Process) -> None:
    """A thousand of them, those of claims that may live first, then the newest."""
    await ann.queue.publish(TOPIC, numbered(2))
    live = await ann.queue.claim(TOPIC, "c", max_messages=1, claim_id="live")
    now = world.clock.server()
    for number in range(1100):
        record = ClaimRecord(claim_id=f"over-{number}", owner="dag", until=now, ttl=1, created_at=now - 1)
        world.bucket.plant(layout.claim(TOPIC, record.stem), record.encode())
    await world.later(2)
    stuck = await ann.queue.claim(TOPIC, "c", max_messages=1, claim_id="stuck", ttl=15)
    ann.client.inject("denied", "DELETE", "*/messages/*")
    await ann.queue.ack(stuck)
    await ann.queue.renew(live, ttl=300)
    await world.later(100)
    before = len(bob.client.requests)
    stats = await bob.queue.stats(TOPIC)
    assert (stats.pending, stats.in_flight) == (0, 2)
    assert sum(kind == "GET" and "/claims/" in key for kind, key in bob.client.requests[before:]) == 1000


@pytest.mark.parametrize("record", ["gone", "unreadable", "of garbage", "of a newer format"])
async def test_without_a_record_a_message_is_pending_when_its_lease_is_over(
    world: World, ann: Process, bob: Process, record: str
) -> None:
    """At the latest when the lease's hint says so; a record that cannot be read fails no count of the others."""
    await ann.queue.publish(TOPIC, numbered(2))
    key = layout.claim(TOPIC, "bad.0")
    await ann.queue.claim(TOPIC, "c", claim_id="bad", max_messages=1, ttl=300)
    good = await ann.queue.claim(TOPIC, "c", claim_id="good", max_messages=1, ttl=300)
    await ann.queue.renew(good, ttl=3000)
    body = world.bucket.body(key)
    if record == "gone":
        world.bucket.remove(key)
    elif record == "unreadable":
        bob.client.inject("denied", "GET", key)
    else:
        world.bucket.plant(key, b"x".ljust(len(body)) if record == "of garbage" else body.replace(b'"v":1', b'"v":9'))
    for seconds, pending in ((200, 0), (320, 1)):
        await world.later(seconds)
        stats = await bob.queue.stats(TOPIC)
        assert (stats.pending, stats.in_flight) == (pending, 2 - pending)


async def test_records_that_answer_500_cost_stats_seconds(world: World, ann: Process, bob: Process) -> None:
    """Ten of them, for ever: they are tried for a moment, all at once."""
    await ann.queue.publish(TOPIC, numbered(10))
    for _ in range(10):
        await ann.queue.renew(await ann.queue.claim(TOPIC, "c", max_messages=1), ttl=300)
    await world.later(100)
    bob.client.inject("lost", "GET", "*/claims/*")
    started = world.clock.elapsed()
    assert (await bob.queue.stats(TOPIC)).pending == 10
    assert world.clock.elapsed() - started < 5


@pytest.mark.parametrize("how", ["held", "delayed", "held by no record"])
async def test_a_time_of_many_hours_ends_in_stats_as_well(world: World, ann: Process, bob: Process, how: str) -> None:
    """A hint has no bound for it: what might be over is read."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=300 if how == "delayed" else 30_000)
    if how == "delayed":
        await ann.queue.nack(claim, requeue=True, delay=30_000)
    if how == "held by no record":
        world.bucket.remove(layout.claim(TOPIC, "run.0"))
    for seconds, pending in ((29_900, 0), (110, 1)):
        await world.later(seconds)
        stats = await bob.queue.stats(TOPIC)
        assert (stats.pending, getattr(stats, "delayed" if how == "delayed" else "in_flight")) == (pending, 1 - pending)


@pytest.mark.parametrize("body", ["garbage", "{}"])
async def test_a_lease_that_is_none_of_ours_is_over_by_its_age(world: World, ann: Process, body: str) -> None:
    """Garbage, or pawn-queue's: in flight for a usual time since it was written, and not for ever."""
    [one] = await ann.queue.publish(TOPIC, numbered(1))
    world.bucket.plant(layout.lease(TOPIC, one), body)
    assert await judged(ann, one) == ("in_flight", "in_flight")
    await world.later()
    assert await judged(ann, one) == ("pending", "pending")


async def test_a_move_that_nobody_finishes_is_pending(world: World, ann: Process, bob: Process) -> None:
    """The next consumer finishes it: it is not in flight for ever."""
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"))
    ann.client.inject("dies", "DELETE", "*/dead-letter/*")
    with pytest.raises(Died):
        await ann.queue.redrive(TOPIC)
    [name] = world.bucket.below("messages/")
    one = units.parse(name)
    assert one is not None
    assert await judged(bob, one.id) == ("in_flight", "in_flight")
    await world.later(70)
    assert await judged(bob, one.id) == ("pending", "pending")


async def test_records_are_read_only_where_leases_look_overdue(world: World, ann: Process, bob: Process) -> None:
    """And then one for each claim that is not closed, however many messages it has."""
    await ann.queue.publish(TOPIC, numbered(60))
    await ann.queue.ack(await ann.queue.claim(TOPIC, "c", claim_id="done", max_messages=10))
    await ann.queue.claim(TOPIC, "c", claim_id="dead", max_messages=10)
    claim = await ann.queue.claim(TOPIC, "c", claim_id="live", max_messages=30)
    with bob.client.counting() as requests:
        assert (await bob.queue.stats(TOPIC)).in_flight == 40
    assert requests == {"LIST": 3}
    await world.later(TTL - 5)
    await ann.queue.renew(claim, ttl=100)
    await world.later(TTL + 10)
    before = len(bob.client.requests)
    stats = await bob.queue.stats(TOPIC)
    assert (stats.pending, stats.in_flight) == (20, 30)
    asked = bob.client.requests[before:]
    assert [key for kind, key in asked if kind == "GET" and "/claims/" in key] == [
        layout.claim(TOPIC, "live.0"),
        layout.claim(TOPIC, "dead.0"),
    ]
    assert [kind for kind, _ in asked].count("LIST") == 4
