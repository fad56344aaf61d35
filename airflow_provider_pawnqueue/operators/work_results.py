"""Which messages of a claim are not done, as the results of the tasks between the claim and its settlement say.

- A message is done if every task that may have been given it has done its work. In doubt a message is not done: it is
  better delivered twice than not at all.
- What a task reports about a message comes before what became of the task.
- ⚑ Only tasks that began after the claim was made (see :class:`~..hooks.task_notes.TaskStart`) can have worked on its
  messages. Airflow clears the sensor with each task of its block, and may leave other tasks as they were, done with the
  former claim. If one of these has succeeded, the settlement gives all messages of the new claim back: it acks none,
  and buries none.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Literal, Self, TypeAlias

from airflow_provider_pawnqueue.hooks.identity import Owner
from airflow_provider_pawnqueue.hooks.task_notes import TaskStart
from airflow_provider_pawnqueue.operators.assignments import Assignment, WorkTask
from airflow_provider_pawnqueue.operators.instances import Instance
from pawnqueue import Claim

#: Why a message is not done: its task failed, or reported the message, or has not worked on it at all.
Cause: TypeAlias = Literal["failed", "reported", "not_started"]


@dataclass(frozen=True, slots=True)
class NotDone:
    """Why a message is not done: a sentence for people, and the cause."""

    reason: str
    cause: Cause = "failed"


@dataclass(frozen=True, slots=True)
class ClaimInRun:
    """A claim, as far as the tasks of a run can know it."""

    topic_and_id: tuple[str, str]
    generation: int
    #: The task of this run that claimed, or None where that is not known.
    claim_task: str | None
    #: How often the run had been cleared when the claim was made.
    clear_number: int

    @classmethod
    def of(cls, held: Claim, run: tuple[str, str], claim_tasks: Collection[str]) -> Self:
        """Return what the claim and its owner say.

        :param run: the run that settles: its DAG's id, and its own.
        """
        owner = Owner.parse(held.owner)
        claim_task = owner.task_id if owner is not None and owner.task_id in claim_tasks else None
        # A claim that was made for another run says nothing about how often this one was cleared.
        clear_number = owner.clear_number if owner is not None and (owner.dag_id, owner.run_id) == run else 0
        return cls((held.topic, held.claim_id), held.generation, claim_task, clear_number)

    def is_known_to(self, begun: TaskStart) -> bool:
        """Say whether a task that began like this can have seen the claim."""
        return begun.knows(self.topic_and_id, self.generation, self.clear_number)

    def may_come_from(self, claim_tasks: Collection[str]) -> bool:
        """Say whether one of these tasks may have claimed it; without any, every task may."""
        return not claim_tasks or self.claim_task is None or self.claim_task in claim_tasks


@dataclass(frozen=True, slots=True)
class FinishedWork:
    """An instance that has done what it was given."""

    instance: Instance
    task: WorkTask
    begun: TaskStart

    def may_concern(self, claim: ClaimInRun) -> bool:
        """Say whether it may have been given messages of a claim."""
        if not claim.may_come_from(self.task.claim_tasks):
            return False
        given = self.task.assignment_of(self.instance.index)
        # It was not given this claim only if it was given whole claims, all of them others.
        return given is None or not given.claims or bool(given.message_ids) or claim.topic_and_id in given.claims


@dataclass(frozen=True, slots=True)
class FailedWork:
    """An instance that has not done what it was given."""

    name: str
    not_done: NotDone
    #: What it was given; None where that is not known, so that it may be anything the tasks before it claimed.
    assignment: Assignment | None = None
    #: The tasks before it that claim.
    claim_tasks: frozenset[str] = frozenset()
    begun: TaskStart = field(default_factory=TaskStart)
    #: What it reported as done before it failed. ⚑ That holds for this instance only, not for another that failed.
    reported_done: frozenset[str] = frozenset()

    @property
    def has_not_started(self) -> bool:
        """Whether it has not worked on any message."""
        return self.not_done.cause == "not_started"

    def in_view_of(self, claim: ClaimInRun) -> FailedWork:
        """Return what it means for a claim: it has not worked on a claim that was made after it began."""
        if self.has_not_started or claim.is_known_to(self.begun):
            return self
        reason = f"{self.name} has not run since this claim was made"
        return replace(self, not_done=NotDone(reason, "not_started"), reported_done=frozenset())

    def may_concern(self, claim: ClaimInRun, known_ids: Collection[str]) -> bool:
        """Say whether any message of a claim may be among what it was given.

        :param known_ids: the ids of all messages of all claims. An id that is none of them does not say what the
            instance was given.
        """
        if self.assignment is None:
            return claim.may_come_from(self.claim_tasks)
        return claim.topic_and_id in self.assignment.claims or not self.assignment.message_ids.issubset(known_ids)


@dataclass(slots=True)
class WorkResults:
    """What became of the work on all claims that are settled together."""

    #: The run that settles: its DAG's id, and its own.
    run: tuple[str, str]
    finished: list[FinishedWork] = field(default_factory=list)
    failed: list[FailedWork] = field(default_factory=list)
    #: Why messages are not done, by id, as tasks reported.
    reported: dict[str, str] = field(default_factory=dict)
    #: The tasks that are not done, with their states, for the error that fails the run.
    unfinished_names: list[str] = field(default_factory=list)
    #: Tasks that did not run, whose messages are accounted for by the tasks that failed before them.
    ignored_names: list[str] = field(default_factory=list)
    #: Tasks that succeeded before a claim was made that they should have worked on; known once the claims are judged.
    too_early_names: list[str] = field(default_factory=list)
    #: What tasks reported about ids that are no messages of a claim; known once the claims are judged.
    reported_unknown: dict[str, str] = field(default_factory=dict)

    @property
    def mentioned_ids(self) -> set[str]:
        """The ids that a task reported, or that a failed task was given; without any, a claim's messages fare alike."""
        given = (each.assignment.message_ids for each in self.failed if each.assignment is not None)
        return set(self.reported).union(*(each.reported_done for each in self.failed), *given)

    def not_done_in(self, held: Claim, claim_tasks: Collection[str], known_ids: Collection[str]) -> dict[str, NotDone]:
        """Return which unsettled messages of a claim are not done, and why.

        :param claim_tasks: the tasks that claim.
        :param known_ids: the ids of all messages of all claims that are settled together, settled ones included.
        """
        claim, ids = ClaimInRun.of(held, self.run, claim_tasks), held.ids
        too_early = self._too_early(claim)
        if too_early and ids:
            self.too_early_names = [*dict.fromkeys([*self.too_early_names, *too_early])]
            reason = f"{', '.join(too_early)} ran before this claim was made, and cannot have seen its messages"
            return dict.fromkeys(ids, NotDone(reason, "not_started"))
        # Of several reasons, that a task failed comes before that it has not started.
        failed = sorted((each.in_view_of(claim) for each in self.failed), key=lambda each: each.has_not_started)
        found: dict[str, NotDone] = {}
        # 1. Messages that failed tasks were given by their ids.
        for each in failed:
            if each.assignment is not None:
                for message_id in each.assignment.message_ids - each.reported_done:
                    found.setdefault(message_id, each.not_done)
        # 2. Messages that tasks reported, which replaces a failure of the task.
        found |= {name: NotDone(reason, "reported") for name, reason in self.reported.items() if name in known_ids}
        # 3. All other messages, if a failed task may have been given them.
        concerned = [each for each in failed if each.may_concern(claim, known_ids)] + self._unknown_reports(known_ids)
        for each in sorted(concerned, key=lambda each: each.has_not_started):
            for message_id in ids:
                if message_id not in each.reported_done:
                    found.setdefault(message_id, each.not_done)
        return {message_id: found[message_id] for message_id in ids if message_id in found}

    def _too_early(self, claim: ClaimInRun) -> list[str]:
        """Return the tasks that succeeded without having seen a claim that they should have worked on."""
        unaware = (each for each in self.finished if not claim.is_known_to(each.begun) and each.may_concern(claim))
        return [*dict.fromkeys(each.instance.task_id for each in unaware)]

    def _unknown_reports(self, known_ids: Collection[str]) -> list[FailedWork]:
        """Return the reports about ids that are no messages of a claim: each may mean any message.

        The task that reports such an id is at fault, and nothing says that it looked at a message. So the cause is a
        failed task, not a reported message.
        """
        unknown = {name: reason for name, reason in self.reported.items() if name not in known_ids}
        self.reported_unknown |= unknown
        return [
            FailedWork(name, NotDone(f"{reason} (reported for {name!r}, which is not a message of the claim)"))
            for name, reason in unknown.items()
        ]
