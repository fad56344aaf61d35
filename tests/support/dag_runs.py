"""DAGs run by ``dag.test()``: in a second each, with everything inline and no Airflow beside it.

It is done in a process of its own (:mod:`tests.support.dag_worker`), which serves all tests one after the other:
Airflow, imported, changes logging, signals and the warnings of its importer.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tools.kit.airflow.settings import ROOT, environment
from tools.kit.process_lookup import end_marked

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

_TAIL = 4_000


@dataclass(frozen=True)
class DagTestRun:
    """What became of a run."""

    run_id: str
    state: str
    #: By task; of mapped ones by ``task[0]``.
    tasks: Mapping[str, str]
    #: By task, as above, and key.
    xcoms: Mapping[tuple[str, str], Any]
    #: What was logged and printed during the run.
    log: str

    def xcom(self, task: str, key: str = "return_value") -> Any:  # noqa: ANN401 - JSON
        """Return the value of an XCom."""
        return self.xcoms[task, key]


class DagTests:
    """Runs DAG files, for the length of a ``with`` block.

    :param connections: as :class:`tools.kit.airflow.Airflow` takes them.
    """

    def __init__(self, connections: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="pawnqueue-dags-"))
        self._dags = self._home / "dags"
        self._log = self._home / "log.txt"
        self._mark = uuid.uuid4().hex
        self._environ = environment(
            self._home,
            port=0,  # nothing is served
            log_ports=(0, 0),
            mark=self._mark,
            parallelism=1,
            connections=connections or {},
        )

    def __enter__(self) -> Self:
        """Start the process, without waiting for it."""
        answers, answers_end = os.pipe()
        with self._log.open("wb") as log:
            self._worker = subprocess.Popen(
                [sys.executable, "-m", "tests.support.dag_worker", str(answers_end)],
                cwd=ROOT,
                env=self._environ,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(answers_end,),
                start_new_session=True,
                text=True,
            )
        os.close(answers_end)
        self._answers = os.fdopen(answers, encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the process, and what it has started."""
        end_marked(self._mark)
        self._worker.communicate()
        self._answers.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def run(
        self, source: str, conf: Mapping[str, Any] | None = None, *, env: Mapping[str, str] | None = None
    ) -> DagTestRun:
        """Run the one DAG that the source defines, and return what became of it: a failed run is no error.

        :param env: variables for this run, connections too (``AIRFLOW_CONN_...``).
        """
        shutil.rmtree(self._dags, ignore_errors=True)  # every file of the folder is parsed at each run
        self._dags.mkdir()
        path = self._dags / f"dag_{uuid.uuid4().hex[:12]}.py"
        path.write_text(source, encoding="utf-8")
        begun = self._log.stat().st_size
        assert self._worker.stdin is not None
        self._worker.stdin.write(
            json.dumps({"path": str(path), "conf": dict(conf or {}), "env": dict(env or {})}) + "\n"
        )
        self._worker.stdin.flush()
        line = self._answers.readline()
        log = self._log.read_bytes()[begun:].decode("utf-8", errors="replace")
        answer = json.loads(line) if line else {"error": "the process has ended"}
        if "error" in answer:
            raise AssertionError(f"{answer['error']}\n-- the log ends with:\n{log[-_TAIL:]}")
        return DagTestRun(
            run_id=answer["run_id"],
            state=answer["state"],
            tasks={_name(task, index): state for task, index, state in answer["tasks"]},
            xcoms={(_name(task, index), key): value for task, index, key, value in answer["xcoms"]},
            log=log,
        )


def _name(task: str, index: int) -> str:
    return task if index < 0 else f"{task}[{index}]"
