"""What the tasks between a claim and its settlement made of each message.

A task that succeeded has done its messages, and so has one that its DAG skipped; one that failed has not. Of a mapped
task each index speaks for the messages that it was given, as far as that can be told; else each speaks for all. A task
that knows it better reports it message by message. ⚑ In doubt a message is not done: what was done twice is told from
what was not done at all.

Where a person marks a run as failed, or as a success, Airflow skips what had yet to run, and what was about to be tried
again; it then lets the settlement run. So a skip that the DAG does not explain is none: the work was not done.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from airflow.providers.common.compat.sdk import XComArg

from airflow_provider_pawnqueue.hooks.keys import ERROR_KEY, REPORT_KEY, SKIPPED_KEY, is_of_round, round_of
from airflow_provider_pawnqueue.hooks.reports import read_report
from airflow_provider_pawnqueue.operators.outputs import DecodedOutput

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

_DONE: Final = "success"
_SKIPPED: Final = "skipped"
_FAILED: Final = frozenset({"failed", "upstream_failed"})
#: The state of a row that its run no longer has, as its task was deleted, or is mapped over less than before.
_REMOVED: Final = "removed"
#: A task of such a rule is skipped where those before it went well.
_FOR_FAILURES: Final = frozenset({"one_failed", "all_failed", "all_skipped"})
#: Under this key Airflow's branches keep what they skipped, or what they followed.
_BRANCH_KEY: Final = "skipmixin_key"
#: The operator that hands on the messages of a claim, by name: it is derived from those that settle.
_READING: Final = "PawnQueueMessagesOperator"
#: For so long a task that has skipped itself may take to say so: it does that when its state is known already.
PATIENCE: Final = 10.0
_PAUSE: Final = 0.5
#: How many tasks one request asks for: their names are in its address, whose length is bounded.
_ASKED_AT_ONCE: Final = 50


#: Why a message is not done: its task failed, or reported it, or was never started as a task before it had failed.
Cause: TypeAlias = Literal["failed", "reported", "not_started"]


@dataclass(frozen=True, slots=True)
class NotDone:
    """Why a message is not done: a sentence, and which kind of thing happened."""

    why: str
    cause: Cause = "failed"


@dataclass(frozen=True, slots=True)
class Part:
    """What one task was given of the claims: messages by their ids, and whole claims by topic and id."""

    ids: frozenset[str] = frozenset()
    claims: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Failure:
    """A task, or an index of one, that has not done what it was given."""

    #: What it was given; None: all that the tasks before it claimed, for all we know.
    part: Part | None
    claim_tasks: frozenset[str]
    not_done: NotDone
    #: What it said that it has done all the same. ⚑ It speaks for itself alone, and for no other task that failed.
    done: frozenset[str] = frozenset()

    def is_of(self, claim: tuple[str, str], claim_task: str | None, known: Collection[str]) -> bool:
        """Say whether any message of a claim may be meant."""
        if self.part is None:
            return not self.claim_tasks or claim_task is None or claim_task in self.claim_tasks
        # What is no message of ours tells nothing of what it was given.
        return claim in self.part.claims or not self.part.ids.issubset(known)


@dataclass(slots=True)
class Outcome:
    """What became of the messages of all claims that are settled together."""

    #: The tasks that failed, or did not run, with what they were given.
    failures: list[Failure] = field(default_factory=list)
    #: Why some are not done, by their ids, as tasks said.
    failed: dict[str, str] = field(default_factory=dict)
    #: The tasks that failed, as Airflow shows them.
    tasks: list[str] = field(default_factory=list)
    #: Tasks that did not run, and speak for no message, as the failed ones before them speak for theirs.
    silent: list[str] = field(default_factory=list)
    #: What tasks said of ids that are none of the claim's.
    strange: dict[str, str] = field(default_factory=dict)

    @property
    def told(self) -> set[str]:
        """The ids of which anything is known by themselves; without any, all messages of a claim fare alike."""
        parts = (each.part.ids for each in self.failures if each.part is not None)
        return set(self.failed).union(*(each.done for each in self.failures), *parts)

    def failed_of(
        self, claim: tuple[str, str], claim_task: str | None, ids: Sequence[str], known: Collection[str]
    ) -> dict[str, NotDone]:
        """Return which messages of a claim are not done, and why.

        :param claim: its topic and id.
        :param claim_task: the task that claimed, or None where nobody can tell.
        :param ids: its messages that are not settled.
        :param known: the messages of all claims that are settled together, those that are settled already included.
        """
        failed: dict[str, NotDone] = {}
        # What was given to a task alone comes before what may have been, and what has failed before what was not begun.
        for each in sorted(self.failures, key=lambda each: each.not_done.cause == "not_started"):
            if each.part is not None:
                for message in each.part.ids - each.done:
                    failed.setdefault(message, each.not_done)
        meant = [each for each in self.failures if each.is_of(claim, claim_task, known)]
        for message, why in self.failed.items():
            if message in known:
                failed[message] = NotDone(why, "reported")
            else:
                self.strange[message] = why
                told = f"{why} (reported of {message!r}, which is no message of the claim)"
                # The task is at fault: nothing says that a message was looked at.
                meant.append(Failure(None, frozenset(), NotDone(told)))
        for each in sorted(meant, key=lambda each: each.not_done.cause == "not_started"):
            for message in ids:
                if message not in each.done:
                    failed.setdefault(message, each.not_done)
        return {message: failed[message] for message in ids if message in failed}


@dataclass(frozen=True, slots=True)
class _Instance:
    """A task of this run, or one index of a mapped one."""

    task_id: str
    index: int | None
    state: str | None

    def __str__(self) -> str:
        return self.task_id if self.index is None else f"{self.task_id}[{self.index}]"


def outcome_of(context: Context, settle: Any, claim_tasks: Iterable[str]) -> Outcome:  # noqa: ANN401 - any operator
    """Ask Airflow what became of the tasks between a claim and its settlement.

    :param settle: the task that settles.
    :param claim_tasks: the tasks that claimed, by id.
    """
    ti: Any = context["ti"]
    claimers = frozenset(claim_tasks)
    tasks = _between(settle, claimers)
    states = _States.of(ti, settle)
    single = {task_id for task_id, task in tasks.items() if not _is_mapped(task)}
    outcome, skips = Outcome(), _Skips(context, settle, states, claimers)
    # In the order in which they ran: of several reasons the first one is told, and last that of who has not run at all.
    ordered = sorted(tasks.values(), key=lambda task: (len(task.get_flat_relative_ids(upstream=True)), task.task_id))
    ran = [
        (instance, parts)
        for task in ordered
        for parts in [_Parts(ti, task, claimers)]
        for instance in _instances(task.task_id, states, single)
    ]
    stops = _Stops(ran, states)
    for instance, parts in sorted(ran, key=lambda each: each[0].state == "upstream_failed"):
        _judge(outcome, ti, instance, parts, skips, stops)
    return outcome


def _between(settle: Any, claim_tasks: Collection[str]) -> dict[str, Any]:  # noqa: ANN401 - any operator
    upstream = {task.task_id: task for task in settle.get_flat_relatives(upstream=True)}
    below: set[str] = set()
    for task_id in upstream.keys() & claim_tasks:
        below |= {task.task_id for task in upstream[task_id].get_flat_relatives(upstream=False)}
    found = {
        task_id: task
        for task_id, task in upstream.items()
        if task_id not in claim_tasks and (task_id in below or not claim_tasks)
    }
    # The first one that failed is the reason: what comes after others has more before it.
    return dict(sorted(found.items(), key=lambda each: len(each[1].get_flat_relative_ids(upstream=True))))


def forgotten(settle: Any, claim_tasks: Iterable[str]) -> list[str]:  # noqa: ANN401 - any operator
    """Return the tasks that would work on a claim beside its settlement: neither before nor after it.

    They are given the claim, or its messages by a task of ours; or no task is between the claim and its settlement.
    """
    claimers = set(claim_tasks)
    after = {task.task_id for task in settle.get_flat_relatives(upstream=False)}
    upstream = {task.task_id: task for task in settle.get_flat_relatives(upstream=True)}
    below = {
        task.task_id: task
        for task_id in claimers & upstream.keys()
        for task in upstream[task_id].get_flat_relatives(upstream=False)
        if task.task_id not in claimers | {settle.task_id} | upstream.keys() | after
    }
    if not _between(settle, claimers):
        return sorted(below)
    handing = claimers | {task_id for task_id, task in upstream.items() if task.task_type == _READING}
    return sorted(task_id for task_id, task in below.items() if handing & _given_by(task))


def _given_by(task: Any) -> set[str]:  # noqa: ANN401 - any operator
    """Return the tasks whose results a task is given, by id."""
    if getattr(task, "is_mapped", False):
        return _named({"mapped over": _inputs(task), **task.partial_kwargs})
    return _named({name: getattr(task, name, None) for name in task.template_fields})


def _named(fields: Mapping[str, Any]) -> set[str]:
    return {source.task_id for value in fields.values() for source, _ in XComArg.iter_xcom_references(value)}


def has_claimed(context: Context, claim_tasks: Iterable[str]) -> bool:
    """Say whether one of the tasks that claim has succeeded."""
    states = _asked(context["ti"], claim_tasks)
    return any(each.state == _DONE for task_id in claim_tasks for each in _instances(task_id, _States(states), ()))


def _asked(ti: Any, task_ids: Iterable[str]) -> dict[str, str | None]:  # noqa: ANN401 - Airflow's task instance
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
    """Leave out the other indexes of a mapped group in which the settlement stands: they have claims of their own."""
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


@dataclass(frozen=True, slots=True)
class _States:
    """The states of a run's tasks, by the names that Airflow gives them: one key for index 1 of ``a``, and for ``a_1``.

    ⚑ So tasks of which a name may be another one's are asked for alone: no task is done by the state of another one.
    """

    names: Mapping[str, str | None]
    alone: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, ti: Any, settle: Any) -> _States:  # noqa: ANN401 - Airflow's task instance, and any operator
        def asked(task_ids: Iterable[str]) -> dict[str, str | None]:
            return _of_this_index(_asked(ti, task_ids), settle, ti.map_index)

        tasks = {task.task_id: task for task in settle.get_flat_relatives(upstream=True)}
        shared: set[str] = set()
        for task_id in tasks:
            before, mark, number = task_id.rpartition("_")
            if mark and number.isdecimal() and before in tasks and _is_mapped(tasks[before]):
                shared |= {task_id, before}
        return cls(asked(tasks), {task_id: asked([task_id]) for task_id in sorted(shared)})

    def named(self, task_id: str) -> Mapping[str, str | None]:
        """Return the states among which a task's are."""
        return self.alone.get(task_id, self.names)


