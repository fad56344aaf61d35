"""The instances of a run's tasks, and their states as Airflow tells them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

#: The state of a row that its run no longer has, as its task was deleted, or is mapped over less than before.
_REMOVED: Final = "removed"
#: How many tasks one request asks for: their names are in its address, whose length is bounded.
_ASKED_AT_ONCE: Final = 50


@dataclass(frozen=True, slots=True)
class Instance:
    """A task of this run, or one index of a mapped one."""

    task_id: str
    index: int | None
    state: str | None

    def __str__(self) -> str:
        return self.task_id if self.index is None else f"{self.task_id}[{self.index}]"


def is_mapped(task: Any) -> bool:  # noqa: ANN401 - any operator
    """Return whether a task has indexes: it is mapped, or in a mapped group."""
    return bool(getattr(task, "is_mapped", False)) or task.get_closest_mapped_task_group() is not None


def instances_of(task_id: str, states: States, single: Collection[str]) -> list[Instance]:
    """Return a task's indexes, or the task itself where it has none.

    :param single: the tasks that have no indexes, whatever their names look like.
    """
    named = states.named(task_id)
    if task_id in single:
        return [Instance(task_id, None, named.get(task_id))]
    indexed = re.compile(re.escape(task_id) + r"_(\d+)")
    found = [
        Instance(task_id, int(match[1]), state) for name, state in named.items() if (match := indexed.fullmatch(name))
    ]
    # A task that was mapped over nothing, or never expanded, is listed by its own name.
    return found or [Instance(task_id, None, named.get(task_id))]


@dataclass(frozen=True, slots=True)
class States:
    """The states of a run's tasks, by the names that Airflow gives them: one key for index 1 of ``a``, and for ``a_1``.

    ⚑ So tasks of which a name may be another one's are asked for alone: no task is done by the state of another one.
    """

    names: Mapping[str, str | None]
    alone: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, ti: Any, settle: Any) -> States:  # noqa: ANN401 - Airflow's task instance, and any operator
        """Ask Airflow for the states of the tasks before a settlement."""

        def asked(task_ids: Iterable[str]) -> dict[str, str | None]:
            return _of_this_index(states_of(ti, task_ids), settle, ti.map_index)

        tasks = {task.task_id: task for task in settle.get_flat_relatives(upstream=True)}
        shared: set[str] = set()
        for task_id in tasks:
            before, mark, number = task_id.rpartition("_")
            if mark and number.isdecimal() and before in tasks and is_mapped(tasks[before]):
                shared |= {task_id, before}
        return cls(asked(tasks), {task_id: asked([task_id]) for task_id in sorted(shared)})

    def named(self, task_id: str) -> Mapping[str, str | None]:
        """Return the states among which a task's are."""
        return self.alone.get(task_id, self.names)


def states_of(ti: Any, task_ids: Iterable[str]) -> dict[str, str | None]:  # noqa: ANN401 - Airflow's task instance
    """Return the states of tasks by the names that Airflow gives to them.

    ⚑ Of these tasks alone: a run keeps the rows of tasks that were deleted from its DAG, under names that indexes of
    other tasks may have. A row that is removed tells nothing: a task without another row has not run.
    """
    named = sorted(task_ids)
    found: dict[str, str | None] = {}
    for start in range(0, len(named), _ASKED_AT_ONCE):
        some = named[start : start + _ASKED_AT_ONCE]
        found |= ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=some).get(ti.run_id, {})
    return {name: state for name, state in found.items() if state != _REMOVED}


def _of_this_index(states: Mapping[str, str | None], settle: Any, index: int | None) -> dict[str, str | None]:  # noqa: ANN401 - any operator
    """Leave out the other indexes of a mapped group that contains the settlement: they have claims of their own."""
    group = settle.get_closest_mapped_task_group()
    if group is None or index is None or index < 0:
        return dict(states)
    beside = [
        task.task_id
        for task in settle.get_flat_relatives(upstream=True)
        if (its := task.get_closest_mapped_task_group()) is not None and its.group_id == group.group_id
    ]
    others = re.compile(rf"(?:{'|'.join(map(re.escape, beside))})_(?!{index}$)\d+") if beside else None
    return {name: state for name, state in states.items() if others is None or not others.fullmatch(name)}
