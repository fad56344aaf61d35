"""Work that is done beside deliveries: effects that other claims left undone, and redrives that were cut off."""

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

#: How many tasks run at one time. A look that meets more work begins it later.
MAX_BACKGROUND_TASKS = 64


class BackgroundWork:
    """Runs a bounded number of tasks in the background, at most one of each name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: dict[str, asyncio.Task[None]] = {}

    @property
    def busy(self) -> bool:
        """Whether any is under way."""
        return bool(self._running)

    def run(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Begin the work, unless it is under way or too much else is. Return whether it is under way."""
        if name in self._running:
            return True
        if len(self._running) >= MAX_BACKGROUND_TASKS:
            return False
        task = asyncio.create_task(_logged(name, work), name=f"pawnqueue-background-{name}")
        self._running[name] = task
        task.add_done_callback(lambda _: self._running.pop(name, None))
        return True

    async def done(self, name: str, at_most: float) -> bool:
        """Wait at most this long for the end of the work of this name, and return whether it has ended."""
        task = self._running.get(name)
        return task is None or await wait_at_most(asyncio.shield(task), self._clock, at_most)

    async def settled(self, at_most: float) -> bool:
        """Wait at most this long for the end of all work, and return whether it has ended."""
        tasks = list(self._running.values())
        if tasks:
            await wait_at_most(
                asyncio.gather(*map(asyncio.shield, tasks), return_exceptions=True), self._clock, at_most
            )
        return all(task.done() for task in tasks)

    async def close(self, at_most: float) -> None:
        """Wait at most this long for the end of all work, and cancel the rest."""
        if not await self.settled(at_most):
            tasks = list(self._running.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _logged(name: str, work: Callable[[], Awaitable[None]]) -> None:
    try:
        # Called here: a task that is cancelled before its first step then leaves no coroutine that was never awaited.
        await work()
    except PawnQueueError as error:
        logger.warning("Could not finish %s. The next consumer that meets it tries again: %s", name, error)
