"""Airflow's processes: its long-running components, and the two processes of a running task."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from airflow_provider_pawnqueue.spark.guard import send_signal
from tools.kit.process_lookup import descendants

_JOB_TYPES = {"scheduler": "SchedulerJob", "triggerer": "TriggererJob", "dag-processor": "DagProcessorJob"}


class Component:
    """A process of Airflow, in a process group of its own. All its starts write to one log file.

    :param name: Airflow's command, with a number if there are several (``triggerer-2``).
    """

    def __init__(self, name: str, home: Path, environ: Mapping[str, str]) -> None:
        self.name = name
        self.log_file = home / "components" / f"{name}.log"
        self.job_type = _JOB_TYPES.get(self._command)
        #: The id of the running process in the table of jobs, once it is known.
        self.job: int | None = None
        self.started = datetime.now(UTC)
        self._home = home
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The pid of the running process, which leads its group."""
        if self._process is None or self._process.poll() is not None:
            raise ProcessLookupError(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """What it has written since its first start."""
        return self.log_file.read_text(encoding="utf-8", errors="replace") if self.log_file.exists() else ""

    def start(self) -> None:
        """Start it, without waiting for it to be ready."""
        if self.running:
            raise RuntimeError(f"{self.name} is running already")
        command = [sys.executable, "-m", "airflow", self._command]
        if self._command in ("scheduler", "triggerer"):
            command.append("--skip-serve-logs")  # logs are read from the common folder
        self.log_file.parent.mkdir(exist_ok=True)
        self.job = None
        self.started = datetime.now(UTC)
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self._home,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, *, alone: bool = False) -> None:
        """Kill it with all its descendants (SIGKILL), or alone: then the descendants live on."""
        pid = self.pid
        # Stopped first, so that it starts nothing before the kill.
        os.kill(pid, signal.SIGSTOP)
        below = [] if alone else descendants(pid)
        send_signal({pid, *below}, signal.SIGKILL)
        self.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        os.kill(self.pid, number)

    def wait(self, seconds: float = 30.0) -> bool:
        """Wait for its end. Return whether it has ended in time."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        return not self.running

    @property
    def _command(self) -> str:
        return self.name.rstrip("0123456789").rstrip("-")


@dataclass(frozen=True, slots=True)
class TaskProcesses:
    """The two processes of a task that runs."""

    #: Runs the task's code. It leads a process group, which has what the code starts too.
    task: int
    #: Its parent, a worker of the LocalExecutor, which reports its heartbeats and its end.
    supervisor: int

    def kill_task(self, *, group: bool = False) -> None:
        """Kill the task (SIGKILL), or with ``group`` also what it has started. Its supervisor notices at once."""
        (os.killpg if group else os.kill)(self.task, signal.SIGKILL)

    def kill_supervisor(self) -> None:
        """Kill the supervisor alone (SIGKILL): the task works on, and nobody hears of it."""
        os.kill(self.supervisor, signal.SIGKILL)

    def kill_both(self) -> None:
        """Kill the supervisor, then the task and what it has started, as the end of their machine does."""
        self.kill_supervisor()
        self.kill_task(group=True)
