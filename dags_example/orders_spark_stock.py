"""The same job by Airflow's own ``SparkSubmitOperator``, which gets the claim by a template.

It works, but you give up:

- The session: no process works on the claim, as far as the queue can tell, and only its ``ttl`` and the janitor keep
  it. So the ``ttl`` is longer than the longest job. If the task is killed, its next try does not wait for the first
  one's driver.
- The end of the job: a killed task leaves its Python driver running (``on_kill`` ends only the JVM). Two drivers may
  have one claim, and a driver may outlive it. Their writing has to allow for that, as ``spark_jobs/parquet_once.py``
  does.
- The connection: the job gets the queue's address and secret from the worker's environment (``PAWNQUEUE_*``).
- Reports: orders that the job rejects are acked with the rest, and are only in its table ``rejected``.
- A clear error: a missing connection ``spark_default`` means YARN, and an error about that.
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
