"""From publish to the end of a message: acked, buried, given back, or kept over long work."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pawnqueue import PawnQueue
from tests.e2e.backends import CONDITIONAL, claim_until, settled

if TYPE_CHECKING:
    from pawnqueue import Settings

pytestmark = pytest.mark.servers


async def test_what_is_published_is_consumed_in_order_and_gone_when_acked(queue: PawnQueue, topic: str) -> None:
    """Ids, order, payload, producer and headers come through; after the ack nothing of them is left."""
    payloads = [{"n": n, "text": "Größe ✓"} for n in range(12)]
    ids = await queue.publish(topic, payloads, producer="shop", headers={"trace": "1"})
    claims = await claim_until(queue, topic, len(ids), ttl=2.50)
    messages = [message for claim in claims for message in claim]

    assert [message.id for message in messages] == ids
    assert [message.payload for message in messages] == payloads
    assert {message.producer_id for message in messages} == {(await queue.register_producer("shop")).id}
    assert {tuple(message.headers.items()) for message in messages} == {(("trace", "1"),)}
    assert {message.deliveries for message in messages} == {1}
    for claim in claims:
        assert (await settled(queue.ack, claim)).complete
    stats = await queue.stats(topic)
    assert (stats.pending, stats.in_flight, stats.delayed, stats.dead) == (0, 0, 0, 0)


async def test_one_batch_may_end_in_three_ways(queue: PawnQueue, topic: str) -> None:
    """One message is acked, one buried, one given back: only that one comes again, as its second delivery."""
    acked, buried, given_back = await queue.publish(topic, [{"n": n} for n in range(3)])
    claims = await claim_until(queue, topic, 3)
    holder = {one: claim for claim in claims for one in claim.ids}
    assert (await settled(queue.ack, holder[acked], [acked])).acked == [acked]
    assert (await settled(queue.nack, holder[buried], [buried])).buried == [buried]
    assert (await settled(queue.nack, holder[given_back], [given_back], requeue=True)).released == [given_back]

    [claim] = await claim_until(queue, topic, 1)
    assert [(message.id, message.deliveries) for message in claim] == [(given_back, 2)]
    assert (await settled(queue.ack, claim)).complete
    stats = await queue.stats(topic)
    assert (stats.pending, stats.in_flight, stats.dead) == (0, 0, 1)


@pytest.mark.parametrize("backend", [CONDITIONAL], ids=str)
async def test_a_claim_is_kept_over_work_that_is_longer_than_its_time(
    queue: PawnQueue, settings: Settings, topic: str
) -> None:
    """While it is kept, nobody else is given its message; the ack at the end counts."""
    [one] = await queue.publish(topic, [{}])
    [claim] = await claim_until(queue, topic, 1, ttl=2.5)
    async with PawnQueue.open(settings) as other, queue.keep_alive(claim, ttl=2.5) as kept:
        await asyncio.sleep(2.7)
        assert not await other.claim(topic, "other", ttl=2.5)
        assert not kept.lost.is_set()
    assert (await settled(queue.ack, claim)).acked == [one]
