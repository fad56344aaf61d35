"""The provider's wheel in an environment that has nothing else: what somebody has after `pip install`."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

import airflow_provider_pawnqueue
from tests.support.environments import environment_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.wheels import Wheels


@pytest.mark.slow
def test_airflow_finds_the_provider_in_an_empty_environment(tmp_path: Path, wheels: Wheels) -> None:
    """With what the wheel asks for and no more, Airflow lists the provider, its connection and its commands."""
    python, home = environment_of(wheels.provider, tmp_path / "venv"), tmp_path / "home"
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
    assert providers["airflow-provider-pawnqueue"]["version"] == airflow_provider_pawnqueue.__version__
    kinds = {each["connection_type"]: each for each in json.loads(airflow("providers", "hooks", "--output", "json"))}
    assert kinds["pawnqueue"]["package_name"] == "airflow-provider-pawnqueue"
    assert "doctor" in airflow("pawnqueue", "--help")
