"""The jobs of ``dags_example/spark_jobs``, in this process: each result is written once, even if a job runs twice."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrameReader, DataFrameWriter
from pyspark.sql.streaming import DataStreamReader

from pawnqueue import ClaimReference, Settings, SyncPawnQueue
from pyspark_pawnqueue import PawnQueueSparkError, parquet_once
from pyspark_pawnqueue.job_environment import CLAIM_VARIABLE, CONNECTION_VARIABLE, REPORT_VARIABLE
from pyspark_pawnqueue.jobs import confirm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from pyspark.sql import SparkSession

    from pawnqueue import Claim
    from tools.kit.servers import S3Server

JOBS = Path(__file__).parents[2] / "dags_example" / "spark_jobs"
BAD = [{"order_id": "none"}, {"order_id": 7000, "item": "pear", "quantity": 0, "price": "1.00"}, {"item": "plum"}]

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.slow]


def orders(count: int) -> list[dict[str, Any]]:
    """Make good orders."""
    items = ["apple", "pear", "plum"]
    return [{"order_id": n, "item": items[n % 3], "quantity": 1 + n % 4, "price": "2.50"} for n in range(count)]


@pytest.fixture
def queue(
    settings_for: Callable[..., Settings], seaweedfs: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SyncPawnQueue]:
    """A queue of this test's own, with a topic. Jobs know where it is, and where to report.

    Spark gets an option: it plans in the environment of its JVM, which is older than this queue.
    """
    settings = settings_for(seaweedfs)
    address = seaweedfs.address(settings.s3.bucket_name, key_prefix=settings.s3.key_prefix)
    (tmp_path / "connection.json").write_text(json.dumps({"s3": address}))
    monkeypatch.setenv(CONNECTION_VARIABLE, str(tmp_path / "connection.json"))
    monkeypatch.setenv(REPORT_VARIABLE, str(tmp_path / "report"))
    for each in (DataFrameReader, DataStreamReader, DataFrameWriter):
        monkeypatch.setattr(each, "format", _told(each.format, tmp_path / "connection.json"))
    with SyncPawnQueue.open(settings) as queue:
        queue.create_topic("orders")
        yield queue


def _told(choose: Callable[..., Any], connection: Path) -> Callable[..., Any]:
    def chosen(given: Any, source: str) -> Any:  # noqa: ANN401 - what reads, and what writes
        told = choose(given, source)
        return told.option("connection", str(connection)) if source == "pawnqueue" else told

    return chosen


@pytest.fixture
def job(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import a job as if it were submitted: its folder is on the path. It uses the existing session."""
    monkeypatch.syspath_prepend(str(JOBS))
    return importlib.import_module


def reference(claim: Claim) -> ClaimReference:
    """Return a reference without handing the claim over, so that its holder can still settle it."""
    return ClaimReference(claim.topic, claim.claim_id, claim.generation, claim.session)


def claimed(queue: SyncPawnQueue, name: str, monkeypatch: pytest.MonkeyPatch) -> Claim:
    """Claim all messages, and run the next job for that claim."""
    claim = queue.claim("orders", "test", max_messages=100, claim_id=name, ttl=600)
    monkeypatch.setenv(CLAIM_VARIABLE, json.dumps(reference(claim).to_dict()))
    return claim


def written(out: Path, table: str, column: str) -> Counter[Any]:
    """Count the values of a column, as a reader finds them."""
    return Counter(value for each in out.glob(f"claim=*/{table}") for value in pq.read_table(each)[column].to_pylist())


