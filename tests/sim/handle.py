"""A callback that is to run, as asyncio wants to hold it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context


class SimHandle:
    """See ``asyncio.TimerHandle``. There are very many of these, so they hold what is used and no more."""

    __slots__ = ("_when", "args", "callback", "cancelled_", "context")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], context: Context, when: float) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.cancelled_ = False
        self._when = when

    def cancel(self) -> None:
        """Do not run it."""
        self.cancelled_ = True
        self.callback, self.args = _nothing, ()

    def cancelled(self) -> bool:
        """Say whether it was cancelled."""
        return self.cancelled_

    def when(self) -> float:
        """Return the time it was meant for."""
        return self._when


def _nothing() -> None:
    """Stand in for what was cancelled."""
