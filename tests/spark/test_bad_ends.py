"""Each failure of a job becomes one sentence that says what to do, and is final if a retry cannot help."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowSkipException

from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.spark.failure_reasons import JobOutput
from tests.spark.submitted import Place, claim_of
from tests.support.airflow import connected
from tools.kit.spark import spark_home

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pawnqueue import SyncPawnQueue

SENTENCE = "Claim mine.0 of topic 'orders' has ended unsettled: claim anew."
STACKS = f"""
26/01/01 10:00:00 ERROR Executor: Exception in task 0.0 in stage 0.0 (TID 0)
org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] Thrown from the worker: Traceback (most recent call):
pyspark_pawnqueue.PawnQueueSparkError: PawnQueue: Another thing, which passed.
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:665)
pyspark_pawnqueue.PawnQueueSparkError: PawnQueue: {SENTENCE} SQLSTATE: 38000
\tat java.base/java.lang.Thread.run(Thread.java:840)
pyspark.errors.AnalysisException: [PYTHON_DATA_SOURCE_ERROR] ...PawnQueueSparkError: PawnQueue: {SENTENCE[:50]}
26/01/01 10:00:01 INFO SparkContext: Successfully stopped SparkContext (Uptime: 17381 ms)
"""


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncPawnQueue]:
    """The queue of the default connection, as another process has it."""
    login = {"aws_access_key_id": "AKTEST", "aws_secret_access_key": "SKTEST0123456789"}
    yield from connected(monkeypatch, **login)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A worker."""
    return Place(tmp_path, monkeypatch)