def _is_mapped(task: Any) -> bool:  # noqa: ANN401 - any operator
    return bool(getattr(task, "is_mapped", False)) or task.get_closest_mapped_task_group() is not None


def _instances(task_id: str, states: _States, single: Collection[str]) -> list[_Instance]:
    named = states.named(task_id)
    if task_id in single:
        return [_Instance(task_id, None, named.get(task_id))]
    indexed = re.compile(re.escape(task_id) + r"_(\d+)")
    found = [
        _Instance(task_id, int(match[1]), state) for name, state in named.items() if (match := indexed.fullmatch(name))
    ]
    # One that was mapped over nothing, or never expanded, stands there by its own name.
    return found or [_Instance(task_id, None, named.get(task_id))]


def _judge(  # noqa: PLR0913, PLR0917 - a task, and all that is known of the others
    outcome: Outcome,
    ti: Any,  # noqa: ANN401 - Airflow's task instance
    instance: _Instance,
    parts: _Parts,
    skips: _Skips,
    stops: _Stops,
) -> None:
    report = read_report(_pulled(ti, instance, REPORT_KEY))
    is_new = is_of_round(report, skips.round)
    if is_new or instance.state in {_DONE, _SKIPPED}:
        for message, why in report.get("failed", {}).items():
            outcome.failed[message] = f"{instance}: {why}"
    if instance.state == _DONE or (instance.state == _SKIPPED and skips.is_meant(instance, parts)):
        return
    if parts.is_clearing_up:
        return
    outcome.tasks.append(f"{instance} ({instance.state or 'not run'})")
    cause: Cause = "failed"
    if instance.state == "upstream_failed":
        why = f"{instance} did not run, as a task before it had failed"
        if instance.index is None and not parts.is_mapped and stops.are_told(parts):
            outcome.silent.append(str(instance))
            return
        # ⚑ It would have worked on each message, and has on none: no message is done by it, and none is to blame.
        cause = "not_started"
    elif instance.state == _SKIPPED:
        why = f"{instance} was skipped by no task of its DAG: somebody marked it, or its run"
        if skips.told_before(instance):
            why, cause = (
                f"{instance} skipped itself before the run was cleared, and has not said so since",
                "not_started",
            )
    else:
        why = f"{instance} failed: {_pulled(ti, instance, ERROR_KEY) or 'it ended without an error, killed perhaps'}"
    # ⚑ What it had done before its run was cleared is not done since.
    done = frozenset(report.get("done", ()) if is_new else ())
    outcome.failures.append(Failure(parts.of(instance.index), parts.claim_tasks, NotDone(why, cause), done))


