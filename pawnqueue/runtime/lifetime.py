"""The life of an open queue: the loop to which it belongs, and its end, which comes once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from pawnqueue.errors import InvalidArgumentError, QueueClosedError
from pawnqueue.runtime.cancellation import shield_and_wait

if TYPE_CHECKING:
    from pawnqueue.runtime.clock import Clock

#: How long closing a queue may take, where its caller says nothing.
CLOSE_SECONDS = 15.0
#: How long closing goes on for who is cancelled meanwhile.
MAX_CLOSE_SECONDS = 30.0


class Lifetime:
    """Begins in the event loop that runs now."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._closing: asyncio.Future[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether its end has begun."""
        return self._closing is not None

    def check_open(self) -> None:
        """Refuse a call from another loop, and one that comes after the end."""
        self.check_loop()
        if self.is_over:
            raise QueueClosedError

    def check_loop(self) -> None:
        """Refuse a call from another loop."""
        try:
            is_ours = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_ours = False
        if not is_ours:
            raise InvalidArgumentError(
                "This queue was opened in another event loop, which alone can use and close it: open one in each "
                "loop, or use SyncPawnQueue, which may be called from anywhere."
            )

    async def end(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Close once. Whoever is cancelled leaves nothing half closed, and a second call waits for the same end."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(close())
        await shield_and_wait(self._closing, self._clock, MAX_CLOSE_SECONDS)
