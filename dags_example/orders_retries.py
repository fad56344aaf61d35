"""Retries, dead letters, and giving them back.

A message that fails goes back to the queue, and the next run gets it again: at once, or after ``delay`` seconds.
After three deliveries it is a dead letter, with its last error as the reason. Once the cause is corrected, the
second DAG gives the dead letters back.
"""

from __future__ import annotations

from airflow.sdk import DAG, Param, task

from airflow_provider_pawnqueue.decorators import claimed
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.operators.pawnqueue import PawnQueueCreateTopicOperator, PawnQueueRedriveOperator

TOPIC = "payments"

with DAG("payments", schedule=None, catchup=False, tags=["pawnqueue"]):
    topic = PawnQueueCreateTopicOperator(task_id="topic", topic=TOPIC, max_deliveries=3)

    with claimed(TOPIC, max_messages=100, on_failure="requeue", delay=0) as claim:

        @task
        def book(claim: dict) -> None:
            """Report which messages failed; the others are done.

            It succeeds, as it has done what it can: so the run is green, and the failed messages are tried again.
            """
            failed = {}
            for message in PawnQueueHook().messages(claim):
                if message.payload.get("amount", 0) <= 0:
                    failed[message.id] = "an amount is above zero"
            PawnQueueHook.report(failed=failed)

        topic >> claim.operator
        book(claim)

with DAG(
    "payments_redrive",
    schedule=None,
    catchup=False,
    params={"ids": Param([], type="array", description="Ids of dead letters; none: all of them.")},
    render_template_as_native_obj=True,
    tags=["pawnqueue"],
):
    PawnQueueRedriveOperator(task_id="redrive", topic=TOPIC, ids="{{ params.ids }}")
