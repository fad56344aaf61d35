"""A task has one claim: in every try, after every restart, and after it was cleared a new one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pawnqueue.hooks.identity import Owner
from airflow_provider_pawnqueue.hooks.task_claims import CLEARED, claim_for_task, hand_over, release_for_task
from pawnqueue import ClaimBusyError, InvalidArgumentError
from pawnqueue.domain.claim_terms import ClaimTerms
from tests.pawnqueue.virtual import TOPIC, Died, numbered, numbers
from tests.triggers.virtual import LoopWorld, owner, terms, virtual

if TYPE_CHECKING:
    from pawnqueue import Claim, PawnQueue


async def fired(queue: PawnQueue, *, clear: int = 0) -> Claim:
    """Claim as a trigger does, up to its event."""
    claim = await claim_for_task(queue, terms(clear=clear, max_messages=2))
    await hand_over(queue, claim)
    return claim


@virtual
async def test_every_try_has_the_same_claim(world: LoopWorld) -> None:
    """A second process with the same owner gets the same messages, however many more there are."""
    ann, bob = await world.process(), await world.process()
    await ann.queue.publish(TOPIC, numbered(5))
    first = await fired(ann.queue)
    again = await claim_for_task(bob.queue, terms(max_messages=2))
    assert again.stem == first.stem
    assert numbers(again) == numbers(first) == [0, 1]


@virtual
async def test_died_before_the_record(world: LoopWorld) -> None:
    """The next attempt gets exactly what the first one had won before it died."""
    ann, bob = await world.process(), await world.process()
    await bob.queue.publish(TOPIC, numbered(5))
    ann.client.inject("dies", "PUT", f"{TOPIC}/claims/*")
    with suppress(Died):
        await claim_for_task(ann.queue, terms(max_messages=2))
    world._processes.remove(ann)
    assert numbers(await claim_for_task(bob.queue, terms(max_messages=2))) == [0, 1]


@virtual
async def test_died_after_the_record(world: LoopWorld) -> None:
    """A try that comes while the first one may be alive waits; once its time is over, it gets the same claim."""
    ann, bob = await world.process(), await world.process()
    await bob.queue.publish(TOPIC, numbered(5))
    first = await claim_for_task(ann.queue, terms(max_messages=2, ttl=300.0))
    ann.client.dead = True
    world._processes.remove(ann)
    with pytest.raises(ClaimBusyError):
        await claim_for_task(bob.queue, terms(max_messages=2, ttl=300.0))
    await world.later(40)
    again = await claim_for_task(bob.queue, terms(max_messages=2, ttl=300.0))
    assert (again.stem, numbers(again)) == (first.stem, [0, 1])


@virtual
async def test_a_cleared_task_claims_anew(world: LoopWorld) -> None:
    """Its claim is released, and its next claim has the next generation; all messages are claimable."""
    ann, bob = await world.process(), await world.process()
    await ann.queue.publish(TOPIC, numbered(2))
    first = await fired(ann.queue)
    second = await claim_for_task(bob.queue, terms(clear=1, max_messages=2))
    assert (second.claim_id, second.generation) == (first.claim_id, first.generation + 1)
    assert numbers(second) == [0, 1]
    assert world.bucket.record(first.stem).state == "closed"
    assert {decision.reason for decision in world.bucket.record(first.stem).settled.values()} == {CLEARED}


@virtual
async def test_a_cleared_task_waits_for_its_old_try(world: LoopWorld) -> None:
    """It claims nothing while its old try works, and claims as soon as that has left."""
    ann, bob = await world.process(), await world.process()
    await ann.queue.publish(TOPIC, numbered(4))
    first = await claim_for_task(ann.queue, terms(max_messages=2))
    for _ in range(3):
        with pytest.raises(ClaimBusyError):
            await claim_for_task(bob.queue, terms(clear=1, max_messages=2))
        assert len(world.bucket.below("claims/")) == 1
    await ann.queue.leave(first)
    assert len(await claim_for_task(bob.queue, terms(clear=1, max_messages=2))) == 2


@virtual
async def test_the_outdated_trigger_gets_nothing(world: LoopWorld) -> None:
    """It gets nothing while its successor has the claim, after that has settled it, and in between."""
    ann, bob = await world.process(), await world.process()
    await ann.queue.publish(TOPIC, numbered(9))
    second = await fired(bob.queue, clear=1)
    with pytest.raises(ClaimBusyError):
        await claim_for_task(ann.queue, terms(max_messages=2))
    await bob.queue.ack(await bob.queue.attach(second.hand_over()))
    with pytest.raises(ClaimBusyError, match=r"task claim of run run of DAG dag was cleared"):
        await claim_for_task(ann.queue, terms(max_messages=2))
    assert world.bucket.below("claims/") == [f"{second.stem}.json"]


@virtual
async def test_the_outdated_trigger_gets_nothing_back(world: LoopWorld) -> None:
    """It does not claim again what was released as its task was cleared, also if nobody has claimed since."""
    ann, bob = await world.process(), await world.process()
    await ann.queue.publish(TOPIC, numbered(1))
    await fired(ann.queue)
    assert await release_for_task(bob.queue, terms(clear=1), CLEARED) == 1
    with pytest.raises(ClaimBusyError):
        await claim_for_task(ann.queue, terms())
    assert numbers(await claim_for_task(bob.queue, terms(clear=1))) == [0]


@virtual
async def test_a_run_that_was_deleted_and_made_anew(world: LoopWorld) -> None:
    """Its clears count from 0 again, and it claims when the time of its former claim is over."""
    ann, bob = await world.process(), await world.process()
    await ann.queue.publish(TOPIC, numbered(3))
    for clear in (0, 2):
        claim = await fired(ann.queue, clear=clear)
        await ann.queue.nack(await ann.queue.attach(claim.hand_over()), requeue=True, reason=CLEARED)
    with pytest.raises(ClaimBusyError, match="was cleared"):
        await claim_for_task(bob.queue, terms(max_messages=2))
    await world.clock.sleep(60)
    assert len(await claim_for_task(bob.queue, terms(max_messages=2))) == 2


@virtual
async def test_a_task_whose_successor_never_claimed(world: LoopWorld) -> None:
    """It claims again after its claim was released and its run was made anew under the same name."""
    ann, bob = await world.process(), await world.process()
    await ann.queue.publish(TOPIC, numbered(1))
    await fired(ann.queue)
    assert await release_for_task(bob.queue, terms(clear=1), CLEARED) == 1
    await world.clock.sleep(60)
    assert numbers(await claim_for_task(bob.queue, terms())) == [0]


@pytest.mark.parametrize("how", ["settled", "fenced", "over", "given back"])
def test_a_lost_claim_is_followed_by_a_new_round(how: str) -> None:
    """The task claims another batch in its next round, and its next try finds that batch."""

    @virtual
    async def played(world: LoopWorld) -> None:
        ann, bob = await world.process(), await world.process()
        await ann.queue.publish(TOPIC, numbered(4))
        first = await fired(ann.queue)
        if how == "settled":
            await bob.queue.ack(await bob.queue.attach(first.hand_over()))
        elif how == "fenced":
            world.fence(first)
        elif how == "given back":
            await release_for_task(bob.queue, terms(), "why not")
        else:
            await world.later(400)
            assert len(await bob.queue.claim(TOPIC, "other", max_messages=2)) == 2
        second = await claim_for_task(bob.queue, terms(max_messages=2))
        assert second.generation == 1
        assert Owner.parse(second.owner) == owner(round_=1)
        await hand_over(bob.queue, second)
        third = await claim_for_task(ann.queue, terms(max_messages=2))
        assert (third.stem, third.ids) == (second.stem, second.ids)

    played()


@virtual
async def test_there_is_nothing(world: LoopWorld) -> None:
    """The claim is empty and nothing is written, also after a claim was lost."""
    ann = await world.process()
    assert not await claim_for_task(ann.queue, terms())
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await fired(ann.queue)
    await ann.queue.ack(await ann.queue.attach(claim.hand_over()))
    before = world.bucket.snapshot()
    assert not await claim_for_task(ann.queue, terms())
    assert world.bucket.snapshot() == before


@virtual
async def test_two_at_once(world: LoopWorld) -> None:
    """One of two attempts at one moment has the batch, and the other one waits. There is no second batch."""
    ann, bob = await world.process(), await world.process()
    await ann.queue.publish(TOPIC, numbered(20))
    for process in (ann, bob):
        process.client.latency = 0.01
    asked = (claim_for_task(process.queue, terms(max_messages=5)) for process in (ann, bob))
    ended = await asyncio.gather(*asked, return_exceptions=True)
    assert sorted(type(each).__name__ for each in ended) == ["ClaimBusyError", "HeldClaim"]
    assert len(world.bucket.below("claims/")) == 1


@virtual
async def test_messages_are_released(world: LoopWorld) -> None:
    """Messages are released once. Releasing again, or without a claim, claims nothing."""
    ann, bob = await world.process(), await world.process()
    await ann.queue.publish(TOPIC, numbered(5))
    assert await release_for_task(bob.queue, terms(), "because") == 0
    await fired(ann.queue)
    assert await release_for_task(bob.queue, terms(), "because") == 2
    before = world.bucket.snapshot()
    for clear in (0, 1):
        assert await release_for_task(bob.queue, terms(clear=clear), "because") == 0
    assert world.bucket.snapshot() == before


@virtual
async def test_messages_of_a_later_round_are_released(world: LoopWorld) -> None:
    """A task that does not know its round releases what it has now."""
    ann, bob = await world.process(), await world.process()
    await ann.queue.publish(TOPIC, numbered(5))
    first = await fired(ann.queue)
    await ann.queue.ack(await ann.queue.attach(first.hand_over()))
    await fired(ann.queue)
    assert await release_for_task(bob.queue, terms(), "because") == 2
    assert (await bob.queue.stats(TOPIC)).pending == 3


@virtual
async def test_a_successors_messages_are_not_released(world: LoopWorld) -> None:
    """The outdated trigger of a cleared task releases nothing of its successor's."""
    ann, bob = await world.process(), await world.process()
    await ann.queue.publish(TOPIC, numbered(5))
    await fired(bob.queue, clear=1)
    before = world.bucket.snapshot()
    assert await release_for_task(ann.queue, terms(), "because") == 0
    assert world.bucket.snapshot() == before


