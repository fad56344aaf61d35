"""How the tasks of a DAG relate: which come before others, which work on a claim, and which share a mapped group.

It imports nothing of the queue: the plugin uses it too, and Airflow calls the plugin in every task of every DAG.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

#: The operators that claim, settle, and hand on a claim's messages, by the names of their classes: importing the
#: classes would take too long in a task that uses none of them.
SENSOR: Final = "PawnQueueSensor"
SETTLE_OPERATOR: Final = "PawnQueueSettleOperator"
MESSAGES_OPERATOR: Final = "PawnQueueMessagesOperator"

#: The states of tasks, as Airflow names them.
SUCCESS: Final = "success"
SKIPPED: Final = "skipped"
UPSTREAM_FAILED: Final = "upstream_failed"
FAILED_STATES: Final = frozenset({"failed", UPSTREAM_FAILED})


def is_operator(task: Any, class_name: str) -> bool:  # noqa: ANN401 - any operator, mapped or not
    """Say whether a task's operator is of the class with this name, or of a class derived from it."""
    mapped_class = getattr(task, "operator_class", None)
    bases = (mapped_class if isinstance(mapped_class, type) else type(task)).__mro__
    return task.task_type == class_name or class_name in (base.__name__ for base in bases)


def is_mapped(task: Any) -> bool:  # noqa: ANN401 - any operator
    """Say whether a task has indexes, because it is mapped itself or is in a mapped group."""
    return bool(getattr(task, "is_mapped", False)) or task.get_closest_mapped_task_group() is not None


def share_a_mapped_group(task: Any, other: Any) -> bool:  # noqa: ANN401 - any operators
    """Say whether two tasks are in the same mapped group, each index of which has an instance of both."""
    groups = [one.get_closest_mapped_task_group() for one in (task, other)]
    return None not in groups and groups[0].group_id == groups[1].group_id


def tasks_before(task: Any) -> dict[str, Any]:  # noqa: ANN401 - any operator
    """Return all tasks upstream of a task, by id."""
    return {one.task_id: one for one in task.get_flat_relatives(upstream=True)}


def tasks_after(task: Any) -> dict[str, Any]:  # noqa: ANN401 - any operator
    """Return all tasks downstream of a task, by id."""
    return {one.task_id: one for one in task.get_flat_relatives(upstream=False)}


def work_tasks(settle: Any, claim_tasks: Collection[str]) -> dict[str, Any]:  # noqa: ANN401 - any operator
    """Return the tasks between a claim and its settlement, by id.

    Without claim tasks, where the claim is not the output of a task, these are all tasks before the settlement.
    """
    before = tasks_before(settle)
    if not claim_tasks:
        return before
    after_claims = {task_id for name in claim_tasks if name in before for task_id in tasks_after(before[name])}
    return {task_id: task for task_id, task in before.items() if task_id in after_claims and task_id not in claim_tasks}
