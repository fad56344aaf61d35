"""The same job with Airflow's own ``SparkSubmitOperator``, which is given the claim by a template.

It works, with these disadvantages:

- Nothing renews the claim while the job runs, except the janitor. So its ``ttl`` has to be longer than the longest job.
  If the task is killed, its next try does not wait for the first one's driver to end.
- A task that is killed leaves its Python driver running (``on_kill`` ends only the JVM). Two drivers may work on one
  claim, and a driver may outlive it. The way in which they write has to allow that, as
  ``pyspark_pawnqueue.parquet_once`` does.
- The job reads the place and the secret of the queue from the worker's environment (``PAWNQUEUE_*``), not from a
  connection.
- The job cannot report messages. Orders that it rejects are acked too, and are only in its table ``rejected``.
- If the connection ``spark_default`` does not exist, Airflow uses YARN, and fails with an error about YARN.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, Param

from airflow_provider_pawnqueue.operators.pawnqueue import PawnQueueSettleOperator
from airflow_provider_pawnqueue.sensors.pawnqueue import PawnQueueSensor

TOPIC = "stock_orders"
JOBS = Path(__file__).parent / "spark_jobs"

with DAG(
    "orders_spark_stock",
    schedule=None,
    catchup=False,
    params={"out": Param("/data/stock_orders", type="string", description="A folder that driver and executors share.")},
    tags=["pawnqueue", "spark"],
):
    claim = PawnQueueSensor(task_id="claim", topic=TOPIC, max_messages=10_000, ttl=6 * 3600, deferrable=True)
    etl = SparkSubmitOperator(
        task_id="etl",
        application=str(JOBS / "orders_etl.py"),
        # Without the messages, which a small claim contains: everybody on the machine can see a command line.
        application_args=["{{ params.out }}", "{{ dict(ti.xcom_pull(task_ids='claim'), messages=[]) | tojson }}"],
        conn_id="spark_default",
        retries=2,
        retry_delay=timedelta(seconds=5),
    )
    claim >> etl >> PawnQueueSettleOperator(task_id="settle", claim=claim.output)
