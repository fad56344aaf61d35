"""The janitor as a DAG on a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import DAG

from airflow_provider_pawnqueue.hooks.arguments import DEFAULT_CONN_ID
from airflow_provider_pawnqueue.operators.janitor import PawnQueueJanitorOperator


def janitor_dag(
    dag_id: str = "pawnqueue_janitor",
    *,
    schedule: Any = timedelta(minutes=1),  # noqa: ANN401 - whatever Airflow takes
    topics: Sequence[str] | None = None,
    pawnqueue_conn_id: str = DEFAULT_CONN_ID,
    **dag_arguments: Any,
) -> DAG:
    """Make a DAG that sweeps a queue's topics, one for each connection. Assign it to a name in a DAG file.

    :param dag_id: its name.
    :param schedule: how often. Claims whose time to live is 300 seconds, the default, survive that two runs in a row
        fail where it is a minute.
    :param topics: which; without it, all.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    :param dag_arguments: any others that a DAG takes.
    """
    arguments: dict[str, Any] = {
        "description": "Finishes what crashed tasks left in the queue, and keeps the claims of runs that go on.",
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
            retries=0,  # the next run is the retry
        )
    return dag
