"""The services of docker-compose.yaml run, as processes: health checks tell, the page's commands do as it says."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.compose import reading
from tests.compose.natively import VENV, Natively
from tests.compose.test_file import PAGE
from tools.kit.airflow.api import Api, ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]
_SECONDS = 300.0


@pytest.fixture(scope="module")
def running() -> Iterator[Natively]:
    """All services, healthy."""
    assert (VENV / "bin" / "airflow").exists(), f"{VENV.name} is made by: make test-compose"
    with Natively() as running:
        yield running


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until it is true."""
    deadline = time.monotonic() + _SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not true after {_SECONDS:g} s: {what}"
        time.sleep(0.5)


def test_each_health_check_tells(running: Natively) -> None:
    """It has failed before its service ran, and passes now."""
    checked = {name for name, service in running.services.items() if "healthcheck" in service}
    assert running.unhealthy_before_start == dict.fromkeys(checked, True)
    assert {name: running.is_healthy(name) for name in checked} == dict.fromkeys(checked, True)


def test_the_store_is_for_who_has_its_keys(running: Natively) -> None:
    """Its bucket exists, made by the store itself; without the right keys, or with none, it is closed."""
    arguments = ["python", "-c", _LIST, "http://s3:8333", reading.variables()["S3_BUCKET"]]
    assert running.run("seaweedfs", arguments).returncode == 0
    strange = ["env", "AWS_SECRET_ACCESS_KEY=another", *arguments]
    assert "SignatureDoesNotMatch" in running.run("seaweedfs", strange).stderr
    unsigned = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1])"
    assert "403" in running.run("seaweedfs", ["python", "-c", unsigned, "http://s3:8333/queues"]).stderr


def test_the_page_s_commands_do_as_it_says(running: Natively) -> None:
    """They succeed in their order, tasks in the worker and executors on the cluster; in the end all is as it says."""
    api = Api(running.address("api-server", 8080))
    told: dict[str, str] = {}
    runs: list[str] = []
    for line in re.findall(r"^\$ docker compose exec (.+)$", PAGE.read_text(), re.MULTILINE):
        service, *command = shlex.split(line)
        if command[:3] == ["airflow", "dags", "unpause"]:
            wait_for(lambda dag=command[3]: _is_there(api, dag), f"{command[3]} is parsed")
        if "stats" in command or command[0] == "find":
            for dag in runs:
                wait_for(lambda dag=dag: _state(api, dag) in {"success", "failed"}, f"{dag} is over")
                assert _state(api, dag) == "success", _tasks(api, dag)
        done = running.run(service, [*command, *(["--output", "json"] if "stats" in command else [])])
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        told[line] = done.stdout
        if command[:3] == ["airflow", "dags", "trigger"]:
            runs.append(command[3])

    assert runs == ["orders_publish", "orders_process", "orders_spark"]
    assert _left(told, "stats orders") == {"pending": 0, "in_flight": 0, "dead": 0}
    assert _left(told, "stats bulk_orders") == {"pending": 0, "in_flight": 0, "dead": 1}
    [files] = [text for line, text in told.items() if "find" in line]
    assert ".parquet" in files
    master = json.loads(running.run("worker", ["python", "-c", _GET, "http://spark-master:8080/json/"]).stdout)
    assert [each["name"] for each in master["completedapps"]] == ["orders_etl"]
    assert "Launch" in running.processes["spark-worker"].log


_LIST = """
import boto3, sys
boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1").list_objects_v2(Bucket=sys.argv[2])
"""
_GET = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"


@pytest.mark.parametrize("given", [{}, {"S3_BUCKET": "other", "AIRFLOW_PORT": "18080", "S3_SECRET_KEY": "a$b"}])
def test_compose_reads_the_file_as_the_tests_do(given: dict[str, str], tmp_path: Path) -> None:
    """Debian's docker-compose finds nothing wrong with it, and has the same commands, variables and checks."""
    program = shutil.which("docker-compose")
    assert program, "docker-compose is not installed. On Debian: apt-get install --no-install-recommends docker-compose"
    nothing = tmp_path / "nothing.env"
    nothing.touch()
    done = subprocess.run(
        [program, "--file", str(reading.FILE), "--env-file", str(nothing), "config"],
        env={"PATH": "/usr/bin:/bin", **given},
        cwd=reading.TOP,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    theirs = yaml.safe_load(done.stdout.replace("$$", "$"))["services"]
    ours = reading.services(given)
    assert set(theirs) == set(ours)
    for name, service in ours.items():
        for key in ("image", "command", "environment", "depends_on", "user", "init", "restart"):
            assert theirs[name].get(key) == service.get(key), (name, key)
        assert theirs[name].get("healthcheck", {}).get("test") == service.get("healthcheck", {}).get("test")
        assert [str(port) for port in theirs[name].get("ports", [])] == [
            f"{port}/tcp" if str(port) not in map(str, theirs[name]["ports"]) else port
            for port in service.get("ports", [])
        ]


def _is_there(api: Api, dag: str) -> bool:
    try:
        return bool(api.dag(dag))
    except ApiError:
        return False


def _state(api: Api, dag: str) -> str:
    return str(api.runs(dag)[-1]["state"])


def _tasks(api: Api, dag: str) -> list[tuple[str, str]]:
    return [(task["task_id"], task["state"]) for task in api.task_instances(dag, api.runs(dag)[-1]["dag_run_id"])]


def _left(told: dict[str, str], command: str) -> dict[str, Any]:
    [text] = [text for line, text in told.items() if line.endswith(command)]
    [row] = json.loads(text)
    return {name: row[name] for name in ("pending", "in_flight", "dead")}
