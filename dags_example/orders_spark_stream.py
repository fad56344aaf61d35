"""Orders as a stream: every ten minutes a job works on all waiting messages, in micro-batches, and ends.

Each micro-batch is a claim of its own, which the stream acks once the batch is written. So there is no sensor and no
settlement. A job that was killed goes on with the same batch, as long as its checkpoint exists.

The job claims by itself. It only needs the place of the queue, which it reads from the workers' ``PAWNQUEUE_*``
variables. For a stream that never ends, give the job a third argument, and let a service restart it instead of a DAG.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, Param

TOPIC = "streamed_orders"
JOBS = Path(__file__).parent / "spark_jobs"

with DAG(
    "orders_spark_stream",
    schedule=timedelta(minutes=10),
    catchup=False,
    max_active_runs=1,  # two queries on one checkpoint would disturb each other
    params={"out": Param("/data/stream", type="string", description="A folder that driver and executors share.")},
    tags=["pawnqueue", "spark"],
):
    SparkSubmitOperator(
        task_id="stream",
        application=str(JOBS / "orders_stream.py"),
        application_args=["{{ params.out }}", TOPIC],
        conn_id="spark_default",
        retries=2,
        retry_delay=timedelta(seconds=5),
    )
