"""One of Airflow's long-running processes: started, found in the list of jobs, killed, and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from tools.kit.leftovers import descendants

_JOB_TYPES = {"scheduler": "SchedulerJob", "triggerer": "TriggererJob", "dag-processor": "DagProcessorJob"}


class Component:
    """A process of Airflow's, in a process group of its own, whose output goes on in one file from start to start.

    :param name: what it is called here: Airflow's command, with a number if there are several (``triggerer-2``).
    """

    def __init__(self, name: str, home: Path, environ: Mapping[str, str]) -> None:
        self.name = name
        self.log_file = home / "components" / f"{name}.log"
        self.job_type = _JOB_TYPES.get(self._command)
        #: The row in the table of jobs that the running process has made, as soon as it is known.
        self.job: int | None = None
        self.started = datetime.now(UTC)
        self._home = home
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The pid of the running process, which leads its group."""
        if self._process is None or self._process.poll() is not None:
            raise ProcessLookupError(f"{self.name} does not run")
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
            raise RuntimeError(f"{self.name} runs already")
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
        """Kill it with all its descendants (SIGKILL), or alone: then these live on without it."""
        pid = self.pid
        # Stopped first, so that it starts nothing between the look and the kill.
        os.kill(pid, signal.SIGSTOP)
        below = [] if alone else descendants(pid)
        for each in [pid, *below]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        self.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        os.kill(self.pid, number)

    def wait(self, seconds: float = 30.0) -> bool:
        """Wait for its end, and tell whether it has ended in time."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        return not self.running

    def pause(self, seconds: float) -> None:
        """Let time pass; less if it ends meanwhile."""
        if self._process is None:
            time.sleep(seconds)
        else:
            self.wait(seconds)

    @property
    def _command(self) -> str:
        return self.name.rstrip("0123456789").rstrip("-")
