"""A batch every ten minutes: up to 5,000 orders are priced by Spark, written as Parquet, and published again.

Orders that the job rejects become dead letters with its reason, and fail the task ``alert``.

Needs the same as ``orders_spark.py``, the topics ``raw_orders`` and ``priced_orders``, and the folder of the results.
"""

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, task

from airflow_provider_pawnqueue.decorators import claimed
from airflow_provider_pawnqueue.spark.operators import PawnQueueSparkSubmitOperator

with DAG("orders_batch", schedule=timedelta(minutes=10), catchup=False, max_active_runs=1):
    with claimed("raw_orders", max_messages=5_000, timeout=60, soft_fail=True, on_reported="bury") as claim:
        PawnQueueSparkSubmitOperator(
            task_id="price",
            claim=claim,
            application=str(Path(__file__).parent / "spark_jobs" / "orders_batch.py"),
            application_args=["/data/orders"],  # a folder that driver and executors share
            conn_id="spark_default",
            retries=2,
        )

    @task
    def alert(settlement: dict) -> None:
        """Fail if there are dead letters, so that the run's alert goes out."""
        if settlement["buried"]:
            raise RuntimeError(f"{settlement['buried']} dead letters: {settlement['why']}")

    alert(claim.settled)
