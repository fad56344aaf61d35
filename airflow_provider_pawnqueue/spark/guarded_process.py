"""A command below a guard: its output line by line, and the end of everything that it has started."""

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
from pathlib import Path
from typing import IO, Any, Final, Self

from airflow_provider_pawnqueue.spark import guard

logger = logging.getLogger(__name__)

#: How long a job may take to end if its task is killed or fails. The task keeps the claim meanwhile. Airflow kills a
#: task five seconds after it has asked it to end.
GRACE_SECONDS: Final = 4.0
#: The same, if the claim is lost and nothing keeps it. ⚑ It is less than ``claims.margin_seconds``, which is how long a
#: session lasts after its holder stops trusting it. So the job is dead before others can receive its messages.
LOST_CLAIM_GRACE_SECONDS: Final = 1.0
#: How much longer than the grace the guard may take. Then the task kills the guard, and ends the job itself.
_GUARD_EXTRA_SECONDS: Final = 10.0
#: How often the task checks whether the job may go on.
_CHECK_SECONDS: Final = 0.5
#: The prefixes of variables with Airflow's configuration, connections and variables. ⚑ A job, and what it imports, does
#: not need them: it gets neither other connections nor the keys of the installation.
_AIRFLOW_PREFIXES: Final = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "_AIRFLOW_")
#: A longer line is split.
_MAX_LINE_CHARACTERS: Final = 256 * 1024
_READ_BYTES: Final = 64 * 1024


class GuardedProcess:
    """A command that runs below its guard, for the length of a ``with`` block. Afterwards nothing of it is left.

    :param folder: the folder that the guard removes if this process is killed.
    :param grace: how many seconds the command has to end by itself if this process is killed.
    :param output: where the command's standard output and error go; without it, :meth:`lines` returns them.
    """

    def __init__(  # noqa: PLR0913 - how a process is started
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        *,
        folder: str,
        grace: float,
        cwd: Path | None = None,
        output: IO[bytes] | int = subprocess.PIPE,
    ) -> None:
        self._command = [
            sys.executable,
            "-I",  # without the user's variables and folders, ...
            "-S",  # ... and without installed packages
            guard.__file__,
            str(os.getpid()),
            folder,
            str(grace),
            *command,
        ]
        self._env = dict(env)
        self._cwd = cwd
        self._output = output
        #: The guard, once the block is entered.
        self.guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        # The guard does not start the command before run() orders it. So an interruption here leaves nothing behind.
        self.guard = subprocess.Popen(  # noqa: S603 - the user has named the command
            self._command,
            cwd=self._cwd,
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.close(GRACE_SECONDS)

    def close(self, grace: float) -> None:
        """End the command as :meth:`end` does, and close the pipes to its guard."""
        self.end(grace)
        process = self.guard
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()

    def run(self) -> None:
        """Start the command."""
        self._order(guard.RUN)

    def lines(self, check: Callable[[], None]) -> Iterator[str]:
        """Return the lines of the command's output, until it has ended.

        :param check: called every now and then. An error that it raises ends the iteration.
        """
        assert self.guard is not None and self.guard.stdout is not None  # noqa: S101, PT018 - it was entered
        output = self.guard.stdout.fileno()
        os.set_blocking(output, False)
        poll = select.poll()
        poll.register(output, select.POLLIN)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        partial = ""
        checked = time.monotonic()
        while True:
            ready = poll.poll(_CHECK_SECONDS * 1000)
            if time.monotonic() - checked >= _CHECK_SECONDS:
                check()
                checked = time.monotonic()
            if not ready:
                if self.guard.poll() is not None:
                    break  # the guard was killed, and a process of the job still has the pipe open
                continue
            read = os.read(output, _READ_BYTES)
            if not read:
                break
            *whole, partial = (partial + decoder.decode(read)).split("\n")
            yield from whole
            if len(partial) > _MAX_LINE_CHARACTERS:
                yield partial
                partial = ""
        if partial:
            yield partial

    def wait(self, check: Callable[[], None]) -> int:
        """Wait for the end, and return the exit status as a shell reports it. An error of ``check`` ends the wait."""
        assert self.guard is not None  # noqa: S101 - as above
        while True:
            try:
                status = self.guard.wait(_CHECK_SECONDS)
            except subprocess.TimeoutExpired:
                check()
            else:
                return status if status >= 0 else 128 - status

    def request_end(self, grace: float) -> None:
        """Order the end of the command, and return at once. A handler of signals can call this."""
        self._order(guard.END + b" %f" % grace)

    def end(self, grace: float) -> None:
        """End the command and everything that it has started, unless it has ended, and wait for that.

        ⚑ An interruption is raised only after that: others may receive the claim's messages then, and not before.
        """
        process = self.guard
        if process is None:
            return
        interruption: BaseException | None = None
        deadline = time.monotonic() + grace + _GUARD_EXTRA_SECONDS
        self.request_end(grace)
        while process.poll() is None:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
            except BaseException as error:  # noqa: BLE001 - see above
                interruption = error
        if process.returncode < 0:  # The session's number is the guard's pid, which no other process has yet.
            logger.error("The guard of the job was killed. This task now kills what is left of the job.")
            guard.end_processes(lambda: guard.session_members(process.pid))
        if interruption is not None:
            raise interruption

    def _order(self, order: bytes) -> None:
        process = self.guard
        if process is not None and process.stdin is not None:
            with suppress(OSError, ValueError):  # it has ended
                os.write(process.stdin.fileno(), order + b"\n")


def job_environment(*more: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the variables of a job: those of this process without Airflow's own, and more.

    Values become text: a template may have made a number of one.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_AIRFLOW_PREFIXES)}
    return {**inherited, **{name: str(value) for each in more for name, value in (each or {}).items()}}
