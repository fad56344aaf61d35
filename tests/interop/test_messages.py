"""Each library consumes what the other publishes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.backends import CONDITIONAL, claim_until, settled

if TYPE_CHECKING:
    from pawnqueue import PawnQueue
    from tests.interop.conftest import Bucket
    from tests.interop.driver import Peer

pytestmark = [pytest.mark.servers, pytest.mark.peer]

PAYLOADS = [{"n": n, "text": "Überweisung ✓", "nested": {"list": [1, 2.5, None, True]}} for n in range(50)]


async def test_we_consume_what_it_publishes_in_order(ours: PawnQueue, peer: Peer, bucket: Bucket, topic: str) -> None:
    """Fifty messages come in order with ids, producer, time and payload, and are gone when they are acked."""
    ids = await peer.publish(topic, PAYLOADS, producer="their-shop")
    claims = await claim_until(ours, topic, len(ids), ttl=30)
    messages = [message for claim in claims for message in claim]

    assert [message.id for message in messages] == ids
    assert [message.payload for message in messages] == PAYLOADS
    assert {message.producer_id for message in messages} == {await peer.register("producers", "their-shop")}
    assert sorted(message.created_at for message in messages) == [message.created_at for message in messages]
    assert {message.deliveries for message in messages} == {1}
    for claim in claims:
        assert (await settled(ours.ack, claim)).complete
    assert bucket.keys(f"{topic}/") == [".topic"]
    assert await peer.poll(topic) == []


async def test_it_consumes_what_we_publish_in_order(ours: PawnQueue, peer: Peer, bucket: Bucket, topic: str) -> None:
    """The same the other way round; our headers, which it does not know, are no obstacle."""
    ids = await ours.publish(topic, PAYLOADS, producer="our-shop", headers={"trace": "1"})
    messages = await peer.poll(topic, most=100)

    assert [message["id"] for message in messages] == ids
    assert [message["payload"] for message in messages] == PAYLOADS
    assert {message["producer_id"] for message in messages} == {
        (await ours.register_producer("our-shop")).id,
    }
    await peer.ack(ids)
    assert bucket.keys(f"{topic}/") == [".topic"]
    assert not await ours.claim(topic, "ours")


@pytest.mark.parametrize("backend", [CONDITIONAL], ids=str)
async def test_its_listener_works_through_what_we_publish(
    ours: PawnQueue, peer: Peer, bucket: Bucket, topic: str
) -> None:
    """Its push mode acks ours, and what its handler fails at becomes a dead letter that we can see."""
    await peer.open(bucket.config(interval_seconds=0.05))
    good = await ours.publish(topic, PAYLOADS[:3])
    assert await peer.listen(topic, 3) == good
    bad = await ours.publish(topic, PAYLOADS[3:4])
    assert await peer.listen(topic, 1, fail=True) == bad

    assert (await ours.stats(topic)).dead == 1
    assert bucket.keys(f"{topic}/messages/") == []
