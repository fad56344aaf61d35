"""The submit operator: what a job receives, how it ends, and what its task does then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, AirflowSkipException

from airflow_provider_pawnqueue.hooks.task_notes import REPORT_KEY
from pawnqueue import ClaimReference, Settings
from tests.spark.submitted import TASK, Place, claim_of
from tests.support.airflow import connected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pawnqueue import SyncPawnQueue

HANDED = """
names = ("PAWNQUEUE_JOB_CLAIM", "PAWNQUEUE_JOB_CONNECTION", "PAWNQUEUE_JOB_REPORT", "MINE", "NUMBER")
told = {name: os.environ.get(name) for name in names}
connection = pathlib.Path(told["PAWNQUEUE_JOB_CONNECTION"])
told["modes"] = [oct(path.stat().st_mode & 0o777) for path in (connection.parent, connection)]
told["connection"] = connection.read_text()
told["argv"] = sys.argv[1:]
folder.joinpath("told.json").write_text(json.dumps(told))
"""


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncPawnQueue]:
    """The queue of the default connection, as another process has it."""
    login = {"aws_access_key_id": "AKTEST", "aws_secret_access_key": "SKTEST0123456789", "max_connections": 7}
    yield from connected(monkeypatch, **login)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A worker."""
    return Place(tmp_path, monkeypatch)


def told(place: Place) -> dict[str, Any]:
    """Return what the job has found."""
    found: dict[str, Any] = json.loads((place.folder / "told.json").read_text())
    return found


def test_what_a_job_is_handed(queue: SyncPawnQueue, place: Place, tmp_path: Path) -> None:
    """It gets the reference of its claim without messages, and the settings in a private file."""
    place.spark_submit(HANDED)
    claim = claim_of(queue)

    assert place.run(claim, env_vars={"MINE": "mine", "NUMBER": 7}) == {"messages": 3, "reported": 0}

    found = told(place)
    given = json.loads(found["PAWNQUEUE_JOB_CLAIM"])
    assert "messages" not in given
    assert ClaimReference.of(given).stem == ClaimReference.from_dict(claim).stem
    assert found["modes"] == ["0o700", "0o600"]
    (tmp_path / "again.yaml").write_text(found["connection"])
    settings = Settings.from_yaml(tmp_path / "again.yaml", environ={})
    assert settings.s3.bucket_name == "bucket-pawnqueue-default"
    assert settings.s3.aws_secret_access_key is not None
    assert settings.s3.aws_secret_access_key.get_secret_value() == "SKTEST0123456789"
    assert settings.s3.max_connections == 7
    assert (found["MINE"], found["NUMBER"]) == ("mine", "7")
    assert "SKTEST" not in json.dumps(found["argv"])
    assert place.left_behind == []


def test_a_job_has_nothing_of_airflows_own(queue: SyncPawnQueue, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets no connection and no key of the installation. It gets the variables that the user names."""
    secrets = {
        "AIRFLOW_CONN_BILLING": "postgres://u:hunter2@db/billing",
        "AIRFLOW_VAR_TOKEN": "hunter2",
        "AIRFLOW__CORE__FERNET_KEY": "hunter2",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_CMD": "echo hunter2",
        "AIRFLOW__API_AUTH__JWT_SECRET": "hunter2",
        "_AIRFLOW_WWW_USER_PASSWORD": "hunter2",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", "orders")
    monkeypatch.setenv("TZ_OF_MINE", "UTC")
    place.spark_submit("folder.joinpath('told.json').write_text(json.dumps(dict(os.environ)))")

    place.run(claim_of(queue), env_vars={"AIRFLOW_CONN_MEANT": "meant"})

    found = told(place)
    assert "hunter2" not in str(found)
    assert [name for name in found if name.startswith(("AIRFLOW__", "_AIRFLOW", "AIRFLOW_CONN_", "AIRFLOW_VAR_"))] == [
        "AIRFLOW_CONN_MEANT"
    ]
    assert (found["AIRFLOW_CTX_DAG_ID"], found["TZ_OF_MINE"]) == ("orders", "UTC")


def test_what_a_job_reports_is_for_the_settlement(queue: SyncPawnQueue, place: Place) -> None:
    """The last report of a message counts."""
    place.spark_submit("""
with open(os.environ["PAWNQUEUE_JOB_REPORT"], "a") as report:
    for line in ({"id": "a", "why": "early"}, {"id": "b", "why": "no price"}, {"id": "a", "why": "no item"}):
        report.write(json.dumps(line) + "\\n")
""")

    assert place.run(claim_of(queue)) == {"messages": 3, "reported": 2}
    assert json.loads(place.ti.xcoms[TASK, REPORT_KEY, -1]) == {"failed": {"a": "no item", "b": "no price"}, "done": []}


@pytest.mark.parametrize("nothing", [None, [], [None], "None", "", "[]"])
def test_nothing_was_claimed(queue: SyncPawnQueue, place: Place, nothing: object) -> None:
    """The task is skipped, and submits nothing."""
    place.spark_submit(HANDED)
    with pytest.raises(AirflowSkipException, match="There is no claim"):
        place.run(nothing)
    assert not (place.folder / "told.json").exists()


def test_a_spark_connection_that_does_not_exist(queue: SyncPawnQueue, place: Place) -> None:
    """It is refused. Spark's provider would use YARN instead."""
    place.spark_submit(HANDED)
    with pytest.raises(AirflowFailException, match=r"The Spark connection 'elsewhere' \(conn_id\) does not exist"):
        place.run(claim_of(queue), conn_id="elsewhere")
    assert not (place.folder / "told.json").exists()


def test_a_job_that_fails(queue: SyncPawnQueue, place: Place) -> None:
    """Its task fails with the job's last error, and can be retried."""
    place.spark_submit("print('ValueError: this price'); sys.exit(3)")
    with pytest.raises(
        AirflowException, match=r"The job failed \(spark-submit ended with 3\): ValueError: this price"
    ) as told:
        place.run(claim_of(queue))
    assert not isinstance(told.value, AirflowFailException)
    assert place.left_behind == []
