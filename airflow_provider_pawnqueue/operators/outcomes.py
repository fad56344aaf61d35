"""What became of each task between a claim and its settlement.

A task that succeeded has done its messages, and so has a task that its DAG skipped (:mod:`.skips`). A task that failed
or did not run has not. An index of a mapped task counts only for the messages that it was given, where that can be
found out (:mod:`.assignments`), and otherwise for all. :mod:`.work_results` says what this means for each message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow.providers.common.compat.sdk import Context

from airflow_provider_pawnqueue.hooks.reports import read_report
from airflow_provider_pawnqueue.hooks.task_notes import (
    BEGUN_KEY,
    ERROR_KEY,
    REPORT_KEY,
    TaskStart,
    clear_number_of,
    is_current,
)
from airflow_provider_pawnqueue.operators.assignments import WorkTask
from airflow_provider_pawnqueue.operators.graph import FAILED_STATES, SKIPPED, SUCCESS, UPSTREAM_FAILED, work_tasks
from airflow_provider_pawnqueue.operators.instances import Instance, TaskStates, states_of
from airflow_provider_pawnqueue.operators.skips import Skips
from airflow_provider_pawnqueue.operators.work_results import FailedWork, FinishedWork, NotDone, WorkResults


def has_claimed(context: Context, claim_tasks: Iterable[str]) -> bool:
    """Say whether a task that claims, or an index of one, has succeeded."""
    return SUCCESS in states_of(context["ti"], claim_tasks).values()


def results_of(context: Context, settle: Any, claim_tasks: Iterable[str]) -> WorkResults:  # noqa: ANN401 - any operator
    """Ask Airflow what became of the tasks between a claim and its settlement.

    :param settle: the task that settles.
    :param claim_tasks: the tasks that claim, by id.
    """
    ti: Any = context["ti"]
    claimers = frozenset(claim_tasks)
    states = TaskStates.before(settle, ti)
    # In the order in which they ran: of several reasons for one message, the first is given.
    in_order = sorted(
        work_tasks(settle, claimers).values(),
        key=lambda task: (len(task.get_flat_relative_ids(upstream=True)), task.task_id),
    )
    tasks = [WorkTask(ti, task, claimers, states) for task in in_order]
    ran = [(instance, task) for task in tasks for instance in states.instances_of(task.task_id)]
    judge = _Judge(context, Skips(context, settle, states, claimers), _Blockers(ran, states))
    # That a task has not run at all is the last reason to give.
    for instance, task in sorted(ran, key=lambda each: each[0].state == UPSTREAM_FAILED):
        judge.add(instance, task)
    results = judge.results
    for task in tasks:
        if task.was_expanded_for_other_claims:
            reason = f"{task.task_id} was expanded for other claims than these: its sensor was cleared without it"
            results.unfinished_names.append(f"{task.task_id} (expanded for other claims)")
            not_done = NotDone(reason, "not_started")
            results.failed.append(FailedWork(task.task_id, not_done, claim_tasks=task.claim_tasks))
    return results


class _Judge:
    """Collects the results of a run's instances, one after the other."""

    def __init__(self, context: Context, skips: Skips, blockers: _Blockers) -> None:
        self._ti: Any = context["ti"]
        self._clear_number = clear_number_of(context)
        self._skips = skips
        self._blockers = blockers
        self.results = WorkResults((self._ti.dag_id, self._ti.run_id))

    def add(self, instance: Instance, task: WorkTask) -> None:
        """Add what an instance reported, and whether it has done its work."""
        results = self.results
        report = read_report(instance.pull(self._ti, REPORT_KEY))
        is_fresh = is_current(report, self._clear_number)
        if is_fresh or instance.state in {SUCCESS, SKIPPED}:
            for message_id, reason in report.get("failed", {}).items():
                results.reported[message_id] = f"{instance}: {reason}"
        if task.is_clean_up:
            return
        if self._skips.is_done(instance, task):
            if self._skips.has_run(instance):
                results.finished.append(FinishedWork(instance, task, self._begun(instance)))
            return
        results.unfinished_names.append(f"{instance} ({instance.state or 'not run'})")
        if instance.state == UPSTREAM_FAILED and not task.is_mapped and self._blockers.account_for(task):
            results.ignored_names.append(str(instance))
            return
        # ⚑ What it had done before its run was cleared does not count as done since.
        done = frozenset(report.get("done", ()) if is_fresh else ())
        given = task.assignment_of(instance.index)
        begun, not_done = self._begun(instance), self._reason(instance)
        results.failed.append(FailedWork(str(instance), not_done, given, task.claim_tasks, begun, done))

    def _begun(self, instance: Instance) -> TaskStart:
        return TaskStart.from_note(instance.pull(self._ti, BEGUN_KEY))

    def _reason(self, instance: Instance) -> NotDone:
        if instance.state == UPSTREAM_FAILED:
            # ⚑ It should have worked on each message and has on none: no message is done, and none is to blame.
            return NotDone(f"{instance} did not run, because a task before it failed", "not_started")
        if instance.state == SKIPPED:
            return self._skips.reason(instance)
        error = instance.pull(self._ti, ERROR_KEY) or "it ended without an error, so it may have been killed"
        return NotDone(f"{instance} failed: {error}")


class _Blockers:
    """The tasks that failed or did not run, and so kept the tasks after them from running."""

    def __init__(self, ran: Iterable[tuple[Instance, WorkTask]], states: TaskStates) -> None:
        self._states = states
        self._work: set[str] = set()
        self._blocking: dict[str, list[tuple[Instance, WorkTask]]] = {}
        for instance, task in ran:
            self._work.add(task.task_id)
            if instance.state in FAILED_STATES:
                self._blocking.setdefault(task.task_id, []).append((instance, task))

    def account_for(self, stopped: WorkTask) -> bool:
        """Say whether it is known which messages the tasks that kept this one from running were given.

        Then only these messages are not done, and the task that did not run need not be asked about the others.

        ⚑ It is not known for a blocker whose assignment is not: it may have had any message. Nor is it for a blocker
        that does not come between claim and settlement: it stopped the work on all messages.
        """
        outside = stopped.direct_upstream - self._work
        if any(one.state in FAILED_STATES for task_id in outside for one in self._states.instances_of(task_id)):
            return False
        blocking = [each for task_id in stopped.direct_upstream for each in self._blocking.get(task_id, ())]
        return bool(blocking) and all(self._has_known_messages(*each) for each in blocking)

    def _has_known_messages(self, instance: Instance, task: WorkTask) -> bool:
        if task.is_clean_up:
            return False
        if task.assignment_of(instance.index) is not None:
            return True
        return instance.state == UPSTREAM_FAILED and instance.index is None and self.account_for(task)
