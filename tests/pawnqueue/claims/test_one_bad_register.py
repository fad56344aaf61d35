"""``csprng_verify``: a fault of one lease or claim record concerns its own messages (§5.6), there as well."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pawnqueue import StoreError
from pawnqueue.context import PER_OBJECT_RETRY_SECONDS
from pawnqueue.domain import layout
from tests.pawnqueue.virtual import TOPIC, Process, World, numbered, numbers


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A bucket with a topic, on which registers are carried without conditions."""
    async with World("csprng_verify") as world:
        yield world


async def test_a_record_of_a_newer_format_stops_no_claim(world: World, ann: Process, bob: Process) -> None:
    """All other messages are delivered during a rolling upgrade, and the record is read seldom."""
    await ann.queue.publish(TOPIC, numbered(1))
    newer = await ann.queue.claim(TOPIC, "newer", claim_id="newer")
    world.bucket.plant(
        layout.claim(TOPIC, "newer.0"), world.bucket.record("newer.0").model_copy(update={"v": 9}).encode()
    )
    assert newer
    for number in range(1, 6):
        await bob.queue.publish(TOPIC, numbered(1, number))
        claim = await bob.queue.claim(TOPIC, "c", max_messages=1)
        assert numbers(claim) == [number]
        await bob.queue.ack(claim)
    reads = [key for kind, key in bob.client.requests if kind == "GET" and key == layout.claim(TOPIC, "newer.0")]
    assert len(reads) <= 2


@pytest.mark.parametrize("effect", ["denied", "lost"])
async def test_a_record_that_cannot_be_read_stops_no_claim(
    world: World, ann: Process, bob: Process, caplog: pytest.LogCaptureFixture, effect: str
) -> None:
    """The record is set aside for a while, and that is logged once."""
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.claim(TOPIC, "other", claim_id="other")
    bob.client.inject(effect, "GET", layout.claim(TOPIC, "other.0"))
    for number in range(1, 6):
        await bob.queue.publish(TOPIC, numbered(1, number))
        assert numbers(await bob.queue.claim(TOPIC, "c", max_messages=1)) == [number]
    assert len([record for record in caplog.records if "other.0 is set aside" in record.message]) == 1


async def test_records_that_do_not_answer_share_one_patience(world: World, ann: Process, bob: Process) -> None:
    """However many of them there are, a claim waits for them once, and the next one does not."""
    for number in range(300):
        key = layout.claim(TOPIC, f"other-{number}.0")
        world.bucket.plant(key, b"{}" + b" " * 500)
    bob.client.inject("lost", "GET", "*/claims/other-*")
    await ann.queue.publish(TOPIC, numbered(2))
    for most_seconds in (2.3 * PER_OBJECT_RETRY_SECONDS, PER_OBJECT_RETRY_SECONDS):
        began = world.clock.elapsed()
        assert len(await bob.queue.claim(TOPIC, "c", max_messages=1)) == 1
        assert world.clock.elapsed() - began <= most_seconds


@pytest.mark.parametrize("effect", ["denied", "lost"])
@pytest.mark.parametrize("count", [5, 12])
async def test_a_lease_that_cannot_be_looked_at_stops_no_other(
    world: World, ann: Process, bob: Process, effect: str, count: int
) -> None:
    """All other messages are delivered at once, and its own when the store shows it again."""
    ids = await ann.queue.publish(TOPIC, numbered(count))
    bob.client.inject(effect, "HEAD", f"*/leases/{ids[2]}*")
    began, seen = world.clock.elapsed(), set()
    while claim := await bob.queue.claim(TOPIC, "c", max_messages=4):
        seen.update(numbers(claim))
        await bob.queue.ack(claim)
    assert seen == set(range(count)) - {2}
    assert world.clock.elapsed() - began < 30
    bob.client.heal()
    await world.later(60)
    assert numbers(await bob.queue.claim(TOPIC, "c")) == [2]


async def test_a_store_that_shows_no_lease_is_an_error(ann: Process) -> None:
    """Where nothing at all is answered, the queue is not taken for empty."""
    await ann.queue.publish(TOPIC, numbered(2))
    ann.client.inject("denied", "HEAD")
    ann.client.inject("denied", "GET")
    with pytest.raises(StoreError):
        await ann.queue.claim(TOPIC, "c")


async def test_a_put_that_was_answered_with_an_error_is_sent_again(world: World, ann: Process, bob: Process) -> None:
    """One 503 for a lease that is given back keeps its message from nobody."""
    [one] = await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", ttl=3600, claim_id="long")
    ann.client.inject("lost", "PUT", layout.lease(TOPIC, one), times=1)
    await ann.queue.nack(claim, requeue=True)
    assert numbers(await bob.queue.claim(TOPIC, "d")) == [0]
    assert world.bucket.lease(one).consumer_id == "d"
