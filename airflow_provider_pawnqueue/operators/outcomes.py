"""What the tasks between a claim and its settlement made of each message.

A task that succeeded has done its messages, and so has one that its DAG skipped; one that failed has not. Of a mapped
task each index speaks for the messages that it was given, as far as that can be told; else each speaks for all. A task
that knows it better reports it message by message. ⚑ In doubt a message is not done: what was done twice is told from
what was not done at all.

⚑ A settlement acks a message only if the tasks that speak for it began after its claim was made: see
:class:`~..hooks.task_notes.TaskStart`.
Airflow clears the sensor with each task of its block, and leaves the other tasks as they were: done, of another claim.
Else it gives all messages of the claim back: nothing is acked, and nothing buried.

Where a person marks a run as failed, or as a success, Airflow skips what had yet to run, and what was about to be tried
again; it then lets the settlement run. So a skip that the DAG does not explain is none: the work was not done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from airflow.providers.common.compat.sdk import XComArg

from airflow_provider_pawnqueue.hooks.identity import Owner
from airflow_provider_pawnqueue.hooks.reports import read_report
from airflow_provider_pawnqueue.hooks.task_notes import (
    BEGUN_KEY,
    ERROR_KEY,
    REPORT_KEY,
    SKIPPED_KEY,
    TaskStart,
    clear_number_of,
    is_current,
)
from airflow_provider_pawnqueue.operators.instances import Instance, States, instances_of, is_mapped, states_of
from airflow_provider_pawnqueue.operators.parts import Part, Parts, claims_before, inputs_of

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from pawnqueue import Claim

_DONE: Final = "success"
_SKIPPED: Final = "skipped"
_FAILED: Final = frozenset({"failed", "upstream_failed"})
#: A task of such a rule is skipped where those before it went well.
_FOR_FAILURES: Final = frozenset({"one_failed", "all_failed", "all_skipped"})
#: Under this key Airflow's branches keep what they skipped, or what they followed.
_BRANCH_KEY: Final = "skipmixin_key"
#: The operator that hands on the messages of a claim, by name: it is derived from those that settle.
_READING: Final = "PawnQueueMessagesOperator"
#: For so long a task that has skipped itself may take to say so: it does that when its state is known already.
PATIENCE: Final = 10.0
_PAUSE: Final = 0.5


#: Why a message is not done: its task failed, or reported it, or was never started as a task before it had failed.
Cause: TypeAlias = Literal["failed", "reported", "not_started"]


@dataclass(frozen=True, slots=True)
class NotDone:
    """Why a message is not done: a sentence, and which kind of thing happened."""

    why: str
    cause: Cause = "failed"


@dataclass(frozen=True, slots=True)
class Failure:
    """A task, or an index of one, that has not done what it was given."""

    #: What it was given; None: all that the tasks before it claimed, for all we know.
    part: Part | None
    claim_tasks: frozenset[str]
    not_done: NotDone
    name: str = ""
    #: Of which claims it knew.
    begun: TaskStart = field(default_factory=TaskStart)
    #: What it said that it has done all the same. ⚑ It speaks for itself alone, and for no other task that failed.
    done: frozenset[str] = frozenset()

    def of_this_claim(self, knows: Callable[[TaskStart], bool]) -> Failure:
        """Return what it says of a claim: of one that was made after it began, that nobody has worked on it."""
        if self.not_done.cause == "not_started" or knows(self.begun):
            return self
        why = f"{self.name} has not run since this claim was made"
        return replace(self, not_done=NotDone(why, "not_started"), done=frozenset())

    def is_of(self, claim: tuple[str, str], claim_task: str | None, known: Collection[str]) -> bool:
        """Say whether any message of a claim may be meant."""
        if self.part is None:
            return not self.claim_tasks or claim_task is None or claim_task in self.claim_tasks
        # What is no message of ours tells nothing of what it was given.
        return claim in self.part.claims or not self.part.ids.issubset(known)


@dataclass(frozen=True, slots=True)
class Done:
    """A task, or an index of one, that has done what it was given, and of which claims it knew."""

    instance: Instance
    parts: Parts
    begun: TaskStart

    def is_of(self, claim: tuple[str, str], claim_task: str | None) -> bool:
        """Say whether it may speak for messages of a claim."""
        before = self.parts.claim_tasks
        if before and claim_task is not None and claim_task not in before:
            return False
        part = self.parts.of(self.instance.index)
        return part is None or not part.claims or bool(part.ids) or claim in part.claims


@dataclass(slots=True)
class Outcome:
    """What became of the messages of all claims that are settled together."""

    #: The run whose tasks they are: its DAG's id, and its own.
    run: tuple[str, str]
    #: The tasks that failed, or did not run, with what they were given.
    failures: list[Failure] = field(default_factory=list)
    #: Those that have done what they were given.
    done: list[Done] = field(default_factory=list)
    #: Tasks that have done it, and began before a claim of theirs was made.
    early: list[str] = field(default_factory=list)
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

    def failed_of(self, held: Claim, claim_tasks: Collection[str], known: Collection[str]) -> dict[str, NotDone]:
        """Return which messages of a claim are not done, of those that are not settled, and why.

        :param claim_tasks: the tasks that claimed.
        :param known: the messages of all claims that are settled together, those that are settled already included.
        """
        owner, claim, ids = Owner.parse(held.owner), (held.topic, held.claim_id), held.ids
        claim_task = owner.task_id if owner is not None and owner.task_id in claim_tasks else None
        # The clearings of another run, on whose behalf somebody has claimed, are not those of this one.
        number = owner.clear_number if owner is not None and (owner.dag_id, owner.run_id) == self.run else 0
        knows = partial(TaskStart.knows, claim=claim, generation=held.generation, clear_number=number)
        unaware = [each for each in self.done if not knows(each.begun) and each.is_of(claim, claim_task)]
        if unaware and ids:
            early = [*dict.fromkeys(each.instance.task_id for each in unaware)]
            self.early += [name for name in early if name not in self.early]
            why = f"{', '.join(early)} ran before this claim was made, and cannot have seen its messages"
            return dict.fromkeys(ids, NotDone(why, "not_started"))
        failures = [each.of_this_claim(knows) for each in self.failures]
        failed: dict[str, NotDone] = {}
        # What was given to a task alone comes before what may have been, and what has failed before what was not begun.
        for each in sorted(failures, key=lambda each: each.not_done.cause == "not_started"):
            if each.part is not None:
                for message in each.part.ids - each.done:
                    failed.setdefault(message, each.not_done)
        meant = [each for each in failures if each.is_of(claim, claim_task, known)]
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


def outcome_of(context: Context, settle: Any, claim_tasks: Iterable[str]) -> Outcome:  # noqa: ANN401 - any operator
    """Ask Airflow what became of the tasks between a claim and its settlement.

    :param settle: the task that settles.
    :param claim_tasks: the tasks that claimed, by id.
    """
    ti: Any = context["ti"]
    claimers = frozenset(claim_tasks)
    tasks = _between(settle, claimers)
    states = States.of(ti, settle)
    single = {task_id for task_id, task in tasks.items() if not is_mapped(task)}
    outcome, skips = Outcome((ti.dag_id, ti.run_id)), _Skips(context, settle, states, claimers)
    # In the order in which they ran: of several reasons the first one is told, and last that of who has not run at all.
    ordered = sorted(tasks.values(), key=lambda task: (len(task.get_flat_relative_ids(upstream=True)), task.task_id))
    ran = [
        (instance, parts)
        for task in ordered
        for parts in [Parts(ti, task, claimers, states)]
        for instance in instances_of(task.task_id, states, single)
    ]
    stops = _Stops(ran, states)
    for instance, parts in sorted(ran, key=lambda each: each[0].state == "upstream_failed"):
        _judge(outcome, ti, instance, parts, skips, stops)
    for parts in {parts.task_id: parts for _, parts in ran}.values():
        if parts.are_of_other_claims:
            why = f"{parts.task_id} was expanded for other claims than there are now: a sensor was cleared without it"
            outcome.tasks.append(f"{parts.task_id} (expanded for other claims)")
            outcome.failures.append(Failure(None, parts.claim_tasks, NotDone(why, "not_started")))
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
        return _named({"mapped over": inputs_of(task), **task.partial_kwargs})
    return _named({name: getattr(task, name, None) for name in task.template_fields})


def _named(fields: Mapping[str, Any]) -> set[str]:
    return {source.task_id for value in fields.values() for source, _ in XComArg.iter_xcom_references(value)}


def has_claimed(context: Context, claim_tasks: Iterable[str]) -> bool:
    """Say whether one of the tasks that claim has succeeded."""
    states = states_of(context["ti"], claim_tasks)
    return any(each.state == _DONE for task_id in claim_tasks for each in instances_of(task_id, States(states), ()))


def _judge(  # noqa: PLR0913, PLR0917 - a task, and all that is known of the others
    outcome: Outcome,
    ti: Any,  # noqa: ANN401 - Airflow's task instance
    instance: Instance,
    parts: Parts,
    skips: _Skips,
    stops: _Stops,
) -> None:
    report = read_report(_pulled(ti, instance, REPORT_KEY))
    is_new = is_current(report, skips.round)
    if is_new or instance.state in {_DONE, _SKIPPED}:
        for message, why in report.get("failed", {}).items():
            outcome.failed[message] = f"{instance}: {why}"
    if parts.is_clearing_up:
        return
    if skips.is_done(instance, parts):
        if skips.has_worked(instance):
            outcome.done.append(Done(instance, parts, TaskStart.from_note(_pulled(ti, instance, BEGUN_KEY))))
        return
    outcome.tasks.append(f"{instance} ({instance.state or 'not run'})")
    if instance.state == "upstream_failed":
        if instance.index is None and not parts.is_mapped and stops.are_told(parts):
            outcome.silent.append(str(instance))
            return
        # ⚑ It would have worked on each message, and has on none: no message is done by it, and none is to blame.
        not_done = NotDone(f"{instance} did not run, as a task before it had failed", "not_started")
    elif instance.state == _SKIPPED:
        not_done = skips.explained(instance)
    else:
        why = _pulled(ti, instance, ERROR_KEY) or "it ended without an error, killed perhaps"
        not_done = NotDone(f"{instance} failed: {why}")
    # ⚑ What it had done before its run was cleared is not done since.
    done = frozenset(report.get("done", ()) if is_new else ())
    begun = TaskStart.from_note(_pulled(ti, instance, BEGUN_KEY))
    outcome.failures.append(Failure(parts.of(instance.index), parts.claim_tasks, not_done, str(instance), begun, done))


class _Stops:
    """Why tasks did not run: whether the tasks that failed before them speak for their messages by themselves."""

    def __init__(self, ran: Iterable[tuple[Instance, Parts]], states: States) -> None:
        self._states = states
        self._stopping: dict[str, list[tuple[Instance, Parts]]] = {}
        self._known: set[str] = set()
        for instance, parts in ran:
            self._known.add(parts.task_id)
            if instance.state in _FAILED:
                self._stopping.setdefault(parts.task_id, []).append((instance, parts))

    def are_told(self, stopped: Parts) -> bool:
        """Say whether all that kept a task from running speak for what they were given.

        ⚑ One of which nobody knows what it was given does not, as then the messages of any index may be meant. Nor does
        one that is not between the claim and its settlement: it stopped the work on all messages.
        """
        outside = stopped.before - self._known
        if any(each.state in _FAILED for task_id in outside for each in instances_of(task_id, self._states, ())):
            return False
        stopping = [each for task_id in stopped.before for each in self._stopping.get(task_id, ())]
        return bool(stopping) and all(self._speaks(*each) for each in stopping)

    def _speaks(self, instance: Instance, parts: Parts) -> bool:
        if parts.is_clearing_up:
            return False
        if parts.of(instance.index) is not None:
            return True
        return instance.state == "upstream_failed" and instance.index is None and self.are_told(parts)


def _pulled(ti: Any, instance: Instance, key: str) -> Any:  # noqa: ANN401 - Airflow's task instance, and whatever was pushed
    if instance.index is None:
        return ti.xcom_pull(task_ids=instance.task_id, key=key)
    return ti.xcom_pull(task_ids=instance.task_id, key=key, map_indexes=instance.index)


class _Skips:
    """Which tasks the DAG itself has skipped."""

    def __init__(
        self,
        context: Context,
        settle: Any,  # noqa: ANN401 - any operator
        states: States,
        claim_tasks: frozenset[str],
    ) -> None:
        self._ti: Any = context["ti"]
        #: How often the run was cleared.
        self.round = clear_number_of(context)
        self._states = states
        self._claim_tasks = claim_tasks
        #: Tasks that claim for other settlements, of blocks in this one for example.
        self._other_claims = {
            name for task in settle.dag.tasks for name in getattr(task, "claim_tasks", ())
        } - claim_tasks
        self._tasks: dict[str, Any] = {task.task_id: task for task in settle.get_flat_relatives(upstream=True)}
        self._single = {task_id for task_id, task in self._tasks.items() if not is_mapped(task)}
        self._known: dict[tuple[str, int | None], bool] = {}
        #: Those that were skipped as a claim was that they were to work on, beside ours.
        self._with_a_claim: set[tuple[str, int | None]] = set()
        self._give_up = time.monotonic() + PATIENCE

    def is_done(self, instance: Instance, parts: Parts) -> bool:
        """Say whether a task has done its part, or its DAG has left it out."""
        return instance.state == _DONE or (instance.state == _SKIPPED and self.is_meant(instance, parts))

    def has_worked(self, instance: Instance) -> bool:
        """Say whether a task that is done has come to that by itself, and not by what came before it.

        Airflow's scheduler ends empty operators where they are next: no worker runs them, and they work on nothing.
        """
        if instance.state == _DONE:
            return not getattr(self._tasks[instance.task_id], "inherits_from_empty_operator", False)
        return self._by_itself(instance)

    def is_meant(self, instance: Instance, parts: Parts) -> bool:
        """Say whether a task that was skipped has skipped itself, or was skipped by what came before it."""
        if self._by_itself(instance) or self._by_others(instance):
            return True
        if instance.index is None and instance.task_id not in self._single and parts.are_none:
            return True  # mapped over nothing
        if self.was_with_a_claim(instance):
            return False
        while time.monotonic() < self._give_up:
            time.sleep(_PAUSE)
            if self._by_itself(instance):
                return True
        return False

    def _by_itself(self, instance: Instance) -> bool:
        told = _pulled(self._ti, instance, SKIPPED_KEY)
        return bool(told) and is_current(told, self.round)

    def explained(self, instance: Instance) -> NotDone:
        """Say why the messages of a task are not done that its DAG has not skipped."""
        if self.was_with_a_claim(instance):
            return NotDone(f"{instance} was skipped, as a claim that it was to work on was", "not_started")
        if _pulled(self._ti, instance, SKIPPED_KEY) and not self._by_itself(instance):
            why = f"{instance} skipped itself before the run was cleared, and has not said so since"
            return NotDone(why, "not_started")
        return NotDone(f"{instance} was skipped by no task of its DAG: somebody marked it, or its run")

    def was_with_a_claim(self, instance: Instance) -> bool:
        """Say whether a task was skipped as a claim was that it was to work on, beside ours."""
        return (instance.task_id, instance.index) in self._with_a_claim

    def _by_others(self, instance: Instance) -> bool:
        """Say whether its rule, a branch, or the skip of a task before it explains that it was skipped."""
        key = instance.task_id, instance.index
        if key not in self._known:
            task = self._tasks[instance.task_id]
            self._known[key] = (
                str(getattr(rule := task.trigger_rule, "value", rule)) in _FOR_FAILURES
                or any(
                    self._left_out(task, branch, instance.index) for branch in task.get_flat_relatives(upstream=True)
                )
                or any(self._was_skipped(task, before, instance.index) for before in task.upstream_task_ids)
            )
        return self._known[key]

    def _left_out(self, task: Any, branch: Any, index: int | None) -> bool:  # noqa: ANN401 - any operators
        """Say whether a branch before a task has left it out."""
        for instance in self._before(task, branch.task_id, index):
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

    def _was_skipped(self, task: Any, before: str, index: int | None) -> bool:  # noqa: ANN401 - any operator
        """Say whether a task before one was skipped as the DAG meant it.

        Where one of several claims is skipped, so is the work on all of them: ⚑ the others have messages all the same.
        So it is with a claim of a block in this one, unless the DAG has left out that block. Its settlement is no work.
        """
        skipped = [one for one in self._before(task, before, index) if one.state == _SKIPPED]
        is_other = before in self._other_claims and not task.is_teardown
        if before in self._claim_tasks or (is_other and not any(self._by_others(one) for one in skipped)):
            claims = claims_before(task, self._claim_tasks)
            is_meant = not any(one.state == _DONE for claim in claims for one in self._of(claim))
            is_with_a_claim = not is_meant
        else:
            parts = Parts(self._ti, self._tasks[before], self._claim_tasks, self._states)
            is_meant = any(self.is_meant(one, parts) for one in skipped)
            is_with_a_claim = any(self.was_with_a_claim(one) for one in skipped)
        if skipped and is_with_a_claim:
            self._with_a_claim.add((task.task_id, index))
        return bool(skipped) and is_meant

    def _before(self, task: Any, before: str, index: int | None) -> list[Instance]:  # noqa: ANN401 - any operator
        """Return the instances of a task that come before an index of another one: in its mapped group, that index."""
        group, its = (each.get_closest_mapped_task_group() for each in (task, self._tasks[before]))
        is_beside = group is not None and its is not None and group.group_id == its.group_id
        return [one for one in self._of(before) if not is_beside or index is None or one.index in {None, index}]

    def _of(self, task_id: str) -> list[Instance]:
        return instances_of(task_id, self._states, self._single)
