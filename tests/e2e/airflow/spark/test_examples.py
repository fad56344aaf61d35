"""The example DAGs that run Spark, on a real Airflow, by a real spark-submit: from published orders to Parquet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.airflow.spark.orders import BAD, judge, left_of, orders, written

if TYPE_CHECKING:
    from pawnqueue import SyncPawnQueue
    from tools.kit.airflow import Airflow

pytestmark = [pytest.mark.airflow, pytest.mark.servers, pytest.mark.spark, pytest.mark.timeout(600)]
_SECONDS = 400.0


def test_publish_claim_spark_settle(  # noqa: PLR0913, PLR0917 - a whole pipeline
    airflow: Airflow, example: Callable[..., None], queue: SyncPawnQueue, master: str, dag_id: str, tmp_path: Path
) -> None:
    """Each order is in the result once. Any other message is a dead letter with a reason, and nothing else is left."""
    queue.create_topic(dag_id)
    queue.publish(dag_id, [*orders(1500), *BAD.values()])
    example("orders_spark", bulk_orders=dag_id, spark_default=master)
    run_id = airflow.run("orders_spark", {"out": str(tmp_path)}, timeout=_SECONDS)
    assert airflow.api.xcom("orders_spark", run_id, f"{dag_id}.etl") == {"messages": 1503, "reported": 3}
    judge(queue, dag_id, tmp_path, 1500)


def test_a_batch(
    airflow: Airflow, example: Callable[..., None], queue: SyncPawnQueue, jobs: Path, tmp_path: Path
) -> None:
    """Orders are written and published with their prices. The others become dead letters, and the alert names both."""
    queue.create_topic("raw_orders")
    queue.create_topic("priced_orders")
    queue.publish("raw_orders", [*orders(150), {"order_id": 150, "item": "melon", "quantity": 1}, {"item": "plum"}])
    example("orders_batch", **{"/data/orders": str(tmp_path / "out")})
    run_id = airflow.trigger("orders_batch")
    airflow.wait_for_run("orders_batch", run_id, "failed", timeout=_SECONDS)

    cents = {"apple": 25, "pear": 40, "plum": 15}
    expected = {order["order_id"]: order["quantity"] * cents[order["item"]] for order in orders(150)}
    claim = queue.claim("priced_orders", "test", max_messages=1000)
    published = [message.payload for message in claim]
    assert {payload["order_id"]: payload["cents"] for payload in published} == expected
    assert len(published) == 150
    queue.ack(claim)  # another example has this topic, too
    assert written(tmp_path / "out", "orders", "order_id") == Counter(range(150))
    assert left_of(queue, "raw_orders") == {"dead": 2}
    [alert] = [text for name, text in airflow.task_logs("orders_batch", run_id).items() if "task_id=alert" in name]
    assert "2 dead letters" in alert
    assert "not an order" in alert
    assert "the item has no price" in alert


def test_the_stock_operator(
    airflow: Airflow, example: Callable[..., None], queue: SyncPawnQueue, jobs: Path, tmp_path: Path
) -> None:
    """It does the same, except that rejected messages are acked, and are written to a table."""
    queue.create_topic("stock_orders")
    queue.publish("stock_orders", [*orders(50), *BAD.values()])
    example("orders_spark_stock")
    run_id = airflow.run("orders_spark_stock", {"out": str(tmp_path)}, timeout=_SECONDS)
    assert written(tmp_path, "orders", "order_id") == Counter(range(50))
    assert sum(written(tmp_path, "rejected", "id").values()) == len(BAD)
    assert left_of(queue, "stock_orders") == {}
    logs = airflow.task_logs("orders_spark_stock", run_id)
    [submitted] = [text for name, text in logs.items() if "task_id=etl" in name]
    assert "Spark-Submit cmd" in submitted
    assert "apple" not in submitted, "a payload is on the command line"


def test_the_stream(
    airflow: Airflow, example: Callable[..., None], queue: SyncPawnQueue, jobs: Path, tmp_path: Path
) -> None:
    """A run takes all waiting messages, in several batches, and acks them all, the last too; the next run goes on."""
    queue.create_topic("streamed_orders")
    example("orders_spark_stream")
    for first, count in ((0, 600), (600, 20)):
        queue.publish("streamed_orders", orders(count, first))
        airflow.run("orders_spark_stream", {"out": str(tmp_path)}, timeout=_SECONDS)
        assert written(tmp_path, "orders", "order_id") == Counter(range(first + count))
        assert left_of(queue, "streamed_orders") == {}
    assert len([*tmp_path.glob("claim=*")]) == 3


def test_pyspark_in_a_task(airflow: Airflow, example: Callable[..., None], queue: SyncPawnQueue, jobs: Path) -> None:
    """A session in the task reads the claim, and an invalid order becomes a dead letter."""
    queue.create_topic("small_orders")
    queue.publish("small_orders", [*orders(40), {"item": 5}])
    example("orders_pyspark_task")
    run_id = airflow.run("orders_pyspark_task", timeout=_SECONDS)
    found = airflow.api.xcom("orders_pyspark_task", run_id, "small_orders.totals")
    assert sum(found.values()) == sum(1 + n % 4 for n in range(40))
    [letter] = queue.dead_letters("small_orders")
    assert "the payload is not an order" in f"{letter.reason}: {letter.error}"
    assert left_of(queue, "small_orders") == {"dead": 1}


def test_two_topics(airflow: Airflow, example: Callable[..., None], queue: SyncPawnQueue, jobs: Path) -> None:
    """The job of one DAG publishes what the other DAG works on. An order without a price becomes a dead letter."""
    queue.create_topic("unpriced_orders")
    queue.publish("unpriced_orders", [*orders(30), {"order_id": 30, "item": "melon", "quantity": 1}])
    example("orders_spark_two_topics")
    airflow.run("orders_price", timeout=_SECONDS)
    assert left_of(queue, "unpriced_orders") == {"dead": 1}
    assert left_of(queue, "priced_orders") == {"pending": 30}
    run_id = airflow.run("orders_ship", timeout=_SECONDS)
    cents = {"apple": 25, "pear": 40, "plum": 15}
    worth = sum(cents[order["item"]] * order["quantity"] for order in orders(30))
    assert airflow.api.xcom("orders_ship", run_id, "priced_orders.ship") == f"{worth / 100:.2f}"
    assert left_of(queue, "priced_orders") == {}
