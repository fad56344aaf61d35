"""Which messages each instance of a task was given to work on, where that can be found out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from airflow.providers.common.compat.sdk import XComArg

from airflow_provider_pawnqueue.operators import graph
from airflow_provider_pawnqueue.operators.instances import TaskStates
from airflow_provider_pawnqueue.operators.outputs import DecodedOutput


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one instance was given: messages by their ids, and whole claims by topic and id."""

    message_ids: frozenset[str] = frozenset()
    claims: frozenset[tuple[str, str]] = frozenset()


class WorkTask:
    """A task between a claim and its settlement, with what each of its indexes was given."""

    def __init__(self, ti: Any, task: Any, claim_tasks: Collection[str], states: TaskStates) -> None:  # noqa: ANN401 - Airflow's task instance, and any operator
        self.task_id: str = task.task_id
        self.is_mapped = graph.is_mapped(task)
        #: The tasks before it that claim.
        self.claim_tasks = frozenset(graph.tasks_before(task)) & frozenset(claim_tasks)
        #: The tasks that it directly waits for.
        self.direct_upstream = frozenset(task.upstream_task_ids)
        self._ti = ti
        self._task = task
        self._states = states

    def assignment_of(self, index: int | None) -> Assignment | None:
        """Return what an index was given, or None where that cannot be found out."""
        if index is None or self.was_expanded_for_other_claims or index >= len(self._items):
            return None
        return _assignment_in(self._items[index])

    @property
    def is_clean_up(self) -> bool:
        """Whether the task is a teardown whose failure does not fail the run: it does no work on messages."""
        return bool(self._task.is_teardown and not self._task.on_failure_fail_dagrun)

    @property
    def was_expanded_for_other_claims(self) -> bool:
        """Whether the task is mapped over the claims of a mapped sensor, and had another number of them than now.

        ⚑ An index of the sensor that was cleared alone has claimed messages that no index of this task was given.
        """
        indexes = self._states.indexes_of(self.task_id)
        source = getattr(_input_with_order(self._task), "operator", None)
        is_over_claims = source is not None and source.task_id in self.claim_tasks and source.is_mapped
        return bool(is_over_claims and indexes and len(indexes) != len(self._items))

    @property
    def was_mapped_over_nothing(self) -> bool:
        """Whether one of the lists that the task is mapped over is known to be empty."""
        return any(self._is_empty(given) for given in _mapped_inputs(self._task))

    def _is_empty(self, given: Any) -> bool:  # noqa: ANN401 - a list, a dict, or an XComArg
        if isinstance(given, (Sequence, Mapping)):
            return not given
        sources = [(source, key) for source, key in XComArg.iter_xcom_references(given) if not graph.is_mapped(source)]
        pulled = [self._ti.xcom_pull(task_ids=source.task_id, key=key) for source, key in sources]
        return any(isinstance(each, (Sequence, Mapping)) and not each for each in pulled)

    @cached_property
    def _items(self) -> Sequence[Any]:
        """What the indexes were given, in their order; empty where that cannot be found out.

        It cannot for a list that is written in the DAG file, which is older than any message, and for the results of a
        mapped group.
        """
        given = _input_with_order(self._task)
        source = getattr(given, "operator", None)
        if source is None or source.get_closest_mapped_task_group() is not None:
            return ()
        key = getattr(given, "key", "return_value")
        if getattr(source, "is_mapped", False):
            indexes = self._states.indexes_of(source.task_id)
            pulled = self._ti.xcom_pull(task_ids=source.task_id, key=key, map_indexes=indexes) if indexes else []
            # Airflow maps over the indexes that have returned something. Which had when it did that is not known.
            return () if None in pulled else pulled
        found = self._ti.xcom_pull(task_ids=source.task_id, key=key)
        if isinstance(given, DecodedOutput):
            found = given.decoded(found)
        return found if isinstance(found, Sequence) and not isinstance(found, str) else ()


