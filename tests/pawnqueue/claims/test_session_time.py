"""A claim lives as long as its run; the process that works for it is trusted for a time of its own (§4, Sessions)."""

from __future__ import annotations

import pytest

from pawnqueue import ClaimBusyError, LeaseLostError
from pawnqueue.domain.claim_record import ClaimRecord
from tests.pawnqueue.virtual import MARGIN, TOPIC, Process, World, numbered, numbers


async def going(_: ClaimRecord) -> str:
    """The run goes on."""
    return "going"


async def ended(_: ClaimRecord) -> str:
    """The run has ended."""
    return "ended"


async def test_a_retry_has_the_claim_within_one_session_time(world: World, ann: Process, bob: Process) -> None:
    """However long the claim itself lasts, and however often the janitor says that its run goes on."""
    await ann.queue.publish(TOPIC, numbered(5))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", owner="dag", ttl=1200, session_ttl=30)
    started = world.clock.elapsed()
    janitor = await world.process()
    for _ in range(3):
        await world.later(5)
        assert (await janitor.queue.sweep(TOPIC, ask=going)).renewed_claims == 1
    with pytest.raises(ClaimBusyError) as busy:
        await bob.queue.claim(TOPIC, "c", claim_id="run", owner="dag")
    assert busy.value.retry_after <= 30 - 15 + MARGIN + 1
    again = await bob.queue.claim(TOPIC, "c", claim_id="run", owner="dag", wait=60)
    assert again.ids == claim.ids
    assert world.clock.elapsed() - started <= 30 + MARGIN + 2
    with pytest.raises(LeaseLostError):
        await ann.queue.renew(claim)


async def test_a_claim_outlives_its_session(world: World, ann: Process, bob: Process) -> None:
    """While its own time runs, nobody takes its messages, although nobody works for it."""
    await ann.queue.publish(TOPIC, numbered(2))
    await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=1200, session_ttl=30)
    for _ in range(11):
        await world.later(100)
        assert not await bob.queue.claim(TOPIC, "d")
    await world.later(120)
    assert numbers(await bob.queue.claim(TOPIC, "d")) == [0, 1]


async def test_a_holder_trusts_the_earlier_of_both(world: World, ann: Process) -> None:
    """Its deadline is its session's, and a renewal after it is refused; renewing keeps both times as they were."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=1200, session_ttl=30)
    assert abs(claim.seconds_left - (30 - MARGIN)) < 1
    await world.later(20)
    await ann.queue.renew(claim)
    assert abs(claim.seconds_left - (30 - MARGIN)) < 1
    assert abs(world.bucket.record("run.0").until - (world.clock.server() + 1200)) < 1
    await world.later(30)
    with pytest.raises(LeaseLostError, match="time was over"):
        await ann.queue.renew(claim)


async def test_what_was_fenced_waits_for_the_session_only(world: World, ann: Process, bob: Process) -> None:
    """A run that has ended holds its messages for one session time, and not for the claim's own."""
    await ann.queue.publish(TOPIC, numbered(2))
    await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=1200, session_ttl=30)
    await world.later(10)
    janitor = await world.process()
    assert (await janitor.queue.sweep(TOPIC, ask=ended)).fenced_claims == 1
    assert not await bob.queue.claim(TOPIC, "d")
    await world.later(10)
    assert not await bob.queue.claim(TOPIC, "d")
    await world.later(15)
    await janitor.queue.sweep(TOPIC, ask=ended)
    await world.later(12)
    assert numbers(await bob.queue.claim(TOPIC, "d")) == [0, 1]


async def test_renewals_of_a_janitor_are_no_loss(world: World, ann: Process) -> None:
    """However often the janitor renews the claim while its holder does, the holder does not take it for lost."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=1200, session_ttl=60)
    janitor = await world.process()
    swept = 0

    async def sweep(kind: str, key: str) -> None:
        nonlocal swept
        if kind == "PUT" and "/claims/" in key and swept < 5:
            swept += 1
            await world.later(2)
            await janitor.queue.sweep(TOPIC, ask=going)

    ann.client.meanwhile = sweep
    await ann.queue.renew(claim)
    assert swept == 5
    assert claim.lost is None


async def test_a_claim_by_id_answers_at_once(world: World, ann: Process, bob: Process) -> None:
    """Without ``wait`` it says which session holds it, and until when; with it, it waits for that long."""
    await ann.queue.publish(TOPIC, numbered(2))
    await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=72_000)
    started = world.clock.elapsed()
    with pytest.raises(ClaimBusyError) as busy:
        await bob.queue.claim(TOPIC, "c", claim_id="run")
    assert world.clock.elapsed() == started
    assert abs(busy.value.retry_after - 72_000) < 5
    assert busy.value.until is not None
    assert abs(busy.value.until.timestamp() - (world.clock.server() + 72_000)) < 5
    with pytest.raises(ClaimBusyError):
        await bob.queue.claim(TOPIC, "c", claim_id="run", wait=100)
    assert 99 < world.clock.elapsed() - started < 102


async def test_only_one_of_several_attaches(ann: Process, bob: Process, world: World) -> None:
    """Of the processes that bring one reference, the first gets the claim, and the others an error that names it."""
    await ann.queue.publish(TOPIC, numbered(2))
    reference = (await ann.queue.claim(TOPIC, "c")).hand_over()
    assert await bob.queue.attach(reference)
    other = await world.process()
    with pytest.raises(ClaimBusyError):
        await other.queue.attach(reference)
    waited = world.clock.elapsed()
    assert await other.queue.attach(reference, wait=60)
    assert world.clock.elapsed() - waited < 40
