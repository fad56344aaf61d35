"""The processes of a running task: the one in which its code runs, and the one that watches over it."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TaskProcesses:
    """The two processes of a task that runs."""

    #: Runs the task's code. It leads a process group of its own, in which what the code starts is too.
    task: int
    #: Its parent, a worker of the LocalExecutor: reports its heartbeats and its end.
    supervisor: int

    def kill_task(self, *, group: bool = False) -> None:
        """Kill the task (SIGKILL), or with ``group`` also what it started: its supervisor sees it at once."""
        (os.killpg if group else os.kill)(self.task, signal.SIGKILL)

    def kill_supervisor(self) -> None:
        """Kill the supervisor alone (SIGKILL): the task works on, and nobody hears of it."""
        os.kill(self.supervisor, signal.SIGKILL)

    def kill_both(self) -> None:
        """Kill the supervisor, then the task and what it started, as the end of their machine does."""
        self.kill_supervisor()
        self.kill_task(group=True)
