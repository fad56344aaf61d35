"""A message under the uuid of one that a claim has acked keeps its lease: any publisher may send such a message."""

from __future__ import annotations

from typing import Any

import pytest

from pawnqueue.catalog import units
from pawnqueue.domain import layout
from tests.pawnqueue.virtual import TOPIC, Process, World, numbers


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
