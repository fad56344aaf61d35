"""From topic to topic: a Spark job prices orders and publishes them; another DAG ships them.

The job (``spark_jobs/orders_enrich.py``) writes under the claim's name, so that a second try publishes nothing twice.
Consumers can claim its messages only once the job has succeeded, and then all of them.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from pathlib import Path

from airflow.sdk import DAG, task

from airflow_provider_pawnqueue.decorators import claimed
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.operators.pawnqueue import PawnQueueCreateTopicOperator
from airflow_provider_pawnqueue.spark.operators import PawnQueueSparkSubmitOperator

TOPIC, PRICED = "unpriced_orders", "priced_orders"
JOBS = Path(__file__).parent / "spark_jobs"

with DAG("orders_price", schedule=None, catchup=False, tags=["pawnqueue", "spark"]):
    priced = PawnQueueCreateTopicOperator(task_id="priced", topic=PRICED)

    with claimed(TOPIC, max_messages=10_000, on_reported="bury") as claim:
        enrich = PawnQueueSparkSubmitOperator(
            task_id="enrich",
            claim=claim,
            application=str(JOBS / "orders_enrich.py"),
            application_args=[PRICED],
            conn_id="spark_default",
            retries=2,
            retry_delay=timedelta(seconds=5),
        )
        priced >> enrich

with DAG("orders_ship", schedule=None, catchup=False, tags=["pawnqueue"]), claimed(PRICED, max_messages=1000) as claim:

    @task
    def ship(claim: dict) -> str:
        """Return what all orders are worth."""
        return str(sum(Decimal(message.payload["amount"]) for message in PawnQueueHook().messages(claim)))

    ship(claim)
