"""An Airflow: its folder, its processes, its DAG files, and ways to wait for a run."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar

from tools.kit import process_lookup
from tools.kit.airflow import spark
from tools.kit.airflow.api import Api, ApiError, Json
from tools.kit.airflow.components import Component, TaskProcesses
from tools.kit.airflow.settings import ROOT, environment
from tools.kit.ports import HOST, free_ports

T = TypeVar("T")

API_SERVER = "api-server"
_COMPONENTS = (API_SERVER, "scheduler", "dag-processor", "triggerer")
# Of runs (the first two) and of tasks.
_FINAL_STATES = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
_START_SECONDS = 120.0
_END_SECONDS = 60.0
_POLL_SECONDS = 0.1
_TOUCH_SECONDS = 5.0
_TASK_TAIL_CHARACTERS, _COMPONENT_TAIL_CHARACTERS = 3_000, 1_500
#: Lines that components write again and again, which say nothing about a failure.
_ROUTINE = re.compile(
    r"\[http\.access\]|Refreshing bundle|Searching for files|Found \d+ files|(triggers|watchers) currently running"
)

_running: set[Airflow] = set()


class AirflowError(AssertionError):
    """Airflow did not do what was expected, or not in time. The message ends with the ends of the logs."""


class Airflow:
    """A real Airflow on free ports of loopback, in a temporary folder, for the length of a ``with`` block.

    It has an API server, a scheduler with the LocalExecutor, a DAG processor and a triggerer, each a process, on
    SQLite. It runs the package of the tree in which this file is. Leaving the block ends all its processes, tasks too,
    and removes the folder. The same happens when the interpreter exits, and when it is killed.

    :param connections: by id, the fields of connections that come from the environment: ``conn_type``, ``host``,
        ``login``, ``password``, ``schema``, ``port``, ``extra``.
    :param env: variables for all processes, which override the kit's own settings.
    :param parallelism: how many tasks run at once; each has a process that stays.
    :param with_spark: whether tasks have what they need to run Spark: ``spark-submit``, a Java, the kit's settings.
    :param on_step: called with each step of the start: ``database``, then each component's name.
    """

    def __init__(
        self,
        *,
        connections: Mapping[str, Mapping[str, Any]] | None = None,
        env: Mapping[str, str] | None = None,
        parallelism: int = 4,
        with_spark: bool = False,
        on_step: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Prepare; nothing is started before the ``with`` block is entered."""
        port, *log_ports = free_ports(3)
        self._on_step = on_step
        self._owner_pid = os.getpid()
        self._mark = uuid.uuid4().hex
        self._warden: subprocess.Popen[bytes] | None = None
        self.home = Path(tempfile.mkdtemp(prefix="pawnqueue-airflow-"))
        #: Where DAG files are; see :meth:`write_dags`.
        self.dags = self.home / "dags"
        self.dags.mkdir()
        self.url = f"http://{HOST}:{port}"
        self.api = Api(self.url)
        #: The environment of all its processes, and for programs that run beside it.
        self.environ = {
            **environment(
                self.home,
                port=port,
                log_ports=(log_ports[0], log_ports[1]),
                mark=self._mark,
                parallelism=parallelism,
                connections=connections or {},
            ),
            **(spark.variables(self.home / "spark") if with_spark else {}),
            **(env or {}),
        }
        #: By name: ``api-server``, ``scheduler``, ``dag-processor``, ``triggerer``, and what was started besides.
        self.components: dict[str, Component] = {}
        for name in _COMPONENTS:
            self._add(name)

    # ---- life

    def __enter__(self) -> Self:
        """Make the database, start all components, and wait until they are ready."""
        _running.add(self)
        try:
            self._start_warden()
            self._on_step("database")
            self._make_database()
            for name in _COMPONENTS:
                self.components[name].start()
            for name in _COMPONENTS:
                self._on_step(name)
                self.wait_until_ready(name)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything."""
        self.stop()

    def stop(self) -> None:
        """Kill all processes, as nobody needs a clean end, and remove the folder. May be called twice."""
        if os.getpid() != self._owner_pid:
            return  # a fork of the test run must not stop its parent's Airflow
        left = process_lookup.end_marked(self._mark)
        for component in self.components.values():
            component.wait()
        if self._warden is not None:
            self._warden.kill()
            self._warden.wait()
        shutil.rmtree(self.home, ignore_errors=True)
        _running.discard(self)
        if left:
            raise AirflowError(f"these processes of Airflow did not end: {left}")

    # ---- components

    @property
    def pids(self) -> dict[str, int]:
        """The pids of the components that run, by name."""
        return {name: each.pid for name, each in self.components.items() if each.running}

    def start(self, name: str, *, wait: bool = True) -> None:
        """Start a component that is not running, or another triggerer (``triggerer-2``), and wait until it is ready."""
        self._add(name)
        self.components[name].start()
        if wait:
            self.wait_until_ready(name)

    def kill(self, name: str, *, alone: bool = False) -> None:
        """Kill a component (SIGKILL), with all its descendants unless ``alone``.

        The descendants are: of the scheduler the workers and the tasks, of a triggerer the process that runs triggers.
        """
        self.components[name].kill(alone=alone)

    def terminate(self, name: str) -> None:
        """Ask a component to end (SIGTERM), and wait until it has."""
        component = self.components[name]
        component.signal(signal.SIGTERM)
        if not component.wait(_END_SECONDS):
            raise _failure(component, f"did not end in {_END_SECONDS:g} s")

    def wait_until_ready(self, name: str) -> None:
        """Wait until a component answers, or has begun its job. This asks the API server, so that must run."""
        component = self.components[name]
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_ready(component):
            if not component.running:
                raise _failure(component, "ended before it was ready")
            if time.monotonic() > deadline:
                raise _failure(component, f"was not ready after {_START_SECONDS:g} s")
            component.wait(_POLL_SECONDS)  # its end is noticed at once

    @property
    def processes(self) -> list[int]:
        """The pids of all processes of this Airflow: components, workers, tasks, and what the tasks have started."""
        return process_lookup.marked(self._mark)

    # ---- DAG files

    def write_dags(self, name: str, source: str) -> list[str]:
        """Write a file into the DAG folder, and wait until it is parsed; return the ids of the DAGs in it.

        A file that cannot be imported raises :class:`AirflowError`. An existing file is replaced.
        """
        path = self.dags / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(source, encoding="utf-8")
        new.replace(path)
        since = touched = datetime.now(UTC)
        os.utime(path)

        def parsed() -> list[str] | None:
            nonlocal touched
            for error in self.api.import_errors():
                if error["filename"] in (str(path), name) and datetime.fromisoformat(error["timestamp"]) > since:
                    raise AirflowError(f"{name} cannot be imported:\n{error['stack_trace']}")
            found = [dag for dag in self.api.dags() if dag["fileloc"] == str(path)]
            if found and all(datetime.fromisoformat(dag["last_parsed_time"]) > since for dag in found):
                return [dag["dag_id"] for dag in found]
            if (datetime.now(UTC) - touched).total_seconds() > _TOUCH_SECONDS:
                # A file that was written while its last version was parsed counts as parsed after that.
                touched = datetime.now(UTC)
                os.utime(path)
            return None

        return self.wait_for(parsed, f"{name} is parsed")

    def remove_dags(self, name: str) -> None:
        """Remove a file from the DAG folder, without waiting for its DAGs to go."""
        (self.dags / name).unlink(missing_ok=True)

    # ---- runs

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None, **more: Any) -> str:
        """Start a run, and return its id; see :meth:`Api.trigger`."""
        return self.api.trigger(dag_id, conf, **more)

    def run(self, dag_id: str, conf: Mapping[str, Any] | None = None, *, timeout: float = 120.0, **more: Any) -> str:
        """Start a run, wait until it has succeeded, and return its id."""
        run_id = self.trigger(dag_id, conf, **more)
        self.wait_for_run(dag_id, run_id, timeout=timeout)
        return run_id

    def wait_for_run(
        self, dag_id: str, run_id: str, state: str | Collection[str] = "success", *, timeout: float = 120.0
    ) -> Json:
        """Wait until a run is in the state, or in one of them. Return it. Another final state is an error at once."""
        return self._wait_for_state((dag_id, run_id), None, state, f"run {run_id} of {dag_id}", timeout)

    def wait_for_task(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        state: str | Collection[str] = "success",
        *,
        timeout: float = 120.0,
    ) -> Json:
        """Wait until a task is in the state, or in one of them, and return its task instance.

        Another final state is an error, once the run has ended too: until then the task may be cleared or tried again.
        """
        what = f"task {task_id} of {run_id} of {dag_id}"
        return self._wait_for_state((dag_id, run_id), task_id, state, what, timeout)

    def task_processes(self, dag_id: str, run_id: str, task_id: str, *, map_index: int = -1) -> TaskProcesses:
        """Wait until a task runs, and return its processes."""

        def found() -> TaskProcesses | None:
            task = self.api.task_instance(dag_id, run_id, task_id, map_index)
            if task["state"] != "running" or not task["pid"]:
                return None
            with contextlib.suppress(ProcessLookupError):
                return TaskProcesses(task["pid"], process_lookup.parent_of(task["pid"]))
            return None

        return self.wait_for(found, f"task {task_id} of {run_id} of {dag_id} has a process", run=(dag_id, run_id))

    def triggerer_of(self, dag_id: str, run_id: str, task_id: str) -> str:
        """Wait until a running triggerer has a deferred task's trigger, and return the triggerer's name."""

        def found() -> str | None:
            job = self.api.task_instance(dag_id, run_id, task_id)["triggerer_job"]
            names = [name for name, each in self.components.items() if job and each.job == job["id"] and each.running]
            return names[0] if names else None

        what = f"the trigger of task {task_id} of {run_id} of {dag_id} is with a triggerer"
        return self.wait_for(found, what, run=(dag_id, run_id))

    def task_logs(self, dag_id: str, run_id: str) -> dict[str, str]:
        """Return the logs of a run's tasks, of all tries and triggers, by their files: JSON, line by line."""
        folder = self.home / "logs" / f"dag_id={dag_id}" / f"run_id={run_id}"
        files = sorted(path for path in folder.rglob("*.log*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_text(encoding="utf-8", errors="replace") for path in files}

    def explain(self, dag_id: str, run_id: str) -> str:
        """Return what explains a failed run: its tasks' states, and the ends of all logs."""
        lines = ["-- tasks:"]
        with contextlib.suppress(OSError, ApiError):
            for task in self.api.task_instances(dag_id, run_id):
                index = f"[{task['map_index']}]" if task["map_index"] >= 0 else ""
                lines.append(f"   {task['task_id']}{index}: {task['state']}, try {task['try_number']}")
        for name, text in self.task_logs(dag_id, run_id).items():
            lines += [f"-- {name} ends with:", text[-_TASK_TAIL_CHARACTERS:]]
        return "\n".join([*lines, self._component_tails()])

    def wait_for(
        self,
        condition: Callable[[], T | None],
        what: str,
        *,
        timeout: float = 60.0,
        run: tuple[str, str] | None = None,
    ) -> T:
        """Ask until the answer is true, and return it. An API server that is away counts as no answer.

        :param what: the condition, in the words of the error.
        :param run: the ids of a DAG and of its run, which the error explains. Without it, it ends with the components'
            logs.
        """
        deadline = time.monotonic() + timeout
        while True:
            with contextlib.suppress(OSError):
                if answer := condition():
                    return answer
            if time.monotonic() > deadline:
                explanation = self.explain(*run) if run else self._component_tails()
                raise AirflowError(f"not true after {timeout:g} s: {what}\n{explanation}")
            time.sleep(_POLL_SECONDS)

    # ---- inside

    def _wait_for_state(
        self, run: tuple[str, str], task_id: str | None, state: str | Collection[str], what: str, timeout: float
    ) -> Json:
        wanted = {state} if isinstance(state, str) else set(state)

        def reached() -> Json | None:
            # The run is read first: once it is over, the state of the task, which is read after it, is final.
            whole = self.api.run(*run)
            found = whole if task_id is None else self.api.task_instance(*run, task_id)
            if found["state"] in wanted:
                return found
            if {whole["state"], found["state"]} <= _FINAL_STATES:
                raise AirflowError(f"{what} is {found['state']}\n{self.explain(*run)}")
            return None

        return self.wait_for(reached, f"{what} is {' or '.join(sorted(wanted))}", timeout=timeout, run=run)

    def _add(self, name: str) -> None:
        if name not in self.components:
            if name not in _COMPONENTS and not name.startswith("triggerer-"):
                raise ValueError(f"{name!r} is not a component: those are {', '.join(_COMPONENTS)} and triggerer-2")
            self.components[name] = Component(name, self.home, self.environ)

    def _make_database(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "airflow", "db", "migrate"],
            cwd=self.home,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_START_SECONDS,
            check=False,
        )
        if done.returncode:
            tail = done.stdout[-_TASK_TAIL_CHARACTERS:]
            raise AirflowError(f"airflow db migrate ended with {done.returncode}:\n{tail}")
        with contextlib.closing(sqlite3.connect(self.home / "airflow.db")) as database:
            database.execute("PRAGMA journal_mode=WAL")  # readers do not wait for writers

    def _start_warden(self) -> None:
        arguments = [str(os.getpid()), self._mark, str(self.home)]
        self._warden = subprocess.Popen(
            [sys.executable, "-m", process_lookup.__name__, *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _is_ready(self, component: Component) -> bool:
        with contextlib.suppress(OSError, ApiError):
            if component.job_type is None:
                return self.api.health()["metadatabase"]["status"] == "healthy"
            if component.job is not None:
                return component.running
            known = {each.job for each in self.components.values()}
            for job in self.api.jobs(component.job_type):
                started = datetime.fromisoformat(job["start_date"])
                if job["id"] not in known and job["latest_heartbeat"] and started >= component.started:
                    component.job = job["id"]
                    return True
        return False

    def _component_tails(self) -> str:
        tails = []
        for name, component in self.components.items():
            state = "runs" if component.running else "does not run"
            lines = [line for line in component.log.splitlines() if not _ROUTINE.search(line)]
            tails += [f"-- {name} {state}; its log ends with:", "\n".join(lines)[-_COMPONENT_TAIL_CHARACTERS:]]
        return "\n".join(tails)


def _failure(component: Component, what: str) -> AirflowError:
    return AirflowError(f"{component.name} {what}; its log ends with:\n{component.log[-_TASK_TAIL_CHARACTERS:]}")


@atexit.register
def _stop_all() -> None:
    for airflow in list(_running):
        airflow.stop()
