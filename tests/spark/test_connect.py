"""The page on Spark Connect and pipelines: its code runs on a real Connect server, from processes of its own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from pawnqueue import SyncPawnQueue
from tests.test_docs import TOP, blocks
from tools.kit.spark import ConnectServer, spark_home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pawnqueue import Settings
    from tools.kit.servers import S3Server

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.slow, pytest.mark.timeout(500)]

PAGE = TOP / "docs" / "how-to" / "spark-connect.md"
#: What else works on a Connect server: the last batch of a query that asks for no other one, or not within an hour; and
#: tables that are written once, of which the client renames the folder.
MORE = """
import time
from pyspark_pawnqueue.jobs import ack_finished, ack_promptly
from pyspark_pawnqueue.parquet_once import not_yet_in, write_once

with SyncPawnQueue.open() as queue:
    queue.publish("orders", [{"order_id": 1000}])
last = stream.writeStream.option("checkpointLocation", "/data/last").foreachBatch(lambda batch, _: batch.collect())
query = last.trigger(once=True).start()
query.awaitTermination()
assert ack_finished(query) == 1

ack_promptly(spark)
with SyncPawnQueue.open() as queue:
    queue.publish("orders", [{"order_id": 1001}])
    query = last.trigger(processingTime="1 hour").start()
    deadline = time.monotonic() + 100
    while (left := queue.stats("orders")).pending + left.in_flight and time.monotonic() < deadline:
        time.sleep(0.2)
query.stop()
assert left.pending + left.in_flight == 0, left

rows = spark.range(3).selectExpr("string(id) AS id")
assert write_once("/data/once", "first", {"orders": rows.limit(1)})
assert not_yet_in("/data/once", "orders", rows).count() == 2
spark.stop()  # a client that listens to queries does not end otherwise
"""


def orders(first: int, count: int) -> list[dict[str, object]]:
    """Make orders; a hundred or more are a pack."""
    return [{"order_id": number, "item": "tea", "price": 1.0} for number in range(first, first + count)]


@pytest.fixture
def settings(seaweedfs: S3Server, settings_for: Callable[..., Settings]) -> Settings:
    """Where the queue is."""
    return settings_for(seaweedfs)


@pytest.fixture
def variables(seaweedfs: S3Server, settings: Settings) -> dict[str, str]:
    """The same in the environment of a server, and of a client that claims."""
    return {
        "PAWNQUEUE_S3_ENDPOINT_URL": seaweedfs.endpoint,
        "PAWNQUEUE_S3_REGION": seaweedfs.region,
        "PAWNQUEUE_S3_ACCESS_KEY": seaweedfs.access_key,
        "PAWNQUEUE_S3_SECRET_KEY": seaweedfs.secret_key,
        "PAWNQUEUE_S3_BUCKET_NAME": settings.s3.bucket_name,
        "PAWNQUEUE_S3_KEY_PREFIX": settings.s3.key_prefix,
    }


@pytest.fixture
def server(tmp_path: Path, variables: dict[str, str]) -> Iterator[ConnectServer]:
    """A Connect server that knows the queue, with tables in a folder of its own."""
    with ConnectServer(env=variables, conf={"spark.sql.warehouse.dir": tmp_path / "warehouse"}) as server:
        yield server


def test_the_page_runs(tmp_path: Path, server: ConnectServer, settings: Settings, variables: dict[str, str]) -> None:
    """Clients read, write, look and stream on a server. A pipeline adds to its table what arrives, once."""

    def code(kind: str) -> str:
        text = "\n".join(block.body for block in blocks(PAGE) if block.kind == kind)
        return text.replace("sc://localhost:15002", server.address).replace("/data/", f"{tmp_path}/")

    client, definitions = tmp_path / "client.py", tmp_path / "transformations" / "orders.py"
    definitions.parent.mkdir()
    client.write_text(code("python connect") + MORE.replace("/data/", f"{tmp_path}/"))
    definitions.write_text(code("python pipeline"))
    (tmp_path / "spark-pipeline.yml").write_text(code("yaml"))

    with SyncPawnQueue.open(settings) as queue:
        for topic in ("orders", "invoices"):
            queue.create_topic(topic)
        queue.publish("orders", [{"order_id": "bad"}])
        queue.bury(queue.claim("orders", "test", max_messages=1), reason="no number")
        queue.publish("orders", orders(0, 120))  # a pack, which the claim takes
        queue.publish("orders", orders(120, 10))  # which are left to the stream
        where = {"TMPDIR": str(server.data / "local")}  # where ack_promptly finds the server's planning process
        done = server.run([sys.executable, client], folder=tmp_path, env=variables | where)
        assert done.status == 0, done.output + done.log + server.log
        assert "no number" in done.output
        assert sorted(each.payload["order_id"] for each in queue.peek("invoices", 1000)) == [*range(120)]
        assert pq.read_table(tmp_path / "stream").num_rows == 10

        queue.publish("orders", orders(0, 120))  # a batch
        queue.publish("orders", orders(120, 5))  # and another one
        pipeline = [spark_home() / "bin" / "spark-pipelines", "run", "--spec", "spark-pipeline.yml"]
        done = server.run([*pipeline, "--remote", server.address], folder=tmp_path)
        assert done.status == 0, done.output + done.log + server.log
        stats = queue.stats("orders")

    assert sorted(pq.read_table(tmp_path / "warehouse" / "orders")["order_id"].to_pylist()) == [*range(125)]
    assert pq.read_table(tmp_path / "warehouse" / "revenue").to_pylist() == [{"item": "tea", "total": 125.0}]
    assert (stats.pending, stats.in_flight, stats.dead) == (0, 0, 1)
