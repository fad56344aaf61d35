"""Publish orders; claim them in batches, work on them, settle them.

The DAG ``orders_publish`` publishes a few orders. In production a service or another DAG does this. The DAG
``orders_process`` waits for orders, works on at most 500 at a time, and settles them.

Needs a connection ``pawnqueue_default`` (Admin, Connections), and the janitor's DAG (``janitor.py``).
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
        """Return a list of dicts, such as rows of a table or lines of a file."""
        return [{"order_id": number, "amount": number * 10} for number in range(20)]

    # Each dict becomes a message. The topic is created if it does not exist.
    PawnQueuePublishOperator(task_id="publish", topic=TOPIC, payloads=new_orders(), create=True)

with DAG("orders_process", schedule=None, catchup=False, max_active_runs=4, tags=["pawnqueue"]):
    # It waits in the triggerer and occupies no worker. While this run goes on, no other consumer is given its messages.
    claim = PawnQueueSensor(task_id="claim", topic=TOPIC, max_messages=500, deferrable=True, timeout=24 * 3600)

    @task(retries=2, retry_delay=timedelta(seconds=10))
    def work(claim: dict) -> int:
        """Work on the messages. The claim is renewed while this function runs, as long as it takes.

        If this process dies, the next try is given the same messages within a minute.
        """
        total = 0
        for message in PawnQueueHook().messages(claim):
            # message.id never changes: store it with your result, so that working on a message twice does no harm.
            total += message.payload["amount"]
        return total

    # It runs even if a task before it failed. It acks the messages if the tasks succeeded, and requeues them if not.
    # (It is a teardown of the claim, and fails the run if one of the tasks failed.)
    work(claim.output) >> PawnQueueSettleOperator(task_id="settle", claim=claim.output)
