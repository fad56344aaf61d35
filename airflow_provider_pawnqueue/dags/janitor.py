"""The janitor, as a DAG with a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import DAG

from airflow_provider_pawnqueue.hooks.arguments import DEFAULT_CONN_ID
from airflow_provider_pawnqueue.operators.sweeping import PawnQueueJanitorOperator


def janitor_dag(
    dag_id: str = "pawnqueue_janitor",
    *,
    schedule: Any = timedelta(minutes=1),  # noqa: ANN401 - whatever Airflow takes
    topics: Sequence[str] | None = None,
    pawnqueue_conn_id: str = DEFAULT_CONN_ID,
    **dag_arguments: Any,
) -> DAG:
    """Return a DAG that sweeps a queue's topics. Make one for each connection, and assign it to a name in a DAG file.

    :param dag_id: the DAG's id.
    :param schedule: how often it runs. With a run each minute, claims with the default time to live (300 seconds)
        survive two failed runs in a row.
    :param topics: the topics to sweep; without it, all.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    :param dag_arguments: all other arguments of a DAG.
    """
    arguments: dict[str, Any] = {
        "description": "Finishes what crashed tasks left in the queue, and renews the claims of runs that go on.",
        "catchup": False,
        "max_active_runs": 1,
        "tags": ["pawnqueue"],
        "dagrun_timeout": timedelta(minutes=30),
        **dag_arguments,
    }
    with DAG(dag_id, schedule=schedule, **arguments) as dag:
        PawnQueueJanitorOperator(
            task_id="sweep",
            topics=topics,
            pawnqueue_conn_id=pawnqueue_conn_id,
            retries=0,  # the next run tries again
        )
    return dag
