"""Retries, dead letters, and how to redrive them.

A message that fails is requeued, and the next run is given it again, at once or after ``delay`` seconds. After three
deliveries it becomes a dead letter, with its last error as the reason. Once the cause is fixed, the second DAG moves
the dead letters back.
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

            The task succeeds, so the run does too, and the failed messages are delivered again.
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
    params={"ids": Param([], type="array", description="Ids of dead letters; without any, all of them.")},
    render_template_as_native_obj=True,
    tags=["pawnqueue"],
):
    PawnQueueRedriveOperator(task_id="redrive", topic=TOPIC, ids="{{ params.ids }}")
