"""One mapped task for each message, side by side: what fails is given back, with its error; the rest is acked."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, task

from airflow_provider_pawnqueue.decorators import claimed

TOPIC = "parcels"

# A group of tasks: "claim", which waits; yours; "settle", which nobody can forget.
with (
    DAG("orders_mapped", schedule=None, catchup=False, tags=["pawnqueue"]),
    claimed(TOPIC, max_messages=50, on_failure="requeue", delay=60) as claim,
):

    @task(retries=1, retry_delay=timedelta(seconds=5))
    def deliver(message: dict) -> str:
        """Each is given one message: ``id``, ``payload``, ``headers``, ``deliveries``.

        Index 7 of this task speaks for the eighth message, and for no other.
        """
        if message["payload"].get("address") is None:
            raise ValueError("the parcel has no address")
        return message["id"]

    # For thousands of messages, map over batches: deliver_all.expand(messages=claim.batches(100)).
    deliver.expand(message=claim.messages)
