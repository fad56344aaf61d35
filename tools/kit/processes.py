"""Servers as processes: started, waited for, and gone afterwards, however the test run ends."""

from __future__ import annotations

import atexit
import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

_KEEPER = Path(__file__).with_name("keeper.py")
_POLL_SECONDS = 0.02
_KEEPER_MARGIN_SECONDS = 5.0
_TAIL_CHARACTERS = 4_000
_SERVER_ERROR = 500

_running: set[ServerProcess] = set()


class ServerNotReadyError(RuntimeError):
    """A server ended, or let its time pass, before it was ready. The message ends with the tail of its log."""


class ServerProcess:
    """One command in a process group and a temporary directory of its own, for the length of a ``with`` block.

    The command runs in :attr:`data`, an empty folder, so that it can name its files relatively. Entering returns once
    ``ready()`` is true, and raises :class:`ServerNotReadyError` as soon as the command has ended without it. Leaving
    ends the whole group (SIGTERM, and SIGKILL for what is left after ``grace`` seconds) and removes the directory. The
    same happens when the interpreter exits, and when it is killed.
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
        self._keeper: subprocess.Popen[bytes] | None = None
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the command."""
        self.stop()

    @property
    def log(self) -> str:
        """What the command has written so far, standard output and error together."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    @property
    def running(self) -> bool:
        """Whether the command has been started and has not ended."""
        return self._keeper is not None and self._keeper.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command's whole group: SIGSTOP and SIGCONT to freeze it, SIGKILL to crash it."""
        if not self.running:
            raise ProcessLookupError(self._explain("is not running"))
        os.killpg(self.pid, number)

    def wait(self, seconds: float) -> int:
        """Wait until the command ends by itself, and return its exit status: 128 and the signal's number if one did it.

        Raises :class:`subprocess.TimeoutExpired` when the time is over; the command runs on.
        """
        if self._keeper is None:
            raise ProcessLookupError(self._explain("was not started"))
        return self._keeper.wait(seconds)

    def stop(self) -> None:
        """End the group and remove the directory. May be called twice."""
        if os.getpid() != self._owner_pid:
            return  # a fork of the test run has no say in its parent's servers
        if self._keeper is not None:
            self._end(self._keeper)
        shutil.rmtree(self.directory, ignore_errors=True)
        _running.discard(self)

    def _start(self) -> None:
        report, report_end = os.pipe()
        arguments = [self._owner_pid, self.directory, self._grace, report_end, *self._command]
        with self._log.open("wb") as log, os.fdopen(report, "rb") as reported:
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_KEEPER), *map(str, arguments)],
                cwd=self.data,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(report_end,),
                start_new_session=True,  # Ctrl-C is for the test run, which then stops its servers in order
            )
            os.close(report_end)
            self.pid = int(reported.readline() or 0)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._start_timeout
        while not self._ready():
            if not self.running:
                raise ServerNotReadyError(self._explain("ended before it was ready"))
            if time.monotonic() > deadline:
                raise ServerNotReadyError(self._explain(f"was not ready after {self._start_timeout:g} s"))
            self._pause()
        if not self.running:  # then it was somebody else who answered
            raise ServerNotReadyError(self._explain("ended while another process answered in its place"))

    def _pause(self) -> None:
        # Waiting for the process instead of sleeping: its end is noticed at once.
        if self._keeper is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._keeper.wait(_POLL_SECONDS)

    def _explain(self, what: str) -> str:
        return f"{self._command[0]} {what}; its log ends with:\n{self.log[-_TAIL_CHARACTERS:]}"

    def _end(self, keeper: subprocess.Popen[bytes]) -> None:
        keeper.terminate()
        try:
            keeper.wait(self._grace + _KEEPER_MARGIN_SECONDS)
        except subprocess.TimeoutExpired:
            if self.pid:  # group 0 would be the test run's own
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
            keeper.kill()
            keeper.wait()


def answers(url: str) -> bool:
    """Tell whether an HTTP server answers at the address with anything but a failure of its own."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
    try:
        connection.request("GET", parts.path or "/")
        return connection.getresponse().status < _SERVER_ERROR
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@atexit.register
def _stop_all() -> None:
    for process in list(_running):
        process.stop()
