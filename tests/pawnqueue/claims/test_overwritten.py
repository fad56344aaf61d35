"""What others put in the place of a claimed message, or remove, is settled apart; the rest of the claim goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pawnqueue import CompatibilityError, LeaseLostError, ObjectTooLargeError, StoreError
from pawnqueue.catalog import units
from pawnqueue.domain.record import FORMAT
from tests.pawnqueue.virtual import TOPIC, Process, World, numbered, numbers

if TYPE_CHECKING:
    from pawnqueue import Claim

NEWER = f'{{"v": {FORMAT + 1}}}'


async def _resumed(ann: Process, bob: Process, count: int = 3) -> Claim:
    """Publish and claim messages, and attach to the claim in another process, without reading them."""
    await ann.queue.publish(TOPIC, numbered(count))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    return await bob.queue.attach(claim.hand_over(), payloads=False)


def _key(world: World, number: int) -> str:
    return units.key_of(TOPIC, world.bucket.below("messages/")[number])


@pytest.mark.parametrize("payloads", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("body", ["x", NEWER, " " * 6_000_000, None], ids=["malformed", "newer", "large", "gone"])
async def test_it_is_settled_and_the_others_stay(
    world: World, ann: Process, bob: Process, body: str | None, *, payloads: bool
) -> None:
    """It is buried, or given back where another process may be able to read it, or noted as gone."""
    await ann.queue.publish(TOPIC, numbered(3))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    claim = await bob.queue.attach(claim.hand_over(), payloads=payloads)
    key = _key(world, 1)
    if body is None:
        await world.bucket.delete([key])
    else:
        world.bucket.plant(key, body)

    assert await bob.queue.settle_overwritten(claim) == [key[-41:-5]]
    assert await bob.queue.settle_overwritten(claim) == []
    assert numbers(await bob.queue.messages(claim.reference)) == [0, 2]
    done = await bob.queue.ack(claim)
    assert (len(done.acked), done.complete) == (2, True)
    assert [letter.reason for letter in await bob.queue.dead_letters(TOPIC)] == ["malformed"] * (body == "x")
    assert (await bob.queue.stats(TOPIC)).pending == (1 if body and body != "x" else 0)


async def test_what_is_as_it_was_claimed_is_not_given_back(world: World, ann: Process, bob: Process) -> None:
    """A process with smaller limits than the one that claimed it fails, as a session before it may have read it."""
    small = await world.process(limits={"max_payload_bytes": 1000})
    await ann.queue.publish(TOPIC, [{"n": 0, "pad": "x" * 100_000}, {"n": 1}])
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    claim = await small.queue.attach(claim.hand_over(), payloads=False)
    with pytest.raises(ObjectTooLargeError):
        await small.queue.settle_overwritten(claim)
    claim = await bob.queue.attach(claim.hand_over())
    assert numbers(claim) == [0, 1]


@pytest.mark.parametrize("seconds", [0, 60])
async def test_another_object_of_the_same_size_is_known_by_its_date(
    world: World, ann: Process, bob: Process, seconds: int
) -> None:
    """One that was written later than the claim was made is another object. Dates are not exact to the second."""
    claim = await _resumed(ann, bob)
    await world.later(seconds)
    key = _key(world, 0)
    world.bucket.plant(key, NEWER.ljust(len(world.bucket.body(key))))
    if seconds:
        assert await bob.queue.settle_overwritten(claim) == [key[-41:-5]]
    else:
        with pytest.raises(CompatibilityError, match="has format"):
            await bob.queue.settle_overwritten(claim)


async def test_nothing_is_settled_where_one_cannot_be_read(world: World, ann: Process, bob: Process) -> None:
    """It is asked for again later, all of it."""
    claim = await _resumed(ann, bob)
    world.bucket.plant(_key(world, 0), "x")
    bob.client.inject("denied", "GET", f"{TOPIC}/messages/*", passed=1)
    with pytest.raises(StoreError):
        await bob.queue.settle_overwritten(claim)
    bob.client.heal()
    assert len(await bob.queue.settle_overwritten(claim)) == 1


async def test_a_claim_that_was_taken_over_settles_nothing(world: World, ann: Process, bob: Process) -> None:
    """The next holder decides."""
    claim = await _resumed(ann, bob)
    await world.later()
    assert len(await ann.queue.claim(TOPIC, "d")) == 3
    world.bucket.plant(_key(world, 0), "x")
    with pytest.raises(LeaseLostError, match="taken over"):
        await bob.queue.settle_overwritten(claim)
    assert not await bob.queue.dead_letters(TOPIC)
