"""The same job by Airflow's own ``SparkSubmitOperator``, which is given the claim by a template.

It works, and this is what one gives up by it:

- Nobody works on the claim, as far as the queue can tell: its ``ttl`` alone keeps it, and the janitor. So the ``ttl``
  is longer than the longest job; and where the task is killed, its next try does not wait for the first one's driver.
- A task that is killed leaves its Python driver running (``on_kill`` ends the JVM alone). Two drivers may have one
  claim, and a driver may outlive it: what they write has to be fit for that, as ``spark_jobs/parquet_once.py`` is.
- Where the queue is, and its secret, the job has from the worker's environment (``PAWNQUEUE_*``), from no connection.
- The job has nobody to report to: what it rejects is acked with the rest, and is in its table ``rejected`` only.
- A connection ``spark_default`` that is not there means YARN, and an error about that.
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
        # Without the messages, which are in it too while they are few: everybody on the machine can see a command line.
        application_args=["{{ params.out }}", "{{ dict(ti.xcom_pull(task_ids='claim'), messages=[]) | tojson }}"],
        conn_id="spark_default",
        retries=2,
        retry_delay=timedelta(seconds=5),
    )
    claim >> etl >> PawnQueueSettleOperator(task_id="settle", claim=claim.output)
