"""What does not hold where consumers of both libraries work on one topic (docs/how-to/pawn-queue.md).

Theirs delete and overwrite leases without a condition. Nothing here is wanted; it is pinned, so that what the
documentation says of it stays true.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue.domain import layout
from tests.e2e.backends import CONDITIONAL, CSPRNG, claim_until, patiently, settled

if TYPE_CHECKING:
    from pawnqueue import PawnQueue
    from tests.interop.conftest import Bucket
    from tests.interop.driver import Peer

pytestmark = [pytest.mark.servers, pytest.mark.peer]
on_seaweedfs = pytest.mark.parametrize("backend", [CONDITIONAL], ids=str)

HOUR = 3600.0
SHORT = {"visibility_timeout_seconds": 0.2}


def ids_of(messages: list[dict[str, Any]]) -> list[str]:
    """Return the ids of what the peer was given."""
    return [message["id"] for message in messages]


@on_seaweedfs
async def test_its_refresher_overwrites_the_lease_that_we_took_over(
    ours: PawnQueue, peer: Peer, bucket: Bucket, topic: str
) -> None:
    """It does not notice that it was too late, and both work on the message; our ack holds all the same."""
    await peer.open(bucket.config(**SHORT))
    [one] = await ours.publish(topic, [{}])
    assert ids_of(await peer.poll(topic)) == [one]
    [claim] = await claim_until(ours, topic, 1)
    lease = layout.lease(topic, one)
    assert bucket.json(lease)["claim"]

    await peer.refresh(topic)
    assert "claim" not in bucket.json(lease)
    assert (await ours.ack(claim)).acked == [one]
    # A store that minds versions in a DELETE spares the lease, which is not ours any more.
    assert bucket.keys(f"{topic}/") in ([".topic"], [".topic", lease.removeprefix(f"{topic}/")])


@on_seaweedfs
async def test_its_late_ack_deletes_the_message_that_we_took_over(
    ours: PawnQueue, peer: Peer, bucket: Bucket, topic: str
) -> None:
    """The message that we hold is gone; burying it then leaves no dead letter, and no reason without one."""
    await peer.open(bucket.config(**SHORT))
    [one] = await ours.publish(topic, [{}])
    assert ids_of(await peer.poll(topic)) == [one]
    [claim] = await claim_until(ours, topic, 1)

    await peer.ack([one])
    assert bucket.keys(f"{topic}/messages/") == bucket.keys(f"{topic}/leases/") == []
    assert (await ours.nack(claim)).buried == [one]
    assert bucket.keys(f"{topic}/dead-letter/") == []
    assert (await ours.stats(topic)).dead == 0


@on_seaweedfs
async def test_its_janitor_deletes_our_lease_where_its_clock_is_a_day_ahead(
    ours: PawnQueue, peer: Peer, bucket: Bucket, topic: str
) -> None:
    """An hour short of a day it leaves the lease alone; a day on, it is given the message that we hold."""
    [one] = await ours.publish(topic, [{}])
    claim = await ours.claim(topic, "ours", ttl=30)
    assert claim.ids == [one]

    await peer.set_clock(23 * HOUR)
    assert await peer.poll(topic) == []
    assert bucket.keys(f"{topic}/leases/") == [f"{one}.lease"]
    await peer.set_clock(25 * HOUR)
    assert ids_of(await peer.poll(topic)) == [one]


@on_seaweedfs
async def test_its_janitor_deletes_the_lease_that_has_replaced_an_expired_one(
    ours: PawnQueue, peer: Peer, bucket: Bucket, topic: str
) -> None:
    """It has read an expired lease, we take the message over, and then it deletes the lease that it finds: ours."""
    await peer.open(bucket.config(**SHORT))
    [one] = await ours.publish(topic, [{}])
    assert ids_of(await peer.poll(topic)) == [one]
    lease = layout.lease(topic, one)
    await asyncio.sleep(SHORT["visibility_timeout_seconds"])
    assert await peer.begin_poll(topic, stop_before=("delete_object", "/leases/")) == lease
    [claim] = await claim_until(ours, topic, 1)
    assert bucket.json(lease)["claim"]

    assert ids_of(await peer.go_on()) == [one]
    assert (await ours.ack(claim)).acked == [one]


@on_seaweedfs
async def test_it_delivers_what_was_settled_while_it_was_claiming(ours: PawnQueue, peer: Peer, topic: str) -> None:
    """It reads a message before it has the lease: what we claim and ack in between is delivered once more."""
    [one] = await ours.publish(topic, [{}])
    await peer.begin_poll(topic, stop_before=("put_object", "/leases/"))
    claim = await ours.claim(topic, "ours", ttl=30)
    assert (await ours.ack(claim)).acked == [one]

    assert ids_of(await peer.go_on()) == [one]


@pytest.mark.parametrize("backend", [CONDITIONAL, CSPRNG], ids=str)
async def test_with_csprng_verify_it_overwrites_a_lease_that_came_between(
    ours: PawnQueue, peer: Peer, bucket: Bucket, topic: str
) -> None:
    """It does not measure how long ago it looked. Where only one side follows csprng_verify, nothing else is needed."""
    config = bucket.config()
    await peer.open({**config, "concurrency": {**config["concurrency"], "strategy": "csprng_verify"}})
    [one] = await ours.publish(topic, [{}])
    await peer.begin_poll(topic, stop_before=("put_object", "/leases/"))
    [claim] = await claim_until(ours, topic, 1)

    assert ids_of(await peer.go_on()) == [one]
    assert (await settled(ours.ack, claim)).acked == [one]


@on_seaweedfs
async def test_it_sees_no_packs(ours: PawnQueue, peer: Peer) -> None:
    """In a topic that we created without ``packs=False``, many messages at once are for our consumers alone."""
    topic = f"orders-{uuid.uuid4().hex[:12]}"
    await patiently(lambda: ours.create_topic(topic))
    ids = await ours.publish(topic, [{"n": n} for n in range(100)])
    assert await peer.poll(topic, most=200) == []
    claims = await claim_until(ours, topic, len(ids))
    assert [message.id for claim in claims for message in claim] == ids


@on_seaweedfs
async def test_what_we_give_back_it_does_not_see_for_a_day(
    ours: PawnQueue, peer: Peer, bucket: Bucket, topic: str
) -> None:
    """Released, redriven, or left by a claim whose time is over: ours to take, and for a day not there for it."""
    redriven, released, left = await ours.publish(topic, [{}, {}, {}])
    claim = await ours.claim(topic, "ours", max_messages=10, ttl=2.5)
    over = asyncio.ensure_future(asyncio.sleep(3.1))
    assert (await ours.nack(claim, [redriven])).complete
    assert (await ours.nack(claim, [released], requeue=True)).complete
    assert len((await ours.redrive(topic)).moved) == 1
    stats = await ours.stats(topic)
    assert (stats.pending, stats.in_flight) == (2, 1)
    await over

    assert await peer.poll(topic) == []
    await peer.set_clock(25 * HOUR)
    assert {*ids_of(await peer.poll(topic))} == {redriven, released, left}
    # It names a redriven message's lease by the id inside, which is not the one in its key.
    await peer.ack([redriven, released, left])
    assert bucket.keys(f"{topic}/messages/") == []
    assert len(bucket.keys(f"{topic}/leases/")) == 1
