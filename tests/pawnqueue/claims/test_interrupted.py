"""Closing, cancelling and settling: nobody waits for a dead process's time (§4, Interrupted)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from pawnqueue import QueueClosedError, StoreError
from pawnqueue.domain import layout
from pawnqueue.stores.port import Expect, Refused, Unknown
from tests.pawnqueue.claims.polled import GIVEN_BACK, cancelled, had
from tests.pawnqueue.virtual import MARGIN, TOPIC, Process, World, numbered, numbers
from tools.kit.stores import Answer, CarryOut, Request

SIX_HOURS = 21_600.0


@pytest.mark.parametrize("claim_id", [None, "run"])
@pytest.mark.parametrize("moment", [0.05, 0.15, 0.25, 0.35])
async def test_closing_ends_a_claim_that_is_under_way(
    world: World, ann: Process, bob: Process, moment: float, claim_id: str | None
) -> None:
    """Whatever it is doing, it gets an error that the queue was closed, and others get all messages within seconds."""
    await ann.queue.publish(TOPIC, numbered(5))
    ann.client.latency = 0.1
    task = asyncio.ensure_future(ann.queue.claim(TOPIC, "c", ttl=3600, claim_id=claim_id))
    await world.later(moment)
    await ann.queue.aclose()
    with pytest.raises(QueueClosedError):
        await task
    assert numbers(await had(world, bob, 5, 5)) == [0, 1, 2, 3, 4]


async def test_a_claim_whose_record_could_not_be_seen_at_first_does_not_count(world: World) -> None:
    """It was created, and nobody could tell for a second: as it was never handed out, it is no delivery."""
    ann = await world.process(retry={"budget_seconds": 1.0})
    await ann.queue.publish(TOPIC, numbered(1))
    created: list[float] = []

    async def read_later(request: Request, carry_out: CarryOut) -> Answer:
        is_too_early = created and world.clock.elapsed() - created[0] < 1
        if is_too_early and request.call == "get" and "/claims/" in request.key:
            raise StoreError("It cannot be read yet.", transient=True)
        return await carry_out()

    def note(kind: str, key: str) -> None:
        if kind == "PUT" and "/claims/" in key and not created:
            created.append(world.clock.elapsed())

    ann.client.hook = read_later
    ann.client.meanwhile = note
    ann.client.inject("answer lost", "PUT", "*/claims/*", times=1)
    got = []
    with suppress(StoreError):
        got += await ann.queue.claim(TOPIC, "c")
    assert created
    got = got or await had(world, ann, 1, 100)
    assert [message.deliveries for message in got] == [1]


async def test_a_claim_of_a_thousand_is_cancelled_within_half_a_minute(
    world: World, ann: Process, bob: Process
) -> None:
    """On a slow store too: another process then has all the messages, and none after hours."""
    await ann.queue.publish(TOPIC, numbered(1000))
    ann.client.latency = 0.5
    started = world.clock.elapsed()
    await cancelled(world, ann.queue.claim(TOPIC, "c", ttl=3600, max_messages=1000), 2.2)
    ann.client.latency = 0.0
    left = 30 - (world.clock.elapsed() - started)
    assert sorted(numbers(await had(world, bob, 1000, left, max_messages=1000))) == list(range(1000))


async def test_a_record_that_is_created_late_is_refused(world: World, ann: Process, bob: Process) -> None:
    """Its creation was repeated, so its first PUT may land hours later: it must not cover what others hold then."""
    await ann.queue.publish(TOPIC, numbered(2))
    late: list[CarryOut] = []

    async def create_late(request: Request, carry_out: CarryOut) -> Answer:
        if "/claims/" in request.key and request.expect is Expect.NOTHING and not late:
            late.append(carry_out)
            return Unknown(StoreError("It took too long.", transient=True))
        return await carry_out()

    ann.client.hook = create_late
    claim = await ann.queue.claim(TOPIC, "c", ttl=SIX_HOURS)
    assert numbers(claim) == [0, 1]
    assert (await ann.queue.nack(claim, requeue=True)).complete
    [create] = late
    assert isinstance(await create(), Refused)
    dead = await world.process()
    assert len(await dead.queue.claim(TOPIC, "dead", ttl=30)) == 2
    await world.later(1)
    assert len(await had(world, bob, 2, 30 + 2 * MARGIN + 20 + GIVEN_BACK)) == 2


@pytest.mark.parametrize("claim_id", [None, "run"])
async def test_a_requeue_that_was_cancelled_is_carried_out_when_the_queue_is_closed(
    world: World, ann: Process, bob: Process, claim_id: str | None
) -> None:
    """It was decided and not carried out: others have the messages soon, and not when the claim's time is over."""
    await ann.queue.publish(TOPIC, numbered(5))
    claim = await ann.queue.claim(TOPIC, "c", ttl=SIX_HOURS, claim_id=claim_id)
    ann.client.latency = 0.1
    await cancelled(world, ann.queue.nack(claim, requeue=True), 0.15)
    ann.client.latency = 0.0
    await ann.queue.aclose()
    assert numbers(await had(world, bob, 5, GIVEN_BACK)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("claim_id", [None, "run"])
async def test_an_ack_that_was_cancelled_is_carried_out_when_the_queue_is_closed(
    world: World, ann: Process, bob: Process, claim_id: str | None
) -> None:
    """It was decided: nothing of the messages is left, and nobody has them again."""
    await ann.queue.publish(TOPIC, numbered(5))
    claim = await ann.queue.claim(TOPIC, "c", ttl=SIX_HOURS, claim_id=claim_id)
    ann.client.latency = 0.1
    await cancelled(world, ann.queue.ack(claim), 0.15)
    await ann.queue.aclose()
    await world.later(10)
    assert world.bucket.below("messages/") == []
    stats = await bob.queue.stats(TOPIC)
    assert (stats.pending, stats.in_flight) == (0, 0)
    assert not await bob.queue.claim(TOPIC, "d")


async def test_a_lease_of_a_newer_format_does_not_keep_the_others_from_being_given_back(
    world: World, ann: Process, bob: Process
) -> None:
    """Of four messages that are released, the other three are had by others soon; only its own may be unfinished."""
    ids = await ann.queue.publish(TOPIC, numbered(4))
    given = await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=600)
    claim = await bob.queue.attach(given.hand_over(), ttl=600)
    world.bucket.plant(layout.lease(TOPIC, ids[1]), {"v": 2, "state": "held"})
    settled = await bob.queue.nack(claim, requeue=True)
    assert set(settled.unfinished) <= {ids[1]}
    other = await world.process()
    assert numbers(await had(world, other, 3, GIVEN_BACK)) == [0, 2, 3]