class _Stops:
    """Why tasks did not run: whether the tasks that failed before them speak for their messages by themselves."""

    def __init__(self, ran: Iterable[tuple[_Instance, _Parts]], states: _States) -> None:
        self._states = states
        self._stopping: dict[str, list[tuple[_Instance, _Parts]]] = {}
        self._known: set[str] = set()
        for instance, parts in ran:
            self._known.add(parts.task_id)
            if instance.state in _FAILED:
                self._stopping.setdefault(parts.task_id, []).append((instance, parts))

    def are_told(self, stopped: _Parts) -> bool:
        """Say whether all that kept a task from running speak for what they were given.

        ⚑ One of which nobody knows what it was given does not, as then the messages of any index may be meant. Nor does
        one that is not between the claim and its settlement: it stopped the work on all messages.
        """
        outside = stopped.before - self._known
        if any(each.state in _FAILED for task_id in outside for each in _instances(task_id, self._states, ())):
            return False
        stopping = [each for task_id in stopped.before for each in self._stopping.get(task_id, ())]
        return bool(stopping) and all(self._speaks(*each) for each in stopping)

    def _speaks(self, instance: _Instance, parts: _Parts) -> bool:
        if parts.is_clearing_up:
            return False
        if parts.of(instance.index) is not None:
            return True
        return instance.state == "upstream_failed" and instance.index is None and self.are_told(parts)


