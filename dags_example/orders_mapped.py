"""One mapped task for each message. A message whose task fails is requeued with the error; the others are acked."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, task

from airflow_provider_pawnqueue.decorators import claimed

TOPIC = "parcels"

# A group of tasks: "claim", which waits for messages, then yours, then "settle".
with (
    DAG("orders_mapped", schedule=None, catchup=False, tags=["pawnqueue"]),
    claimed(TOPIC, max_messages=50, on_failure="requeue", delay=60) as claim,
):

    @task(retries=1, retry_delay=timedelta(seconds=5))
    def deliver(message: dict) -> str:
        """Work on one message, a dict with ``id``, ``payload``, ``headers`` and ``deliveries``.

        If index 7 of this task fails, only the eighth message is requeued.
        """
        if message["payload"].get("address") is None:
            raise ValueError("the parcel has no address")
        return message["id"]

    # For thousands of messages, map over batches: deliver_all.expand(messages=claim.batches(100)).
    deliver.expand(message=claim.messages)
