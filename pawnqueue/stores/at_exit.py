"""Let obstore's threads come to rest before the interpreter ends.

A thread that has brought obstore's answer, and gives back the interpreter's lock while the interpreter is being torn
down, aborts the process: a short script that had done all its work ended with SIGABRT, one time in five. (It is known
as pyo3-async-runtimes #40; there is no way to end those threads.)
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time

#: A thread that was seen nowhere this often, so far apart, is not about to come either.
_QUIET_CHECKS = 3
_CHECK_INTERVAL_SECONDS = 0.003
#: Threads of other libraries may stay for good.
_MAX_EXIT_WAIT_SECONDS = 1.0

_used_in: set[int] = set()


def wait_for_threads_at_exit() -> None:
    """Have this process wait for obstore's threads when it ends. May be called often."""
    if not _used_in:
        atexit.register(_wait_for_threads)
    _used_in.add(os.getpid())


def _wait_for_threads() -> None:
    if os.getpid() not in _used_in:
        return  # in a forked child there are no such threads
    deadline = time.monotonic() + _MAX_EXIT_WAIT_SECONDS
    quiet = 0
    while quiet < _QUIET_CHECKS and time.monotonic() < deadline:
        time.sleep(_CHECK_INTERVAL_SECONDS)  # which lets them have the interpreter's lock
        quiet = 0 if _foreign_threads() else quiet + 1


def _foreign_threads() -> set[int]:
    """Return the threads that hold a state of the interpreter's and were not started by Python."""
    return set(sys._current_exceptions()) - {thread.ident for thread in threading.enumerate()}  # noqa: SLF001 - no other way to see them