async def test_a_claim_that_nobody_can_ask_for_is_not_kept_when_closed(
    world: World, ann: Process, bob: Process
) -> None:
    """Claims are kept for later calls with their ids: one whose id was made up, and not handed over, is given back."""
    await ann.queue.publish(TOPIC, numbered(3))
    await ann.queue.claim(TOPIC, "c", ttl=3600)
    await ann.queue.aclose(keep_claims=True)
    assert numbers(await had(world, bob, 3, GIVEN_BACK)) == [0, 1, 2]


async def test_what_was_handed_over_is_kept_when_closed(ann: Process, bob: Process) -> None:
    """Its id was made up, but who has the reference comes by it."""
    await ann.queue.publish(TOPIC, numbered(3))
    reference = (await ann.queue.claim(TOPIC, "c", ttl=3600)).hand_over()
    await ann.queue.aclose(keep_claims=True)
    assert numbers(await bob.queue.attach(reference)) == [0, 1, 2]


async def test_closing_that_was_cancelled_is_made_up_for_by_closing_again(
    world: World, ann: Process, bob: Process
) -> None:
    """The queue is then closed in good order: others have its messages soon."""
    await ann.queue.publish(TOPIC, numbered(3))
    await ann.queue.claim(TOPIC, "c", ttl=3600)
    ann.client.latency = 0.2
    await cancelled(world, ann.queue.aclose(), 0.1)
    ann.client.latency = 0.0
    await ann.queue.aclose()
    assert numbers(await had(world, bob, 3, GIVEN_BACK)) == [0, 1, 2]


@pytest.mark.parametrize("requeue", [False, True])
async def test_a_closed_queue_settles_nothing_and_asks_nothing(ann: Process, *, requeue: bool) -> None:
    """A nack by it raises an error before any request is sent."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c")
    await ann.queue.aclose(keep_claims=True)
    ann.queue._context.time.__init__(ann.queue._context.store, ann.queue._context.clock)  # type: ignore[misc] - as it is at its start
    with ann.client.counting() as requests, pytest.raises(QueueClosedError):
        await ann.queue.nack(claim, requeue=requeue)
    assert sum(requests.values()) == 0
