"""Mapped work, a summary of it, and an alert on dead letters after the settlement.

Only the message of an index that fails is buried. The summary does not run then, but this makes no other message fail.
The alert runs whether the work failed or not. If the work failed, the run fails.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_pawnqueue.decorators import claimed

TOPIC = "registrations"

with DAG("orders_alert", schedule=None, catchup=False, tags=["pawnqueue"]):
    with claimed(TOPIC, max_messages=50, on_failure="bury") as claim:

        @task
        def register(message: dict) -> str:
            """Return the name of a message; fail if it has none."""
            return message["payload"]["name"]

        @task
        def summarise(names: list[str]) -> int:
            """Count the names; this task does not run if an index of the task before failed."""
            return len(list(names))

        summarise(register.expand(message=claim.messages))

    @task
    def alert(settlement: dict[str, Any]) -> list[str]:
        """Return a sentence for each reason: how many dead letters have it, and the first of them."""
        # Send it to the person on call instead.
        return [
            f"{why['count']} dead letters: {why['reason']} ({', '.join(why['ids'])})"
            for why in settlement["why"]
            if why["outcome"] == "buried"
        ]

    alert(claim.settled)