def test_the_etl_twice_is_as_once(
    queue: SyncPawnQueue, job: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each good order is written once, with its amount. The others are reported, each with its reason."""
    queue.publish("orders", [*orders(40), *BAD])
    claim = claimed(queue, "once", monkeypatch)
    for _ in range(2):
        job("orders_etl").main(tmp_path / "out")

    assert written(tmp_path / "out", "orders", "order_id") == Counter(range(40))
    assert sum(written(tmp_path / "out", "by_item", "quantity").elements()) == sum(1 + n % 4 for n in range(40))
    lines = [json.loads(line) for line in (tmp_path / "report").read_text().splitlines()]
    assert sorted({line["why"].split(":")[0] for line in lines}) == [
        "the payload does not fit the schema",
        "the quantity is not above zero",
        "there is no order_id",
    ]
    assert {line["id"] for line in lines} == {message.id for message in claim[40:]}
    assert [each.name for each in (tmp_path / "out").iterdir()] == [f"claim={claim.stem}"]


def test_what_comes_in_another_claim_is_left_out(
    queue: SyncPawnQueue, job: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim was given back after its job had written. The next claim's job writes only new messages."""
    queue.publish("orders", [*orders(10), *BAD])
    claim = claimed(queue, "first", monkeypatch)
    job("orders_etl").main(tmp_path / "out")
    queue.nack(claim, requeue=True)
    queue.publish("orders", orders(12)[10:])
    with SyncPawnQueue.open(queue.settings) as another:  # which sees at once what this one has given back
        assert len(claimed(another, "second", monkeypatch)) == 15
        another.close(keep_claims=True)
    job("orders_etl").main(tmp_path / "out")

    assert written(tmp_path / "out", "orders", "order_id") == Counter(range(12))
    assert sum(written(tmp_path / "out", "by_item", "quantity").elements()) == sum(1 + n % 4 for n in range(12))
    assert max(written(tmp_path / "out", "rejected", "id").values()) == 1


def test_who_lost_its_claim_writes_nothing(
    queue: SyncPawnQueue, job: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the claim is given back while the job writes, the job fails, and readers find none of its rows."""
    queue.publish("orders", orders(3))
    claim = claimed(queue, "lost", monkeypatch)
    confirm(reference(claim))  # it holds

    def give_back(named: ClaimReference) -> None:
        queue.nack(claim, requeue=True)
        confirm(named)

    monkeypatch.setattr(parquet_once, "confirm", give_back)
    with pytest.raises(PawnQueueSparkError, match="is settled"):
        job("orders_etl").main(tmp_path / "out")

    assert written(tmp_path / "out", "orders", "order_id") == {}


def test_what_is_priced_can_be_added_up(
    queue: SyncPawnQueue, job: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An order without a price is reported, and is not published. A second run publishes nothing more."""
    without = [{"order_id": 8000, "item": "pear"}, {"item": "pear", "quantity": 1}]
    queue.publish("orders", [*orders(3), {"order_id": 9000, "item": "melon", "quantity": 1}, *without])
    queue.create_topic("priced")
    claim = claimed(queue, "priced", monkeypatch)
    for _ in range(2):
        job("orders_enrich").main("priced")

    assert sorted(message.payload["amount"] for message in queue.peek("priced", 100)) == ["0.25", "0.45", "0.80"]
    lines = [json.loads(line) for line in (tmp_path / "report").read_text().splitlines()]
    assert {line["id"]: line["why"] for line in lines} == {
        claim[3].id: "the item has no price",
        claim[4].id: "the payload is not an order",
        claim[5].id: "the payload is not an order",
    }


def test_a_stream_writes_each_order_once(
    queue: SyncPawnQueue, job: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs on one checkpoint take, ack and write each order once."""
    stream = job("orders_stream")
    queue.publish("orders", [*orders(20), BAD[0]])
    stream.main(tmp_path / "out", "orders")
    queue.publish("orders", orders(25)[20:])
    stream.main(tmp_path / "out", "orders")

    assert written(tmp_path / "out", "orders", "order_id") == Counter(range(25))
    assert written(tmp_path / "out", "rejected", "payload") == {'{"order_id":"none"}': 1}
    assert (queue.stats("orders").pending, queue.stats("orders").in_flight) == (0, 0)
