"""The provider in an environment that has nothing else: what somebody has after `pip install`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import airflow_provider_pawnqueue
from tests.support.wheels import environment_with

if TYPE_CHECKING:
    from tests.support.wheels import Wheels

TOP = Path(__file__).parent.parent
PROVIDER = "airflow-provider-pawnqueue"

pytestmark = pytest.mark.timeout(400)  # the distributions are built first, and pip installs them


@pytest.mark.slow
def test_airflow_finds_the_provider_in_an_empty_environment(tmp_path: Path, wheels: Wheels) -> None:
    """With what the wheel asks for, the engine's wheel among it, Airflow lists provider, connection and commands."""
    beside = ("--no-index", "--find-links", wheels.engine.parent)
    python, home = environment_with(tmp_path / "venv", PROVIDER, *beside, wheels.provider), tmp_path / "home"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AIRFLOW"))}

    def airflow(*arguments: str) -> str:
        done = subprocess.run(
            [str(python), "-m", "airflow", *arguments],
            cwd=tmp_path,
            env={**environ, "AIRFLOW_HOME": str(home)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    providers = {each["package_name"]: each for each in json.loads(airflow("providers", "list", "--output", "json"))}
    assert providers[PROVIDER]["version"] == airflow_provider_pawnqueue.__version__
    kinds = {each["connection_type"]: each for each in json.loads(airflow("providers", "hooks", "--output", "json"))}
    assert kinds["pawnqueue"]["package_name"] == PROVIDER
    assert "doctor" in airflow("pawnqueue", "--help")


@pytest.mark.slow
@pytest.mark.parametrize("how", [[], ["--editable"]])
def test_a_clone_installs_by_itself(tmp_path: Path, how: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One `pip install` of the clone brings the engine along, from the clone: neither was released."""
    monkeypatch.delenv("PAWNQUEUE_ENGINE", raising=False)
    python = environment_with(tmp_path / "venv", PROVIDER, *how, TOP)
    program = (
        "import importlib.metadata, airflow_provider_pawnqueue, pawnqueue.sync, pyspark_pawnqueue\n"
        "print(airflow_provider_pawnqueue.__file__, importlib.metadata.version('pawnqueue-engine'))"
    )

    done = subprocess.run(
        [str(python), "-P", "-I", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    file, version = done.stdout.split()
    assert Path(file).is_relative_to(TOP if how else tmp_path)
    assert version == airflow_provider_pawnqueue.__version__
