"""The instances of a run's tasks, with the states and XComs that Airflow has of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from airflow_provider_pawnqueue.operators.graph import is_mapped, share_a_mapped_group, tasks_before

#: A row that its run no longer has, as its task was deleted, or is mapped over less than before.
_REMOVED: Final = "removed"
#: A request names the tasks in its address, whose length is limited.
_TASKS_PER_REQUEST: Final = 50


@dataclass(frozen=True, slots=True)
class Instance:
    """A task of this run, or one index of a mapped task."""

    task_id: str
    index: int | None
    state: str | None

    def __str__(self) -> str:
        return self.task_id if self.index is None else f"{self.task_id}[{self.index}]"

    def pull(self, ti: Any, key: str) -> Any:  # noqa: ANN401 - Airflow's task instance, and whatever was pushed
        """Return what this instance has pushed to XCom under a key, or None."""
        if self.index is None:
            return ti.xcom_pull(task_ids=self.task_id, key=key)
        return ti.xcom_pull(task_ids=self.task_id, key=key, map_indexes=self.index)


@dataclass(frozen=True, slots=True)
class TaskStates:
    """The states of the tasks before a settlement, by the names under which Airflow reports them.

    Airflow reports index 1 of task ``a`` as ``a_1``, which may be the name of another task too. ⚑ The states of such
    tasks are requested separately, so that the state of one task is never taken for that of another.
    """

    _reported: Mapping[str, str | None]
    _separate: Mapping[str, Mapping[str, str | None]]
    _unmapped: frozenset[str]

    @classmethod
    def before(cls, settle: Any, ti: Any) -> TaskStates:  # noqa: ANN401 - any operator, and Airflow's task instance
        """Ask Airflow for the states of all tasks before a settlement."""

        def request(task_ids: Iterable[str]) -> dict[str, str | None]:
            return _without_other_indexes(states_of(ti, task_ids), settle, ti.map_index)

        tasks = tasks_before(settle)
        ambiguous: set[str] = set()
        for task_id in tasks:
            other, mark, number = task_id.rpartition("_")
            if mark and number.isdecimal() and other in tasks and is_mapped(tasks[other]):
                ambiguous |= {task_id, other}
        unmapped = frozenset(task_id for task_id, task in tasks.items() if not is_mapped(task))
        return cls(request(tasks), {task_id: request([task_id]) for task_id in sorted(ambiguous)}, unmapped)

    def instances_of(self, task_id: str) -> list[Instance]:
        """Return the indexes of a task, or the task itself where it has none."""
        states = self._separate.get(task_id, self._reported)
        whole = Instance(task_id, None, states.get(task_id))
        if task_id in self._unmapped:
            return [whole]
        indexed = re.compile(re.escape(task_id) + r"_(\d+)")
        found = [
            Instance(task_id, int(match[1]), state)
            for name, state in states.items()
            if (match := indexed.fullmatch(name))
        ]
        # Airflow reports a task that was mapped over nothing, or was never expanded, by its own name.
        return found or [whole]

    def indexes_of(self, task_id: str) -> list[int]:
        """Return the indexes of a task, in order; none where it was not expanded."""
        return sorted(each.index for each in self.instances_of(task_id) if each.index is not None)


def states_of(ti: Any, task_ids: Iterable[str]) -> dict[str, str | None]:  # noqa: ANN401 - Airflow's task instance
    """Return the states of tasks, by the names under which Airflow reports them.

    ⚑ Only these tasks are requested: a run keeps rows of tasks that were deleted from its DAG, under names that
    indexes of other tasks may have. A removed row says nothing: a task without another row has not run.
    """
    names = sorted(task_ids)
    found: dict[str, str | None] = {}
    for start in range(0, len(names), _TASKS_PER_REQUEST):
        some = names[start : start + _TASKS_PER_REQUEST]
        found |= ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=some).get(ti.run_id, {})
    return {name: state for name, state in found.items() if state != _REMOVED}


def _without_other_indexes(states: Mapping[str, str | None], settle: Any, index: int | None) -> dict[str, str | None]:  # noqa: ANN401 - any operator
    """Leave out the other indexes of the mapped group that contains the settlement: they have claims of their own."""
    if index is None or index < 0:
        return dict(states)
    in_group = [task_id for task_id, task in tasks_before(settle).items() if share_a_mapped_group(task, settle)]
    others = re.compile(rf"(?:{'|'.join(map(re.escape, in_group))})_(?!{index}$)\d+")
    return {name: state for name, state in states.items() if not in_group or not others.fullmatch(name)}
