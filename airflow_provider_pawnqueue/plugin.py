"""The listener that Airflow calls in every task of every DAG.

It stops tasks that work on a claim when their supervisor is gone, and it keeps how tasks began and ended for the task
that settles their messages. It imports nothing of the queue.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from airflow.providers.common.compat.sdk import AirflowPlugin, hookimpl

from airflow_provider_pawnqueue.hooks import task_notes
from airflow_provider_pawnqueue.hooks.supervision import SUPERVISION
from airflow_provider_pawnqueue.hooks.task_notes import TaskStart, claims_in, clear_number_of
from airflow_provider_pawnqueue.operators import graph


@hookimpl
def on_task_instance_running(previous_state: Any, task_instance: Any) -> None:  # noqa: ANN401 - Airflow's
    """Stop a task that claims, or that comes after a claim, as soon as its supervisor is gone.

    ⚑ §5.2: Airflow then starts another try, which has the same messages. A mapped task is given them by XCom and calls
    nothing of ours, so the listener has to watch for it.
    """
    del previous_state
    task = getattr(task_instance, "task", None)
    if (
        task is not None
        and _is_of_this_process(task_instance)
        and any(graph.is_operator(one, graph.SENSOR) for one in (task, *graph.tasks_before(task).values()))
    ):
        SUPERVISION.watch_this_task()
    # ⚑ A settlement acks only what its tasks can have seen: the claims that had been made when they began.
    if _is_settled(task_instance) and (begun := _begun(task_instance)):
        task_instance.xcom_push(key=task_notes.BEGUN_KEY, value=begun.to_note())


def _begun(task_instance: Any) -> TaskStart:  # noqa: ANN401 - Airflow's
    """Return the claims that this task knows as it begins, and how often its run had been cleared.

    ⚑ Never a later claim than the one that it works on. Its fields were rendered earlier, so what it was given counts,
    not what a sensor has claimed since. What the task that reads its messages knew counts too, and what it knew itself
    before it was deferred.
    """
    task = task_instance.task
    before = graph.tasks_before(task)
    settling = [one for one in graph.tasks_after(task).values() if graph.is_operator(one, graph.SETTLE_OPERATOR)]
    claim_tasks = {name for one in settling for name in getattr(one, "claim_tasks", ())}
    claiming = [name for name, one in before.items() if name in claim_tasks or graph.is_operator(one, graph.SENSOR)]
    claimed = [task_instance.xcom_pull(task_ids=name) for name in claiming]
    given = [claim for value in _rendered_fields(task) for claim in claims_in(value)]
    clear_number = clear_number_of(task_instance.get_template_context())
    begun = TaskStart.of_claims(clear_number, claims_in(claimed)).limited(given)
    if begun:
        sources = [name for name in task.upstream_task_ids if graph.is_operator(before[name], graph.MESSAGES_OPERATOR)]
        for name in [*sources, task.task_id] if _is_resumed(task_instance) else sources:
            has_own_index = name == task.task_id or graph.share_a_mapped_group(task, before[name])
            index = task_instance.map_index if has_own_index else -1
            note = task_instance.xcom_pull(task_ids=name, key=task_notes.BEGUN_KEY, map_indexes=index)
            begun = begun.up_to(TaskStart.from_note(note))
    return begun


def _is_resumed(task_instance: Any) -> bool:  # noqa: ANN401 - Airflow's
    """Say whether a task goes on after it was deferred, so that it began earlier."""
    return bool(getattr(getattr(task_instance, "_ti_context_from_server", None), "next_method", None))


def _rendered_fields(task: Any) -> list[Any]:  # noqa: ANN401 - any operator
    """Return what a task is given: its templated fields, and the values of those that are dicts."""
    fields = [getattr(task, name, None) for name in task.template_fields]
    return [*fields, *(value for each in fields if isinstance(each, Mapping) for value in each.values())]


@hookimpl
def on_task_instance_failed(previous_state: Any, task_instance: Any, error: Any) -> None:  # noqa: ANN401 - Airflow's
    """Keep the error of a task whose messages are settled after it."""
    del previous_state
    if error is not None and _is_settled(task_instance):
        task_instance.xcom_push(key=task_notes.ERROR_KEY, value=task_notes.error_text(error))


@hookimpl
def on_task_instance_skipped(previous_state: Any, task_instance: Any) -> None:  # noqa: ANN401 - Airflow's
    """Keep that a task has skipped itself. Airflow does not call this for a task that a person skips."""
    del previous_state
    if _is_settled(task_instance):
        clear_number = clear_number_of(task_instance.get_template_context())
        task_instance.xcom_push(key=task_notes.SKIPPED_KEY, value={task_notes.CLEAR_NUMBER: clear_number})


def _is_settled(task_instance: Any) -> bool:  # noqa: ANN401 - Airflow's
    """Say whether a task that settles a claim comes after this one."""
    task = getattr(task_instance, "task", None)
    if task is None or not hasattr(task_instance, "xcom_push") or not _is_of_this_process(task_instance):
        return False
    return any(graph.is_operator(one, graph.SETTLE_OPERATOR) for one in graph.tasks_after(task).values())


def _is_of_this_process(task_instance: Any) -> bool:  # noqa: ANN401 - Airflow's
    """Say whether this process runs the task.

    Airflow's scheduler and API server call listeners too, with a row of the database, for tasks that they end
    themselves. An XCom that is pushed through such a row commits and closes the caller's own session, in the middle of
    the scheduler's loop.
    """
    return not type(task_instance).__module__.startswith("airflow.models.")


class PawnQueuePlugin(AirflowPlugin):
    """The plugin, which Airflow finds by its entry point."""

    name = "pawnqueue"
    listeners = [sys.modules[__name__]]  # noqa: RUF012 - as Airflow declares it
