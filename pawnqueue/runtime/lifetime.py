"""The lifetime of an open queue: the event loop to which it belongs, and its end, which comes once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from pawnqueue.errors import InvalidArgumentError, QueueClosedError, QueueDrainedError
from pawnqueue.runtime.cancellation import shield_and_wait

if TYPE_CHECKING:
    from pawnqueue.runtime.clock import Clock

#: How long closing a queue may take by default.
CLOSE_SECONDS = 15.0
#: How long a caller that is cancelled still waits for the queue to close.
MAX_CLOSE_SECONDS = 30.0


class Lifetime:
    """Begins in the running event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._closing: asyncio.Future[None] | None = None
        self._is_draining = False

    @property
    def is_over(self) -> bool:
        """Whether closing has begun."""
        return self._closing is not None

    @property
    def is_draining(self) -> bool:
        """Whether no more is claimed, as a drain or the end has begun."""
        return self._is_draining or self.is_over

    def drain(self) -> None:
        """Claim nothing more, for ever."""
        self._is_draining = True

    def check_claiming(self) -> None:
        """Refuse what :meth:`check_open` refuses, and new claims after a drain has begun."""
        self.check_open()
        if self._is_draining:
            raise QueueDrainedError

    def check_open(self) -> None:
        """Refuse a call from another event loop, and a call after the end."""
        self.check_loop()
        if self.is_over:
            raise QueueClosedError

    def check_loop(self) -> None:
        """Refuse a call from another event loop."""
        try:
            is_ours = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_ours = False
        if not is_ours:
            raise InvalidArgumentError(
                "This queue was opened in another event loop. Only that loop can use and close it: open a queue in "
                "each loop, or use SyncPawnQueue, which may be called from anywhere."
            )

    async def end(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Close once: a second call waits for the first one, and a cancelled caller leaves nothing half closed."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(close())
        await shield_and_wait(_ended(self._closing), self._clock, MAX_CLOSE_SECONDS)


async def _ended(closing: asyncio.Future[None]) -> None:
    """Wait for the end that all callers share. A caller that is cancelled again ends its own wait alone."""
    await asyncio.wait((closing,))
    closing.result()
