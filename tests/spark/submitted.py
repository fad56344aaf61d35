"""Tasks that submit a job. A program of a few lines takes the place of spark-submit."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_pawnqueue.sensors.pawnqueue import PawnQueueSensor
from airflow_provider_pawnqueue.spark.operators import PawnQueueSparkSubmitOperator
from tests.support.airflow import TOPIC, FakeTask, context_of

if TYPE_CHECKING:
    import pytest

    from pawnqueue import SyncPawnQueue

TASK = "process"


class Place:
    """A worker: its folder for temporary files, its PATH, a Spark connection, and a task."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        self.programs = folder / "bin"
        self.application = folder / "job.py"
        for made in (self.temporary, self.programs):
            made.mkdir()
        self.application.write_text("")
        self.ti = FakeTask(TASK)
        #: What its operators are given besides.
        self.more: dict[str, Any] = {}
        self._monkeypatch = monkeypatch
        monkeypatch.setattr("tempfile.tempdir", str(self.temporary))
        monkeypatch.setattr("airflow.providers.common.compat.sdk.get_current_context", lambda: context_of(self.ti))
        monkeypatch.setenv("PATH", f"{self.programs}{os.pathsep}{os.environ['PATH']}")
        self.connect("spark_default")

    def connect(self, conn_id: str, host: str = "local[1]", **extra: str) -> None:
        """Make a Spark connection."""
        said = {"conn_type": "spark", "host": host, "extra": extra}
        self._monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(said))

    def spark_submit(self, text: str, name: str = "spark-submit") -> Path:
        """Replace spark-submit by a Python program, which may write into ``folder``."""
        path = self.programs / name
        path.write_text(
            f"#!{sys.executable}\nimport os, sys, json, pathlib\nfolder = pathlib.Path({str(self.folder)!r})\n{text}\n"
        )
        path.chmod(0o755)
        return path

    def operator(self, claim: Any, **more: Any) -> PawnQueueSparkSubmitOperator:  # noqa: ANN401 - as the sensor returned it
        """The task's operator."""
        return PawnQueueSparkSubmitOperator(
            task_id=TASK, claim=claim, application=str(self.application), **(self.more | more)
        )

    def run(self, claim: Any, **more: Any) -> dict[str, int]:  # noqa: ANN401 - likewise
        """Run the task to its end."""
        return self.operator(claim, **more).execute(context_of(self.ti))

    @property
    def left_behind(self) -> list[str]:
        """What is in its folder for temporary files."""
        return sorted(path.name for path in self.temporary.iterdir() if path.name.startswith("pawnqueue-"))


def claim_of(queue: SyncPawnQueue, count: int = 3, *, topic: str = TOPIC, task_id: str = "claim") -> dict[str, Any]:
    """Publish and claim some messages, as the sensor does. Return the claim with them."""
    queue.publish(topic, [{"n": number} for number in range(count)])
    sensor = PawnQueueSensor(task_id=task_id, topic=topic, deferrable=False, poke_interval=0.05, timeout=5)
    claim: dict[str, Any] = sensor.execute(context_of(FakeTask(task_id)))
    return claim


def is_running(pid: int) -> bool:
    """Return whether a process runs, and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
