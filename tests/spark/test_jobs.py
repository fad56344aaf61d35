"""How a job finds its claim, and reports single messages."""

from __future__ import annotations

import json
import stat
import threading
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import DAG
from pyspark.sql import functions

from airflow_provider_pawnqueue.hooks.task_notes import REPORT_KEY
from pawnqueue import ClaimReference, InvalidArgumentError
from pyspark_pawnqueue.job_environment import CLAIM_VARIABLE, REPORT_VARIABLE
from pyspark_pawnqueue.jobs import MAX_REASON_CHARACTERS, job_claims, report_failures
from tests.support.airflow import FakeTask, context_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

CLAIM = ClaimReference("orders", "claim-1", 0, "session")
NO_REASON = "the job could not do it"


@pytest.fixture
def reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, str]]:
    """The report of a job that an operator has submitted, as the operator reads it: what was said last counts."""
    path = tmp_path / "report"
    monkeypatch.setenv(REPORT_VARIABLE, str(path))

    def read() -> dict[str, str]:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
        assert all(line.keys() == {"id", "why"} for line in lines)
        return {line["id"]: line["why"] for line in lines}

    return read


# --- the claim ---


def test_a_job_knows_its_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """One claim or several, as the operator names them."""
    other = ClaimReference("orders", "claim-2", 3, "another")
    monkeypatch.setenv(CLAIM_VARIABLE, json.dumps(CLAIM.to_dict()))
    assert job_claims() == [CLAIM]

    monkeypatch.setenv(CLAIM_VARIABLE, json.dumps([CLAIM.to_dict(), other.to_dict()]))
    assert job_claims() == [CLAIM, other]


def test_a_claim_comes_by_a_template_of_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the sensor returned is a claim again after ``tojson``, whatever characters its messages have."""
    message = {"id": "m-1", "payload": {"text": 'it\'s <b>"bold"</b> & \u2028 naïve {{ no }}'}, "headers": {}}
    returned = CLAIM.to_dict() | {"queue": "queues/", "count": 1, "bytes": 99, "messages": [message]}
    template = "{{ claim | tojson }}"
    rendered = DAG("templates", schedule=None).get_template_env().from_string(template).render(claim=returned)

    monkeypatch.setenv(CLAIM_VARIABLE, rendered)
    assert job_claims() == [CLAIM]
    assert json.loads(rendered) == returned


@pytest.mark.parametrize("value", [None, ""], ids=["unset", "empty"])
def test_a_job_without_a_claim_says_so(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    """The error says that no operator submitted the job, and what to do instead."""
    monkeypatch.delenv(CLAIM_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(CLAIM_VARIABLE, value)

    with pytest.raises(InvalidArgumentError, match=r"No PawnQueueSparkSubmitOperator has submitted.*pass the claim"):
        job_claims()


@pytest.mark.parametrize("value", [str(CLAIM.to_dict()), '{"topic": "orders"}', "7", "{"])
def test_what_is_no_claim_is_told(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """A template without ``tojson``, and any other text that is not a claim, is an error."""
    monkeypatch.setenv(CLAIM_VARIABLE, value)

    with pytest.raises(InvalidArgumentError, match=r"claim is not JSON|no claim reference|not a claim reference"):
        job_claims()


# --- the report ---


@pytest.mark.parametrize("claim", [CLAIM, CLAIM.to_dict(), json.dumps(CLAIM.to_dict())], ids=["own", "dict", "json"])
def test_reasons_by_id_are_reported(reported: Callable[[], dict[str, str]], claim: Any) -> None:  # noqa: ANN401 - any kind
    """A job may report several times. The last reason of a message counts, and long reasons are cut."""
    assert report_failures(claim, {"a": "too early", "b": ""}) == 2
    assert report_failures(claim, {"a": "x" * 5000, "ü": "line\nbreak \ud800"}) == 2
    assert report_failures(claim, {}) == 0

    assert reported() == {"a": "x" * MAX_REASON_CHARACTERS, "b": NO_REASON, "ü": "line\nbreak \ud800"}


def test_a_report_is_for_its_owner_alone(reported: Callable[[], dict[str, str]], tmp_path: Path) -> None:
    """Reasons may quote payloads, so no other user of the machine can read them."""
    report_failures(CLAIM, {"a": "card 1234"})

    assert stat.S_IMODE((tmp_path / "report").stat().st_mode) == 0o600
    assert reported() == {"a": "card 1234"}


def test_lines_stay_whole_where_several_report_at_once(reported: Callable[[], dict[str, str]]) -> None:
    """Queries of one driver may report at the same time, and no line is lost or mixed."""
    start = threading.Barrier(4)

    def report(who: int) -> None:
        start.wait(30)
        for turn in range(10):
            report_failures(CLAIM, {f"{who}-{turn}-{number}": "y" * 1500 for number in range(20)})

    threads = [threading.Thread(target=report, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(reported()) == 4 * 10 * 20


def test_a_report_that_cannot_be_written_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On another machine the folder does not exist. The error says where the driver must run."""
    monkeypatch.setenv(REPORT_VARIABLE, str(tmp_path / "elsewhere" / "report"))

    with pytest.raises(InvalidArgumentError, match=r"cannot write to .*No such file or directory.*deploy mode client"):
        report_failures(CLAIM, {"a": "no"})


