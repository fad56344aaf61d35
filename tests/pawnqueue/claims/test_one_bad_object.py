"""A fault of one object concerns that object: the others are delivered (§5.6), and nothing waits for it (§5.7)."""

from __future__ import annotations

import pytest

from pawnqueue import StoreError
from pawnqueue.catalog import units
from pawnqueue.context import PER_OBJECT_RETRY_SECONDS
from tests.pawnqueue.virtual import OVERDUE, TOPIC, Process, World, numbered, numbers
from tools.kit.stores import Answer, CarryOut, Request


async def drained(process: Process, *, most: int = 10, claims: int = 30) -> list[int]:
    """Claim and ack until nothing is had."""
    seen: list[int] = []
    for _ in range(claims):
        claim = await process.queue.claim(TOPIC, "c", max_messages=most)
        if not claim:
            break
        seen += numbers(claim)
        await process.queue.ack(claim)
    return seen


@pytest.mark.parametrize("effect", ["denied", "lost"])
@pytest.mark.parametrize("most", [1, 4, 10])
async def test_a_body_that_cannot_be_read(
    world: World, ann: Process, caplog: pytest.LogCaptureFixture, effect: str, most: int
) -> None:
    """Its message stays, is never buried and is said to be left alone; all others are handed out."""
    ids = await ann.queue.publish(TOPIC, numbered(12))
    ann.client.inject(effect, "GET", f"*/messages/*{ids[3]}*")
    seen = await drained(ann, most=most)
    for _ in range(12):
        await world.later(60)
        seen += await drained(ann, most=most)
    assert seen == [0, 1, 2, *range(4, 12)]
    assert [name[-41:-5] for name in world.bucket.below("messages/")] == [ids[3]]
    assert world.bucket.below("dead-letter/") == []
    assert any(record.levelname == "WARNING" and ids[3] in record.message for record in caplog.records)
    ann.client.heal()
    await world.later(700)
    [message] = await ann.queue.claim(TOPIC, "c")
    assert (message.id, message.deliveries) == (ids[3], 1)


async def test_a_store_that_gives_no_body_at_all_is_an_error(world: World, ann: Process) -> None:
    """It is not taken for an empty queue; nothing counts as delivered, and nothing is buried."""
    world.topic(max_deliveries=1)
    process = await world.process()
    await process.queue.publish(TOPIC, numbered(8))
    process.client.inject("denied", "GET")
    for _ in range(5):
        with pytest.raises(StoreError):
            await process.queue.claim(TOPIC, "c")
        await world.later(700)
    process.client.heal()
    await world.later(700)
    assert [message.deliveries for message in await process.queue.claim(TOPIC, "c")] == [1] * 8


@pytest.mark.parametrize("effect", ["denied", "lost"])
async def test_a_lease_that_cannot_be_read(world: World, ann: Process, bob: Process, effect: str) -> None:
    """Its message waits; the others that its dead consumer had are taken over."""
    ids = await ann.queue.publish(TOPIC, numbered(5))
    await ann.queue.claim(TOPIC, "dead")
    bob.client.inject(effect, "GET", f"*/leases/{ids[2]}*")
    await world.later()
    assert await drained(bob) == [0, 1, 3, 4]
    bob.client.heal()
    await world.later(30)
    assert await drained(bob) == [2]


async def test_leases_that_cannot_be_read_share_one_patience(world: World, ann: Process, bob: Process) -> None:
    """However many of them a look meets, they cost it its seconds once."""
    for _ in range(3):
        await ann.queue.publish(TOPIC, numbered(100))
        await ann.queue.claim(TOPIC, "dead", max_messages=100)
    await world.later()
    bob.client.inject("lost", "GET", "*/leases/*")
    began = world.clock.elapsed()
    assert not await bob.queue.claim(TOPIC, "c", max_messages=1)
    assert world.clock.elapsed() - began <= 2 * PER_OBJECT_RETRY_SECONDS


