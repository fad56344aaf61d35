"""Keep a claim: what a renewal gives, and when it is refused."""

from __future__ import annotations

import math

import pytest

from pawnqueue import InvalidArgumentError, LeaseLostError, QueueClosedError, StoreError
from tests.pawnqueue.virtual import MARGIN, TOPIC, TTL, Process, World, numbered


async def test_renewing_moves_the_time(world: World, ann: Process, bob: Process) -> None:
    """A renewed claim is held for the given time from then on."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c")
    await world.later(20)
    await ann.queue.renew(claim, ttl=100)
    assert abs(claim.seconds_left - (100 - MARGIN)) < 1
    await world.later(100 - MARGIN)
    assert not await bob.queue.claim(TOPIC, "d")
    assert claim.lost is None
    assert (await ann.queue.ack(claim)).complete


async def test_who_is_past_its_time_has_lost_the_claim(world: World, ann: Process) -> None:
    """A renewal after the deadline is an error without a request, even if nobody has taken over yet."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    await world.later(TTL - MARGIN + 0.1)
    with ann.client.counting() as requests, pytest.raises(LeaseLostError, match="its time was over"):
        await ann.queue.renew(claim)
    assert not requests
    assert claim.lost
    with pytest.raises(LeaseLostError):
        await ann.queue.renew(claim)


async def test_a_renewal_counts_from_before_its_request(world: World, ann: Process) -> None:
    """However slowly it is answered, the claim is trusted no longer than the margin before the time in its record."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    ann.client.latency = 10
    await ann.queue.renew(claim)
    until = world.bucket.record(f"{claim.claim_id}.0").until
    assert claim.seconds_left <= until - MARGIN - world.clock.server() + 0.6


async def test_a_renewal_that_took_too_long_is_a_loss(world: World, ann: Process) -> None:
    """An answer after the time that it gave says that the claim is lost."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    ann.client.latency = TTL
    with pytest.raises(LeaseLostError, match="took longer"):
        await ann.queue.renew(claim)
    assert claim.lost


async def test_a_renewal_without_an_answer_may_be_tried_again(world: World, ann: Process) -> None:
    """Nobody knows what became of it: the claim is trusted until its deadline, and the next renewal finds out."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", ttl=300)
    ann.client.inject("answer lost", "PUT", "*/claims/*")
    ann.client.inject("lost", "GET", "*/claims/*")
    with pytest.raises(StoreError):
        await ann.queue.renew(claim, ttl=300)
    assert claim.lost is None
    ann.client.heal()
    await ann.queue.renew(claim, ttl=300)
    assert (await ann.queue.ack(claim)).complete


async def test_a_claim_that_is_settled_needs_no_renewal(world: World, ann: Process) -> None:
    """Once all is settled, renewing is neither an error nor a request: a final record is not written again."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    await ann.queue.ack(claim)
    with ann.client.counting() as requests:
        await ann.queue.renew(claim)
    assert not requests


@pytest.mark.parametrize("ttl", [0, MARGIN, -1, math.nan, math.inf, "x"], ids=repr)
async def test_a_time_that_is_none_is_refused(ann: Process, ttl: float) -> None:
    """Renewing and attaching take the times that claiming takes."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    with ann.client.counting() as requests:
        with pytest.raises(InvalidArgumentError):
            await ann.queue.renew(claim, ttl=ttl)
        with pytest.raises(InvalidArgumentError):
            await ann.queue.attach(claim.hand_over(), ttl=ttl)
    assert not requests


async def test_a_closed_queue_keeps_nothing(ann: Process) -> None:
    """Renewing through a closed queue is an error."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    await ann.queue.aclose()
    with pytest.raises(QueueClosedError):
        await ann.queue.renew(claim)
