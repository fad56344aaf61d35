"""The provider's wheel in an environment that has nothing else: what somebody has after `pip install`."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import airflow_provider_pawnqueue
from tests.support.wheels import pip

if TYPE_CHECKING:
    from tests.support.wheels import Wheels

TOP = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_airflow_finds_the_provider_in_an_empty_environment(tmp_path: Path, wheels: Wheels) -> None:
    """With what the wheel asks for and no more, Airflow lists the provider, its connection and its commands."""
    environment, home = tmp_path / "venv", tmp_path / "home"
    venv.create(environment, with_pip=False, symlinks=True)
    pip(
        *("--python", environment / "bin" / "python", "install"),
        *("--constraint", TOP / "constraints.txt", wheels.provider),
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AIRFLOW"))}

    def airflow(*arguments: str) -> str:
        done = subprocess.run(
            [str(environment / "bin" / "airflow"), *arguments],
            cwd=tmp_path,
            env={**environ, "AIRFLOW_HOME": str(home)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    providers = {each["package_name"]: each for each in json.loads(airflow("providers", "list", "--output", "json"))}
    assert providers["airflow-provider-pawnqueue"]["version"] == airflow_provider_pawnqueue.__version__
    kinds = {each["connection_type"]: each for each in json.loads(airflow("providers", "hooks", "--output", "json"))}
    assert kinds["pawnqueue"]["package_name"] == "airflow-provider-pawnqueue"
    assert "doctor" in airflow("pawnqueue", "--help")
    pip("--python", environment / "bin" / "python", "check")