@pytest.mark.parametrize("wrong", [{"": "no"}, {None: "no"}, {7: "no"}], ids=["empty", "null", "number"])
def test_what_is_no_id_is_refused(reported: Callable[[], dict[str, str]], wrong: Any) -> None:  # noqa: ANN401 - wrong ones
    """Nothing is reported: settle would not know which messages are meant."""
    with pytest.raises(
        InvalidArgumentError, match=r"claim-1.* of topic 'orders' takes the ids of messages, and .*is not an id"
    ):
        report_failures(CLAIM, {"a": "well", **wrong})

    assert reported() == {}


def test_what_is_neither_rows_nor_reasons_is_refused(reported: Callable[[], dict[str, str]]) -> None:
    """For example, a list of ids."""
    with pytest.raises(InvalidArgumentError, match="with one column id, and this one is not a DataFrame"):
        report_failures(CLAIM, ["a"])  # type: ignore[arg-type]
    assert reported() == {}


def test_a_task_of_airflow_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job in a task's own process reports as the task itself does."""
    ti = FakeTask("work")
    monkeypatch.delenv(REPORT_VARIABLE, raising=False)
    monkeypatch.setattr("airflow.providers.common.compat.sdk.get_current_context", lambda: context_of(ti))

    assert report_failures(CLAIM, {"a": "too early"}) == 1
    assert json.loads(ti.xcoms["work", REPORT_KEY, -1]) == {"failed": {"a": "too early"}, "done": []}


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of tasks and operators the error says so, and how to settle instead."""
    monkeypatch.delenv(REPORT_VARIABLE, raising=False)

    with pytest.raises(InvalidArgumentError, match=r"has nobody to report to: .*Settle .* by queue\.settle\(claim"):
        report_failures(CLAIM, {"a": "no"})


@pytest.mark.spark
@pytest.mark.slow
class TestRows:
    """DataFrames."""

    def test_rows_are_reported(self, spark: SparkSession, reported: Callable[[], dict[str, str]]) -> None:
        """Reasons may be missing or of any type. Other columns are ignored, and a message counts once."""
        rows = spark.createDataFrame([("a", "late", 1), ("b", None, 2)], "id string, reason string, n int")
        assert report_failures(CLAIM, rows) == 2
        assert reported() == {"a": "late", "b": NO_REASON}

        assert report_failures(CLAIM, rows.select("id").union(rows.select("id"))) == 2
        assert reported() == {"a": NO_REASON, "b": NO_REASON}

        assert report_failures(CLAIM, rows.filter("n = 2").selectExpr("id", "struct(n, 'x' as why) reason")) == 1
        assert reported()["b"] == "{2, x}"

        assert report_failures(CLAIM, rows.filter("n > 2")) == 0

    def test_rows_without_ids_are_told(self, spark: SparkSession, reported: Callable[[], dict[str, str]]) -> None:
        """No column id, two of them, a null, a number: each is an error, and nothing is reported."""
        rows = spark.createDataFrame([("a", "x"), (None, "y")], "id string, reason string")
        with pytest.raises(InvalidArgumentError, match="and this one has the columns number, reason: keep"):
            report_failures(CLAIM, rows.withColumnRenamed("id", "number"))
        with pytest.raises(InvalidArgumentError, match="and this one has the columns id, reason, id: keep"):
            report_failures(CLAIM, rows.crossJoin(rows.select("id")))
        with pytest.raises(InvalidArgumentError, match="and None is not an id"):
            report_failures(CLAIM, rows)
        with pytest.raises(InvalidArgumentError, match="and 1 is not an id"):
            report_failures(CLAIM, rows.selectExpr("1 as id"))
        assert reported() == {}

    def test_many_rows_with_long_reasons(self, spark: SparkSession, reported: Callable[[], dict[str, str]]) -> None:
        """A hundred thousand failures fit into the driver, as the executors cut the reasons."""
        long = functions.repeat(functions.lit("z"), 1 << 20)
        rows = spark.range(100_000).select(functions.col("id").cast("string").alias("id"))
        one_long = functions.when(functions.col("id").endswith("00"), long).otherwise("short")
        assert report_failures(CLAIM, rows.withColumn("reason", one_long)) == 100_000

        found = reported()
        assert len(found) == 100_000
        assert found["100"] == "z" * MAX_REASON_CHARACTERS
        assert found["99999"] == "short"
