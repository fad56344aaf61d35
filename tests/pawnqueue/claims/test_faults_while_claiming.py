"""Looking and winning: one bad object costs its own message, and an interrupted look hides nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from pawnqueue import StoreError
from tests.pawnqueue.claims.polled import cancelling, had, slow
from tests.pawnqueue.virtual import MARGIN, OVERDUE, TOPIC, Died, Process, World, numbered, numbers


@pytest.mark.parametrize("ttl", [30, 10])
async def test_a_lease_whose_put_always_fails_costs_its_own_message_only(
    world: World, ann: Process, ttl: float
) -> None:
    """All others are handed out, in order, each claim within seconds; it is no delivery of its own message."""
    ids = await ann.queue.publish(TOPIC, numbered(30))
    ann.client.inject("lost", "PUT", f"*/leases/{ids[3]}*")
    seen: list[int] = []
    for _ in range(3):
        started = world.clock.elapsed()
        claim = await ann.queue.claim(TOPIC, "c", ttl=ttl)
        assert claim.lost is None
        assert world.clock.elapsed() - started < ttl / 2
        assert {message.deliveries for message in claim} == {1}
        assert (await ann.queue.ack(claim)).complete
        seen += numbers(claim)
        await world.later(1)
    assert sorted(seen)[:27] == [0, 1, 2, *range(4, 28)]
    ann.client.heal()
    left = await had(world, ann, 30 - len(seen), 700)
    assert {message.id: message.deliveries for message in left}[ids[3]] == 1


@pytest.mark.parametrize("latency", [0.0, 0.02])
async def test_claims_of_one_process_at_once_share_what_is_there(ann: Process, latency: float) -> None:
    """Ten claims of ten messages each, of 200: each has its ten, and nobody has another's."""
    await ann.queue.publish(TOPIC, numbered(200))
    ann.client.latency = latency
    claims = await asyncio.gather(*(ann.queue.claim(TOPIC, f"c{n}", max_messages=10) for n in range(10)))
    assert [len(claim) for claim in claims] == [10] * 10
    assert len({message.id for claim in claims for message in claim}) == 100


@pytest.mark.parametrize("by", ["error", "cancellation"])
async def test_a_look_that_is_interrupted_hides_nothing(world: World, ann: Process, bob: Process, by: str) -> None:
    """The next claim has all the messages that it had seen free, in order."""
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.claim(TOPIC, "dead")
    await world.later()
    await ann.queue.publish(TOPIC, numbered(5, 1))
    if by == "error":
        bob.client.inject("denied", "LIST", "*/claims/*", times=1)
        tell = None
    else:
        tell = cancelling(bob, "LIST", "claims")
    task = asyncio.ensure_future(bob.queue.claim(TOPIC, "d"))
    if tell is not None:
        tell(task)
    with suppress(StoreError, asyncio.CancelledError):
        await bob.queue.ack(await task)
        return  # a consumer that needs no interrupted request has lost nothing
    bob.client.heal()
    claim = await bob.queue.claim(TOPIC, "d")
    assert [number for number in numbers(claim) if number] == [1, 2, 3, 4, 5]


async def test_an_error_on_the_second_page_does_not_hide_the_first(ann: Process, bob: Process) -> None:
    """In a topic of thousands, the next claim begins at the head."""
    await ann.queue.publish(TOPIC, numbered(3000))
    bob.client.inject("denied", "LIST", "*/messages/*", passed=1, times=1)
    seen: list[int] = []
    with suppress(StoreError):
        seen += numbers(await bob.queue.claim(TOPIC, "c", max_messages=1500))
    seen += numbers(await bob.queue.claim(TOPIC, "c", max_messages=3000))
    assert seen == list(range(3000))


@pytest.mark.parametrize("call", [1, 2, 3])
async def test_a_clock_that_cannot_be_told_once_hides_nothing(ann: Process, bob: Process, call: int) -> None:
    """The store's time fails between the look and the leases: the next claim has all messages, in order."""
    await ann.queue.publish(TOPIC, numbered(20))
    told, calls = bob.queue._context.time.now, 0

    async def now(**how: float) -> float:
        nonlocal calls
        calls += 1
        if calls == call:
            raise StoreError("The time cannot be told.", transient=True)
        return await told(**how)

    bob.queue._context.time.now = now  # type: ignore[method-assign]
    seen: list[int] = []
    for _ in range(2):
        with suppress(StoreError):
            seen += numbers(await bob.queue.claim(TOPIC, "c", max_messages=20))
    assert seen == list(range(20))


