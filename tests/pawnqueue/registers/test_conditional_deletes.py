"""Where the store minds the ETags of a bulk DELETE, one that lands late spares what was written since."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pawnqueue import PawnQueue, StoreError
from pawnqueue.catalog import units
from pawnqueue.domain import layout
from pawnqueue.domain.records import BucketRecord, TopicRecord
from tests.pawnqueue.opened import BUCKET, RECORD, settings_at
from tests.pawnqueue.virtual import TOPIC, Process, World, numbered, numbers
from tests.support.faults import Behaviour, Fault, FaultServer, Status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MARKER = layout.topic_marker(TOPIC)
UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"

both = pytest.mark.parametrize("able", [True, False], ids=["with ETags", "without"])


@pytest.fixture
async def world(able: bool) -> World:  # noqa: FBT001 - a parameter of the tests
    """A world whose processes agreed on whether the store minds the ETags of a DELETE."""
    world = World()
    record = BucketRecord(strategy="conditional_write", conditional_deletes=able)
    world.bucket.plant(layout.BUCKET_RECORD, record.encode())
    return world


def landing_late(process: Process, key: str, meanwhile: Callable[[], Awaitable[object]]) -> None:
    """Let the next DELETE of a key land twice: at once, and again when somebody else has done something meanwhile."""

    async def hook(kind: str, asked: str) -> None:
        if (kind, asked) == ("DELETE", key):
            process.client.meanwhile = None
            process.client.bucket.remove(key)
            await meanwhile()

    process.client.meanwhile = hook


@both
async def test_a_late_delete_spares_the_lease_of_another_claim(world: World, able: bool) -> None:  # noqa: FBT001
    """One uuid under two keys: the DELETE of the first one's lease does not free the second one while it is worked on.

    Without ETags it does, which is what is left (docs/explanation/guarantees.md).
    """
    ann, bob, carol = [await world.process() for _ in range(3)]
    for number in range(2):
        name = f"20260101T000000_00000{number}-{UUID}.json"
        world.bucket.plant(units.key_of(TOPIC, name), {"id": UUID, "payload": {"n": number}})
    await world.later(1)
    claim = await ann.queue.claim(TOPIC, "ann", max_messages=1)
    assert numbers(claim) == [0]
    held = []

    async def bob_claims() -> None:
        held.append(await bob.queue.claim(TOPIC, "bob", ttl=600))
        assert numbers(held[0]) == [1]

    landing_late(ann, layout.lease(TOPIC, UUID), bob_claims)
    await ann.queue.ack(claim)
    await world.later(20)
    assert numbers(await carol.queue.claim(TOPIC, "carol")) == ([] if able else [1])
    if able:
        await bob.queue.ack(held[0])
        assert world.bucket.below("messages/") == world.bucket.below("leases/") == []


@both
async def test_an_ack_costs_no_more_requests(world: World, able: bool) -> None:  # noqa: FBT001
    """One bulk DELETE of the messages, and one of the leases with the record, as ever."""
    ann = await world.process()
    await ann.queue.publish(TOPIC, numbered(300))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=300)
    with ann.client.counting() as requests:
        await ann.queue.ack(claim)
    assert requests == {"PUT": 1, "DELETE": 2}
    assert [key for key in world.bucket.below() if key.startswith(f"{TOPIC}/")] == [MARKER]


@both
async def test_a_late_delete_of_a_marker_spares_the_topic_created_anew(world: World, able: bool) -> None:  # noqa: FBT001
    """The deletion reports that the topic was created anew, and leaves its settings."""
    ann, bob = [await world.process() for _ in range(2)]

    async def bob_creates() -> None:
        await bob.queue.create_topic(TOPIC, max_deliveries=3)

    landing_late(ann, MARKER, bob_creates)
    if able:
        with pytest.raises(StoreError, match="created again, meanwhile"):
            await ann.queue.delete_topic(TOPIC)
        assert TopicRecord.decode(world.bucket.body(MARKER), MARKER).settings.max_deliveries == 3
    else:
        await ann.queue.delete_topic(TOPIC)
        assert MARKER not in world.bucket.below()


@both
async def test_a_late_bulk_delete_spares_what_is_in_the_topic_created_anew(world: World, able: bool) -> None:  # noqa: FBT001
    """What has the same key as something in the old topic, as a lease or a claim's record may, is not taken away."""
    ann, bob = [await world.process() for _ in range(2)]
    key = layout.claim(TOPIC, "run.0")
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.claim(TOPIC, "ann", claim_id="run", ttl=600)

    async def bob_works() -> None:
        for each in world.bucket.below():
            if each.startswith(f"{TOPIC}/"):
                world.bucket.remove(each)
        await bob.queue.create_topic(TOPIC)
        await bob.queue.publish(TOPIC, numbered(1, 7))
        assert numbers(await bob.queue.claim(TOPIC, "bob", claim_id="run", ttl=600)) == [7]

    async def hook(kind: str, asked: str) -> None:
        if (kind, asked) == ("DELETE", key):
            ann.client.meanwhile = None
            await bob_works()

    ann.client.meanwhile = hook
    await ann.queue.delete_topic(TOPIC, force=True)
    assert (key in world.bucket.below()) is able
    assert MARKER in world.bucket.below()


@pytest.mark.parametrize("able", [True, False])
async def test_the_probe_sees_it_and_the_bucket_remembers(client: str, able: bool) -> None:  # noqa: FBT001
    """A bulk DELETE with ETags is tried, and what the store does with it is what all processes rely on."""
    with FaultServer(Behaviour(conditional_deletes=able), buckets=(BUCKET,)) as server:
        async with PawnQueue.open(settings_at(server.endpoint, client)) as queue:
            assert (await queue.probe()).conditional_deletes is able
        record = BucketRecord.decode(server.objects(BUCKET)[RECORD], RECORD)
        assert record.conditional_deletes is able
        assert list(server.objects(BUCKET)) == [RECORD]


@pytest.mark.parametrize(
    "effect", [Status(501, "NotImplemented"), Status(400, "MalformedXML"), Status(403, "AccessDenied")]
)
async def test_a_store_that_refuses_the_request_does_without(effect: Status) -> None:
    """The queue opens, and never sends such a request again."""
    with FaultServer(Behaviour(conditional_deletes=True), buckets=(BUCKET,)) as server:
        refused = server.inject(Fault(effect, operation="DeleteObjects", times=1))
        async with PawnQueue.open(settings_at(server.endpoint)) as queue:
            await queue.create_topic("orders")
            await queue.publish("orders", [{}])
            assert (await queue.ack(await queue.claim("orders", "c"))).complete
        assert refused.hits == 1
        assert not BucketRecord.decode(server.objects(BUCKET)[RECORD], RECORD).conditional_deletes
