"""What Airflow loads beside the provider: a listener that keeps why tasks ended so, for who settles their messages."""

from __future__ import annotations

import sys
from typing import Any

from airflow.providers.common.compat.sdk import AirflowPlugin, hookimpl

from airflow_provider_pawnqueue.hooks.keys import ERROR_KEY, SKIPPED_KEY, told

_SETTLE = "PawnQueueSettleOperator"


@hookimpl
def on_task_instance_failed(previous_state: Any, task_instance: Any, error: Any) -> None:  # noqa: ANN401 - Airflow's
    """Keep a task's exception, if its messages are settled by what becomes of it."""
    del previous_state
    if error is not None and _is_settled(task_instance):
        task_instance.xcom_push(key=ERROR_KEY, value=told(error))


@hookimpl
def on_task_instance_skipped(previous_state: Any, task_instance: Any) -> None:  # noqa: ANN401 - Airflow's
    """Keep that a task has skipped itself: one that a person skips does not come here."""
    del previous_state
    if _is_settled(task_instance):
        task_instance.xcom_push(key=SKIPPED_KEY, value=True)


def _is_settled(task_instance: Any) -> bool:  # noqa: ANN401 - Airflow's
    """Say whether messages are settled by what becomes of a task."""
    task = getattr(task_instance, "task", None)
    if task is None or not hasattr(task_instance, "xcom_push"):
        return False
    after = task.get_flat_relatives(upstream=False)
    return any(one.task_type == _SETTLE or _SETTLE in (base.__name__ for base in type(one).__mro__) for one in after)


class PawnQueuePlugin(AirflowPlugin):
    """Found by its entry point."""

    name = "pawnqueue"
    listeners = [sys.modules[__name__]]  # noqa: RUF012 - as Airflow declares it
