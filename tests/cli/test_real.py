"""``airflow pawnqueue`` as users run it: in its own process, on a real store."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tools.kit.servers import S3Server

pytestmark = [pytest.mark.servers, pytest.mark.slow]

TOP = Path(__file__).parents[2]
Airflow = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def connection(seaweedfs: S3Server) -> dict[str, Any]:
    """A connection to a bucket of its own."""
    return {
        "conn_type": "pawnqueue",
        "host": seaweedfs.endpoint,
        "login": seaweedfs.access_key,
        "password": seaweedfs.secret_key,
        "extra": {"bucket_name": seaweedfs.make_bucket()},
    }


@pytest.fixture
def airflow(seaweedfs: S3Server, connection: dict[str, Any], tmp_path: Path) -> Airflow:
    """Run Airflow's program with an empty home, and with the connection in its environment by default."""
    program = shutil.which("airflow", path=str(Path(sys.executable).parent))
    assert program is not None
    env = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": str(TOP)}
    env.pop("_AIRFLOW_PROCESS_CONTEXT", None)

    def run(
        *words: str, stdin: str = "", code: int = 0, from_environment: bool = True
    ) -> subprocess.CompletedProcess[str]:
        ours = {"AIRFLOW_CONN_PAWNQUEUE_DEFAULT": json.dumps(connection)} if from_environment else {}
        done = subprocess.run(
            [program, *words], env=env | ours, input=stdin, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        assert seaweedfs.secret_key not in done.stdout + done.stderr
        return done

    return run


def rows(airflow: Airflow, *words: str, also: str = "", **how: Any) -> list[dict[str, Any]]:
    """Run a command with ``--output json``; return its rows, and check what it prints on stderr."""
    done = airflow("pawnqueue", *words, "--output", "json", **how)
    assert (done.stderr != "") == bool(also)
    assert also in done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(180)
def test_the_commands_work_on_a_real_store(airflow: Airflow) -> None:
    """The tables and the JSON of topics, publish, stats, peek and doctor agree."""
    airflow("pawnqueue", "publish", "orders", '{"n": 1}', "--create")
    published = rows(airflow, "publish", "orders", "-", stdin='{"n": 2}\n{"n": 3}\n')
    seen = rows(airflow, "peek", "orders")
    [counted] = rows(airflow, "stats", also="No janitor has swept orders")
    [topic] = rows(airflow, "topics")
    found = {row["check"]: row for row in rows(airflow, "doctor")}

    ids = {each["payload"]["n"]: each["id"] for each in seen}
    assert sorted(ids) == [1, 2, 3]
    assert [ids[2], ids[3]] == [each["id"] for each in published]
    assert (counted["topic"], counted["pending"]) == ("orders", 3)
    assert (topic["topic"], topic["max_deliveries"]) == ("orders", 10)
    assert found["strategy"]["result"] == "conditional_write"
    for words, told in (
        (["topics"], "orders"),
        (["stats", "orders"], "orders"),
        (["peek", "orders"], '{"n": 3}'),
        (["doctor"], "held in sequence and in a race"),
    ):
        assert told in airflow("pawnqueue", *words).stdout


@pytest.mark.timeout(180)
def test_the_connection_may_be_in_the_metadata_database(airflow: Airflow, connection: dict[str, Any]) -> None:
    """It is found there, as by Airflow's own commands; if it does not exist, the error is one sentence."""
    nowhere = airflow("pawnqueue", "topics", code=1, from_environment=False)
    airflow("db", "migrate", from_environment=False)
    airflow("connections", "add", "kept", "--conn-json", json.dumps(connection), from_environment=False)

    assert rows(airflow, "topics", "--conn-id", "kept", from_environment=False) == []
    assert nowhere.stderr.startswith("Connection 'pawnqueue_default' does not exist")
    assert nowhere.stderr.count("\n") == 1
