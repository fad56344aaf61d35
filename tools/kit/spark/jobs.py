"""Jobs by ``spark-submit``: each has a driver in a process of its own, which tests can freeze and kill."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tools.kit.processes import ServerProcess
from tools.kit.spark.environment import SHORT_LIVED, spark_environment, spark_home, spark_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_JOB_SECONDS = 100.0
_TAIL_CHARACTERS = 4_000
# Its standard output is kept apart from the log. It writes its files into its folder, which is removed.
IN_OWN_FOLDER = f"""
mkdir local
export SPARK_LOCAL_DIRS="$PWD/local" TMPDIR="$PWD/local"
exec "$0" --conf "spark.driver.defaultJavaOptions=-Djava.io.tmpdir=$PWD/local {SHORT_LIVED}" "$@" >../output.txt
"""
# A driver has nothing to finish when it is asked to end.
GRACE_SECONDS = 0.1


class JobNotOverError(AssertionError):
    """A job did not end in time. The message ends with the tail of its log."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job ended: its exit status, what it printed, and what Spark and it wrote to standard error."""

    status: int
    output: str
    log: str


class SparkJob(ServerProcess):
    """One Python application, submitted in client mode, for the length of a ``with`` block.

    Entering starts it. :meth:`result` returns how it ended. Leaving ends its JVM and Python driver if they still run,
    and removes its working directory with its local files. The same happens when the interpreter exits, and when it is
    killed.

    :param application: the Python file; ``arguments`` is what it finds in ``sys.argv``.
    :param conf: Spark settings, which override the kit's own.
    :param env: variables for the driver, and in local mode for the executor too.
    """

    def __init__(
        self,
        application: Path,
        arguments: Sequence[object] = (),
        *,
        master: str = "local[2]",
        conf: Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare; nothing is started before the ``with`` block is entered."""
        command = ["sh", "-c", IN_OWN_FOLDER, str(spark_home() / "bin" / "spark-submit"), "--master", master]
        for name, value in spark_settings(conf).items():
            command += ["--conf", f"{name}={value}"]
        command += [str(application.resolve()), *map(str, arguments)]
        super().__init__(command, env={**spark_environment(), **(env or {})}, ready=lambda: True, grace=GRACE_SECONDS)

    @property
    def output(self) -> str:
        """What the application has printed so far."""
        path = self.directory / "output.txt"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def result(self, seconds: float = _JOB_SECONDS) -> JobResult:
        """Wait until the job has ended, and return how. A job that fails raises nothing."""
        try:
            status = self.wait(seconds)
        except subprocess.TimeoutExpired:
            message = (
                f"The Spark job has not ended after {seconds:g} s; its log ends with:\n{self.log[-_TAIL_CHARACTERS:]}"
            )
            raise JobNotOverError(message) from None
        return JobResult(status, self.output, self.log)


def submit(
    application: Path, arguments: Sequence[object] = (), *, seconds: float = _JOB_SECONDS, **how: Any
) -> JobResult:
    """Run a job to its end, and return how it ended; ``master``, ``conf`` and ``env`` as of :class:`SparkJob`."""
    with SparkJob(application, arguments, **how) as job:
        return job.result(seconds)
