"""What ``write_once`` writes is complete, is written once, and is refused in words that help."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from pawnqueue import ClaimReference, InvalidArgumentError
from pyspark_pawnqueue import PawnQueueSparkError, parquet_once
from pyspark_pawnqueue.parquet_once import is_written, not_yet_in, write_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

CLAIM = ClaimReference("orders", "scheduled__2026-11-20T12:00:00+00:00.etl", 0, "session")

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def rows(spark: SparkSession, count: int, writer: str = "first") -> DataFrame:
    """Make rows with ids."""
    return spark.range(count).selectExpr("string(id) AS id", f"'{writer}' AS writer")


def written(folder: Path, column: str) -> Counter[Any]:
    """Count the values of a column of the orders, as a reader finds them."""
    return Counter(value for each in folder.glob("claim=*/orders") for value in pq.read_table(each)[column].to_pylist())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The claims that were asked whether they still hold. They do."""
    claims: list[object] = []
    monkeypatch.setattr(parquet_once, "confirm", claims.append)
    return claims


def test_a_claim_is_written_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[object]
) -> None:
    """A second call writes nothing. The folder may be given relative to the driver's own working directory."""
    monkeypatch.chdir(tmp_path)

    assert not is_written("out", CLAIM)
    assert write_once("out", CLAIM, {"orders": rows(spark, 3)})
    assert is_written(tmp_path / "out", CLAIM.to_dict())
    assert not write_once("out", CLAIM, {"orders": rows(spark, 4)})

    assert written(tmp_path / "out", "id") == Counter("012")
    assert asked == [CLAIM]
    assert spark.read.parquet(f"{tmp_path}/out/claim=*/orders").count() == 3


def test_of_two_drivers_the_first_has_written(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both drivers are about to rename. The second one's files are removed, and no attempt is left."""
    first: list[bool] = []

    def meanwhile(_: object) -> None:
        monkeypatch.setattr(parquet_once, "confirm", lambda _: None)
        first.append(write_once(tmp_path, CLAIM, {"orders": rows(spark, 3)}))

    monkeypatch.setattr(parquet_once, "confirm", meanwhile)
    assert not write_once(tmp_path, CLAIM, {"orders": rows(spark, 3, "late")})

    assert first == [True]
    assert written(tmp_path, "writer") == {"first": 3}
    assert [each.name for each in tmp_path.iterdir()] == [f"claim={CLAIM.stem.replace(':', '%3A')}"]


def test_a_claim_that_has_ended_is_not_written(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the claim ends while its rows are written, readers find none of them, and no attempt is left."""

    def ended(_: object) -> None:
        raise PawnQueueSparkError("PawnQueue: the claim has ended")

    monkeypatch.setattr(parquet_once, "confirm", ended)
    with pytest.raises(PawnQueueSparkError, match="has ended"):
        write_once(tmp_path, CLAIM, {"orders": rows(spark, 1)})

    assert [*tmp_path.iterdir()] == []


def test_only_attempts_of_the_same_name_are_removed(spark: SparkSession, tmp_path: Path) -> None:
    """What a killed driver left is removed by the next try, and what others are writing is not."""
    killed, other = tmp_path / f"_attempt-query-1-{'0' * 32}", tmp_path / f"_attempt-query-1-more-{'0' * 32}"
    for folder in (killed, other):
        (folder / "orders").mkdir(parents=True)

    assert write_once(tmp_path, "query-1", {"orders": rows(spark, 1), "empty": rows(spark, 0)})

    assert sorted(each.name for each in tmp_path.iterdir()) == [other.name, "claim=query-1"]
    assert sorted(each.name for each in (tmp_path / "claim=query-1").iterdir()) == ["empty", "orders"]


def test_ids_that_are_in_the_table_are_left_out(spark: SparkSession, tmp_path: Path) -> None:
    """Rows of an earlier claim are left out, unless it was written before the days that are looked at."""
    everything = rows(spark, 3)
    assert not_yet_in(tmp_path, "orders", everything) is everything
    write_once(tmp_path, "query-1", {"orders": rows(spark, 1)})
    write_once(tmp_path, "query-2", {"orders": rows(spark, 2).where("id = '1'")})
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(tmp_path / "claim=query-1" / "orders", (two_days_ago, two_days_ago))

    def left(days: float | None = None) -> list[str]:
        return sorted(row.id for row in not_yet_in(tmp_path, "orders", everything, days=days).collect())

    assert left() == ["2"]
    assert left(days=3) == ["2"]
    assert left(days=1) == ["0", "2"]
    assert not_yet_in(tmp_path, "others", everything) is everything


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda rows: write_once("s3://bucket/out", "a", {"orders": rows}), "use a table format"),
        (lambda rows: write_once("out", "../a", {"orders": rows}), "'../a' is not a valid name of a batch"),
        (lambda rows: write_once("out", '{"topic": "orders"}', {"orders": rows}), "For a claim, pass its reference"),
        (lambda rows: write_once("out", {"topic": "orders"}, {"orders": rows}), "This is not a claim reference"),
        (lambda rows: write_once("out", "a", {"_orders": rows}), "'_orders' is not a valid name of a table"),
        (lambda _: write_once("out", "a", {}), "write_once for a got no tables"),
        (lambda _: is_written("s3://bucket/out", "a"), "use a table format"),
        (lambda rows: not_yet_in("out", "orders", rows.drop("id")), "have no column id"),
        (lambda rows: not_yet_in("out", "*", rows), "not a valid name of a table"),
        (lambda rows: not_yet_in("out", "orders", rows, days=0), "days has to be above 0, not 0"),
    ],
)
def test_misuse_is_explained(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wrong: Callable[[DataFrame], object],
    sentence: str,
) -> None:
    """It is refused before anything is written, by a sentence that says what to do."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(InvalidArgumentError) as refused:
        wrong(rows(spark, 1))

    assert sentence in str(refused.value)
    assert [*tmp_path.iterdir()] == []
