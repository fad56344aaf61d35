"""No message waits for ever, and none longer than it has to (§5.7)."""

from __future__ import annotations

import asyncio

import pytest

from pawnqueue.claims.candidates import FULL_LISTING_SECONDS
from pawnqueue.claims.register_cache import RENEWED_RECORD_RECHECK_SECONDS
from pawnqueue.domain import layout
from pawnqueue.domain.size_hint import hint_of_record
from tests.pawnqueue.virtual import MARGIN, OVERDUE, TOPIC, TTL, Died, Process, World, numbered, numbers


async def wait_for(process: Process, world: World, at_most: float, consumer: str = "c") -> float:
    """Poll until something is had, and return how long that took."""
    started = world.clock.elapsed()
    while not await process.queue.claim(TOPIC, consumer):
        assert world.clock.elapsed() - started <= at_most
        await world.later(1)
    return world.clock.elapsed() - started


async def test_a_process_that_finishes_a_requeue_asks_for_the_time_itself(world: World, ann: Process) -> None:
    """A delay of five seconds is none of hours, where it is carried out by a process that has asked for no time yet."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=60)
    ann.client.inject("dies", "PUT", "*/leases/*")
    with pytest.raises(Died):
        await ann.queue.nack(claim, requeue=True, delay=5)
    fresh = await world.process()
    fresh.queue._context.time.__init__(fresh.queue._context.store, world.clock)  # type: ignore[misc] - as it is at its start
    await fresh.queue.claim(TOPIC, "c", claim_id="run", wait=100)
    other = await world.process()
    assert await wait_for(other, world, 5 + FULL_LISTING_SECONDS + 5) <= 5 + FULL_LISTING_SECONDS + 2


async def test_what_a_live_claim_gave_back_is_its_no_more(world: World, ann: Process, bob: Process) -> None:
    """A message that a six-hour claim gave back, and whose next holder died, is there when that one's time is over."""
    await ann.queue.publish(TOPIC, numbered(2))
    long = await ann.queue.claim(TOPIC, "long", ttl=21_600)
    await ann.queue.nack(long, long.ids[:1], requeue=True)
    dead = await world.process()
    assert numbers(await dead.queue.claim(TOPIC, "dead")) == [0]
    assert not await bob.queue.claim(TOPIC, "d")
    await world.later(TTL)
    assert await wait_for(bob, world, 60) <= 2 * MARGIN + 2
    assert long.lost is None


async def test_what_a_claim_that_renews_gave_back_is_its_no_more(world: World, ann: Process, bob: Process) -> None:
    """The same where the claim goes on renewing, and its record was known from before it gave the message back."""
    await ann.queue.publish(TOPIC, numbered(2))
    held = await ann.queue.claim(TOPIC, "long")
    async with ann.queue.keep_alive(held):
        await world.later(3 * TTL)
        assert not await bob.queue.claim(TOPIC, "d")
        await ann.queue.nack(held, held.ids[:1], requeue=True)
        dead = await world.process()
        assert numbers(await dead.queue.claim(TOPIC, "dead")) == [0]
        assert not await bob.queue.claim(TOPIC, "d")
        await world.later(TTL)
        assert await wait_for(bob, world, 120) <= 2 * MARGIN + RENEWED_RECORD_RECHECK_SECONDS + FULL_LISTING_SECONDS
    assert held.lost is None


async def test_a_late_settlement_does_not_make_the_record_look_young(world: World, ann: Process, bob: Process) -> None:
    """A claim of six hours that settles a part near its end, and then dies, is over when it is over."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", ttl=16_320)
    await world.later(16_300)
    await ann.queue.ack(claim, claim.ids[:1])
    await world.later(20)
    assert await wait_for(bob, world, 60) <= 2 * MARGIN + 2


async def test_every_write_of_a_record_tells_what_is_left(world: World, ann: Process) -> None:
    """Its size, by which LIST is read, tells what is left of its time now, and not what it was once given."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", ttl=16_320)
    await world.later(16_300)
    await ann.queue.ack(claim, claim.ids[:1])
    [info] = [info async for page in ann.queue._context.store.pages(layout.claims(TOPIC)) for info in page]
    hint = hint_of_record(info.size, info.last_modified)
    assert hint is not None
    assert hint.latest - info.last_modified.timestamp() < 60


async def test_a_claim_fenced_by_who_died_is_taken(world: World, ann: Process, bob: Process) -> None:
    """Between the fence and the leases of its taker, nothing waits for more than the fence has waited for."""
    await ann.queue.publish(TOPIC, numbered(3))
    await ann.queue.claim(TOPIC, "c")
    await world.later()
    dying = await world.process()
    dying.client.inject("dies", "PUT", "*/leases/*")
    with pytest.raises(Died):
        await dying.queue.claim(TOPIC, "d")
    assert numbers(await bob.queue.claim(TOPIC, "d")) == [0, 1, 2]


