"""One mapped task for each message, side by side. A failed message is given back with its error; others are acked."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, task

from airflow_provider_pawnqueue.decorators import claimed

TOPIC = "parcels"

# A group of tasks: "claim", which waits; yours; and "settle", which always runs.
with (
    DAG("orders_mapped", schedule=None, catchup=False, tags=["pawnqueue"]),
    claimed(TOPIC, max_messages=50, on_failure="requeue", delay=60) as claim,
):

    @task(retries=1, retry_delay=timedelta(seconds=5))
    def deliver(message: dict) -> str:
        """Work on one message, which has ``id``, ``payload``, ``headers``, ``deliveries``.

        Index 7 of this task decides about the eighth message, and about no other.
        """
        if message["payload"].get("address") is None:
            raise ValueError("the parcel has no address")
        return message["id"]

    # For thousands of messages, map over batches: deliver_all.expand(messages=claim.batches(100)).
    deliver.expand(message=claim.messages)
