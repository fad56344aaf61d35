"""Spark inside a task: ``@task.pyspark`` has a session in the worker's own process, without ``spark-submit``.

It is for data that fits on the worker, and for Spark Connect. The claim is renewed while the ``reading`` block runs. If
the worker dies, the next try of the task has the claim.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, task

from airflow_provider_pawnqueue.decorators import claimed
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.spark.in_process import reading

TOPIC = "small_orders"

with (
    DAG("orders_pyspark_task", schedule=None, catchup=False, tags=["pawnqueue", "spark"]),
    claimed(TOPIC, max_messages=5000, on_reported="bury") as claim,
):

    @task.pyspark(conn_id="spark_default", retries=2, retry_delay=timedelta(seconds=5))
    def totals(claim: dict, spark) -> dict[str, int]:  # noqa: ANN001 - given by Airflow's Spark provider
        """Sum up the quantity of each item; messages that are not orders are reported, and buried."""
        with reading(claim) as options:
            reader = spark.read.format("pawnqueue").options(**options)
            orders = reader.option("payloadSchema", "item string, quantity int").load().cache()
            bad = orders.where("_corrupt or item is null").select("id").collect()
            PawnQueueHook.report(failed={row.id: "the payload is not an order" for row in bad})
            sums = orders.where("not _corrupt and item is not null").groupBy("item").sum("quantity").collect()
        return {row[0]: row[1] for row in sums}

    totals(claim)
