"""The submit operator with Spark itself, on a real store: what a job receives, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from airflow.providers.common.compat.sdk import AirflowException

from airflow_provider_pawnqueue.hooks.clients import CLIENTS
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.hooks.task_notes import REPORT_KEY
from pawnqueue import ClaimBusyError, ClaimReference, SyncPawnQueue
from pawnqueue.domain.claim_terms import SESSION_TTL_SECONDS
from tests.spark.submitted import TASK, Place, claim_of, is_running
from tests.support.airflow import TOPIC, context_of
from tools.kit.spark import spark_environment, spark_home, spark_settings
from tools.kit.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.kit.servers import S3Server

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(300)]  # of a busy machine

ROOT = Path(__file__).parents[2]

# Reads its claim twice, tells of one message that it could not be done, and notes the command lines of all processes.
WORKS = """
import json, pathlib
from pyspark.sql import SparkSession
from pyspark_pawnqueue.jobs import job_claims, report_failures

spark = SparkSession.builder.getOrCreate()
messages = spark.read.format("pawnqueue").option("payloadSchema", "n long").load()
numbers = sorted(row.n for row in messages.select("n").collect())
[claim] = job_claims()
failed = messages.where("n = 1").selectExpr("id", "'no price' AS reason")
reported = report_failures(claim, failed)
lines = []
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        lines.append(path.read_bytes().decode(errors="replace").replace(chr(0), " "))
    except OSError:
        pass
pathlib.Path(FOLDER, "told.json").write_text(json.dumps({"numbers": numbers, "reported": reported, "lines": lines}))
"""

# Says which processes it has, and never ends by itself.
ENDLESS = """
import os, pathlib, threading
from pyspark.sql import SparkSession

folder = pathlib.Path(FOLDER)


def work(batches):
    (folder / "worker.pid").write_text(str(os.getpid()))
    threading.Event().wait()
    yield from batches


spark = SparkSession.builder.getOrCreate()
(folder / "driver.pid").write_text(str(os.getpid()))
(folder / "jvm.pid").write_text(str(os.getppid()))
spark.range(0, 1, 1, 1).mapInArrow(work, "id long").collect()
"""

# The task as a process of its own, which can be killed.
TASK_PROGRAM = """
import json, logging, sys
from airflow_provider_pawnqueue.spark.operators import PawnQueueSparkSubmitOperator
from tests.support.airflow import FakeTask, context_of

logging.basicConfig(level="INFO")
given = json.loads(sys.argv[1])
PawnQueueSparkSubmitOperator(task_id="process", **given).execute(context_of(FakeTask("process")))
"""


@pytest.fixture
def queue(seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncPawnQueue]:
    """The queue of the default connection, as another process has it."""
    connection = {
        "conn_type": "pawnqueue",
        "host": seaweedfs.endpoint,
        "login": seaweedfs.access_key,
        "password": seaweedfs.secret_key,
        "extra": {"bucket_name": seaweedfs.make_bucket(), "region_name": seaweedfs.region, "interval_seconds": 0.5},
    }
    monkeypatch.setenv("AIRFLOW_CONN_PAWNQUEUE_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW__PAWNQUEUE__INSTALLATION", "here")
    CLIENTS.close()
    with SyncPawnQueue.open(PawnQueueHook().settings) as queue:
        queue.create_topic(TOPIC)
        yield queue
    CLIENTS.close()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A worker with Spark on it."""
    made = Place(tmp_path, monkeypatch)
    for name, value in spark_environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{spark_home() / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(made.temporary))
    made.more = {"conf": spark_settings({"spark.driver.defaultJavaOptions": f"-Djava.io.tmpdir={made.temporary}"})}
    return made


def job(place: Place, text: str) -> None:
    """Let this be the application."""
    place.application.write_text(f"FOLDER = {str(place.folder)!r}\n{text}")


def processes(place: Place) -> dict[str, int]:
    """The processes of an endless job, once they all run."""
    return {name: int((place.folder / f"{name}.pid").read_text()) for name in ("jvm", "driver", "worker")}


