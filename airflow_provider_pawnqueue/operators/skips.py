"""Which of the skipped tasks the DAG itself has skipped.

A task that its DAG has skipped had nothing to do, so its messages are done. The DAG explains a skip if the task skipped
itself, or if its trigger rule, a branch or a skipped task before it left it out.

Where a person marks a run as failed, or as a success, Airflow skips the tasks that have yet to run or to be retried,
and then runs the settlement. Nothing in the DAG explains such a skip: the work was not done.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from airflow.providers.common.compat.sdk import Context

from airflow_provider_pawnqueue.hooks.task_notes import SKIPPED_KEY, clear_number_of, is_current
from airflow_provider_pawnqueue.operators.assignments import WorkTask
from airflow_provider_pawnqueue.operators.graph import SKIPPED, SUCCESS, share_a_mapped_group, tasks_before
from airflow_provider_pawnqueue.operators.instances import Instance, TaskStates
from airflow_provider_pawnqueue.operators.work_results import NotDone

#: Airflow skips a task with such a rule if the tasks before it went well.
_RULES_FOR_FAILURES: Final = frozenset({"one_failed", "all_failed", "all_skipped"})
#: The XCom key under which Airflow's branch operators keep which tasks they skipped, or which they followed.
_BRANCH_KEY: Final = "skipmixin_key"
#: How long a task may take to push that it has skipped itself: it does so when Airflow already reports its state.
SKIP_NOTE_WAIT_SECONDS: Final = 10.0
_SKIP_NOTE_POLL_SECONDS: Final = 0.5


class Skips:
    """Decides about the skipped tasks of one run."""

    def __init__(
        self,
        context: Context,
        settle: Any,  # noqa: ANN401 - any operator
        states: TaskStates,
        claim_tasks: frozenset[str],
    ) -> None:
        self._ti: Any = context["ti"]
        self._clear_number = clear_number_of(context)
        self._states = states
        self._claim_tasks = claim_tasks
        #: Tasks that claim for other settlements, such as those of a block inside this one.
        self._other_claim_tasks = {
            name for task in settle.dag.tasks for name in getattr(task, "claim_tasks", ())
        } - claim_tasks
        self._tasks = tasks_before(settle)
        self._explained_by_others: dict[tuple[str, int | None], bool] = {}
        #: Instances that were skipped because another claim was that they work on together with one of ours.
        self._skipped_with_a_claim: set[tuple[str, int | None]] = set()
        self._wait_until = time.monotonic() + SKIP_NOTE_WAIT_SECONDS

    def is_done(self, instance: Instance, task: WorkTask) -> bool:
        """Say whether an instance has succeeded, or was skipped by its DAG."""
        return instance.state == SUCCESS or (instance.state == SKIPPED and self._is_by_dag(instance, task))

    def has_run(self, instance: Instance) -> bool:
        """Say whether a worker has run an instance that is done.

        None has where a task before it made Airflow skip it. None has for an empty operator either, which Airflow's
        scheduler ends when it is next.
        """
        if instance.state == SUCCESS:
            return not getattr(self._tasks[instance.task_id], "inherits_from_empty_operator", False)
        return self._has_skipped_itself(instance)

    def reason(self, instance: Instance) -> NotDone:
        """Return why the messages of an instance are not done, if its DAG has not skipped it."""
        if self._was_skipped_with_a_claim(instance):
            return NotDone(f"{instance} was skipped, because a claim was that it should have worked on", "not_started")
        if instance.pull(self._ti, SKIPPED_KEY) and not self._has_skipped_itself(instance):
            return NotDone(f"{instance} skipped itself before the run was cleared, and has not since", "not_started")
        return NotDone(f"{instance} was not skipped by its DAG: somebody marked it, or its run")

    def _is_by_dag(self, instance: Instance, task: WorkTask) -> bool:
        """Say whether the DAG has skipped an instance; wait for its note if nothing else explains the skip."""
        if self._has_skipped_itself(instance) or self._is_explained_by_others(instance):
            return True
        if instance.index is None and task.is_mapped and task.was_mapped_over_nothing:
            return True
        if self._was_skipped_with_a_claim(instance):
            return False
        while time.monotonic() < self._wait_until:
            time.sleep(_SKIP_NOTE_POLL_SECONDS)
            if self._has_skipped_itself(instance):
                return True
        return False

    def _has_skipped_itself(self, instance: Instance) -> bool:
        note = instance.pull(self._ti, SKIPPED_KEY)
        return bool(note) and is_current(note, self._clear_number)

    def _was_skipped_with_a_claim(self, instance: Instance) -> bool:
        return (instance.task_id, instance.index) in self._skipped_with_a_claim

    def _is_explained_by_others(self, instance: Instance) -> bool:
        """Say whether the trigger rule, a branch, or the skip of a task before it explains why it was skipped."""
        key = instance.task_id, instance.index
        if key not in self._explained_by_others:
            task = self._tasks[instance.task_id]
            rule = getattr(task.trigger_rule, "value", task.trigger_rule)
            self._explained_by_others[key] = (
                str(rule) in _RULES_FOR_FAILURES
                or any(self._was_left_out(task, branch, instance.index) for branch in tasks_before(task))
                or any(self._was_skipped_after(task, before, instance.index) for before in task.upstream_task_ids)
            )
        return self._explained_by_others[key]

    def _was_left_out(self, task: Any, branch: str, index: int | None) -> bool:  # noqa: ANN401 - any operator
        """Say whether a branch before a task has left it out."""
        for instance in self._instances_before(task, branch, index):
            choice = instance.pull(self._ti, _BRANCH_KEY)
            # ⚑ A branch that was cleared keeps its former choice until it runs again: that choice no longer counts.
            if not isinstance(choice, Mapping) or instance.state != SUCCESS:
                continue
            if task.task_id in choice.get("skipped", ()):
                return True
            followed = choice.get("followed")
            if followed is not None and branch in task.upstream_task_ids and task.task_id not in followed:
                return True
        return False

    def _was_skipped_after(self, task: Any, before: str, index: int | None) -> bool:  # noqa: ANN401 - any operator
        """Say whether the DAG has skipped a task because it skipped the task before.

        Where one of several claims is skipped, Airflow skips the work on all of them. ⚑ The other claims have messages
        all the same, on which nobody has worked. The same holds for a skipped claim of a block inside this one, unless
        the DAG has left out that block. The settlement of such a block does no work on our messages.
        """
        skipped = [one for one in self._instances_before(task, before, index) if one.state == SKIPPED]
        if not skipped:
            return False
        is_inner_claim = before in self._other_claim_tasks and not task.is_teardown
        if before in self._claim_tasks or (is_inner_claim and not any(map(self._is_explained_by_others, skipped))):
            claims = [name for name in tasks_before(task) if name in self._claim_tasks]
            is_with_a_claim = any(one.state == SUCCESS for name in claims for one in self._states.instances_of(name))
            is_by_dag = not is_with_a_claim
        else:
            work = WorkTask(self._ti, self._tasks[before], self._claim_tasks, self._states)
            is_by_dag = any(self._is_by_dag(one, work) for one in skipped)
            is_with_a_claim = any(map(self._was_skipped_with_a_claim, skipped))
        if is_with_a_claim:
            self._skipped_with_a_claim.add((task.task_id, index))
        return is_by_dag

    def _instances_before(self, task: Any, before: str, index: int | None) -> list[Instance]:  # noqa: ANN401 - any operator
        """Return the instances of an earlier task that an index of a task comes after.

        In a mapped group that is the same index; elsewhere all of them.
        """
        found = self._states.instances_of(before)
        if index is None or not share_a_mapped_group(task, self._tasks[before]):
            return found
        return [one for one in found if one.index in {None, index}]