def _pulled(ti: Any, instance: _Instance, key: str) -> Any:  # noqa: ANN401 - Airflow's task instance, and whatever was pushed
    if instance.index is None:
        return ti.xcom_pull(task_ids=instance.task_id, key=key)
    return ti.xcom_pull(task_ids=instance.task_id, key=key, map_indexes=instance.index)


class _Skips:
    """Which tasks the DAG itself has skipped."""

    def __init__(
        self,
        context: Context,
        settle: Any,  # noqa: ANN401 - any operator
        states: _States,
        claim_tasks: frozenset[str],
    ) -> None:
        self._ti: Any = context["ti"]
        #: How often the run was cleared.
        self.round = round_of(context)
        self._states = states
        self._claim_tasks = claim_tasks
        self._tasks: dict[str, Any] = {task.task_id: task for task in settle.get_flat_relatives(upstream=True)}
        self._single = {task_id for task_id, task in self._tasks.items() if not _is_mapped(task)}
        self._known: dict[str, bool] = {}
        self._give_up = time.monotonic() + PATIENCE

    def is_meant(self, instance: _Instance, parts: _Parts) -> bool:
        """Say whether a task that was skipped has skipped itself, or was skipped by what came before it."""
        if self._by_itself(instance) or self._by_others(instance.task_id):
            return True
        if instance.index is None and instance.task_id not in self._single and parts.are_none:
            return True  # mapped over nothing
        while time.monotonic() < self._give_up:
            time.sleep(_PAUSE)
            if self._by_itself(instance):
                return True
        return False

    def _by_itself(self, instance: _Instance) -> bool:
        told = _pulled(self._ti, instance, SKIPPED_KEY)
        return bool(told) and is_of_round(told, self.round)

    def told_before(self, instance: _Instance) -> bool:
        """Say whether a task had skipped itself before its run was cleared."""
        return bool(_pulled(self._ti, instance, SKIPPED_KEY)) and not self._by_itself(instance)

    def _by_others(self, task_id: str) -> bool:
        """Say whether its rule, a branch, or the skip of a task before it explains that it was skipped."""
        if task_id not in self._known:
            task = self._tasks[task_id]
            self._known[task_id] = (
                str(getattr(rule := task.trigger_rule, "value", rule)) in _FOR_FAILURES
                or any(self._left_out(task, before) for before in task.get_flat_relatives(upstream=True))
                or any(self._was_skipped(task, before) for before in task.upstream_task_ids)
            )
        return self._known[task_id]

    def _left_out(self, task: Any, branch: Any) -> bool:  # noqa: ANN401 - any operators
        """Say whether a branch before a task has left it out."""
        for instance in self._of(branch.task_id):
            told = _pulled(self._ti, instance, _BRANCH_KEY)
            # ⚑ What a branch told before it was cleared is there until it runs again: it has left out nothing since.
            if not isinstance(told, Mapping) or instance.state != _DONE:
                continue
            if task.task_id in told.get("skipped", ()):
                return True
            followed = told.get("followed")
            if followed is not None and branch.task_id in task.upstream_task_ids and task.task_id not in followed:
                return True
        return False

    def _was_skipped(self, task: Any, before: str) -> bool:  # noqa: ANN401 - any operator
        """Say whether a task before one was skipped as the DAG meant it.

        Where one of several claims is skipped, so is the work on all of them: ⚑ the others have messages all the same.
        """
        skipped = [one for one in self._of(before) if one.state == _SKIPPED]
        parts = _Parts(self._ti, self._tasks[before], self._claim_tasks)
        if before in self._claim_tasks:
            claims = _claims_before(task, self._claim_tasks)
            return bool(skipped) and not any(one.state == _DONE for claim in claims for one in self._of(claim))
        return any(self.is_meant(one, parts) for one in skipped)

    def _of(self, task_id: str) -> list[_Instance]:
        return _instances(task_id, self._states, self._single)


