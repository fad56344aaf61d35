"""Work that is done beside deliveries: what others have decided and not carried out, moves that were cut in two."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from pawnqueue.errors import PawnQueueError
from pawnqueue.events import logger_of
from pawnqueue.runtime.concurrency import wait_at_most

if TYPE_CHECKING:
    from pawnqueue.runtime.clock import Clock

logger = logger_of("claims")

#: So many run at one time; what is met beyond that is met again.
AT_ONCE = 64


class Errands:
    """Runs errands in the background, a bounded number of them, each name once at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: dict[str, asyncio.Task[None]] = {}

    @property
    def busy(self) -> bool:
        """Whether any is under way."""
        return bool(self._running)

    def run(self, name: str, errand: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Begin an errand, unless it is under way already or there are too many. Returns whether it is under way."""
        if name in self._running:
            return True
        if len(self._running) >= AT_ONCE:
            return False
        task = asyncio.create_task(_told(name, errand), name=f"pawnqueue-errand-{name}")
        self._running[name] = task
        task.add_done_callback(lambda _: self._running.pop(name, None))
        return True

    async def done(self, name: str, at_most: float) -> bool:
        """Wait until this errand has ended, but no longer than this; return whether it has."""
        task = self._running.get(name)
        return task is None or await wait_at_most(asyncio.shield(task), self._clock, at_most)

    async def settled(self, at_most: float) -> bool:
        """Wait until all that is under way has ended, but no longer than this; return whether it has."""
        tasks = list(self._running.values())
        if tasks:
            await wait_at_most(
                asyncio.gather(*map(asyncio.shield, tasks), return_exceptions=True), self._clock, at_most
            )
        return all(task.done() for task in tasks)

    async def close(self, at_most: float) -> None:
        """Let what is under way end, and end what does not by itself."""
        if not await self.settled(at_most):
            tasks = list(self._running.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _told(name: str, errand: Callable[[], Awaitable[None]]) -> None:
    try:
        await errand()  # begun here: a task that is cancelled before its first step leaves nothing that was not awaited
    except PawnQueueError as error:
        logger.warning("%s could not be done and is tried again by whoever meets it: %s", name, error)
