"""Runs `docker-compose.yaml` without containers: each service's own command, variables and health check, as processes.

What a container would give it is translated: the other services' names and ports to free ports of loopback, volumes to
folders, the image to a virtual environment with the same packages (`make test-compose` makes it), and the image of
Postgres to Debian's. What is needed beside that, as all of them share one machine, is in :data:`_BESIDE`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.compose import reading
from tools.kit.ports import HOST, free_ports
from tools.kit.process_lookup import MARK, end_marked
from tools.kit.processes import ServerProcess
from tools.kit.spark import java_home

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

VENV = reading.TOP / ".venv-compose"
#: The ports that services listen on, in their containers.
_PORTS = {
    "postgres": [5432],
    "seaweedfs": [8334],
    "s3": [8333],
    "spark-master": [7077, 8080],
    "spark-worker": [7078, 8081],
    "api-server": [8080],
}
#: Services whose names occur without a port somewhere, and are not a command's.
_NAMED = ("seaweedfs", "spark-master", "spark-worker")
#: Numbers that only one service has, and that are translated everywhere.
_UNIQUE = (5432, 8333, 8334, 7077, 7078)
_CHECK_SECONDS = 60.0
_START_SECONDS = 180.0
_INIT_SECONDS = 180.0


class Natively:
    """All services of the file, for the length of a ``with`` block."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        """Prepare; nothing is started before the ``with`` block is entered."""
        self.services = reading.services(environ)
        self.folder = Path(tempfile.mkdtemp(prefix="pawnqueue-compose-"))
        self.folder.chmod(0o755)
        free = iter(free_ports(sum(map(len, _PORTS.values())) + 10))
        self.ports = {name: {port: next(free) for port in ports} for name, ports in _PORTS.items()}
        self._spare = list(free)
        self._mark = uuid.uuid4().hex
        self._stack = contextlib.ExitStack()
        self.processes: dict[str, ServerProcess] = {}
        self.unhealthy_before_start: dict[str, bool] = {}

    def __enter__(self) -> Self:
        """Start each service once those that it waits for are as it wants them, and wait until all are healthy."""
        try:
            for name, service in self.services.items():
                self._start(name, service)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop everything."""
        self.stop()

    def stop(self) -> None:
        """End all processes, and remove what they wrote."""
        self._stack.close()
        end_marked(self._mark)
        shutil.rmtree(self.folder, ignore_errors=True)

    def address(self, name: str, port: int) -> str:
        """Return where a port of a service is now."""
        return f"http://{HOST}:{self.ports[name][port]}"

    def is_healthy(self, name: str) -> bool:
        """Run a service's health check, as Compose would run it inside of its container."""
        kind, *command = self.services[name]["healthcheck"]["test"]
        if kind != "CMD":
            raise ValueError(f"the health check of {name} needs a shell")
        return self.run(name, command).returncode == 0

    def run(self, name: str, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command inside of a service, as `docker compose exec` would."""
        return subprocess.run(
            [self.translated(name, part) for part in command],
            env={**os.environ, **self.variables(name)},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=_CHECK_SECONDS,
            check=False,
        )

    def variables(self, name: str) -> dict[str, str]:
        """Return a service's environment."""
        own = self.services[name].get("environment", {})
        said = {variable: self.translated(name, str(value)) for variable, value in own.items()}
        paths = [VENV / "bin", *sorted(Path("/usr/lib/postgresql").glob("*/bin")), *os.get_exec_path()]
        return {
            "AIRFLOW_HOME": str(self.folder / "airflow"),
            **said,
            "PATH": os.pathsep.join(map(str, paths)),
            "JAVA_HOME": str(java_home()),
            "SPARK_LOCAL_IP": HOST,
            "PGPORT": str(self.ports["postgres"][5432]),
            "AIRFLOW__API__HOST": HOST,
            "AIRFLOW__API__PORT": str(self.ports["api-server"][8080]),
            "NO_PROXY": f"{HOST},localhost",
            "no_proxy": f"{HOST},localhost",
            "SPT_NOENV": "1",  # else a process that renames itself writes over the mark
            MARK: self._mark,
        }

    def translated(self, name: str, text: str) -> str:
        """Write what a container sees as this machine has it."""
        for service, ports in self.ports.items():
            for port, free in ports.items():
                text = re.sub(rf"(?<![\w-]){service}:{port}\b", f"{HOST}:{free}", text)
                if port in _UNIQUE or service == name:
                    text = re.sub(rf"(?<!\d){port}(?!\d)", str(free), text)
        for service in _NAMED:
            text = re.sub(rf"(?<![\w/.-]){service}(?![\w-])|(?<=://){service}(?![\w-])", HOST, text)
        for inside, outside in sorted(self._folders(name).items(), reverse=True):
            text = re.sub(rf"(?<![\w/.-]){re.escape(inside)}(?![\w-])", str(outside), text)
        return text

    def _folders(self, name: str) -> dict[str, Path]:
        found = {"/opt/airflow": self.folder / "airflow", "/opt/spark": self.folder / "spark"}
        found["/opt/pawnqueue"] = reading.TOP
        # A command may name a folder of the worker's, for which it starts a run.
        for volume in (*self.services["worker"].get("volumes", []), *self.services[name].get("volumes", [])):
            source, inside, *_ = volume.split(":")
            found[inside] = reading.TOP / source if source.startswith("./") else self.folder / "volumes" / source
        for path in found.values():
            path.mkdir(parents=True, exist_ok=True)
        return found

    def _start(self, name: str, service: dict[str, Any]) -> None:
        if "healthcheck" not in service:
            command = [self.translated(name, part) for part in service["command"]]
            with ServerProcess(command, env=self.variables(name), ready=lambda: True) as process:
                if process.wait(_INIT_SECONDS):
                    raise AssertionError(f"{name} failed:\n{process.log[-4000:]}")
            return
        self.unhealthy_before_start[name] = not self.is_healthy(name)
        command = (
            self._postgres() if name == "postgres" else [self.translated(name, part) for part in service["command"]]
        )
        if name == "seaweedfs":
            command += self._seaweedfs()
        if name == "s3":
            command = [f"{part},bind={HOST}" if part.startswith("TCP-LISTEN:") else part for part in command]
        process = ServerProcess(
            command,
            env=self.variables(name),
            ready=lambda: self._looked_at(name),
            start_timeout=_START_SECONDS,
            grace=0.5,
        )
        self.processes[name] = self._stack.enter_context(process)

    def _looked_at(self, name: str) -> bool:
        healthy = self.is_healthy(name)
        if not healthy:
            time.sleep(0.5)  # a check may take a whole process of Python's
        return healthy

    def _seaweedfs(self) -> list[str]:
        """Let it choose its other ports itself: in a container no other process uses them."""
        parts = [f"-{part}.port" for part in ("master", "volume", "filer", "admin")]
        parts += [f"-{part}.port.grpc" for part in ("master", "volume", "filer", "s3", "admin")]
        ports = [f"{part}={port}" for part, port in zip(parts, self._spare, strict=False)]
        return [*ports, "-filer.localSocket=filer.sock", "-s3.localSocket=s3.sock"]

    def _postgres(self) -> list[str]:
        """Make what the image makes of its variables; the server refuses to be root's."""
        said = self.services["postgres"]["environment"]
        data, password = self.folder / "postgres", self.folder / "postgres-password"
        data.mkdir()
        password.write_text(said["POSTGRES_PASSWORD"])
        other: list[str] = []
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            for path in (data, password):
                os.chown(path, user.pw_uid, user.pw_gid)
            other = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        environ = {**os.environ, **self.variables("postgres")}
        made = ["initdb", "--auth=scram-sha-256", f"--username={said['POSTGRES_USER']}", f"--pwfile={password}"]
        single = ["postgres", "--single", "-D", str(data), "postgres"]
        for command, told in (([*made, str(data)], ""), (single, f'create database "{said["POSTGRES_DB"]}"\n')):
            done = subprocess.run(
                [*other, *command], env=environ, cwd=data, input=told, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise AssertionError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
        listening = ["-c", f"listen_addresses={HOST}", "-c", "unix_socket_directories=", "-c", "fsync=off"]
        return [*other, "postgres", "-D", str(data), *listening]