@pytest.fixture
def without_java(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A worker with Spark and the programs that its scripts use, but without Java."""
    for name in ("bash", "dirname", "head", "ls"):
        found = shutil.which(name)
        assert found is not None
        (place.programs / name).symlink_to(found)
    (place.programs / "spark-submit").symlink_to(spark_home() / "bin" / "spark-submit")
    monkeypatch.setenv("PATH", str(place.programs))
    monkeypatch.setenv("SPARK_HOME", str(spark_home()))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return place


def failure_of(text: str, status: int = 1) -> AirflowException:
    """Return the error of a task whose job has printed this."""
    output = JobOutput()
    for line in text.splitlines():
        output.add(line)
    return output.failure(status)


def test_the_sentence_of_the_job_is_found_among_the_stacks() -> None:
    """It is the last one, by which the driver failed, in its complete copy."""
    failure = failure_of(STACKS)

    assert str(failure) == f"The job failed (spark-submit ended with 1): {SENTENCE}"
    assert not isinstance(failure, AirflowFailException)


def test_what_spark_notes_of_itself_is_not_told() -> None:
    """Without an error of ours, the last relevant lines are in the error."""
    failure = failure_of(
        "26/11/19 04:00:00 INFO SparkContext: Successfully stopped\nIt is late.\nThere is no price.\n"
        "\tat java.lang.Thread.run(T.java:1)\n",
        3,
    )

    assert str(failure).startswith("spark-submit ended with 3; the last lines are: ")
    assert str(failure).endswith("| There is no price.")
    assert "Successfully" not in str(failure)
    assert "\n" not in str(failure)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            "Traceback\n  File 'job.py', line 3\nValueError: no tax table for 2026\n26/11/19 04:00:00 INFO x",
            "ValueError: no",
        ),
        (
            "Traceback\nshop.errors.PriceError: none\npyspark.errors.PythonException: in a worker",
            "shop.errors.PriceError",
        ),
        (
            "ZeroDivisionError: division by zero\n~^~\n: org.apache.spark.SparkException: aborted",
            "ZeroDivisionError: div",
        ),
        ("KeyError\n", "KeyError"),
    ],
)
def test_an_error_of_python_is_told_by_its_last_line(lines: str, told: str) -> None:
    """The frames before it are left out, and so are Spark's copies of it."""
    assert str(failure_of(lines)).startswith(f"The job failed (spark-submit ended with 1): {told}")


def test_a_job_that_has_said_nothing() -> None:
    """The error says how it ended."""
    assert str(failure_of("", 5)) == "spark-submit ended with 5, and printed nothing."
    assert str(failure_of("", 137)).startswith("spark-submit was killed by signal 9")


def test_no_java(queue: SyncPawnQueue, without_java: Place) -> None:
    """The error has the line of Spark's script, and says what to install."""
    with pytest.raises(AirflowFailException, match=r"Spark finds no Java \(JAVA_HOME is not set\): install Java 17"):
        without_java.run(claim_of(queue))


def test_a_java_that_is_not_there(queue: SyncPawnQueue, without_java: Place) -> None:
    """JAVA_HOME names a folder without Java."""
    with pytest.raises(AirflowFailException, match=r"Spark finds no Java \(.*nowhere/bin/java: No such file"):
        without_java.run(claim_of(queue), env_vars={"JAVA_HOME": str(without_java.folder / "nowhere")})


def test_a_java_that_is_too_old() -> None:
    """The JVM's own message is recognized."""
    old = (
        'Exception in thread "main" java.lang.UnsupportedClassVersionError: has been compiled by a more recent version'
    )

    failure = failure_of(old)

    assert isinstance(failure, AirflowFailException)
    assert str(failure).startswith("Spark does not run on this Java (")


def test_no_spark_submit(queue: SyncPawnQueue, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the missing program, and the claim stays as it is."""
    monkeypatch.setenv("PATH", str(place.programs))
    with pytest.raises(AirflowFailException, match="The program 'spark-submit' is not on this worker's PATH: install"):
        place.run(claim_of(queue))
    with pytest.raises(AirflowFailException, match="The program '/opt/nowhere/spark-submit' is not on"):
        place.run(claim_of(queue, task_id="again"), spark_binary="/opt/nowhere/spark-submit")


def test_no_application(queue: SyncPawnQueue, place: Place) -> None:
    """A local file is looked for before the job starts. Spark looks for files in other places."""
    place.spark_submit("print('done')")
    place.application.unlink()
    with pytest.raises(AirflowFailException, match=r"The application '.*job.py' does not exist on this worker: dep"):
        place.run(claim_of(queue))
    place.application = "s3a://jobs/job.py"  # type: ignore[assignment]
    assert place.run(claim_of(queue, task_id="again"))["messages"] == 3
    failure = failure_of("/usr/bin/python3: can't open file '/opt/job.py': [Errno 2] No such file or directory", 2)
    assert isinstance(failure, AirflowFailException)
    assert str(failure).startswith("The application '/opt/job.py' does not exist")


@pytest.mark.parametrize(
    "more", [{"deploy_mode": "cluster"}, {"conf": {"spark.submit.deployMode": "cluster"}}, {"conn_id": "far"}]
)
def test_a_driver_elsewhere(queue: SyncPawnQueue, place: Place, more: dict[str, object]) -> None:
    """It is refused: it could neither read its connection nor report failures."""
    place.connect("far", "spark://master", **{"deploy-mode": "cluster"})
    place.spark_submit("print('done')")
    with pytest.raises(AirflowFailException, match="deploy_mode='cluster' runs the driver on another machine"):
        place.run(claim_of(queue), **more)


def test_all_is_settled(queue: SyncPawnQueue, place: Place) -> None:
    """A run that is cleared after its settlement submits nothing."""
    place.spark_submit("sys.exit(9)")
    claim = claim_of(queue)
    PawnQueueHook().ack(claim)
    with pytest.raises(AirflowSkipException, match="are settled, so this task submits no job"):
        place.run(claim)


@pytest.mark.parametrize("report", ['\'{"id": "a"\'', "'[' * 100_000"])
def test_a_report_that_is_none(queue: SyncPawnQueue, place: Place, report: str) -> None:
    """The task fails, as it is not known which messages are done."""
    place.spark_submit(f"open(os.environ['PAWNQUEUE_JOB_REPORT'], 'w').write({report})")
    with pytest.raises(AirflowFailException, match="has a line that cannot be read"):
        place.run(claim_of(queue))
    assert place.left_behind == []


def test_secrets_do_not_show_in_an_error(
    queue: SyncPawnQueue, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor are they in the log, whatever the job prints."""
    place.spark_submit("print(pathlib.Path(os.environ['PAWNQUEUE_JOB_CONNECTION']).read_text()); sys.exit(4)")
    with pytest.raises(AirflowException, match="ended with 4") as told:
        place.run(claim_of(queue))
    assert "aws_secret_access_key: '***'" in str(told.value) or "aws_secret_access_key: ***" in str(told.value)
    assert "SKTEST" not in str(told.value) + capsys.readouterr().out
    assert place.left_behind == []
