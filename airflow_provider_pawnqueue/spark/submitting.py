"""spark-submit below a guard: its lines as they come, and the end of all that it has started."""

from __future__ import annotations

import codecs
import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from signal import SIGKILL
from types import TracebackType
from typing import Any, Final, Self

from airflow_provider_pawnqueue.spark import guard

logger = logging.getLogger(__name__)

#: So long the job has to end by itself when its task is killed or fails, which keeps the claim meanwhile. Airflow kills
#: a task five seconds after it has told it to end.
GRACE: Final = 4.0
#: And so long where nothing keeps the claim any more. ⚑ Less than ``claims.margin_seconds``, which is what a session's
#: time lasts on when its holder stops trusting it: the job is dead before anybody else may begin.
SHORT_GRACE: Final = 1.0
#: So much longer than that the guard may take, before the task does its work.
_PATIENCE: Final = 10.0
#: So often the task looks whether it is still to go on.
_LOOK: Final = 0.5
#: What the names of variables begin with that are Airflow's configuration, connections and variables. ⚑ A job, and
#: whatever it imports, needs none of them, and has neither the connections of others nor the keys of the installation.
_OF_AIRFLOW: Final = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "_AIRFLOW_")
#: A line that is longer is cut.
_LONGEST_LINE: Final = 256 * 1024
_CHUNK: Final = 64 * 1024


class Guarded:
    """A command that runs below its guard, for the length of a ``with`` block: afterwards nothing of it is left.

    :param folder: what the guard removes if this process is killed.
    :param grace: how long the command has to end by itself if this process is killed.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], *, folder: str, grace: float) -> None:
        self._command = [
            sys.executable,
            "-I",  # neither variables nor folders of the user's, ...
            "-S",  # ... nor what is installed
            guard.__file__,
            str(os.getpid()),
            folder,
            str(grace),
            *command,
        ]
        self._env = dict(env)
        self._grace = grace
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        # Until it is told to run it, the guard does not start the command: whatever interrupts this, nothing is lost.
        self._process = subprocess.Popen(  # noqa: S603 - what the user has named to be run
            self._command,
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end(GRACE)
        process = self._process
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()

    def run(self) -> None:
        """Start the command."""
        self._tell(guard.RUN)

    def lines(self, look: Callable[[], None]) -> Iterator[str]:
        """Return what it prints, line by line, until it has ended.

        :param look: called every now and then; what it raises ends this.
        """
        assert self._process is not None and self._process.stdout is not None  # noqa: S101, PT018 - it was entered
        output = self._process.stdout.fileno()
        os.set_blocking(output, False)
        poll = select.poll()
        poll.register(output, select.POLLIN)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        begun = ""
        looked = time.monotonic()
        while True:
            ready = poll.poll(_LOOK * 1000)
            if time.monotonic() - looked >= _LOOK:
                look()
                looked = time.monotonic()
            if not ready:
                if self._process.poll() is not None:
                    break  # the guard was killed, and what it has left behind holds the pipe
                continue
            read = os.read(output, _CHUNK)
            if not read:
                break
            *whole, begun = (begun + decoder.decode(read)).split("\n")
            yield from whole
            if len(begun) > _LONGEST_LINE:
                yield begun
                begun = ""
        if begun:
            yield begun

    def status(self, look: Callable[[], None]) -> int:
        """Wait for the end, and return how it ended, as a shell has it; what ``look`` raises ends the waiting."""
        assert self._process is not None  # noqa: S101 - as above
        while True:
            try:
                status = self._process.wait(_LOOK)
            except subprocess.TimeoutExpired:
                look()
            else:
                return status if status >= 0 else 128 - status

    def ask_to_end(self, grace: float) -> None:
        """Have it end, without waiting for that: for handlers of signals."""
        self._tell(guard.END + b" %f" % grace)

    def end(self, grace: float) -> None:
        """End it, if it has not ended, with all that it has started, and wait for that.

        ⚑ What interrupts this waits: the claim is left to others afterwards, and not before.
        """
        process = self._process
        if process is None:
            return
        interruption: BaseException | None = None
        deadline = time.monotonic() + grace + _PATIENCE
        self.ask_to_end(grace)
        while process.poll() is None:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
            except BaseException as error:  # noqa: BLE001 - see above
                interruption = error
        self._clear_up()
        if interruption is not None:
            raise interruption

    def _clear_up(self) -> None:
        """Kill what a guard that was killed has left behind: its session has its pid, which is nobody else's yet."""
        assert self._process is not None  # noqa: S101 - as above
        if (self._process.returncode or 0) >= 0:
            return
        logger.error("The guard of the job was killed, and what it has left of the job is killed.")
        while left := guard.members(self._process.pid):
            guard.send(left, SIGKILL)
            time.sleep(0.02)

    def _tell(self, order: bytes) -> None:
        process = self._process
        if process is not None and process.stdin is not None:
            with suppress(OSError, ValueError):  # then it has ended
                os.write(process.stdin.fileno(), order + b"\n")


def environment(*more: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the variables that a job is given: those of this process without Airflow's own, and more.

    What is given is made text, as a template may have made a number of it.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OF_AIRFLOW)}
    return {**inherited, **{name: str(value) for each in more for name, value in (each or {}).items()}}