@pytest.mark.parametrize(("dead", "pause"), [(600, 1), (1500, 5)])
async def test_leases_that_nobody_can_judge_do_not_hide_others(
    world: World, ann: Process, bob: Process, dead: int, pause: float
) -> None:
    """Hundreds of messages of a claim whose record is denied do not delay the one of another dead claim behind them."""
    await ann.queue.publish(TOPIC, numbered(dead + 1))
    first = await ann.queue.claim(TOPIC, "dead", max_messages=dead)
    await ann.queue.claim(TOPIC, "dead", max_messages=1)
    bob.client.inject("denied", "GET", f"*/claims/{first.claim_id}*")
    assert numbers(await had(world, bob, 1, 60, pause=pause, max_messages=1)) == [dead]


async def test_ends_that_stick_do_not_delay_one_that_does_not(world: World, ann: Process, bob: Process) -> None:
    """What a dead process gave back is had when its time is over, though forty acks due with it cannot be finished."""
    ids = await ann.queue.publish(TOPIC, numbered(40))
    stuck = [
        await ann.queue.claim(TOPIC, "dead", max_messages=1, ttl=120, claim_id=f"stuck-{number}")
        for number in range(40)
    ]
    for process in (ann, bob):
        for one in ids:
            process.client.inject("lost", "DELETE", f"*/messages/*{one}*")
    await asyncio.gather(*(ann.queue.ack(claim) for claim in stuck))
    dying = await world.process()
    await dying.queue.publish(TOPIC, numbered(1, 100))
    started, ttl = world.clock.elapsed(), 95
    claim = await dying.queue.claim(TOPIC, "dying", ttl=ttl, claim_id="dying")
    assert numbers(claim) == [100]
    dying.client.inject("dies", "PUT", "*/leases/*")
    with pytest.raises(Died):
        await dying.queue.nack(claim, requeue=True)
    bound = ttl + 2 * MARGIN + 15 - (world.clock.elapsed() - started)
    assert numbers(await had(world, bob, 1, bound)) == [100]


@pytest.mark.parametrize("bad", ["malformed", "denied"])
async def test_bad_messages_at_the_head_do_not_empty_a_claim(world: World, ann: Process, bad: str) -> None:
    """The first claim of one message has the good one behind twelve that cannot be handed out."""
    if bad == "malformed":
        world.fill(["x"] * 12)
    else:
        for one in await ann.queue.publish(TOPIC, numbered(12, 100)):
            ann.client.inject("denied", "GET", f"*/messages/*{one}*")
    await world.later(1)
    await ann.queue.publish(TOPIC, numbered(1))
    assert numbers(await ann.queue.claim(TOPIC, "c", max_messages=1)) == [0]


async def test_a_record_whose_get_hangs_does_not_delay_new_messages(world: World, ann: Process, bob: Process) -> None:
    """A dead claim's record that takes 20 seconds to fail delays no claim of others for long, and never again."""
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.claim(TOPIC, "dead")
    await world.later(OVERDUE)
    bob.client.inject("lost", "GET", "*/claims/*")
    slow(world, bob, "GET", "/claims/", 20)
    for number in range(1, 6):
        await ann.queue.publish(TOPIC, numbered(1, number))
        assert numbers(await had(world, bob, 1, 12)) == [number]
        await world.later(15)


@pytest.mark.parametrize("ttl", [30, 10])
async def test_a_body_whose_get_hangs_does_not_delay_the_others(world: World, ann: Process, ttl: float) -> None:
    """It takes 20 seconds to fail: the other nine messages are had within about ten."""
    ids = await ann.queue.publish(TOPIC, numbered(10))
    ann.client.inject("lost", "GET", f"*/messages/*{ids[3]}*")
    slow(world, ann, "GET", ids[3], 20)
    assert numbers(await had(world, ann, 9, 13, ttl=ttl)) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
