"""Leases that no record covers, however many there are, cost a claim by an id a bounded number of requests (§4.1)."""

from __future__ import annotations

import pytest

from pawnqueue.claims.candidates import MAX_LEASE_READS
from pawnqueue.domain import layout
from pawnqueue.domain.lease import Lease
from tests.pawnqueue.virtual import TOPIC, Died, Process, World, numbered, numbers

MANY = 300
#: Of the year 9987.
FAR_FUTURE = 253e9


def plant_leases(world: World, count: int = MANY) -> None:
    """Put leases of claims and messages that never existed, with times in the far future."""
    for uuid in (world.clock.uuid() for _ in range(count)):
        lease = Lease(until=FAR_FUTURE, key=f"x-{uuid}.json", claim=f"f{uuid}.0", deliveries=1, ttl=1e9)
        world.bucket.plant(layout.lease(TOPIC, uuid), lease.encode())


async def test_a_claim_by_id_that_waits_reads_each_of_them_once(world: World, ann: Process) -> None:
    """For ten minutes: what it costs beside them is three LISTs in ten seconds, and one for each poll."""
    plant_leases(world)
    with ann.client.counting() as requests:
        assert not await ann.queue.claim(TOPIC, "c", claim_id="run", wait=600)
    assert requests["GET"] < MANY + 10
    assert requests.total() < MANY + 400


async def test_a_look_reads_a_bounded_number_of_them(world: World, ann: Process) -> None:
    """The next look reads others."""
    plant_leases(world)
    for _ in range(MANY // MAX_LEASE_READS + 2):
        with ann.client.counting() as requests:
            await ann.queue.claim(TOPIC, "c", claim_id="run", max_messages=10)
        assert requests["GET"] <= MAX_LEASE_READS
        await world.later(11)
    assert not requests["GET"]


@pytest.mark.parametrize("first", [False, True], ids=["planted before", "planted since"])
async def test_what_a_former_attempt_won_is_adopted_among_them(
    world: World,
    ann: Process,
    bob: Process,
    first: bool,  # noqa: FBT001
) -> None:
    """Its own leases are read first, as they are newer; where they are not, a later look reads them."""
    if not first:
        plant_leases(world)
        await world.later(1)
    await ann.queue.publish(TOPIC, numbered(3))
    ann.client.inject("dies", "PUT", "*/claims/*")
    with pytest.raises(Died):
        await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=300)
    if first:
        await world.later(1)
        plant_leases(world)
    began = world.clock.elapsed()
    claim = await bob.queue.claim(TOPIC, "c", claim_id="run", wait=200)
    assert (numbers(claim), {message.deliveries for message in claim}) == ([0, 1, 2], {1})
    assert world.clock.elapsed() - began < (70 if first else 1)
