"""Servers as processes: started, awaited, and gone afterwards, however the test run ends."""

from __future__ import annotations

import atexit
import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Self

from airflow_provider_pawnqueue.spark.guard import read_processes
from airflow_provider_pawnqueue.spark.guarded_process import GuardedProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_POLL_SECONDS = 0.02
_TAIL_CHARACTERS = 4_000
_FIRST_SERVER_ERROR_STATUS = 500

#: Opens addresses on loopback, for which the proxies of the environment are not used.
loopback = urllib.request.build_opener(urllib.request.ProxyHandler({}))

_running: set[ServerProcess] = set()


class ServerNotReadyError(RuntimeError):
    """A server ended, or took too long, before it was ready. The message ends with the tail of its log."""


class ServerProcess:
    """One command in a process group and a temporary directory of its own, for the length of a ``with`` block.

    The command runs in :attr:`data`, an empty folder, so that it can name its files relatively. Entering returns once
    ``ready()`` is true, and raises :class:`ServerNotReadyError` if the command has ended before that. Leaving ends the
    command with everything that it has started (SIGTERM, and SIGKILL after ``grace`` seconds), and removes the
    directory. The same happens when the interpreter exits, and when it is killed: the guard of Spark jobs sees to that.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        ready: Callable[[], bool],
        env: Mapping[str, str] | None = None,
        start_timeout: float = 30.0,
        grace: float = 5.0,
    ) -> None:
        """Prepare; nothing is started before the ``with`` block is entered. ``env`` adds to this process's own."""
        self._command = [str(part) for part in command]
        self._ready = ready
        self._env = {**os.environ, **(env or {})}
        self._start_timeout = start_timeout
        self._grace = grace
        self._owner_pid = os.getpid()
        self._guarded: GuardedProcess | None = None
        self.pid = 0
        self.directory = Path(tempfile.mkdtemp(prefix="pawnqueue-"))
        self.data = self.directory / "data"
        self.data.mkdir()
        self._log = self.directory / "log.txt"

    def __enter__(self) -> Self:
        """Start the command and wait until it is ready."""
        _running.add(self)
        try:
            self._start()
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the command."""
        self.stop()

    @property
    def log(self) -> str:
        """What the command has written so far, standard output and error together."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    @property
    def running(self) -> bool:
        """Whether the command has been started and has not ended."""
        return self._guard is not None and self._guard.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command's whole group: SIGSTOP and SIGCONT to freeze it, SIGKILL to crash it."""
        if not self.running:
            raise ProcessLookupError(self._explain("is not running"))
        os.killpg(self.pid, number)

    def wait(self, seconds: float) -> int:
        """Wait until the command ends by itself. Return its exit status, or 128 plus the number of a signal.

        Raises :class:`subprocess.TimeoutExpired` if it has not ended in time. The command runs on.
        """
        if self._guard is None:
            raise ProcessLookupError(self._explain("was not started"))
        return self._guard.wait(seconds)

    def stop(self) -> None:
        """End the group and remove the directory. May be called twice."""
        if os.getpid() != self._owner_pid:
            return  # a fork of the test run must not stop its parent's servers
        if self._guarded is not None:
            self._guarded.close(self._grace)
        shutil.rmtree(self.directory, ignore_errors=True)
        _running.discard(self)

    @property
    def _guard(self) -> subprocess.Popen[bytes] | None:
        return None if self._guarded is None else self._guarded.guard

    def _start(self) -> None:
        with self._log.open("wb") as log:
            self._guarded = GuardedProcess(
                self._command,
                self._env,
                folder=str(self.directory),
                grace=self._grace,
                cwd=self.data,
                output=log,
            )
            self._guarded.__enter__()
        self._guarded.run()
        while self.running and not self.pid:
            self.pid = self._find_command()
            self._pause()

    def _find_command(self) -> int:
        """Return the pid of the command, or 0 as long as the guard has not executed it.

        It leads a group in the guard's session. Before its exec it has the guard's command line.
        """
        guard = self._guard.pid if self._guard is not None else 0
        for pid, (parent, group, session) in (read_processes() or {}).items():
            if parent == session == guard and group == pid:
                with contextlib.suppress(OSError):
                    if _command_line(pid) != _command_line(guard):
                        return pid
        return 0

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._start_timeout
        while not self._ready():
            if not self.running:
                raise ServerNotReadyError(self._explain("ended before it was ready"))
            if time.monotonic() > deadline:
                raise ServerNotReadyError(self._explain(f"was not ready after {self._start_timeout:g} s"))
            self._pause()
        if not self.running:  # then another process has answered
            raise ServerNotReadyError(self._explain("ended while another process answered in its place"))

    def _pause(self) -> None:
        # Waiting for the process instead of sleeping: its end is noticed at once.
        if self._guard is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._guard.wait(_POLL_SECONDS)

    def _explain(self, what: str) -> str:
        return f"{self._command[0]} {what}; its log ends with:\n{self.log[-_TAIL_CHARACTERS:]}"


def _command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def answers(url: str) -> bool:
    """Return whether an HTTP server answers at the address with anything but a failure of its own."""
    try:
        with loopback.open(url, timeout=5):
            return True
    except urllib.error.HTTPError as error:
        with error:
            return error.code < _FIRST_SERVER_ERROR_STATUS
    except (OSError, http.client.HTTPException):
        return False


@contextlib.contextmanager
def environment_variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process for the length of a block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@atexit.register
def _stop_all() -> None:
    for process in list(_running):
        process.stop()
