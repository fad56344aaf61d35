"""Claims that wait: what this process publishes wakes them, and their pauses belong to the topic."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pawnqueue import QueueClosedError
from tests.pawnqueue.virtual import TOPIC, numbered, numbers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pawnqueue import Claim
    from tests.pawnqueue.virtual import Process, World
    from tools.kit.stores import Answer, CarryOut, Request

LONG_PAUSE = {"polling": {"interval_seconds": 60, "jitter_max_ms": 0}}


@pytest.fixture
async def idle(world: World) -> Process:
    """A process that pauses for a minute between two looks."""
    process = await world.process(**LONG_PAUSE)
    assert not await process.queue.claim(TOPIC, "c", wait=200)
    return process


async def _publish(process: Process) -> None:
    await process.queue.publish(TOPIC, numbered(1))


async def _commit(process: Process) -> None:
    part = await process.queue.stage(TOPIC, "w", 0, numbered(1))
    await process.queue.commit_write(TOPIC, "w", [part])


@pytest.mark.parametrize("make", [_publish, _commit])
async def test_what_this_process_publishes_wakes_a_claim_that_waits(
    world: World, idle: Process, make: Callable[[Process], Awaitable[None]]
) -> None:
    """It has the message at once, and not after its pause."""
    waiting = asyncio.create_task(idle.queue.claim(TOPIC, "c", wait=600))
    await world.later(5)
    began = world.clock.elapsed()
    await make(idle)
    assert numbers(await waiting) == [0]
    assert world.clock.elapsed() == began


async def test_what_this_process_gives_back_wakes_a_claim_that_waits(world: World, idle: Process) -> None:
    """Requeued and redriven messages are claimable here at once."""
    await idle.queue.publish(TOPIC, numbered(1))
    claim = await idle.queue.claim(TOPIC, "c")
    for give_back in (_give_back, _bury_and_redrive):
        waiting = asyncio.create_task(idle.queue.claim(TOPIC, "c", wait=600))
        await world.later(5)
        began = world.clock.elapsed()
        await give_back(idle, claim)
        claim = await waiting
        assert numbers(claim) == [0]
        assert world.clock.elapsed() == began


async def _give_back(process: Process, claim: Claim) -> None:
    await process.queue.requeue(claim)


async def _bury_and_redrive(process: Process, claim: Claim) -> None:
    await process.queue.bury(claim, reason="r")
    await process.queue.redrive(TOPIC)


async def test_as_many_claims_wake_as_there_are_messages(world: World, idle: Process) -> None:
    """The first that waits has the message; the others ask the store for nothing."""
    waiting = []
    for _ in range(20):
        waiting.append(asyncio.create_task(idle.queue.claim(TOPIC, "c", max_messages=1, wait=50)))
        await world.later(0.1)
    with idle.client.counting() as requests:
        await idle.queue.publish(TOPIC, numbered(1))
        claim = await waiting[0]
    assert numbers(claim) == [0]
    assert requests["LIST"] <= 2
    await idle.queue.ack(claim)
    assert [numbers(claim) for claim in await asyncio.gather(*waiting[1:])] == [[]] * 19


async def test_one_that_is_cancelled_as_it_wakes_lets_the_next_one_look(world: World, idle: Process) -> None:
    """No message waits for a pause because the claim that was to have it was given up."""
    first, second = [asyncio.create_task(idle.queue.claim(TOPIC, "c", wait=600)) for _ in range(2)]
    await world.later(5)
    began = world.clock.elapsed()
    idle.queue._claims.idle_pauses_of(TOPIC).look_again(1)
    first.cancel()
    world.fill([{"id": "i", "payload": {"n": 0}}])
    assert numbers(await second) == [0]
    assert world.clock.elapsed() == began
    assert first.cancelled()


async def test_what_is_published_during_a_look_is_not_missed(world: World, idle: Process) -> None:
    """A look that the store has answered before is not relied upon: there is another one before the pause."""
    waiting = asyncio.create_task(idle.queue.claim(TOPIC, "c", wait=600))
    await world.later(5)

    async def hook(request: Request, carry_out: CarryOut) -> Answer:
        answer = await carry_out()
        if request.kind == "LIST" and not answer and request.key.endswith("messages/"):
            idle.client.hook = None
            world.fill([{"id": "i", "payload": {"n": 0}}])
            idle.queue._claims.look_again(TOPIC)
        return answer

    idle.client.hook = hook
    for _ in range(120):
        await world.later(1)
        if idle.client.hook is None:
            break
    began = world.clock.elapsed()
    assert numbers(await waiting) == [0]
    assert world.clock.elapsed() - began < 2


async def test_the_pauses_go_on_from_one_call_to_the_next(world: World) -> None:
    """Many short waits cost about what one long wait costs."""
    long, short = [await world.process(polling={"interval_seconds": 10, "jitter_max_ms": 0}) for _ in range(2)]
    with long.client.counting() as once:
        await long.queue.claim(TOPIC, "c", wait=1200)
    with short.client.counting() as often:
        for _ in range(60):
            await short.queue.claim(TOPIC, "c", wait=20)
    assert often["LIST"] <= once["LIST"] + 60 + 5, "each call looks once more, as it begins"


async def test_the_pauses_are_short_again_after_a_message(world: World, ann: Process, bob: Process) -> None:
    """A consumer that has found something looks soon."""
    assert not await ann.queue.claim(TOPIC, "c", wait=300)
    await bob.queue.publish(TOPIC, numbered(1))
    await ann.queue.ack(await ann.queue.claim(TOPIC, "c"))
    waiting = asyncio.create_task(ann.queue.claim(TOPIC, "c", wait=300))
    await world.later(0.1)
    began = world.clock.elapsed()
    await bob.queue.publish(TOPIC, numbered(1))
    assert numbers(await waiting) == [0]
    assert world.clock.elapsed() - began < 1


async def test_closing_wakes_what_waits(world: World, idle: Process) -> None:
    """It ends as the queue does, and not after its pause."""
    waiting = asyncio.create_task(idle.queue.claim(TOPIC, "c", wait=600))
    await world.later(5)
    began = world.clock.elapsed()
    await idle.queue.aclose()
    with pytest.raises(QueueClosedError):
        await waiting
    assert world.clock.elapsed() == began