def _expand_inputs(task: Any) -> list[Any]:  # noqa: ANN401 - any operator, and Airflow's own values
    """Return what a task, or the mapped group that contains it, is mapped over: each value a dict of lists, or a list.

    A mapped task of the TaskFlow API has two of them, one of which is empty.
    """
    if getattr(task, "is_mapped", False):
        found = [getattr(task, name, None) for name in ("op_kwargs_expand_input", "expand_input")]
    else:
        found = [getattr(task.get_closest_mapped_task_group(), "_expand_input", None)]
    return [value for each in found if (value := getattr(each, "value", None)) is not None]


def _mapped_inputs(task: Any) -> list[Any]:  # noqa: ANN401 - any operator, and lists or XComArgs
    """Return each list that a task, or the mapped group that contains it, is mapped over."""
    values = _expand_inputs(task)
    return [given for value in values for given in (value.values() if isinstance(value, Mapping) else [value])]


def _input_with_order(task: Any) -> Any:  # noqa: ANN401 - any operator, and a list or an XComArg
    """Return the one list whose items the indexes of a task were given in order, or None.

    None for a task that is mapped within a mapped group or over several lists, and for one that is mapped over all its
    arguments together (``expand_kwargs``), where nobody can tell which argument is a message.
    """
    given = _mapped_inputs(task)
    if getattr(task, "is_mapped", False):
        is_by_name = all(isinstance(value, Mapping) for value in _expand_inputs(task))
        if task.get_closest_mapped_task_group() is not None or not is_by_name:
            return None
    return given[0] if len(given) == 1 else None


def _assignment_in(item: Any) -> Assignment | None:  # noqa: ANN401 - what an index was given
    """Read the ids or claims in what an index was given: None where it is anything else, or has anything else in it."""
    if isinstance(item, str):
        return Assignment(message_ids=frozenset({item}))
    if isinstance(item, Mapping):
        if isinstance(item.get("claim_id"), str) and isinstance(item.get("topic"), str):
            return Assignment(claims=frozenset({(item["topic"], item["claim_id"])}))
        return Assignment(message_ids=frozenset({item["id"]})) if isinstance(item.get("id"), str) else None
    if not isinstance(item, Sequence) or not item:
        return None
    found = [_assignment_in(each) for each in item]
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return None
    ids, claims = ([getattr(each, name) for each in known] for name in ("message_ids", "claims"))
    return Assignment(frozenset().union(*ids), frozenset().union(*claims))


def tasks_beside(settle: Any, claim_tasks: Collection[str]) -> list[str]:  # noqa: ANN401 - any operator
    """Return the tasks after a claim that come neither before nor after its settlement, though they work on the claim.

    A task works on the claim if it is given the claim, or its messages by one of our tasks. Where no task comes between
    claim and settlement, all tasks after the claim count, whatever they are given.
    """
    before, after = graph.tasks_before(settle), graph.tasks_after(settle)
    beside = {
        task_id: task
        for name in claim_tasks
        if name in before
        for task_id, task in graph.tasks_after(before[name]).items()
        if task_id not in {*claim_tasks, settle.task_id, *before, *after}
    }
    if not graph.work_tasks(settle, claim_tasks):
        return sorted(beside)
    sources = set(claim_tasks).union(name for name, task in before.items() if task.task_type == graph.MESSAGES_OPERATOR)
    return sorted(task_id for task_id, task in beside.items() if sources & _given_by(task))


def _given_by(task: Any) -> set[str]:  # noqa: ANN401 - any operator
    """Return the tasks whose results a task is given, by id."""
    if getattr(task, "is_mapped", False):
        values = [*_mapped_inputs(task), *task.partial_kwargs.values()]
    else:
        values = [getattr(task, name, None) for name in task.template_fields]
    return {source.task_id for value in values for source, _ in XComArg.iter_xcom_references(value)}
