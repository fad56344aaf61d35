"""What tests of attacked claims have in common: consumers that poll, and requests that take long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.pawnqueue.virtual import TOPIC, Process, World

if TYPE_CHECKING:
    from pawnqueue import Message

#: What another process gave back shows in a full look, which is every ten seconds: so long, and a poll.
GIVEN_BACK = 12.0


async def had(
    world: World, process: Process, count: int, seconds: float, *, pause: float = 1.0, **asked: Any
) -> list[Message]:
    """Claim and ack until the wanted number of messages came, within a time, and return them in order."""
    started = world.clock.elapsed()
    got: list[Message] = []
    while len(got) < count:
        claim = await process.queue.claim(TOPIC, "poller", **asked)
        got += claim
        await process.queue.ack(claim)
        took = world.clock.elapsed() - started
        assert took <= seconds, f"{len(got)} of {count} messages were had in {took:.0f} seconds"
        if not claim:
            await world.later(pause)
    return got


def slow(world: World, process: Process, kind: str, part: str, seconds: float) -> None:
    """Let the process's requests of this kind, for keys with this part, take so long, until it is healed."""

    async def wait(sent: str, key: str) -> None:
        if sent == kind and part in key:
            await world.clock.sleep(seconds)

    process.client.meanwhile = wait


async def cancelled(world: World, work: Awaitable[object], seconds: float) -> None:
    """Begin the work, and cancel it after a time."""
    task = asyncio.ensure_future(work)
    await world.later(seconds)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def cancelling(process: Process, kind: str, folder: str) -> Callable[[asyncio.Future[Any]], None]:
    """Cancel a task, once it is known, at the process's first request of this kind."""
    tasks: list[asyncio.Future[Any]] = []

    async def cancel(sent: str, key: str) -> None:
        if sent == kind and f"/{folder}/" in key and tasks:
            tasks.pop().cancel()
            await asyncio.sleep(0)

    process.client.meanwhile = cancel
    return tasks.append
