"""Orders in bulk, by Spark: a large batch is claimed, worked on, and settled by what the job reports.

The job (``spark_jobs/orders_etl.py``) reads the claim as a DataFrame, reports orders that it rejects, and writes the
others as Parquet. It writes them once, even if it is killed and tried again. Its task renews the claim while it runs.

Needs the connections ``pawnqueue_default`` and ``spark_default`` (``local[*]`` or a cluster), ``spark-submit`` on the
workers' PATH, the folder ``spark_jobs`` beside this file, and the janitor's DAG.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Param

from airflow_provider_pawnqueue.decorators import claimed
from airflow_provider_pawnqueue.operators.pawnqueue import PawnQueueCreateTopicOperator
from airflow_provider_pawnqueue.spark.operators import PawnQueueSparkSubmitOperator

TOPIC = "bulk_orders"
JOBS = Path(__file__).parent / "spark_jobs"

with DAG(
    "orders_spark",
    schedule=None,
    catchup=False,
    params={"out": Param("/data/orders", type="string", description="A folder that driver and executors share.")},
    tags=["pawnqueue", "spark"],
):
    topic = PawnQueueCreateTopicOperator(task_id="topic", topic=TOPIC)

    # A job starts for 1000 orders, or for fewer once the oldest has waited a minute. Orders that the job rejects are
    # buried with its reason. If the job itself fails three times, the orders are not to blame: they are requeued, and
    # delivered again until they have been delivered as often as the topic allows.
    with claimed(TOPIC, max_messages=10_000, min_messages=1000, max_wait=60, on_reported="bury") as claim:
        etl = PawnQueueSparkSubmitOperator(
            task_id="etl",
            claim=claim,
            application=str(JOBS / "orders_etl.py"),
            application_args=["{{ params.out }}"],
            conn_id="spark_default",
            retries=2,
            retry_delay=timedelta(seconds=5),
        )
        topic >> claim.operator
