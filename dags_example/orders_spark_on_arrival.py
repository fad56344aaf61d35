"""Orders when they arrive, by Spark: messages start a run, which claims them, runs a Spark job, and settles them.

No task waits: while no message arrives, no task runs. An order that the job rejects is requeued, and delivered again
as often as the topic allows (``max_deliveries``). Then it becomes a dead letter with the reason that the job gave.

Needs the same as ``orders_spark.py``, and the Variable ``orders_out``: the folder for Parquet that driver and executors
share.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_provider_pawnqueue.decorators import claimed
from airflow_provider_pawnqueue.spark.operators import PawnQueueSparkSubmitOperator
from airflow_provider_pawnqueue.triggers.pawnqueue import PawnQueueEventTrigger

TOPIC = "arriving_orders"
JOBS = Path(__file__).parent / "spark_jobs"

# If another DAG file names this asset, it must have the watcher too: otherwise Airflow removes the watcher.
arriving = Asset(
    "pawnqueue_arriving_orders",
    watchers=[
        AssetWatcher(name="pawnqueue_arriving_orders_bell", trigger=PawnQueueEventTrigger(topic=TOPIC, ring_every=5))
    ],
)

try:
    from airflow.sdk import AssetTriggeredTimetable
except ImportError:  # before Airflow 3.4, several events together start one run
    schedule = [arriving]
else:
    schedule = AssetTriggeredTimetable(arriving, batch_asset_events=True)

# One run at a time: messages that arrive meanwhile start the next run.
with (
    DAG("orders_spark_on_arrival", schedule=schedule, catchup=False, max_active_runs=1, tags=["pawnqueue", "spark"]),
    claimed(TOPIC, max_messages=10_000, timeout=60, soft_fail=True) as claim,
):
    PawnQueueSparkSubmitOperator(
        task_id="etl",
        claim=claim,
        application=str(JOBS / "orders_etl.py"),
        application_args=["{{ var.value.orders_out }}"],
        conn_id="spark_default",
        retries=2,
        retry_delay=timedelta(seconds=5),
    )
