"""What DAG files import is light: no client of the store, and no Spark, is loaded for parsing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "dags_example").glob("*spark*.py"))
MODULES = [
    "dags",
    "decorators",
    "hooks.pawnqueue",
    "lineage",
    "links",
    "operators.pawnqueue",
    "plugin",
    "queues.pawnqueue",
    "sensors.pawnqueue",
    "spark.in_process",
    "spark.operators",
    "triggers.pawnqueue",
]
_PROGRAM = """
import sys, time
from airflow.sdk import DAG, BaseOperator, BaseSensorOperator, XComArg, task
import airflow.providers.common.compat.sdk, airflow.triggers.base
from airflow.providers.common.compat.sdk import BaseHook, BaseOperatorLink, PokeReturnValue, TaskGroup, conf
began = time.perf_counter()
import airflow_provider_pawnqueue.{module}
took = time.perf_counter() - began
heavy = {{"obstore", "boto3", "botocore", "pyspark", "aiobotocore"}} & set(sys.modules)
print(f"took {{took:.3f}}", "loaded", *sorted(heavy))
"""


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_parsing_is_light(module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither obstore nor boto3 nor Spark is in the process then; how long it took is shown."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(module=module)],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    last = done.stdout.strip().splitlines()[-1]
    with capsys.disabled():
        print(f" {module}: {last}", end="")  # noqa: T201
    assert last.split("loaded")[1].strip() == ""


_EXAMPLE = """
import runpy, sys
from airflow.sdk import DAG
runpy.run_path({path!r})
print("loaded", *sorted({{"obstore", "boto3", "botocore", "pyspark"}} & set(sys.modules)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_parsing_an_example_is_light(path: Path, tmp_path: Path) -> None:
    """No example DAG imports a client of the store, nor Spark: what its jobs need, they import where they run."""
    done = subprocess.run(
        [sys.executable, "-c", _EXAMPLE.format(path=str(path))],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "loaded", "an old Airflow logs its own start before that"


@pytest.mark.slow
def test_a_trigger_is_imported_at_once(tmp_path: Path) -> None:
    """Airflow imports it in the event loop of all its triggers: the queue is imported later, in a thread."""
    program = "import sys, airflow_provider_pawnqueue.triggers.pawnqueue as _; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "airflow_provider_pawnqueue.engine" not in done.stdout.split()
    assert "airflow_provider_pawnqueue.triggers.pawnqueue" in done.stdout.split()