@pytest.mark.parametrize("latency", [0.0, 0.02])
async def test_nobody_leaves_empty_handed_while_there_is_plenty(world: World, latency: float) -> None:
    """Twenty consumers that ask for ten at one moment share 200 messages, at a bounded number of requests."""
    publisher = await world.process()
    await publisher.queue.publish(TOPIC, numbered(200))
    crowd = [await world.process() for _ in range(20)]
    before = [len(one.client.requests) for one in crowd]
    for one in crowd:
        one.client.latency = latency
    claims = await asyncio.gather(*(one.queue.claim(TOPIC, f"c{n}", max_messages=10) for n, one in enumerate(crowd)))
    assert all(claims)
    had = [one for claim in claims for one in claim.ids]
    assert len(had) == len(set(had))
    sent = sum(len(one.client.requests) - was for one, was in zip(crowd, before, strict=True))
    assert sent <= 20 * 10 * 2.5 * 3


async def test_a_consumer_alone_has_them_in_order(ann: Process) -> None:
    """Without others, messages are had in publish order, also from what an earlier look has shown."""
    await ann.queue.publish(TOPIC, numbered(250))
    seen: list[int] = []
    while claim := await ann.queue.claim(TOPIC, "c", max_messages=30):
        seen += numbers(claim)
        await ann.queue.ack(claim)
    assert seen == list(range(250))


@pytest.mark.parametrize("claim_id", [None, "run"])
@pytest.mark.parametrize("in_flight", [0, 10, 3000])
async def test_an_idle_look_is_one_listing(
    world: World, ann: Process, bob: Process, in_flight: int, claim_id: str | None
) -> None:
    """Whatever is in flight, and with a thousand closed records: a look that finds nothing new is one LIST."""
    for number in range(1000):
        stem = f"old-{number}.0"
        world.bucket.plant(f"{TOPIC}/claims/{stem}.json", f'{{"v":1,"claim_id":"old-{number}","state":"closed"}}')
    await ann.queue.publish(TOPIC, numbered(in_flight))
    if in_flight:
        await ann.queue.claim(TOPIC, "c", max_messages=in_flight, ttl=600)
    assert not await bob.queue.claim(TOPIC, "d", claim_id=claim_id)
    with bob.client.counting() as requests:
        for _ in range(8):
            assert not await bob.queue.claim(TOPIC, "d", claim_id=claim_id)
            await world.later(1)
    assert requests == {"LIST": 8}
    await ann.queue.publish(TOPIC, numbered(1, 5000))
    assert numbers(await bob.queue.claim(TOPIC, "d", claim_id=claim_id)) == [5000]


async def test_a_full_look_comes_now_and_then(world: World, ann: Process, bob: Process) -> None:
    """What others give back is had by a consumer that was idle within a full look's interval."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", ttl=600)
    assert not await bob.queue.claim(TOPIC, "d")
    await ann.queue.nack(claim, requeue=True)
    assert await wait_for(bob, world, 60) <= FULL_LISTING_SECONDS + 1


async def test_one_who_gives_back_has_it_at_once(ann: Process) -> None:
    """A process sees at once what it has given back itself."""
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"), requeue=True)
    assert numbers(await ann.queue.claim(TOPIC, "c")) == [0]


async def test_deliveries_that_were_none_bury_nothing(world: World) -> None:
    """Ten claims that end before their messages are handed out leave the count where it was."""
    world.topic(max_deliveries=2)
    publisher = await world.process()
    await publisher.queue.publish(TOPIC, numbered(3))
    for _ in range(10):
        dying = await world.process()
        dying.client.inject("dies", "GET", "*/messages/*")
        with pytest.raises(Died):
            await dying.queue.claim(TOPIC, "c")
        await world.later(OVERDUE)
    claim = await publisher.queue.claim(TOPIC, "c")
    assert [message.deliveries for message in claim] == [1, 1, 1]


async def test_what_it_was_given_back_for_is_buried_with_it(world: World, ann: Process) -> None:
    """A message that is buried after deliberate requeues tells the last reason and error that were given."""
    world.topic(max_deliveries=2)
    process = await world.process()
    ids = await process.queue.publish(TOPIC, numbered(1))
    for number in range(2):
        claim = await process.queue.claim(TOPIC, "c")
        await process.queue.nack(claim, requeue=True, reason="no stock", error=f"try {number}")
    assert not await process.queue.claim(TOPIC, "c")
    found = await process.queue.find(TOPIC, ids[0])
    assert found is not None
    assert (found.state, found.reason, found.error) == ("dead", "no stock", "try 1")
    assert (found.deliveries, found.max_deliveries) == (2, 2)