def runs(place: Place) -> bool:
    """Return whether they run."""
    path = place.folder / "worker.pid"
    return path.exists() and path.read_text() != ""


def test_a_job_works_on_its_claim(
    queue: SyncPawnQueue, place: Place, seaweedfs: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """It reads the messages and reports one. No secret is in a command line, in the log, or left behind."""
    job(place, WORKS)

    assert place.run(claim_of(queue)) == {"messages": 3, "reported": 1}

    told = json.loads((place.folder / "told.json").read_text())
    assert (told["numbers"], told["reported"]) == ([0, 1, 2], 1)
    [why] = json.loads(place.ti.xcoms[TASK, REPORT_KEY, -1])["failed"].values()
    assert why == "no price"
    own = [line for line in told["lines"] if str(place.application) in line]
    assert len(own) >= 3  # the guard, the JVM, and the driver
    assert not [line for line in told["lines"] if seaweedfs.secret_key in line]
    assert seaweedfs.secret_key not in capsys.readouterr().out
    assert place.left_behind == []


def test_a_job_fails_by_its_own_sentence(queue: SyncPawnQueue, place: Place) -> None:
    """The task's error has the job's own sentence without Java's stack traces."""
    job(
        place,
        "from pyspark.sql import SparkSession\n"
        "SparkSession.builder.getOrCreate().read.format('pawnqueue').option('topic', 'nowhere').load().collect()",
    )

    with pytest.raises(AirflowException) as told:
        place.run(claim_of(queue))

    sentence = str(told.value)
    assert sentence.startswith("The job failed (spark-submit ended with 1): A query of a topic needs the option mode: ")
    assert "\n" not in sentence
    assert "PawnQueue:" not in sentence


def test_a_task_that_is_killed_ends_the_driver_too(queue: SyncPawnQueue, place: Place) -> None:
    """The Python driver ends as well as the JVM, which is all that the stock operator ends."""
    job(place, ENDLESS)
    claim = claim_of(queue)
    operator = place.operator(claim)

    def kill() -> None:
        wait_until(lambda: runs(place), "the job runs", seconds=240)
        operator.on_kill()

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(AirflowException, match="was killed, and its job with it"):
        operator.execute(context_of(place.ti))
    thread.join()

    assert [pid for pid in processes(place).values() if is_running(pid)] == []
    assert len(queue.attach(ClaimReference.from_dict(claim))) == 3


def guards(task: int) -> list[int]:
    """Return the children of a task that lead a session, as its guard does."""
    lists = [path.read_text().split() for path in Path(f"/proc/{task}/task").glob("*/children")]
    return [int(child) for children in lists for child in children if os.getsid(int(child)) == int(child)]


def test_nothing_outlives_a_task_that_dies_with_its_guard(queue: SyncPawnQueue, place: Place) -> None:
    """If both are killed by SIGKILL, the job ends and its folder is removed before others can take the claim."""
    job(place, ENDLESS)
    claim = claim_of(queue)
    CLIENTS.close()  # the sensor's session ends with its process
    given = {"claim": claim, "application": str(place.application), **place.more}
    log = place.folder / "log.txt"
    with log.open("wb") as output:
        task = subprocess.Popen(
            [sys.executable, "-c", TASK_PROGRAM, json.dumps(given)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(place.temporary)},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until(lambda: runs(place) or task.poll() is not None, "the job runs", seconds=240)
            assert task.poll() is None, log.read_text()
            assert len(place.left_behind) == 1
        finally:
            for pid in guards(task.pid):
                os.kill(pid, signal.SIGKILL)
            task.kill()
            task.wait()

    wait_until(
        lambda: not any(map(is_running, processes(place).values())), "the job has ended", seconds=SESSION_TTL_SECONDS
    )
    with pytest.raises(ClaimBusyError):  # and it has done so in time
        queue.attach(ClaimReference.from_dict(claim))
    wait_until(lambda: place.left_behind == [], "its folder is gone")
