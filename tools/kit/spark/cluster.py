"""A standalone Spark cluster from the installed pyspark: a master and workers, on free ports of loopback."""

from __future__ import annotations

import contextlib
import http.client
import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tools.kit.ports import HOST, free_ports
from tools.kit.process_lookup import MARK, descendants, end_marked
from tools.kit.processes import ServerProcess, loopback
from tools.kit.spark.environment import SHORT_LIVED, spark_environment, spark_home

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
# These processes and their executors write into the process's folder, which is removed: a JVM that is killed leaves all
# its files behind. The paths are absolute, as each executor runs in a folder of its own.
_IN_OWN_FOLDER = f"""
mkdir local
export SPARK_LOCAL_DIRS="$PWD/local" TMPDIR="$PWD/local"
export JAVA_TOOL_OPTIONS="${{JAVA_TOOL_OPTIONS:-}} -Djava.io.tmpdir=$PWD/local {SHORT_LIVED}"
exec "$0" "$@"
"""
_EXECUTOR = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"
_START_SECONDS = 60.0
_END_SECONDS = 10.0


class SparkCluster:
    """A master and workers of one core each, for the length of a ``with`` block.

    Entering returns once the master knows all workers. Leaving ends all processes, executors and their Python workers
    too, and removes their folders. The same happens when the interpreter exits, and when it is killed.

    :param workers: how many workers there are.
    :param env: variables for the workers. Their executors have them too, and no variable of the submitter's.
    :param hosts: the addresses of the workers, in turn. If all executors are on one host, Spark does not speculate.
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        env: Mapping[str, str] | None = None,
        hosts: Sequence[str] = (HOST,),
    ) -> None:
        """Prepare; nothing is started before the ``with`` block is entered."""
        self._count = workers
        self._hosts = hosts
        self._mark = uuid.uuid4().hex
        self._port, self._page_port = free_ports(2)
        self._env = {
            **spark_environment(),
            "SPARK_DAEMON_MEMORY": "512m",
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",  # it would be one more port
            MARK: self._mark,
        }
        self._worker_env = {**self._env, **(env or {})}
        self._stack = contextlib.ExitStack()
        #: The workers: ``signal`` freezes or kills one with its executors.
        self.workers: list[ServerProcess] = []

    @property
    def master_url(self) -> str:
        """The address of the master, for jobs."""
        return f"spark://{HOST}:{self._port}"

    @property
    def executors(self) -> list[int]:
        """The pids of the running executors' JVMs."""
        children = [pid for worker in self.workers if worker.running for pid in descendants(worker.pid)]
        return sorted(pid for pid in children if _is_executor(pid))

    def __enter__(self) -> Self:
        """Start the master, then the workers, and wait until all are alive."""
        try:
            command = self._command(_MASTER, "--host", HOST, "--port", self._port, "--webui-port", self._page_port)
            master = ServerProcess(
                command, env=self._env, ready=lambda: self._alive() is not None, start_timeout=_START_SECONDS
            )
            self._stack.enter_context(master)
            for number in range(1, self._count + 1):
                self.workers.append(self._stack.enter_context(self._worker(number)))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything."""
        self.stop()

    def stop(self) -> None:
        """End all processes and remove their folders. May be called twice."""
        self._stack.close()
        # Python workers are in groups of their own. They normally end with their executor.
        left = end_marked(self._mark, seconds=_END_SECONDS)
        if left:
            message = f"Processes of the Spark cluster could not be ended: {left}"
            raise RuntimeError(message)

    def _worker(self, number: int) -> ServerProcess:
        port, page_port = free_ports(2)
        host = self._hosts[(number - 1) % len(self._hosts)]
        options = ["--host", host, "--port", port, "--webui-port", page_port, "--cores", 1, "--memory", "1g"]
        return ServerProcess(
            self._command(_WORKER, *options, "--work-dir", "work", self.master_url),
            env={**self._worker_env, "SPARK_LOCAL_IP": host},
            ready=lambda: (self._alive() or 0) >= number,
            start_timeout=_START_SECONDS,
            grace=0.1,
        )

    def _command(self, program: str, *options: object) -> list[str]:
        return ["sh", "-c", _IN_OWN_FOLDER, str(spark_home() / "bin" / "spark-class"), program, *map(str, options)]

    def _alive(self) -> int | None:
        """Return how many workers the master counts as alive, or None if it does not answer."""
        try:
            with loopback.open(f"http://{HOST}:{self._page_port}/json/", timeout=5) as answer:
                return sum(worker["state"] == "ALIVE" for worker in json.load(answer)["workers"])
        except (OSError, http.client.HTTPException, ValueError):
            return None


def _is_executor(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return _EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False
