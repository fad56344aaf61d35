"""What was decided and could not be carried out is carried out while the queue is open, and by sweeps (§5.5)."""

from __future__ import annotations

import pytest

from pawnqueue import LeaseLostError
from pawnqueue.maintenance.sweep_claims import HOLDER_WORKS_SECONDS, WON_WITHIN_SECONDS
from tests.pawnqueue.virtual import TOPIC, World, numbered, numbers

PATIENCE = {"budget_seconds": 5.0}


@pytest.fixture(params=["conditional_write", "csprng_verify"])
async def world(request: pytest.FixtureRequest) -> World:
    """A bucket with a topic, for each strategy."""
    return World(request.param)


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("effect", ["lost", "denied"])
async def test_a_release_is_carried_out_when_the_store_is_back(world: World, effect: str, ended: bool) -> None:  # noqa: FBT001
    """It does not wait for its claim's time, which is an hour; nor where somebody has ended the claim since."""
    async with world:
        ann, bob = await world.process(retry=PATIENCE), await world.process()
        await ann.queue.publish(TOPIC, numbered(2))
        claim = await ann.queue.claim(TOPIC, "c", ttl=3600, claim_id="long")
        ann.client.inject(effect, "PUT", "*/leases/*")
        settlement = await ann.queue.requeue(claim, claim.ids[0])
        assert list(settlement.unfinished) == claim.ids[:1]
        if ended:
            world.fence(claim)
            with pytest.raises(LeaseLostError):
                await ann.queue.renew(claim)
        await world.later(20)
        assert not await bob.queue.claim(TOPIC, "d")
        ann.client.heal()
        await world.later(40)
        assert numbers(await bob.queue.claim(TOPIC, "d")) == [0]


@pytest.mark.parametrize("kind", ["COPY", "DELETE"])
async def test_a_burial_is_carried_out_when_the_store_is_back(world: World, kind: str) -> None:
    """A dead letter does not wait either."""
    async with world:
        ann = await world.process(retry=PATIENCE)
        await ann.queue.publish(TOPIC, numbered(2))
        claim = await ann.queue.claim(TOPIC, "c", ttl=3600)
        ann.client.inject("lost", kind)
        await ann.queue.bury(claim, claim.ids[0], reason="bad")
        ann.client.heal()
        await world.later(10)
        assert len(world.bucket.below("messages/")) == 1
        assert len(world.bucket.below("dead-letter/")) == 2
        await ann.queue.ack(claim)
        assert world.bucket.below("claims/") == []


async def test_what_the_store_refuses_for_ever_is_tried_ever_more_seldom(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """In an hour it is a dozen requests, and one warning; closing the queue ends it at once."""
    async with world:
        ann = await world.process(retry=PATIENCE)
        await ann.queue.publish(TOPIC, numbered(2))
        claim = await ann.queue.claim(TOPIC, "c", ttl=7200)
        ann.client.inject("denied", "DELETE", "*/messages/*")
        await ann.queue.ack(claim, claim.ids[0])
        with ann.client.counting() as requests:
            await world.later(3600)
        assert 5 <= requests["DELETE"] <= 20
        assert len([one for one in caplog.records if one.levelname == "WARNING"]) == 1
        began = world.clock.elapsed()
        await ann.queue.aclose()
        assert world.clock.elapsed() - began < 10


async def test_a_sweep_carries_out_what_a_claim_had_decided_that_was_ended_early(world: World) -> None:
    """What it had not settled waits for its session's time, which is hours; what it had decided does not."""
    async with world:
        ann, bob, janitor = [await world.process(retry=PATIENCE) for _ in range(3)]
        await ann.queue.publish(TOPIC, numbered(2))
        claim = await ann.queue.claim(TOPIC, "c", ttl=7200, claim_id="long")
        ann.client.inject("denied", "PUT", "*/leases/*")
        await ann.queue.requeue(claim, claim.ids[0])
        world.fence(claim)
        await world.later(HOLDER_WORKS_SECONDS + 2)
        assert (await janitor.queue.sweep(TOPIC)).finished_effects == 1
        await world.later(20)
        assert numbers(await bob.queue.claim(TOPIC, "d")) == [0]


@pytest.mark.parametrize("asks", [False, True])
async def test_a_sweep_carries_out_what_a_live_claim_has_decided(world: World, asks: bool) -> None:  # noqa: FBT001
    """Its process is frozen or cut off, and it has hours left: its messages need not wait for that."""
    async with world:
        ann, bob, janitor = [await world.process(retry=PATIENCE) for _ in range(3)]
        await ann.queue.publish(TOPIC, numbered(4))
        claim = await ann.queue.claim(TOPIC, "c", ttl=7200, claim_id="long")
        for kind in ("PUT", "DELETE", "COPY"):
            for folder in ("leases", "messages"):
                ann.client.inject("denied", kind, f"*/{folder}/*")
        await ann.queue.requeue(claim, claim.ids[0])
        await ann.queue.ack(claim, claim.ids[1])
        await ann.queue.bury(claim, claim.ids[2], reason="bad")
        await world.later(HOLDER_WORKS_SECONDS + 2)
        report = await janitor.queue.sweep(TOPIC, ask=(lambda _: "going") if asks else None)
        assert (report.finished_effects, report.failures) == (3, [])
        assert len(world.bucket.below("messages/")) == 2
        assert len(world.bucket.below("dead-letter/")) == 2
        await world.later(20)
        assert numbers(await bob.queue.claim(TOPIC, "d")) == [0]
        await world.later(HOLDER_WORKS_SECONDS)
        assert (await janitor.queue.sweep(TOPIC)).finished_effects == 0
        ann.client.heal()
        assert (await ann.queue.ack(claim, claim.ids[3])).acked == [claim.ids[3]]


async def test_a_sweep_reads_no_lease_of_what_others_have_taken_since(world: World) -> None:
    """What a live claim gave back, and others hold by now, costs a sweep nothing but the record."""
    async with world:
        ann, bob, janitor = [await world.process() for _ in range(3)]
        await ann.queue.publish(TOPIC, numbered(20))
        claim = await ann.queue.claim(TOPIC, "c", max_messages=20, ttl=7200)
        await world.later(WON_WITHIN_SECONDS + 1)
        await ann.queue.requeue(claim, claim.ids[:19])
        await world.later(20)
        assert len(await bob.queue.claim(TOPIC, "d", max_messages=20, ttl=7200)) == 19
        await world.later(HOLDER_WORKS_SECONDS + 2)
        with janitor.client.counting() as requests:
            assert (await janitor.queue.sweep(TOPIC)).finished_effects == 0
        assert requests["GET"] <= 4