def _claims_before(task: Any, claim_tasks: Collection[str]) -> frozenset[str]:  # noqa: ANN401 - any operator
    return frozenset(each.task_id for each in task.get_flat_relatives(upstream=True) if each.task_id in claim_tasks)


class _Parts:
    """Which messages each index of a mapped task was given."""

    def __init__(self, ti: Any, task: Any, claim_tasks: Collection[str]) -> None:  # noqa: ANN401 - Airflow's task instance, and any operator
        #: The tasks before it that have claimed.
        self.claim_tasks = _claims_before(task, claim_tasks)
        self.task_id: str = task.task_id
        self.is_mapped = _is_mapped(task)
        #: The tasks on which it waits.
        self.before = frozenset(task.upstream_task_ids)
        self._ti = ti
        self._task = task
        self._items: Sequence[Any] | None = None

    def of(self, index: int | None) -> Part | None:
        """Return what it was given, or None where nobody can tell."""
        if index is None:
            return None
        return _part(self._given[index]) if index < len(self._given) else None

    @property
    def is_clearing_up(self) -> bool:
        """Whether the task is a teardown whose failure, as Airflow has it, fails no run: it has worked on nothing."""
        return bool(self._task.is_teardown and not self._task.on_failure_fail_dagrun)

    @property
    def are_none(self) -> bool:
        """Whether it was mapped over nothing: one list is empty, of several too. In doubt it was not."""
        return any(self._is_empty(given) for given in _inputs(self._task))

    @property
    def _given(self) -> Sequence[Any]:
        if self._items is None:
            self._items = self._mapped_over()
        return self._items

    def _is_empty(self, given: Any) -> bool:  # noqa: ANN401 - a list, a dict, or an XComArg
        if isinstance(given, (Sequence, Mapping)):
            return not given
        sources = [(source, key) for source, key in XComArg.iter_xcom_references(given) if not _is_mapped(source)]
        pulled = [self._ti.xcom_pull(task_ids=source.task_id, key=key) for source, key in sources]
        return any(isinstance(each, (Sequence, Mapping)) and not each for each in pulled)

    def _mapped_over(self) -> Sequence[Any]:
        """Return what the task is mapped over, if it is one list: of several, nobody can tell the order."""
        given = _expanded(self._task)
        if given is None:
            return ()
        if isinstance(given, Sequence):
            return given
        source = getattr(given, "operator", None)
        if source is None or _is_mapped(source):
            return ()
        found = self._ti.xcom_pull(task_ids=source.task_id, key=getattr(given, "key", "return_value"))
        if isinstance(given, DecodedOutput):
            found = given.decoded(found)
        return found if isinstance(found, Sequence) and not isinstance(found, str) else ()


def _inputs(task: Any) -> list[Any]:  # noqa: ANN401 - any operator, and lists or XComArgs
    """Return what a task is mapped over, or the group in which it stands."""
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
    given = _inputs(task)
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
