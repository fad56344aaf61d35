"""What Airflow loads beside the provider: a listener that keeps why tasks failed, for who settles their messages."""

from __future__ import annotations

import sys
from typing import Any

from airflow.providers.common.compat.sdk import AirflowPlugin, hookimpl

from airflow_provider_pawnqueue.hooks.keys import ERROR_KEY, told

_SETTLE = "PawnQueueSettleOperator"


@hookimpl
def on_task_instance_failed(previous_state: Any, task_instance: Any, error: Any) -> None:  # noqa: ANN401 - Airflow's
    """Keep a task's exception, if its messages are settled by what becomes of it."""
    del previous_state
    task = getattr(task_instance, "task", None)
    if error is None or task is None or not hasattr(task_instance, "xcom_push"):
        return
    if any(after.task_type == _SETTLE for after in task.get_flat_relatives(upstream=False)):
        task_instance.xcom_push(key=ERROR_KEY, value=told(error))


class PawnQueuePlugin(AirflowPlugin):
    """Found by its entry point."""

    name = "pawnqueue"
    listeners = [sys.modules[__name__]]  # noqa: RUF012 - as Airflow declares it
