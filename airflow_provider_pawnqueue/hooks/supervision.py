"""Watches the supervisor of the task that runs in this process: a task that has lost it must stop.

Airflow does not hear of such a task any more: it starts another try and never ends the old one. So each task that works
with claimed messages has one thread that watches. The listener in :mod:`~airflow_provider_pawnqueue.plugin` starts it
for the tasks behind a claim, and reading a claim starts it for all others.

Imports nothing of the engine, so that a task of another DAG does not spend time on it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from airflow_provider_pawnqueue.hooks.stopping import let_stop, stop_the_task

logger = logging.getLogger(__name__)

#: How often a task checks that its supervisor lives.
WATCH_SECONDS: Final = 1.0
#: How long the watch waits for the main thread to stop. After that it leaves no claim.
HEARD_SECONDS: Final = 5.0
#: How long a task without a supervisor may unwind before it is killed.
UNWIND_SECONDS: Final = 30.0
#: How long a task that has lost its claim may unwind before it is killed. ⚑ §2: this is shorter than the two margins
#: between the moment when a holder stops trusting its claim and the moment when others take it over.
LOST_SECONDS: Final = 4.0

_ORPHANED: Final = "the supervisor of this task is gone, and another try of it will have the claim"


class Holder(Protocol):
    """A claim that this process renews."""

    def stop_renewing(self) -> bool:
        """Stop renewing it, and return whether it was being renewed."""

    def leave(self) -> None:
        """End this session's time in the claim's record, so that the next try need not wait. It never raises."""


class Supervision:
    """The watch of this process: one thread, while it holds a claim or runs a task that needs the watch."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Watch nothing yet. A forked child calls this too: a thread of its parent may have held the lock."""
        self._lock = threading.Lock()
        self._holders: list[Holder] = []
        self._to_the_end = False
        self._thread: threading.Thread | None = None
        self._orphaned = threading.Event()

    def watch_this_task(self) -> None:
        """Stop the task of this process once its supervisor is gone. Call this in the main thread at its start."""
        let_stop()
        self._watch(None)

    def add(self, holder: Holder) -> None:
        """Leave this claim as soon as the supervisor of its task is gone."""
        self._watch(holder)

    def remove(self, holder: Holder) -> None:
        """Do not watch for this claim any more."""
        with self._lock:
            self._holders = [other for other in self._holders if other is not holder]

    def wait_until_left(self) -> None:
        """Wait until the claims are left, if the watch has begun to leave them."""
        thread = self._thread
        if thread is not None and self._orphaned.is_set() and thread is not threading.current_thread():
            thread.join(HEARD_SECONDS)

    def _watch(self, holder: Holder | None) -> None:
        if is_its_own_supervisor():
            return
        with self._lock:
            if holder is None:
                self._to_the_end = True
            else:
                self._holders.append(holder)
            if self._thread is None:
                # The name does not begin with pawnqueue: such threads end with their queue, and this one does not.
                name = "task-supervisor-watch"
                self._thread = threading.Thread(target=self._run, args=(os.getppid(),), name=name, daemon=True)
                self._thread.start()

    def _run(self, parent: int) -> None:
        while not _is_gone(parent):
            time.sleep(WATCH_SECONDS)
            with self._lock:
                if not self._holders and not self._to_the_end:
                    self._thread = None
                    return
        self._end()

    def _end(self) -> None:
        """Stop the work, then leave the claims, then end the process."""
        self._orphaned.set()
        with self._lock:
            holders = list(self._holders)
        left = [holder for holder in holders if holder.stop_renewing()]
        logger.error("This task has lost its supervisor. It stops, and leaves its messages to its next try.")
        # ⚑ §5.2: not before the work has stopped. If it cannot be stopped, the next try waits for the session's end.
        if stop_the_task(_ORPHANED).wait(HEARD_SECONDS):
            for holder in left:
                holder.leave()
        _kill_after(UNWIND_SECONDS, "This task has lost its supervisor and did not end when it was stopped")


def kill_unless_it_ends(ended: threading.Event, is_working: Callable[[], bool]) -> None:
    """Kill this process if its task still works on a lost claim after ``LOST_SECONDS``.

    ⚑ §5.2: the task has caught the error, or its main thread cannot be interrupted, and others have the messages.

    :param ended: an event that is set when the work on the claim ends.
    :param is_working: whether the task's own code runs. Its callbacks come after that, and may take longer.
    """
    if not is_its_own_supervisor():
        _kill_after(LOST_SECONDS, "This task has lost its claim and still works", ended, is_working)


def _kill_after(
    seconds: float, why: str, unless: threading.Event | None = None, is_working: Callable[[], bool] = lambda: True
) -> None:
    def last_resort() -> None:
        if not (unless or threading.Event()).wait(seconds) and is_working():
            logger.error("%s: it is killed.", why)
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=last_resort, name="task-last-resort", daemon=True).start()


def _is_gone(parent: int) -> bool:
    """Return whether the supervisor has ended: this process has another parent, or the socket's other end is closed.

    The socket shows it where another program (``sudo``, for ``run_as_user``) is the parent and lives on.
    """
    if os.getppid() != parent:
        return True
    connection = getattr(_comms(), "socket", None)
    if not isinstance(connection, socket.socket):
        return False
    with suppress(OSError, ValueError):  # there is nothing to read, or the task has closed it at its end
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    return False


def is_its_own_supervisor() -> bool:
    """Return whether a task runs in the process that supervises it (``dag.test()``), so its parent does not matter."""
    return "InProcess" in type(_comms()).__name__


def task_has_ended() -> bool:
    """Return whether the task of this process has ended, but not the process. Airflow no longer answers it."""
    connection = getattr(_comms(), "socket", None)
    return isinstance(connection, socket.socket) and connection.fileno() < 0


def _comms() -> Any:  # noqa: ANN401 - Airflow's
    runner = sys.modules.get("airflow.sdk.execution_time.task_runner")
    return getattr(runner, "SUPERVISOR_COMMS", None)


#: The watch of this process.
SUPERVISION: Final = Supervision()
os.register_at_fork(after_in_child=SUPERVISION.begin)
