"""Airflow's plugin: a listener, which every task of every DAG calls.

It stops tasks that work with claimed messages when their supervisor is gone. It also keeps why tasks failed or were
skipped, for the task that settles their messages. It imports nothing of the engine.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from airflow.providers.common.compat.sdk import AirflowPlugin, hookimpl

from airflow_provider_pawnqueue.hooks.supervision import SUPERVISION
from airflow_provider_pawnqueue.hooks.task_notes import (
    BEGUN_KEY,
    CLEAR_NUMBER,
    ERROR_KEY,
    SKIPPED_KEY,
    TaskStart,
    claims_in,
    clear_number_of,
    error_text,
)

_CLAIM = "PawnQueueSensor"
_SETTLE = "PawnQueueSettleOperator"
_READING = "PawnQueueMessagesOperator"


@hookimpl
def on_task_instance_running(previous_state: Any, task_instance: Any) -> None:  # noqa: ANN401 - Airflow's
    """Stop a task that claims, or that comes after a claim, as soon as its supervisor is gone.

    ⚑ §5.2: Airflow starts another try of it, which has the same messages; a mapped task was given them by XCom, and
    calls nothing of ours.
    """
    del previous_state
    task = getattr(task_instance, "task", None)
    if (
        task is not None
        and _is_of_this_process(task_instance)
        and any(_is_a(one, _CLAIM) for one in (task, *task.get_flat_relatives(upstream=True)))
    ):
        SUPERVISION.watch_this_task()
    # ⚑ Settling acks for a task what the task has seen: the claims that had been made when it began.
    if _is_settled(task_instance) and (begun := _begun(task_instance)):
        task_instance.xcom_push(key=BEGUN_KEY, value=begun.to_note())


def _begun(task_instance: Any) -> TaskStart:  # noqa: ANN401 - Airflow's
    """Return which claims this task knows as it begins, and how often its run was cleared.

    ⚑ Never a later claim than the one that it works on. Its fields were rendered before: what it was given then counts,
    and not what a sensor has claimed since. So does what the task had read that gives it its messages, and what it knew
    itself before it was deferred.
    """
    task = task_instance.task
    before = {one.task_id: one for one in task.get_flat_relatives(upstream=True)}
    settling = [one for one in task.get_flat_relatives(upstream=False) if _is_a(one, _SETTLE)]
    named = {name for one in settling for name in getattr(one, "claim_tasks", ())}
    claiming = [name for name, one in before.items() if name in named or _is_a(one, _CLAIM)]
    made = [task_instance.xcom_pull(task_ids=name) for name in claiming]
    given = [claim for value in _rendered(task) for claim in claims_in(value)]
    begun = TaskStart.of_claims(clear_number_of(task_instance.get_template_context()), claims_in(made)).limited(given)
    if begun:
        known = [name for name in task.upstream_task_ids if _is_a(before[name], _READING)]
        for name in [*known, task.task_id] if _is_resumed(task_instance) else known:
            index = task_instance.map_index if name == task.task_id or _is_beside(task, before[name]) else -1
            note = task_instance.xcom_pull(task_ids=name, key=BEGUN_KEY, map_indexes=index)
            begun = begun.up_to(TaskStart.from_note(note))
    return begun


def _is_beside(task: Any, other: Any) -> bool:  # noqa: ANN401 - any operators
    """Say whether two tasks are in one mapped group, in which each index has its own of both."""
    groups = [one.get_closest_mapped_task_group() for one in (task, other)]
    return all(groups) and groups[0].group_id == groups[1].group_id


def _is_resumed(task_instance: Any) -> bool:  # noqa: ANN401 - Airflow's
    """Say whether a task goes on after it was deferred: it began before."""
    return bool(getattr(getattr(task_instance, "_ti_context_from_server", None), "next_method", None))


def _rendered(task: Any) -> list[Any]:  # noqa: ANN401 - any operator
    """Return what a task is given."""
    fields = [getattr(task, name, None) for name in task.template_fields]
    return [*fields, *(value for each in fields if isinstance(each, Mapping) for value in each.values())]


@hookimpl
def on_task_instance_failed(previous_state: Any, task_instance: Any, error: Any) -> None:  # noqa: ANN401 - Airflow's
    """Keep a task's exception, if its messages are settled by what becomes of it."""
    del previous_state
    if error is not None and _is_settled(task_instance):
        task_instance.xcom_push(key=ERROR_KEY, value=error_text(error))


@hookimpl
def on_task_instance_skipped(previous_state: Any, task_instance: Any) -> None:  # noqa: ANN401 - Airflow's
    """Keep that a task has skipped itself: one that a person skips does not come here."""
    del previous_state
    if _is_settled(task_instance):
        number = clear_number_of(task_instance.get_template_context())
        task_instance.xcom_push(key=SKIPPED_KEY, value={CLEAR_NUMBER: number})


def _is_settled(task_instance: Any) -> bool:  # noqa: ANN401 - Airflow's
    """Say whether messages are settled by what becomes of a task."""
    task = getattr(task_instance, "task", None)
    if task is None or not hasattr(task_instance, "xcom_push") or not _is_of_this_process(task_instance):
        return False
    return any(_is_a(one, _SETTLE) for one in task.get_flat_relatives(upstream=False))


def _is_of_this_process(task_instance: Any) -> bool:  # noqa: ANN401 - Airflow's
    """Return whether this process runs the task.

    Airflow's scheduler and API server call the listeners too, for tasks that they end themselves, with a row of the
    database. An XCom that is pushed by such a row commits and closes the caller's own session, in the middle of the
    scheduler's loop.
    """
    return not type(task_instance).__module__.startswith("airflow.models.")


def _is_a(task: Any, name: str) -> bool:  # noqa: ANN401 - an operator, mapped or not
    """Return whether a task's operator is of a class, or of one derived from it; by name, as importing it is dear."""
    kind = getattr(task, "operator_class", None)  # of a mapped one
    bases = (kind if isinstance(kind, type) else type(task)).__mro__
    return task.task_type == name or name in (base.__name__ for base in bases)


class PawnQueuePlugin(AirflowPlugin):
    """Found by its entry point."""

    name = "pawnqueue"
    listeners = [sys.modules[__name__]]  # noqa: RUF012 - as Airflow declares it
