"""Closing a queue whose store hangs: it ends in time, and the log names what was not given back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pawnqueue import InvalidArgumentError, MemoryStore, QueueClosedError, SyncPawnQueue
from pawnqueue import events as happened
from pawnqueue.queue import MIN_BACKGROUND_END_SECONDS
from pawnqueue.runtime.lifetime import CLOSE_SECONDS
from tests.pawnqueue.virtual import OVERDUE, TOPIC, numbered, numbers
from tools.kit.stores import HookedStore

if TYPE_CHECKING:
    from tests.pawnqueue.virtual import Process, World
    from tools.kit.stores import Answer, CarryOut, Request


async def hang(_request: Request, _carry_out: CarryOut) -> Answer:
    """Never answer."""
    await asyncio.Event().wait()


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("timeout", [0, 3.0, None])
async def test_a_store_that_hangs_does_not_hold_up_the_end(
    world: World,
    bob: Process,
    timeout: float | None,  # noqa: ASYNC109 - it is passed on
    caplog: pytest.LogCaptureFixture,
    *,
    keep: bool,
) -> None:
    """The log names the claims, and others get their messages when their time is over."""
    ann = await world.process()
    told: list[happened.Event] = []
    ann.queue._context.events._listener = told.append
    await ann.queue.publish(TOPIC, numbered(3))
    first = await ann.queue.claim(TOPIC, "c", max_messages=2, claim_id="run")
    second = await ann.queue.claim(TOPIC, "c")
    ann.client.hook = hang
    began = world.clock.elapsed()
    if timeout is None:
        await ann.queue.aclose(keep_claims=keep)
    else:
        await ann.queue.aclose(keep_claims=keep, timeout=timeout)
    took = world.clock.elapsed() - began
    assert took <= (CLOSE_SECONDS if timeout is None else timeout) + MIN_BACKGROUND_END_SECONDS + 0.1
    assert first.claim_id in caplog.text
    assert second.claim_id in caplog.text
    closed = told[-1]
    assert isinstance(closed, happened.QueueClosed)
    assert (closed.claims, closed.messages) == (2, 0)
    await world.later(OVERDUE)
    assert numbers(await bob.queue.claim(TOPIC, "c", max_messages=5)) == [0, 1, 2]


async def test_only_what_was_not_given_back_is_named(
    world: World, ann: Process, bob: Process, caplog: pytest.LogCaptureFixture
) -> None:
    """One record whose store hangs does not hold up the others."""
    await ann.queue.publish(TOPIC, numbered(2))
    for number in range(2):
        await ann.queue.claim(TOPIC, "c", max_messages=1, claim_id=f"run-{number}")

    async def hook(request: Request, carry_out: CarryOut) -> Answer:
        return await (hang(request, carry_out) if "run-0" in request.key else carry_out())

    ann.client.hook = hook
    await ann.queue.aclose(timeout=4)
    assert "run-0.0 of 'orders' (1, " in caplog.text
    assert "run-1" not in caplog.text
    assert numbers(await bob.queue.claim(TOPIC, "c", max_messages=2)) == [1]


async def test_a_claim_that_is_being_made_does_not_hold_up_the_end(world: World, ann: Process) -> None:
    """It ends with its queue, whatever its requests do."""
    await ann.queue.publish(TOPIC, numbered(1))
    ann.client.hook = hang
    claiming = asyncio.create_task(ann.queue.claim(TOPIC, "c"))
    await world.later(1)
    began = world.clock.elapsed()
    await ann.queue.aclose(timeout=2)
    assert world.clock.elapsed() - began <= 2 + MIN_BACKGROUND_END_SECONDS + 0.1
    with pytest.raises(QueueClosedError):
        await claiming


async def test_a_wrong_timeout_closes_nothing(ann: Process) -> None:
    """It raises InvalidArgumentError, and the queue stays open."""
    for wrong in (-1, "x", float("nan"), None):
        with pytest.raises(InvalidArgumentError, match="timeout is a number"):
            await ann.queue.aclose(timeout=wrong)  # type: ignore[arg-type]
    assert not ann.queue.closed


def test_the_synchronous_queue_ends_as_well(caplog: pytest.LogCaptureFixture) -> None:
    """It ends after the same timeout."""
    store = HookedStore(MemoryStore())
    queue = SyncPawnQueue.open(store=store)
    queue.create_topic(TOPIC)
    queue.publish(TOPIC, numbered(1))
    claim = queue.claim(TOPIC, "c")
    store.hook = hang
    queue.close(timeout=0.05)
    assert claim.claim_id in caplog.text
