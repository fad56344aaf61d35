"""Names and topics mean the same to both libraries."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import pytest

from pawnqueue import PawnQueue
from tests.e2e.backends import CONDITIONAL, claim_until, patiently, settled

if TYPE_CHECKING:
    from tests.interop.conftest import Bucket
    from tests.interop.driver import Peer

pytestmark = [pytest.mark.servers, pytest.mark.peer, pytest.mark.parametrize("backend", [CONDITIONAL], ids=str)]


def a_name(what: str) -> str:
    """Return a name that no other test has."""
    return f"{what}-{uuid.uuid4().hex[:12]}"


@pytest.mark.parametrize("role", ["producers", "consumers"])
async def test_a_name_that_it_registered_keeps_its_id_with_us(
    ours: PawnQueue, peer: Peer, bucket: Bucket, role: str
) -> None:
    """We answer with the id that it gave, list the name once, and its next process still finds that id."""
    name = a_name("billing")
    register = ours.register_producer if role == "producers" else ours.register_consumer
    everyone = ours.list_producers if role == "producers" else ours.list_consumers
    given = await peer.register(role, name)

    assert (await patiently(lambda: register(name))).id == given
    assert [one.id for one in await everyone() if one.name == name] == [given]
    await peer.open(bucket.config())
    assert await peer.register(role, name) == given


@pytest.mark.parametrize("role", ["producers", "consumers"])
async def test_a_name_that_we_registered_keeps_its_id_with_it(
    ours: PawnQueue, peer: Peer, bucket: Bucket, role: str
) -> None:
    """It answers with the id that we gave; what it then writes over our entry, our next process still reads."""
    name = a_name("billing")
    register = ours.register_producer if role == "producers" else ours.register_consumer
    given = (await patiently(lambda: register(name))).id

    assert await peer.register(role, name) == given
    assert [one["entity_id"] for one in await peer.registered(role) if one["name"] == name] == [given]
    async with PawnQueue.open(bucket.settings()) as later:
        again = later.register_producer if role == "producers" else later.register_consumer
        assert (await again(name)).id == given


async def test_a_topic_that_it_created_is_one_of_ours(ours: PawnQueue, topic: str) -> None:
    """Its marker is a topic with the default settings, which can be changed."""
    assert topic in await ours.list_topics()
    assert (await ours.create_topic(topic)).settings.max_deliveries == 10
    assert (await patiently(lambda: ours.update_topic(topic, max_deliveries=3))).settings.max_deliveries == 3
    assert (await ours.topic(topic)).settings.max_deliveries == 3


async def test_a_topic_that_we_created_is_one_of_its(ours: PawnQueue, peer: Peer) -> None:
    """It lists the topic, swept or not, publishes to it, and creates it again without touching its settings."""
    name = a_name("events")
    await patiently(lambda: ours.create_topic(name, max_deliveries=3))
    await patiently(lambda: ours.sweep(name))

    assert [one for one in await peer.topics() if one.startswith(name)] == [name]
    await peer.create_topic(name)
    assert len(await peer.publish(name, [{}])) == 1
    found = await ours.topic(name)
    assert found.settings.max_deliveries == 3
    assert found.swept_at is not None


@pytest.mark.parametrize("created_by", ["us", "it"])
async def test_its_consumers_miss_nothing_of_a_topic_without_packs(
    ours: PawnQueue, peer: Peer, bucket: Bucket, created_by: str
) -> None:
    """Many messages at once, and many calls at once, are single messages in its topics, and where we say so."""
    name = a_name("orders")
    if created_by == "it":
        await peer.create_topic(name)
    await ours.create_topic(name, packs=False)
    ids = await ours.publish(name, [{"n": n} for n in range(150)], create=True)
    for each in await asyncio.gather(*(ours.publish(name, [{"n": n}]) for n in range(150, 170))):
        ids += each

    assert {message["id"] for message in await peer.poll(name, most=200)} == set(ids)
    await peer.ack(ids)
    assert bucket.keys(f"{name}/") == [".topic"]
    assert (await ours.topic(name)).settings.packs is None


async def test_its_topic_with_a_slash_is_reached_by_our_key_prefix(ours: PawnQueue, peer: Peer, bucket: Bucket) -> None:
    """``team/orders`` of its is ``orders`` below our prefix ``team/``, for messages both ways."""
    team = a_name("team")
    await peer.create_topic(f"{team}/orders")
    theirs = await peer.publish(f"{team}/orders", [{"by": "them"}])
    bucket.agree(f"{team}/")
    async with PawnQueue.open(bucket.settings(key_prefix=f"{team}/")) as queue:
        assert await queue.list_topics() == ["orders"]
        [claim] = await claim_until(queue, "orders", 1)
        assert claim.ids == theirs
        assert (await settled(queue.ack, claim)).complete
        published = await queue.publish("orders", [{"by": "us"}])

        assert [message["id"] for message in await peer.poll(f"{team}/orders")] == published
        await peer.ack(published)
        assert (await queue.stats("orders")).in_flight == 0
