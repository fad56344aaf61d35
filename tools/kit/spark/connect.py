"""A Spark Connect server by ``spark-submit``, and what is run beside it."""

from __future__ import annotations

import os
import socket
import subprocess
from typing import TYPE_CHECKING

from tools.kit.ports import HOST, free_port
from tools.kit.processes import ServerProcess
from tools.kit.spark.environment import spark_environment, spark_home, spark_settings
from tools.kit.spark.jobs import GRACE_SECONDS, IN_OWN_FOLDER, JobResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
_START_SECONDS = 150.0
_CLIENT_SECONDS = 200.0


class ConnectServer(ServerProcess):
    """A Spark Connect server on ``local[2]``, for the length of a ``with`` block.

    :param env: variables for the server and its Python workers. Its clients do not have them.
    :param conf: Spark settings, which override the kit's own.
    """

    def __init__(self, *, env: Mapping[str, str] | None = None, conf: Mapping[str, object] | None = None) -> None:
        """Prepare; nothing is started before the ``with`` block is entered."""
        self._port = free_port()
        submit = str(spark_home() / "bin" / "spark-submit")
        command = ["sh", "-c", IN_OWN_FOLDER, submit, "--master", "local[2]", "--class", _SERVER]
        for name, value in spark_settings({"spark.connect.grpc.binding.port": self._port, **(conf or {})}).items():
            command += ["--conf", f"{name}={value}"]
        super().__init__(
            [*command, "spark-internal"],
            env={**spark_environment(), **(env or {})},
            ready=self._answers,
            start_timeout=_START_SECONDS,
            grace=GRACE_SECONDS,
        )

    @property
    def address(self) -> str:
        """Where clients find it."""
        return f"sc://{HOST}:{self._port}"

    def run(self, command: Sequence[object], *, folder: Path, env: Mapping[str, str] | None = None) -> JobResult:
        """Run a client of the server in a folder, as a process of its own, and return how it ended."""
        done = subprocess.run(
            [*map(str, command)],
            cwd=folder,
            env={**os.environ, **spark_environment(), **(env or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=_CLIENT_SECONDS,
        )
        return JobResult(done.returncode, done.stdout, done.stderr)

    def _answers(self) -> bool:
        with socket.socket() as trying:
            return trying.connect_ex((HOST, self._port)) == 0
