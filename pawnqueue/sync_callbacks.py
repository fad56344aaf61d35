"""What a synchronous queue calls in the thread of its own event loop: its listener, and ``on_lost``."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from pawnqueue.errors import PawnQueueError

if TYPE_CHECKING:
    from pawnqueue.arguments import OnLost
    from pawnqueue.errors import LeaseLostError

A = TypeVar("A")
T = TypeVar("T")


class SyncKeepAlive:
    """What the block of :meth:`SyncPawnQueue.keep_alive` is given: any thread may ask ``.lost``, and wait for it.

    ``.error`` says why the claim was lost.
    """

    def __init__(self, on_lost: OnLost | None) -> None:
        self._on_lost = on_lost
        self.lost = threading.Event()
        self.error: LeaseLostError | None = None

    def note_loss(self, error: LeaseLostError) -> Awaitable[None] | None:
        """Note the loss and call ``on_lost``, in the thread of the loop. The loop logs what is raised here."""
        self.error = error
        self.lost.set()
        if self._on_lost is None:
            return None
        answer = guarded(self._on_lost, "on_lost")(error)
        return _finished(answer, "on_lost") if inspect.isawaitable(answer) else None


def guarded(callback: Callable[[A], T], name: str) -> Callable[[A], T]:
    """Return the callback such that it raises only errors, which the loop logs; SystemExit would end the loop."""

    def called(argument: A) -> T:
        try:
            return callback(argument)
        except Exception:
            raise
        except BaseException as end:
            raise _exit_error(name, end) from end

    return called


async def _finished(answer: Awaitable[None], name: str) -> None:
    try:
        await answer
    except (SystemExit, KeyboardInterrupt) as end:
        raise _exit_error(name, end) from end


def _exit_error(name: str, end: BaseException) -> PawnQueueError:
    return PawnQueueError(
        f"{name} is called in the thread of the queue's own event loop, and cannot end the program from there: let it "
        "tell the thread that works, by an event for example.",
        operation=name,
        cause=end,
    )
