"""Spark beside the Airflow of these tests: in the tasks' own machine, and a standalone cluster."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import SyncPawnQueue
from tools.kit.airflow import Airflow, spark
from tools.kit.spark import SparkCluster

if TYPE_CHECKING:
    from tools.kit.servers import S3Server

EXAMPLES = Path(__file__).parents[4] / "dags_example"
#: A retry waits for the session of a task that was killed: so long at most, and 30 s by default.
SESSION_SECONDS = 12


@pytest.fixture(scope="session")
def spark_cluster() -> Iterator[SparkCluster]:
    """A master and two workers. Their executors know the queue from the driver alone."""
    with SparkCluster(workers=2) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster_connection(airflow_session: Airflow, spark_cluster: SparkCluster) -> str:
    """The connection to the cluster."""
    airflow_session.api.create_connection("spark_cluster", **spark.cluster(spark_cluster.master_url))
    return "spark_cluster"


@pytest.fixture(scope="session")
def impatient_connection(airflow_session: Airflow, connection: dict[str, Any]) -> str:
    """The connection to the queue, with sessions that end soon after their task was killed."""
    extra = {**connection["extra"], "visibility_timeout_seconds": SESSION_SECONDS}
    airflow_session.api.create_connection("pawnqueue_impatient", **{**connection, "extra": extra})
    return "pawnqueue_impatient"


@pytest.fixture(params=["local", pytest.param("cluster", marks=pytest.mark.full)])
def master(request: pytest.FixtureRequest) -> str:
    """The Spark connections, of each kind in turn."""
    if request.param == "cluster":
        return str(request.getfixturevalue("cluster_connection"))
    return "spark_default"


@pytest.fixture(scope="session")
def jobs(airflow_session: Airflow) -> Path:
    """The example jobs, in a folder beside the DAGs, as a user copies them."""
    shutil.copy(EXAMPLES / ".airflowignore", airflow_session.dags)
    return Path(shutil.copytree(EXAMPLES / "spark_jobs", airflow_session.dags / "spark_jobs"))


@pytest.fixture
def queue(seaweedfs: S3Server, bucket: str) -> Iterator[SyncPawnQueue]:
    """The queue of the connection ``pawnqueue_default``."""
    with SyncPawnQueue.open(s3=seaweedfs.address(bucket)) as queue:
        yield queue


@pytest.fixture
def example(jobs: Path, airflow: Airflow) -> Iterator[Callable[..., None]]:
    """Put an example into the DAGs folder for one test, unchanged except for some names."""
    put: list[str] = []

    def write(name: str, **others: str) -> None:
        source = (EXAMPLES / f"{name}.py").read_text()
        for old, new in others.items():
            assert f'"{old}"' in source
            source = source.replace(f'"{old}"', f'"{new}"')
        put.append(f"{name}.py")
        for dag_id in airflow.write_dags(
            f"{name}.py", source.replace("schedule=timedelta(minutes=10)", "schedule=None")
        ):
            airflow.api.unpause(dag_id)

    yield write
    for name in put:
        airflow.remove_dags(name)
