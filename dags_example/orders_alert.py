"""Mapped work, a summary of it, and an alert on dead letters, which comes after the settlement.

An index that fails buries its own message only. The summary cannot run then, which concerns no message. The alert runs
whatever became of the work, and the run still fails.
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
            """Fail for a message without a name only."""
            return message["payload"]["name"]

        @task
        def summarise(names: list[str]) -> int:
            """Take the results of all indexes: it does not run if one of them failed."""
            return len(list(names))

        summarise(register.expand(message=claim.messages))

    @task
    def alert(settlement: dict[str, Any]) -> list[str]:
        """Report dead letters: for each reason how many, and which."""
        # Send it to the person on call instead.
        return [
            f"{why['count']} dead letters: {why['reason']} ({', '.join(why['ids'])})"
            for why in settlement["why"]
            if why["outcome"] == "buried"
        ]

    alert(claim.settled)
