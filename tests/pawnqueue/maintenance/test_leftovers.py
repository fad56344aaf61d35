"""What is left over when nobody uses it any more is removed: closed records, lone reasons, and a probe's objects."""

from __future__ import annotations

import pytest

from pawnqueue.catalog import letters
from tests.pawnqueue.maintenance.swept import AN_HOUR, RETENTION, UUID, abandoned, report
from tests.pawnqueue.virtual import TOPIC, Effect, Process, World, numbered


async def test_closed_records_are_removed_past_their_retention_only(world: World, ann: Process) -> None:
    """Until then they answer who settles again; open and fenced ones stay."""
    await ann.queue.publish(TOPIC, numbered(2))
    await ann.queue.ack(await ann.queue.claim(TOPIC, "c", claim_id="done", max_messages=1))
    await world.later(RETENTION - 10)
    await ann.queue.claim(TOPIC, "c", claim_id="open", max_messages=1, ttl=1000)
    assert await ann.queue.sweep(TOPIC) == report()
    await world.later(20)
    assert await ann.queue.sweep(TOPIC) == report(removed_records=1)
    assert world.bucket.below("claims/") == ["open.0.json"]


async def test_the_retention_can_be_set(world: World) -> None:
    """``claims.record_retention_seconds`` says how long."""
    process = await world.process(claims={"record_retention_seconds": 5})
    await process.queue.publish(TOPIC, numbered(1))
    await process.queue.ack(await process.queue.claim(TOPIC, "c", claim_id="run"))
    await world.later(8)
    assert await process.queue.sweep(TOPIC) == report(removed_records=1)


@pytest.mark.parametrize("effect", ["lost", "denied"])
async def test_a_record_that_could_not_be_deleted_is_swept_up(
    world: World, ann: Process, bob: Process, effect: Effect
) -> None:
    """That of a claim whose id was made up, and which is settled: it is closed, and removed past its retention."""
    await ann.queue.publish(TOPIC, numbered(3))
    claim = await ann.queue.claim(TOPIC, "c")
    ann.client.inject(effect, "DELETE", "*/claims/*")
    assert (await ann.queue.ack(claim)).complete
    assert world.bucket.record(f"{claim.claim_id}.0").state == claim.state == "open"
    assert world.bucket.below("messages/") == world.bucket.below("leases/") == []
    await world.later(200)
    assert await bob.queue.sweep(TOPIC) == report(fenced_claims=1, finished_effects=3, closed_claims=1)
    assert world.bucket.record(f"{claim.claim_id}.0").state == "closed"
    await world.later(RETENTION + 10)
    assert await bob.queue.sweep(TOPIC) == report(removed_records=1)
    assert world.bucket.below("claims/") == []


async def test_lone_reasons_are_removed_after_an_hour(world: World, ann: Process) -> None:
    """A reason whose dead letter is gone is a leftover; a young one may be half a burial."""
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"))
    world.bucket.plant(letters.reason_key_of(TOPIC, UUID), "{}")
    await world.later(AN_HOUR - 10)
    assert await ann.queue.sweep(TOPIC) == report()
    await world.later(20)
    assert await ann.queue.sweep(TOPIC) == report(removed_leftovers=1)
    assert len(world.bucket.below("dead-letter/")) == 2


async def test_a_burial_that_is_finished_late_keeps_its_reason(world: World, ann: Process) -> None:
    """A sweep that completes an old half burial does not take the reason for a leftover."""
    await abandoned(world, buried=2)
    await world.later(AN_HOUR * 5)
    assert await ann.queue.sweep(TOPIC) == report(fenced_claims=1, finished_effects=2, given_back=4, closed_claims=1)
    assert len(world.bucket.below("dead-letter/")) == 4


async def test_a_reason_whose_burial_is_not_finished_is_no_leftover(world: World, ann: Process) -> None:
    """Its message is still leased, and its dead letter comes in time."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", ttl=AN_HOUR * 5)
    ann.client.inject("lost", "COPY")
    await ann.queue.bury(claim, reason="bad")
    await world.later(AN_HOUR * 2)
    assert len((await ann.queue.sweep(TOPIC)).stuck) == 1
    assert len(world.bucket.below("dead-letter/")) == 1
    ann.client.heal()
    await ann.queue.sweep(TOPIC)
    assert len(world.bucket.below("dead-letter/")) == 2


async def test_probe_leftovers_are_removed_after_an_hour(world: World, ann: Process) -> None:
    """Objects of processes that died while they probed or asked for the time."""
    world.bucket.plant("_probe/a.probe", "x")
    await world.later(AN_HOUR - 10)
    world.bucket.plant("_probe/b.probe", "x")
    assert await ann.queue.sweep(TOPIC) == report()
    await world.later(20)
    assert await ann.queue.sweep(TOPIC) == report(removed_leftovers=1)
    assert [key for key in world.bucket.below() if key.startswith("_probe/")] == ["_probe/b.probe"]
