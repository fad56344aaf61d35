"""Parsing a DAG file loads neither a client of the store nor Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "dags_example").glob("*spark*.py"))
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
# Imports what Airflow has imported when it parses a file, and then each module and file, in a fork of its own.
_PROGRAM = """
import importlib, os, runpy, sys, time
from airflow.sdk import DAG, BaseOperator, BaseSensorOperator, XComArg, task
import airflow.providers.common.compat.sdk, airflow.triggers.base
from airflow.providers.common.compat.sdk import BaseHook, BaseOperatorLink, PokeReturnValue, TaskGroup, conf

for name in sys.argv[1:]:
    if os.fork() == 0:
        began = time.perf_counter()
        runpy.run_path(name) if name.endswith(".py") else importlib.import_module(name)
        took = time.perf_counter() - began
        heavy = {"obstore", "boto3", "botocore", "pyspark", "aiobotocore"} & set(sys.modules)
        print("=>", name, f"{took:.3f}", *sorted(heavy), flush=True)
        os._exit(0)
    if os.wait()[1]:
        sys.exit(f"{name} is not imported")
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return for each module how long its import took, and which heavy modules it loaded."""
    names = [f"airflow_provider_pawnqueue.{module}" for module in MODULES]
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *names, *map(str, EXAMPLES)],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path_factory.mktemp("airflow")), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("=>")]
    return {name: found for name, *found in lines}


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_parsing_is_light(module: str, loaded: dict[str, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    """Neither obstore nor boto3 nor Spark is loaded; the time is printed."""
    took, *heavy = loaded[f"airflow_provider_pawnqueue.{module}"]
    with capsys.disabled():
        print(f" {module}: took {took}", end="")  # noqa: T201
    assert heavy == []


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_parsing_an_example_is_light(path: Path, loaded: dict[str, list[str]]) -> None:
    """No example DAG imports a client of the store or Spark: its jobs import them where they run."""
    _, *heavy = loaded[str(path)]
    assert heavy == []


@pytest.mark.slow
def test_a_trigger_is_imported_at_once(tmp_path: Path) -> None:
    """The trigger's module, which Airflow imports in an event loop, does not import the queue."""
    program = "import sys, airflow_provider_pawnqueue.triggers.pawnqueue as _; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pawnqueue" not in done.stdout.split()
    assert "airflow_provider_pawnqueue.triggers.pawnqueue" in done.stdout.split()