@virtual
async def test_releasing_waits_for_a_session(world: LoopWorld) -> None:
    """It waits for as long as its argument says. Then the error says which session works on the claim."""
    ann, bob = await world.process(), await world.process()
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await claim_for_task(ann.queue, terms())
    with pytest.raises(ClaimBusyError):
        await release_for_task(bob.queue, terms(), "because", wait=1)
    asked = asyncio.create_task(release_for_task(bob.queue, terms(), "because", wait=20))
    await world.later(1)
    await ann.queue.leave(claim)
    assert await asked == 1


@virtual
async def test_a_program_claims_by_its_own_name(world: LoopWorld) -> None:
    """An owner that is not a task has no rounds: a claim that has ended stays ended."""
    ann = await world.process()
    await ann.queue.publish(TOPIC, numbered(2))
    asked = ClaimTerms(topic=TOPIC, owner="script-7", consumer="billing", max_messages=1)
    claim = await claim_for_task(ann.queue, asked)
    assert claim.claim_id == "script-7"
    await ann.queue.ack(claim)
    assert not await claim_for_task(ann.queue, asked)


@virtual
async def test_as_many_as_it_waits_for(world: LoopWorld) -> None:
    """A task that waits for more messages than the settings' batch gets as many as it waits for."""
    ann = await world.process()
    await ann.queue.publish(TOPIC, numbered(40))
    assert len(await claim_for_task(ann.queue, terms(min_messages=30))) == 30


@virtual
async def test_a_wrong_time_to_live_is_told(world: LoopWorld) -> None:
    """The queue's own error is raised."""
    ann = await world.process()
    with pytest.raises(InvalidArgumentError, match="ttl"):
        await claim_for_task(ann.queue, terms(ttl=0.5))