@pytest.mark.parametrize("effect", ["denied", "lost"])
async def test_a_record_that_cannot_be_read(world: World, ann: Process, bob: Process, effect: str) -> None:
    """The messages of its claim wait; those of other claims are taken over, and new ones are delivered at once."""
    await ann.queue.publish(TOPIC, numbered(4))
    first = await ann.queue.claim(TOPIC, "dead", max_messages=2)
    await ann.queue.claim(TOPIC, "dead", max_messages=2)
    await ann.queue.publish(TOPIC, numbered(2, 4))
    bob.client.inject(effect, "GET", f"*/claims/{first.claim_id}*")
    await world.later()
    started = world.clock.elapsed()
    assert await drained(bob) == [2, 3, 4, 5]
    assert world.clock.elapsed() - started < 20
    bob.client.heal()
    await world.later(30)
    assert await drained(bob) == [0, 1]


@pytest.mark.parametrize("effect", ["denied", "lost"])
@pytest.mark.parametrize("kind", ["COPY", "DELETE"])
async def test_ends_that_cannot_be_carried_out_cost_others_nothing(
    world: World, ann: Process, bob: Process, effect: str, kind: str
) -> None:
    """Twenty decided messages that the store keeps do not take the places of others, nor make a claim take long."""
    await ann.queue.publish(TOPIC, numbered(20))
    claim = await ann.queue.claim(TOPIC, "dead", max_messages=20)
    for process in (ann, bob):
        for one in claim.ids if kind == "COPY" else ["20260101T000000_500"]:
            process.client.inject(effect, kind, f"*{one}*")
    await world.later(5)
    await (ann.queue.nack(claim) if kind == "COPY" else ann.queue.ack(claim))
    await ann.queue.publish(TOPIC, numbered(6, 20))
    await world.later()
    for number in range(20, 26):
        started = world.clock.elapsed()
        got = await bob.queue.claim(TOPIC, "c", max_messages=1)
        assert numbers(got) == [number]
        await bob.queue.ack(got)
        assert world.clock.elapsed() - started <= 5
    assert len(world.bucket.below("messages/")) == 20


async def test_moves_that_cannot_be_finished_cost_others_nothing(world: World, ann: Process, bob: Process) -> None:
    """Ten redrives that stick do not delay the claim of other messages."""
    ids = await ann.queue.publish(TOPIC, numbered(10))
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"))
    for process in (ann, bob):
        for one in ids:
            process.client.inject("lost", "DELETE", f"*/dead-letter/{one}*")
    assert len((await ann.queue.redrive(TOPIC)).failed) == 10
    await world.later(100)
    await ann.queue.publish(TOPIC, numbered(3, 10))
    started = world.clock.elapsed()
    assert await drained(bob, most=1) == [10, 11, 12]
    assert world.clock.elapsed() - started < 10


async def test_a_message_whose_lease_is_denied_is_left_out(ann: Process) -> None:
    """A key that the store refuses to write costs its own message its delivery, and no other."""
    ids = await ann.queue.publish(TOPIC, numbered(5))
    ann.client.inject("denied", "PUT", f"*/leases/{ids[1]}*")
    assert numbers(await ann.queue.claim(TOPIC, "c")) == [0, 2, 3, 4]


async def test_a_store_that_writes_no_lease_is_an_error(ann: Process) -> None:
    """A consumer that may not write gets an error, and does not take the queue for empty."""
    await ann.queue.publish(TOPIC, numbered(5))
    ann.client.inject("denied", "PUT", "*/leases/*")
    with pytest.raises(StoreError, match="denied"):
        await ann.queue.claim(TOPIC, "c")


async def test_a_ghost_in_the_listing(world: World, ann: Process) -> None:
    """A message that is listed and not there starves nobody, and does not make a waiting claim a hot loop."""
    [ghost] = world.fill(["x"])
    key = units.key_of(TOPIC, world.bucket.below("messages/")[0])
    await world.later(1)
    await ann.queue.publish(TOPIC, numbered(2))

    async def miss(request: Request, carry_out: CarryOut) -> Answer:
        return None if (request.call, request.key) == ("get", key) else await carry_out()

    ann.client.hook = miss
    assert await drained(ann, most=1) == [0, 1]
    with ann.client.counting() as requests:
        assert not await ann.queue.claim(TOPIC, "c", max_messages=1, wait=30)
    assert sum(requests.values()) < 60
    assert ghost in key
    await world.later(OVERDUE)
