"""Which messages each index of a mapped task was given, as far as that can be told."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow.providers.common.compat.sdk import XComArg

from airflow_provider_pawnqueue.operators.instances import States, instances_of, is_mapped
from airflow_provider_pawnqueue.operators.outputs import DecodedOutput


@dataclass(frozen=True, slots=True)
class Part:
    """What one task was given of the claims: messages by their ids, and whole claims by topic and id."""

    ids: frozenset[str] = frozenset()
    claims: frozenset[tuple[str, str]] = frozenset()


class Parts:
    """Which messages each index of a mapped task was given."""

    def __init__(self, ti: Any, task: Any, claim_tasks: Collection[str], states: States) -> None:  # noqa: ANN401 - Airflow's task instance, and any operator
        #: The tasks before it that have claimed.
        self.claim_tasks = claims_before(task, claim_tasks)
        self.task_id: str = task.task_id
        self.is_mapped = is_mapped(task)
        #: The tasks on which it waits.
        self.before = frozenset(task.upstream_task_ids)
        self._ti = ti
        self._task = task
        self._states = states
        self._items: Sequence[Any] | None = None

    def of(self, index: int | None) -> Part | None:
        """Return what it was given, or None where nobody can tell."""
        if index is None or self.are_of_other_claims:
            return None
        return _part(self._given[index]) if index < len(self._given) else None

    @property
    def is_clearing_up(self) -> bool:
        """Whether the task is a teardown whose failure, as Airflow has it, fails no run: it has worked on nothing."""
        return bool(self._task.is_teardown and not self._task.on_failure_fail_dagrun)

    @property
    def are_of_other_claims(self) -> bool:
        """Whether it is mapped over the claims of a mapped sensor, and was expanded for other ones than there are now.

        ⚑ An index of the sensor that was cleared alone has claimed for nobody: no work on other claims tells of it.
        """
        indexes = self._indexes_of(self.task_id)
        source = getattr(_expanded(self._task), "operator", None)
        is_over_claims = source is not None and source.task_id in self.claim_tasks and source.is_mapped
        return bool(is_over_claims and indexes and len(indexes) != len(self._given))

    @property
    def are_none(self) -> bool:
        """Whether it was mapped over nothing: one list is empty, of several too. In doubt it was not."""
        return any(self._is_empty(given) for given in inputs_of(self._task))

    @property
    def _given(self) -> Sequence[Any]:
        if self._items is None:
            self._items = self._mapped_over()
        return self._items

    def _is_empty(self, given: Any) -> bool:  # noqa: ANN401 - a list, a dict, or an XComArg
        if isinstance(given, (Sequence, Mapping)):
            return not given
        sources = [(source, key) for source, key in XComArg.iter_xcom_references(given) if not is_mapped(source)]
        pulled = [self._ti.xcom_pull(task_ids=source.task_id, key=key) for source, key in sources]
        return any(isinstance(each, (Sequence, Mapping)) and not each for each in pulled)

    def _mapped_over(self) -> Sequence[Any]:
        """Return what the task is mapped over, if it is one list: of several, nobody can tell the order.

        Nor can anybody of a literal, which is older than any message, and of the results of a mapped group.
        """
        given = _expanded(self._task)
        source = getattr(given, "operator", None)
        if source is None or source.get_closest_mapped_task_group() is not None:
            return ()
        key = getattr(given, "key", "return_value")
        if getattr(source, "is_mapped", False):
            indexes = self._indexes_of(source.task_id)
            pulled = self._ti.xcom_pull(task_ids=source.task_id, key=key, map_indexes=indexes) if indexes else []
            # Airflow leaves out those that have returned nothing: nobody can tell whether they had when it did that.
            return () if None in pulled else pulled
        found = self._ti.xcom_pull(task_ids=source.task_id, key=key)
        if isinstance(given, DecodedOutput):
            found = given.decoded(found)
        return found if isinstance(found, Sequence) and not isinstance(found, str) else ()

    def _indexes_of(self, task_id: str) -> list[int]:
        return sorted(each.index for each in instances_of(task_id, self._states, ()) if each.index is not None)


def inputs_of(task: Any) -> list[Any]:  # noqa: ANN401 - any operator, and lists or XComArgs
    """Return what a task is mapped over, or the group that contains it."""
    if getattr(task, "is_mapped", False):
        inputs = [getattr(task, name, None) for name in ("op_kwargs_expand_input", "expand_input")]
    else:
        inputs = [getattr(task.get_closest_mapped_task_group(), "_expand_input", None)]
    values = [value for each in inputs if (value := getattr(each, "value", None)) is not None]
    # A task of the TaskFlow API has both, and one of them is empty.
    return [given for value in values for given in (value.values() if isinstance(value, Mapping) else [value])]


def _expanded(task: Any) -> Any:  # noqa: ANN401 - any operator, and a list or an XComArg
    if getattr(task, "is_mapped", False) and task.get_closest_mapped_task_group() is not None:
        return None  # mapped twice over
    given = inputs_of(task)
    return given[0] if len(given) == 1 and not _is_of_kwargs(task) else None


def _is_of_kwargs(task: Any) -> bool:  # noqa: ANN401 - any operator
    """Say whether it is mapped over all its arguments: nobody can tell which of them is a message."""
    found = [getattr(task, name, None) for name in ("op_kwargs_expand_input", "expand_input")]
    return any(each is not None and not isinstance(each.value, Mapping) for each in found)


def _part(item: Any) -> Part | None:  # noqa: ANN401 - what a task was given
    if isinstance(item, str):
        return Part(ids=frozenset({item}))
    if isinstance(item, Mapping):
        if isinstance(item.get("claim_id"), str) and isinstance(item.get("topic"), str):
            return Part(claims=frozenset({(item["topic"], item["claim_id"])}))
        return Part(ids=frozenset({item["id"]})) if isinstance(item.get("id"), str) else None
    if not isinstance(item, Sequence) or not item:
        return None
    parts = [_part(each) for each in item]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return Part(frozenset().union(*(part.ids for part in known)), frozenset().union(*(part.claims for part in known)))


def claims_before(task: Any, claim_tasks: Collection[str]) -> frozenset[str]:  # noqa: ANN401 - any operator
    """Return the tasks before a task that have claimed."""
    return frozenset(each.task_id for each in task.get_flat_relatives(upstream=True) if each.task_id in claim_tasks)
