"""Wait for obstore's threads before the interpreter ends.

A thread of obstore's that releases the interpreter's lock while the interpreter is being torn down aborts the process:
one short script in five ended with SIGABRT after all its work was done. (It is known as pyo3-async-runtimes #40; those
threads cannot be ended.)
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time

#: The threads are idle when none was seen in this many checks, this far apart.
_QUIET_CHECKS = 3
_CHECK_INTERVAL_SECONDS = 0.003
#: Threads of other libraries may stay for good.
_MAX_EXIT_WAIT_SECONDS = 1.0

_used_in: set[int] = set()


def wait_for_threads_at_exit() -> None:
    """Make this process wait for obstore's threads when it ends. May be called often."""
    if not _used_in:
        atexit.register(_wait_for_threads)
    _used_in.add(os.getpid())


def _wait_for_threads() -> None:
    if os.getpid() not in _used_in:
        return  # a forked child has no such threads
    deadline = time.monotonic() + _MAX_EXIT_WAIT_SECONDS
    quiet = 0
    while quiet < _QUIET_CHECKS and time.monotonic() < deadline:
        time.sleep(_CHECK_INTERVAL_SECONDS)  # meanwhile they can take the interpreter's lock
        quiet = 0 if _foreign_threads() else quiet + 1


def _foreign_threads() -> set[int]:
    """Return the threads that are known to the interpreter and were not started by Python."""
    return set(sys._current_exceptions()) - {thread.ident for thread in threading.enumerate()}  # noqa: SLF001 - no other way to see them
