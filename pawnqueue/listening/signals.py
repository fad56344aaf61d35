"""SIGTERM and SIGINT while a worker runs in the main thread: a first one drains the queue, a second ends it at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

#: What is called for each queue that listens now, and the handlers from before the first of them.
_listening: list[tuple[object, Callable[[], None]]] = []
_previous: dict[signal.Signals, Any] = {}


@contextmanager
def on_signals(owner: object, callback: Callable[[], None]) -> Iterator[None]:
    """Call back at SIGTERM and SIGINT for the length of the block; in any other thread than the main one, never.

    The callback runs between any two steps of the main thread, so it may do no more than wake an event loop. It works
    on every event loop: Python runs the handlers of :mod:`signal` while a loop waits.

    :param owner: several blocks of one owner are one: a signal is passed on to the first of them alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    entry = (owner, callback)
    if not _listening:
        for number in SIGNALS:
            # A handler that was not set from Python (None) could not be restored.
            if signal.getsignal(number) is not None:
                _previous[number] = signal.signal(number, _hear)
    _listening.append(entry)
    try:
        yield
    finally:
        if entry in _listening:  # else this is a forked process, in which nobody listens
            _listening.remove(entry)
        if not _listening:
            _restore()


def _restore() -> None:
    for number, handler in _previous.items():
        if signal.getsignal(number) is _hear:  # else somebody has set another one meanwhile
            signal.signal(number, handler)
    _previous.clear()


def _hear(_number: int, _frame: FrameType | None) -> None:
    heard: list[object] = []
    for owner, callback in _listening:
        if not any(owner is other for other in heard):
            heard.append(owner)
            callback()


class _Mask(threading.local):
    """The signals that a thread that forks had blocked before."""

    before: set[int] | None = None


_mask = _Mask()


def _block_before_fork() -> None:
    # Python forgets a signal that a new process gets before it has the handlers that are restored.
    if _listening:
        _mask.before = {int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)}


def _unblock_after_fork() -> None:
    if _mask.before is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)
        _mask.before = None


def _restore_in_child() -> None:
    """Have a process that a handler has forked end by its own signals: the worker is its parent's."""
    _listening.clear()
    with suppress(ValueError):  # forked in a subinterpreter, which can set no signal's handler
        _restore()
    _unblock_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_block_before_fork, after_in_parent=_unblock_after_fork, after_in_child=_restore_in_child
    )
