"""Stops the task that runs in this process, wherever its code is, as another task may have its messages now.

Imports nothing of the engine at module level, so that a task without a claim does not spend time on it.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections import deque
from contextlib import suppress
from types import FrameType
from typing import Any, Final

logger = logging.getLogger(__name__)


class WorkStoppedError(BaseException):
    """Stops a task wherever it works, as its claim is lost. Its cause is a :class:`LeaseLostError`.

    It is not an ``Exception``: a task that catches the errors of single messages must not go on after this. A task that
    catches it and works on is killed four seconds later, or half a minute later if it has lost its supervisor.

    :when: a task works on messages of a claim, anywhere in its code: its claim is lost, or its supervisor is gone.
    :done: what the task has done so far; its messages are not settled by it.
    :remedy: let it pass. A longer ``ttl``, or a janitor, keeps it from coming again.
    """

    def __init__(self, sentence: str, *, is_orphan: bool = False) -> None:
        super().__init__(sentence)
        self.is_orphan = is_orphan


def stop_the_task(why: str, unless: threading.Event | None = None) -> threading.Event:
    """Raise an error in the main thread, wherever it works, as another task may have its messages now.

    ⚑ §5.2, one holder: work that is not stopped goes on beside that of the next holder.

    :param unless: an event that is set when the work ends. After that, no error is raised.
    :returns: an event that is set when the error is raised. It stays unset if the main thread cannot be interrupted.
    """
    from pawnqueue.errors import LeaseLostError  # noqa: PLC0415 - see the module

    logger.error("This task is stopped, as its claim is lost: %s", why)
    lost = LeaseLostError(
        f"The claim that this task worked on is lost ({why}): others may work on its messages. A longer ttl, or a "
        "janitor DAG, keeps claims for longer.",
        operation="keep_alive",
    )
    order = _Order(lost, unless)
    if signal.getsignal(_SIGNAL) is _raise:  # else the work is in another thread, or uses the signal itself
        _orders.append(order)
        with suppress(ProcessLookupError, ValueError):
            signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
    return order.heard


def let_stop() -> None:
    """Allow :func:`stop_the_task` to interrupt the main thread. Call this there, before the work begins."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(_SIGNAL) in _UNUSED:
        signal.signal(_SIGNAL, _raise)


class _Order:
    """An error to raise in the main thread."""

    def __init__(self, error: Exception, unless: threading.Event | None) -> None:
        self.error = error
        self.unless = unless
        self.heard = threading.Event()


_orders: deque[_Order] = deque()


def _raise(number: int, frame: FrameType | None) -> None:
    del number, frame
    valid: list[_Order] = []
    while _orders:  # without an order, the signal came from elsewhere, and does nothing
        order = _orders.popleft()
        if order.unless is None or not order.unless.is_set():
            valid.append(order)
    if not valid:
        return
    for order in valid:
        order.heard.set()
    lost = valid[0].error
    raise WorkStoppedError(str(lost), is_orphan=any(order.unless is None for order in valid)) from lost


#: A signal that does nothing by default, and interrupts a sleep.
_SIGNAL: Final = signal.SIGURG
_UNUSED: Final[tuple[Any, ...]] = (signal.SIG_DFL, signal.SIG_IGN, None)
