"""What the tasks between a claim and its settlement made of each message.

A task that succeeded (or was skipped) has done its messages, and one that failed has not. Of a mapped task each index
speaks for the messages that it was given, as far as that can be told; else each speaks for all. A task that knows it
better reports it message by message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_pawnqueue.operators.keys import ERROR_KEY, REPORT_KEY

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

_DONE: Final = frozenset({"success", "skipped"})
_ABSENT: Final = frozenset({"removed"})


@dataclass(slots=True)
class Outcome:
    """What became of the messages of one claim."""

    #: Why none of them is done, unless a task says of one that it is.
    all_failed: str | None = None
    #: Why some are not done, by their ids.
    failed: dict[str, str] = field(default_factory=dict)
    #: Those of which a task said that they are done, although it failed.
    done: set[str] = field(default_factory=set)
    #: The tasks that failed, as Airflow shows them.
    tasks: list[str] = field(default_factory=list)

    def fail(self, ids: Iterable[str] | None, why: str) -> None:
        """Note that messages are not done; None: none of them."""
        if ids is None:
            self.all_failed = self.all_failed or why
        else:
            for message in ids:
                self.failed.setdefault(message, why)


@dataclass(frozen=True, slots=True)
class _Instance:
    """A task of this run, or one index of a mapped one."""

    task_id: str
    index: int | None
    state: str | None

    def __str__(self) -> str:
        return self.task_id if self.index is None else f"{self.task_id}[{self.index}]"


def outcome_of(context: Context, settle: Any, claim_tasks: Iterable[str], claim: object) -> Outcome:  # noqa: ANN401 - any operator
    """Ask Airflow what became of the tasks between a claim and its settlement.

    :param settle: the task that settles.
    :param claim_tasks: the tasks that claimed, by id.
    :param claim: the claim, as the tasks were given it.
    """
    ti: Any = context["ti"]
    tasks = _between(settle, set(claim_tasks))
    states = ti.get_task_states(dag_id=ti.dag_id, run_ids=[ti.run_id]).get(ti.run_id, {})
    outcome = Outcome()
    for task_id, task in tasks.items():
        instances = _instances(task_id, states, is_mapped=_is_mapped(task))
        parts = _Parts(ti, task, claim)
        for instance in instances:
            _judge(outcome, ti, instance, parts)
    return outcome


def _between(settle: Any, claim_tasks: set[str]) -> dict[str, Any]:  # noqa: ANN401 - any operator
    upstream = {task.task_id: task for task in settle.get_flat_relatives(upstream=True)}
    below: set[str] = set()
    for task_id in claim_tasks & upstream.keys():
        below |= {task.task_id for task in upstream[task_id].get_flat_relatives(upstream=False)}
    return {
        task_id: task
        for task_id, task in upstream.items()
        if task_id not in claim_tasks and (task_id in below or not claim_tasks)
    }


def _is_mapped(task: Any) -> bool:  # noqa: ANN401 - any operator
    return bool(getattr(task, "is_mapped", False)) or task.get_closest_mapped_task_group() is not None


def _instances(task_id: str, states: Mapping[str, str | None], *, is_mapped: bool) -> list[_Instance]:
    if not is_mapped:
        return [_Instance(task_id, None, states.get(task_id))]
    indexed = re.compile(re.escape(task_id) + r"_(\d+)")
    found = [
        _Instance(task_id, int(match[1]), state) for name, state in states.items() if (match := indexed.fullmatch(name))
    ]
    # One that was mapped over nothing, or never expanded, stands there by its own name.
    return found or [_Instance(task_id, None, states.get(task_id))]


def _judge(outcome: Outcome, ti: Any, instance: _Instance, parts: _Parts) -> None:  # noqa: ANN401 - Airflow's task instance
    if instance.state in _ABSENT:
        return
    report = _pulled(ti, instance, REPORT_KEY) or {}
    for message, why in report.get("failed", {}).items():
        outcome.failed[message] = f"{instance}: {why}"
    if instance.state in _DONE:
        return
    outcome.done.update(report.get("done", ()))
    outcome.tasks.append(f"{instance} ({instance.state or 'not run'})")
    if instance.state == "upstream_failed":
        why = f"{instance} did not run, as a task before it had failed"
    else:
        why = f"{instance} failed: {_pulled(ti, instance, ERROR_KEY) or 'it ended without an error, killed perhaps'}"
    outcome.fail(parts.ids(instance.index), why)


def _pulled(ti: Any, instance: _Instance, key: str) -> Any:  # noqa: ANN401 - Airflow's task instance, and whatever was pushed
    if instance.index is None:
        return ti.xcom_pull(task_ids=instance.task_id, key=key)
    [found] = ti.xcom_pull(task_ids=instance.task_id, key=key, map_indexes=[instance.index]) or [None]
    return found


class _Parts:
    """Which messages each index of a mapped task was given."""

    def __init__(self, ti: Any, task: Any, claim: object) -> None:  # noqa: ANN401 - Airflow's task instance, and any operator
        self._ti = ti
        self._task = task
        self._claim = claim
        self._items: Sequence[Any] | None = None

    def ids(self, index: int | None) -> list[str] | None:
        """Return the ids of its messages, or None where nobody can tell."""
        if index is None:
            return None
        if self._items is None:
            self._items = self._mapped_over()
        return _ids(self._items[index], self._claim) if index < len(self._items) else None

    def _mapped_over(self) -> Sequence[Any]:
        """Return what the task is mapped over, if it is one list: of several, nobody can tell the order."""
        given = _expanded(self._task)
        if given is None:
            return ()
        if isinstance(given, Sequence):
            return given
        source = getattr(given, "operator", None)
        if source is None:
            return ()
        found = self._ti.xcom_pull(task_ids=source.task_id, key=getattr(given, "key", "return_value"))
        return found if isinstance(found, Sequence) and not isinstance(found, str) else ()


def _expanded(task: Any) -> Any:  # noqa: ANN401 - any operator, and a list or an XComArg
    for name in ("op_kwargs_expand_input", "expand_input"):
        value = getattr(getattr(task, name, None), "value", None)
        if isinstance(value, Mapping) and len(value) == 1:
            [given] = value.values()
            return given
    return None


def _ids(item: Any, claim: object) -> list[str] | None:  # noqa: ANN401 - what a task was given
    if isinstance(item, Mapping) and "claim_id" in item:
        # It was given a claim: this one's messages are all its own, another one's none of ours.
        is_ours = isinstance(claim, Mapping) and all(
            claim.get(name) == item.get(name) for name in ("claim_id", "topic")
        )
        return None if is_ours else []
    if isinstance(item, Mapping):
        return [item["id"]] if isinstance(item.get("id"), str) else None
    if isinstance(item, Sequence) and not isinstance(item, str):
        each = [_ids(part, claim) for part in item]
        return None if any(part is None for part in each) else [one for part in each for one in part or ()]
    return [item] if isinstance(item, str) else None
