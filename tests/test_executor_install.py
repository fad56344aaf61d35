"""The engine on a machine that has neither Airflow nor Spark's driver: a Spark executor, or a plain script."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent

# All that the engine needs.
NEEDED = ["boto3", "obstore", "pydantic", "pyyaml"]

# Runs in the new environment.
PROGRAM = """
import importlib.util

import airflow_provider_pawnqueue
from airflow_provider_pawnqueue.engine.errors import StoreError
from airflow_provider_pawnqueue.engine.store.port import Expect, Store

for absent in ("airflow", "pyspark"):
    assert importlib.util.find_spec(absent) is None, f"{absent} is installed here: the test proves nothing"
print(airflow_provider_pawnqueue.__file__)
"""


def _pip(python: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_engine_runs_without_airflow_and_spark(tmp_path: Path) -> None:
    """The wheel, installed beside four libraries and nothing else, gives a working engine."""
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"

    _pip(python, "install", "--constraint", str(TOP / "constraints.txt"), *NEEDED)
    _pip(python, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(TOP))
    (wheel,) = tmp_path.glob("*.whl")
    _pip(python, "install", "--no-deps", str(wheel))

    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(python), "-c", PROGRAM], cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(environment), "the engine came from the source tree, not the wheel"
