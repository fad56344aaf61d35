"""Looking at a claim's messages: nothing is written, and the claim's session goes on."""

from __future__ import annotations

from typing import Any

import pytest

from pawnqueue import ClaimReference, LeaseLostError, StoreError
from pawnqueue.catalog import units
from tests.pawnqueue.virtual import TOPIC, TTL, Process, World, numbered, numbers

BODIES = f"{TOPIC}/messages/*"


@pytest.mark.parametrize("kind", ["reference", "dict"])
async def test_its_messages_are_read_and_nothing_is_written(
    world: World, ann: Process, bob: Process, kind: str
) -> None:
    """One read of the record and one a message; the claim's session renews and settles as if nobody had looked."""
    await ann.queue.publish(TOPIC, numbered(20), headers={"h": "1"})
    claim = await ann.queue.claim(TOPIC, "c", max_messages=20)
    reference = ClaimReference(TOPIC, claim.claim_id, 0, "whoever")
    before = world.bucket.snapshot()
    with bob.client.counting() as requests:
        seen = await bob.queue.messages(reference if kind == "reference" else reference.to_dict())
    assert requests == {"GET": 21}
    assert seen == list(claim)
    assert world.bucket.snapshot() == before
    await ann.queue.renew(claim)
    assert (await ann.queue.ack(claim)).complete


async def test_only_what_is_not_settled_is_seen(ann: Process, bob: Process) -> None:
    """And nothing, where all of it is, be the record still open or closed."""
    await ann.queue.publish(TOPIC, numbered(3))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    reference = ClaimReference(TOPIC, "run", 0, claim.session)
    await ann.queue.ack(claim, claim[0])
    assert numbers(await bob.queue.messages(reference)) == [1, 2]
    ann.client.inject("denied", "DELETE")
    await ann.queue.ack(claim)
    assert claim.state == "open"
    with bob.client.counting() as requests:
        assert await bob.queue.messages(reference) == []
    assert requests == {"GET": 1}
    ann.client.heal()
    await ann.queue.ack(await ann.queue.claim(TOPIC, "c", claim_id="run"))
    assert await bob.queue.messages(reference) == []


async def test_redelivered_messages_tell_how_often(ann: Process, bob: Process) -> None:
    """Their deliveries are those of the claim, and looking is none."""
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"), requeue=True)
    reference = (await ann.queue.claim(TOPIC, "c")).hand_over()
    for _ in range(2):
        [seen] = await bob.queue.messages(reference)
        assert seen.deliveries == 2


@pytest.mark.parametrize("how", ["no record", "taken over", "over"])
async def test_what_has_ended_is_not_shown(world: World, ann: Process, bob: Process, how: str) -> None:
    """Others have it, or may have it: the error says which."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    reference = claim.hand_over()
    if how == "no record":
        reference = ClaimReference(TOPIC, "run", 1, claim.session)
    else:
        await world.later()
    if how == "taken over":
        assert await bob.queue.claim(TOPIC, "d")
    with pytest.raises(LeaseLostError, match={"over": "its time is over"}.get(how, how)) as told:
        await bob.queue.messages(reference)
    assert told.value.operation == "messages"


async def test_a_claim_that_its_janitor_keeps_is_shown(world: World, ann: Process, bob: Process) -> None:
    """Its session's time does not matter: a look is not a session."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=10 * TTL, session_ttl=TTL)
    await world.later(5 * TTL)
    assert numbers(await bob.queue.messages(ClaimReference(TOPIC, "run", 0, claim.session))) == [0, 1]


async def test_what_is_malformed_or_gone_is_left_out(world: World, ann: Process, bob: Process) -> None:
    """The others are returned, in their order."""
    await ann.queue.publish(TOPIC, numbered(4))
    reference = (await ann.queue.claim(TOPIC, "c")).hand_over()
    names = world.bucket.below("messages/")
    world.bucket.plant(units.key_of(TOPIC, names[0]), "garbage")
    world.bucket.remove(units.key_of(TOPIC, names[2]))
    assert numbers(await bob.queue.messages(reference)) == [1, 3]


@pytest.mark.parametrize("effect", ["lost", "denied"])
async def test_what_the_store_does_not_give_is_an_error(ann: Process, bob: Process, effect: Any) -> None:  # noqa: ANN401
    """Nobody is to take the rest for all that there is."""
    await ann.queue.publish(TOPIC, numbered(3))
    reference = (await ann.queue.claim(TOPIC, "c")).hand_over()
    bob.client.inject(effect, "GET", BODIES, passed=1)
    with pytest.raises(StoreError):
        await bob.queue.messages(reference)
    bob.client.heal()
    assert len(await bob.queue.messages(reference)) == 3
