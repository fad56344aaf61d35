"""Publish orders; claim them in batches, work on them, settle them.

Two DAGs. ``orders_publish`` puts a few orders into a topic: in practice that is a service, or another DAG.
``orders_process`` waits for orders, works on at most 500 at a time, and reports what became of them.

Needs a connection ``pawnqueue_default`` (Admin, Connections), and the janitor's DAG beside it (``janitor.py``).
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, task

from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.operators.pawnqueue import PawnQueuePublishOperator, PawnQueueSettleOperator
from airflow_provider_pawnqueue.sensors.pawnqueue import PawnQueueSensor

TOPIC = "orders"

with DAG("orders_publish", schedule=None, catchup=False, tags=["pawnqueue"]):

    @task
    def new_orders() -> list[dict]:
        """Return any list of dicts: rows of a table, lines of a file."""
        return [{"order_id": number, "amount": number * 10} for number in range(20)]

    # A message is a JSON object, and a list of them becomes as many messages. The topic is created if it is missing.
    PawnQueuePublishOperator(task_id="publish", topic=TOPIC, payloads=new_orders(), create=True)

with DAG("orders_process", schedule=None, catchup=False, max_active_runs=4, tags=["pawnqueue"]):
    # Waits in the triggerer, where it needs no worker. Nobody else gets its messages while this run goes on.
    claim = PawnQueueSensor(task_id="claim", topic=TOPIC, max_messages=500, deferrable=True, timeout=24 * 3600)

    @task(retries=2, retry_delay=timedelta(seconds=10))
    def work(claim: dict) -> int:
        """Work on the claim, which is renewed while this function runs, however long that takes.

        If this process dies, the next try gets the same messages, within a minute.
        """
        total = 0
        for message in PawnQueueHook().messages(claim):
            # message.id never changes: write it beside the result, and a second delivery does no harm.
            total += message.payload["amount"]
        return total

    # Runs whatever became of the tasks before it: acks the messages if they succeeded, gives them back if not. (It
    # becomes a teardown of the claim, and fails the run if one of its tasks has failed.)
    work(claim.output) >> PawnQueueSettleOperator(task_id="settle", claim=claim.output)
