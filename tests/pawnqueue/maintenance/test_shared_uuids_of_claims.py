"""A message under the uuid of one that a claim has acked keeps its lease: any publisher may send such a message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pawnqueue.catalog import units
from pawnqueue.claims import effects
from pawnqueue.claims.effects import MIN_LISTED_LEASES
from pawnqueue.domain import layout
from pawnqueue.domain.records import BucketRecord
from tests.pawnqueue.virtual import TOPIC, Process, World, numbered, numbers


def plant(world: World, seconds: float, uuid: str, number: int) -> None:
    """Put a message under a uuid."""
    body: dict[str, Any] = {"id": uuid, "payload": {"n": number}}
    world.bucket.plant(units.key_of(TOPIC, units.name_at(seconds, uuid)), body)


@pytest.mark.parametrize("is_over", [False, True], ids=["the claim lives", "the claim is over"])
async def test_a_sweep_leaves_the_lease_to_its_holder(
    world: World, ann: Process, bob: Process, *, is_over: bool
) -> None:
    """The acked message is gone and the other one is held: no sweep gives it to a second consumer."""
    now, shared = world.clock.server(), world.clock.uuid()
    plant(world, now, shared, 0)
    plant(world, now + 1, world.clock.uuid(), 1)
    of_ann = await ann.queue.claim(TOPIC, "ann", ttl=30 if is_over else 600)
    await ann.queue.ack(of_ann, [message for message in of_ann if message.payload["n"] == 0])
    plant(world, now + 2, shared, 2)
    of_bob = await bob.queue.claim(TOPIC, "bob", ttl=600)
    assert numbers(of_bob) == [2]

    await world.later(60)
    janitor = await world.process()
    await janitor.queue.sweep(TOPIC)

    of_the_next = await janitor.queue.claim(TOPIC, "next", ttl=600)
    assert numbers(of_the_next) == ([1] if is_over else [])
    assert (await bob.queue.ack(of_bob)).complete


async def test_a_claim_that_is_made_again_by_its_id_leaves_the_lease_to_its_holder(
    world: World, ann: Process, bob: Process
) -> None:
    """The next process that claims by an ended id carries its acks out again, and deletes no lease of another claim."""
    now, shared = world.clock.server(), world.clock.uuid()
    plant(world, now, shared, 0)
    of_ann = await ann.queue.claim(TOPIC, "ann", claim_id="run", ttl=600)
    ann.client.inject("lost", "PUT", layout.claim(TOPIC, "run.0"), passed=1)
    await ann.queue.ack(of_ann)
    assert world.bucket.below("claims/") == ["run.0.json"]
    plant(world, now + 2, shared, 2)
    of_bob = await bob.queue.claim(TOPIC, "bob", ttl=600)
    assert numbers(of_bob) == [2]

    again = await world.process()
    await again.queue.claim(TOPIC, "ann", claim_id="run", ttl=600)

    assert len(world.bucket.below("leases/")) == 1
    assert (await bob.queue.ack(of_bob)).complete


@pytest.mark.parametrize("conditional_deletes", [False, True])
async def test_a_session_that_attaches_leaves_the_lease_to_its_holder(*, conditional_deletes: bool) -> None:
    """What the claim had settled before is not known to be undone: the next session looks before it deletes a lease."""
    async with World() as world:
        agreed = BucketRecord(strategy="conditional_write", conditional_deletes=conditional_deletes)
        world.bucket.plant(layout.BUCKET_RECORD, agreed.encode())
        ann, ben, bob, eve = [await world.process() for _ in range(4)]
        [_, shared] = await ann.queue.publish(TOPIC, numbered(2))
        world.bucket.plant(units.key_of(TOPIC, f"0-{shared}.json"), b"malformed")
        of_ann = await ann.queue.claim(TOPIC, "ann", max_messages=2, ttl=60)
        await world.later(11)
        of_bob = await bob.queue.claim(TOPIC, "bob", ttl=600)
        assert (numbers(of_ann), numbers(of_bob)) == ([0], [1])

        assert (await ben.queue.ack(await ben.queue.attach(of_ann.hand_over()))).complete

        await world.later(11)
        assert not await eve.queue.claim(TOPIC, "eve", ttl=600)
        assert (await bob.queue.ack(of_bob)).complete


@pytest.mark.parametrize("answers", [1, 3, 40])
async def test_a_lost_answer_to_the_delete_of_a_lease_costs_no_other_claim_its_lease(
    world: World, ann: Process, bob: Process, answers: int
) -> None:
    """The request may have been carried out: before it is sent again, the lease is read."""
    [shared] = await ann.queue.publish(TOPIC, numbered(1))
    of_ann = await ann.queue.claim(TOPIC, "ann", ttl=60)
    plant(world, world.clock.server() + 5, shared, 1)
    ann.client.inject("answer lost", "DELETE", "*/leases/*", times=answers)
    acked = asyncio.ensure_future(ann.queue.ack(of_ann))
    while world.bucket.below("leases/"):
        await world.later(0.01)
    of_bob = await bob.queue.claim(TOPIC, "bob", ttl=600)
    assert (await acked).complete
    await world.later(12)
    eve = await world.process()
    assert not await eve.queue.claim(TOPIC, "eve", ttl=600)
    assert (await bob.queue.ack(of_bob)).complete


async def test_many_leases_are_listed_before_they_are_read(world: World, ann: Process, bob: Process) -> None:
    """A session that finds a large claim nearly settled sends few requests for what was settled before."""
    await ann.queue.publish(TOPIC, numbered(MIN_LISTED_LEASES + 1))
    claim = await ann.queue.claim(TOPIC, "ann", max_messages=1000, ttl=600)
    await ann.queue.ack(claim, list(claim)[:-1])
    attached = await bob.queue.attach(claim.hand_over())
    with bob.client.counting() as requests:
        assert (await bob.queue.ack(attached)).complete
    assert requests.total() < 15
    assert world.bucket.below("leases/") == world.bucket.below("messages/") == []


@pytest.mark.parametrize("how", ["requeued with a delay", "claimed after the LIST"])
async def test_a_sweep_reads_each_lease_before_it_deletes_it(
    world: World, ann: Process, bob: Process, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Also one that it has listed as released, or not at all: the message under the uuid of an acked one keeps it."""
    now, shared = world.clock.server(), world.clock.uuid()
    plant(world, now, shared, 0)
    plant(world, now + 1, world.clock.uuid(), 1)
    of_ann = await ann.queue.claim(TOPIC, "ann", ttl=600)
    await ann.queue.ack(of_ann, [message for message in of_ann if message.payload["n"] == 0])
    plant(world, now + 2, shared, 2)
    later: list[Any] = []
    if how == "requeued with a delay":
        of_bob = await bob.queue.claim(TOPIC, "bob", ttl=600)
        await bob.queue.requeue(of_bob, delay=3600)
    else:
        original = effects.carry_out

        async def claimed_meanwhile(*arguments: Any, **more: Any) -> object:
            if not later:
                later.append(await bob.queue.claim(TOPIC, "bob", ttl=600))
            return await original(*arguments, **more)

        monkeypatch.setattr(effects, "carry_out", claimed_meanwhile)
    await world.later(60)
    janitor = await world.process()
    assert (await janitor.queue.sweep(TOPIC)).failures == []
    eve = await world.process()
    assert not await eve.queue.claim(TOPIC, "eve", ttl=600)
    for claim in later:
        assert numbers(claim) == [2]
        assert (await bob.queue.ack(claim)).complete


