"""A real Airflow, started once for all tests of this folder, beside a real S3 server."""

from __future__ import annotations

import signal
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.dag_runs import DagTests
from tools.kit.airflow import Airflow, spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.kit.servers import S3Server


@pytest.fixture(scope="session")
def bucket(seaweedfs: S3Server) -> str:
    """The bucket that the connection ``pawnqueue_default`` names."""
    return seaweedfs.make_bucket()


@pytest.fixture(scope="session")
def connection(seaweedfs: S3Server, bucket: str) -> dict[str, Any]:
    """The fields of the connection ``pawnqueue_default``."""
    return {
        "conn_type": "pawnqueue",
        "login": seaweedfs.access_key,
        "password": seaweedfs.secret_key,
        "extra": {
            "bucket_name": bucket,
            "endpoint_url": seaweedfs.endpoint,
            "region_name": seaweedfs.region,
        },
    }


@pytest.fixture(scope="session")
def worker_variables(seaweedfs: S3Server, bucket: str) -> dict[str, str]:
    """The queue in the environment of Airflow's workers: for Spark jobs that nobody tells where it is."""
    return {
        "PAWNQUEUE_S3_BUCKET_NAME": bucket,
        "PAWNQUEUE_S3_ENDPOINT_URL": seaweedfs.endpoint,
        "PAWNQUEUE_S3_REGION": seaweedfs.region,
        "PAWNQUEUE_S3_ACCESS_KEY": seaweedfs.access_key,
        "PAWNQUEUE_S3_SECRET_KEY": seaweedfs.secret_key,
    }


@pytest.fixture(scope="session")
def airflow_session(connection: dict[str, Any], worker_variables: dict[str, str]) -> Iterator[Airflow]:
    """The Airflow, as it was started. Where it cannot start, the test fails with the log."""
    connections = {"pawnqueue_default": connection, "spark_default": spark.LOCAL}
    with Airflow(connections=connections, env=worker_variables, with_spark=True) as airflow:
        yield airflow


@pytest.fixture
def airflow(airflow_session: Airflow) -> Iterator[Airflow]:
    """The Airflow. Afterwards its components run again, and what the test has left is gone: DAG files, and runs."""
    before = set(airflow_session.dags.rglob("*.py"))
    yield airflow_session
    for name in airflow_session.pids:
        airflow_session.components[name].signal(signal.SIGCONT)
    for name in airflow_session.components:
        if name not in airflow_session.pids:
            airflow_session.start(name, wait=False)
    for name in airflow_session.pids:
        airflow_session.wait_until_ready(name)
    for run in airflow_session.api.runs("~", state=["queued", "running"]):
        airflow_session.api.mark_run(run["dag_id"], run["dag_run_id"], "failed")
    for path in set(airflow_session.dags.rglob("*.py")) - before:
        path.unlink()  # what has a schedule or a watcher would go on


@pytest.fixture
def dag_id() -> str:
    """A name for a DAG that no other test has."""
    return f"dag_{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def dag_test(connection: dict[str, Any]) -> Iterator[DagTests]:
    """Runs DAGs by ``dag.test()``, which needs no Airflow beside it: a second each, after four for the first."""
    with DagTests(connections={"pawnqueue_default": connection}) as tests:
        yield tests