async def test_a_record_stays_open_until_its_leases_could_be_listed(world: World, ann: Process, bob: Process) -> None:
    """A LIST that fails ends no settlement: its own message is acked, and the rest is tried again."""
    ids = await ann.queue.publish(TOPIC, numbered(MIN_LISTED_LEASES + 1))
    claim = await ann.queue.claim(TOPIC, "ann", max_messages=1000, ttl=600)
    await ann.queue.ack(claim, list(claim)[:-1])
    attached = await bob.queue.attach(claim.hand_over())
    bob.client.inject("denied", "LIST", "*leases*", times=1)
    settlement = await bob.queue.ack(attached)
    assert (settlement.acked, settlement.complete, attached.state) == (ids[-1:], True, "open")
    await world.later(10)
    assert attached.state == "closed"
    assert world.bucket.below("leases/") == []


async def test_a_bulk_delete_without_an_answer_costs_few_requests(world: World, ann: Process) -> None:
    """The leases that are still this claim's, by a LIST, are not read before they are deleted again."""
    await ann.queue.publish(TOPIC, numbered(500))
    claim = await ann.queue.claim(TOPIC, "ann", max_messages=500, ttl=600)
    ann.client.inject("lost", "DELETE", "*/leases/*", times=1)
    with ann.client.counting() as requests:
        assert (await ann.queue.ack(claim)).complete
    assert requests.total() < 15
    assert world.bucket.below("leases/") == []
