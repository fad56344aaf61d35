"""The operator that settles a claim by what its tasks made of the messages, and the task that hands on the result."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, Literal, NoReturn

from airflow.providers.common.compat.sdk import AirflowFailException, Context, TriggerRule, XComArg

from airflow_provider_pawnqueue.hooks import references
from airflow_provider_pawnqueue.hooks.arguments import check_early, checked_delay, checked_word
from airflow_provider_pawnqueue.hooks.identity import Owner
from airflow_provider_pawnqueue.hooks.task_notes import clear_number_of
from airflow_provider_pawnqueue.operators.assignments import tasks_beside
from airflow_provider_pawnqueue.operators.base import PawnQueueOperator
from airflow_provider_pawnqueue.operators.claim_operator import ClaimOperator
from airflow_provider_pawnqueue.operators.outcomes import has_claimed, results_of
from airflow_provider_pawnqueue.operators.work_results import Cause, NotDone, WorkResults
from pawnqueue import Claim, Settlement
from pawnqueue.events import one_line

#: Checks and returns how messages that are not done are settled.
_checked_action = partial(checked_word, of=("requeue", "bury"))
#: How many reasons the settlement's XCom has, and how many characters of each.
_MAX_REASONS: Final = 20
_MAX_REASON_CHARACTERS: Final = 300
#: How many messages with the same result are named, in the log and in XCom.
_MAX_NAMED_MESSAGES: Final = 5


class PawnQueueSettleOperator(ClaimOperator):
    """Settles a claim by what its tasks made of it: acks what succeeded, requeues or buries the rest; a teardown.

    It looks at the tasks between the claim and itself. An index of a mapped task counts only for the messages that it
    was given (``claim.messages``, or lists of them). The messages of a task that failed are requeued or buried, with
    its exception as the reason. A task can also report single messages: ``PawnQueueHook.report(failed={id: why},
    done=[ids])``.

    A message is acked only if its tasks began after the claim was made. Airflow clears the sensor with any task of its
    block. A task that was not cleared has not seen what the sensor then claims, so all of that is given back.

    It runs even if tasks before it failed, and fails itself after it has settled, so that the run fails too: as a
    teardown that succeeds, it would make the run a success.

    A failed task and a reported message are different things. A task that ends by a ``ConnectionError`` says nothing
    about its messages: ``on_failure`` decides about those. A message that a task reports was looked at and rejected:
    ``on_reported`` decides about it. A requeued message is delivered ``max_deliveries`` times in all, and then becomes
    a dead letter with the last reason.

    If an index of a mapped task fails, a task after it may not run. That makes no further message fail. If the task
    that did not run is mapped too, the messages that did not reach it are given back.

    Its XCom says what became of the messages: ``acked``, ``buried`` and ``released``, and ``why``, a list of
    ``outcome``, ``reason``, ``count`` and the first ``ids``. It has an XCom even if it fails: :attr:`settled` hands it
    on.

    :param claim: what the sensor returned.
    :param on_failure: what becomes of the messages of tasks that failed: ``requeue`` delivers them again, at most
        ``max_deliveries`` times in all; ``bury`` makes dead letters of them.
    :param on_reported: what becomes of messages that tasks reported as failed, ``requeue`` or ``bury``; without it, the
        same as ``on_failure``.
    :param delay: do not deliver requeued messages again for this many seconds.
    :param reason: the reason to give instead of the tasks' errors.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("claim", "on_failure", "on_reported", "delay", "reason", "pawnqueue_conn_id")

    def __init__(
        self,
        *,
        claim: Any,  # noqa: ANN401 - a reference, several, or an XComArg
        on_failure: Literal["requeue", "bury"] | str = "requeue",  # noqa: PYI051 - or a template
        on_reported: Literal["requeue", "bury"] | str | None = None,  # noqa: PYI051 - or a template
        delay: float = 0.0,
        reason: str | None = None,
        **kwargs: Any,
    ) -> None:
        # It is worth another try only if the store did not answer. What is not settled would be worked on again.
        defaults = {"trigger_rule": TriggerRule.ALL_DONE, "retries": 3, "retry_delay": timedelta(seconds=30)}
        super().__init__(claim=claim, **{**defaults, **kwargs})
        # A claim is settled whatever became of the run before this one.
        self.depends_on_past = False
        # None is wrong for on_failure, and means "as on_failure" for on_reported.
        self.on_failure = check_early(on_failure or "", _checked_action, "on_failure")
        self.on_reported = check_early(on_reported or None, _checked_action, "on_reported")
        self.delay = check_early(delay, checked_delay, "delay")
        self.reason = reason
        self._settled: SettledOperator | None = None
        claimers: list[Any] = [operator for operator, _ in XComArg.iter_xcom_references(claim)]
        self.claim_tasks = [claimer.task_id for claimer in claimers]
        if claimers and any(one.has_dag() for one in (self, *claimers)):
            self.as_teardown(setups=claimers, on_failure_fail_dagrun=True)

    @classmethod
    def partial(cls, **_: Any) -> NoReturn:
        """Refuse to be mapped: Airflow makes no teardown of a mapped task, so it would not run if work has failed."""
        raise TypeError(
            f"{cls.__name__} cannot be mapped, because Airflow makes no teardown of a mapped task. Give one of them "
            "all claims (claim=sensor.output, of a mapped sensor too), or put it into a mapped task group."
        )

    @property
    def settled(self) -> XComArg:
        """What became of the messages, for tasks that come after the settlement: ``alert(settle.settled)``.

        It is the output of a task that is made when this is first read. That task succeeds once the claim is settled,
        whatever became of the work, so the tasks after it need no trigger rule. It leaves the state of the run to this
        task: a task behind a teardown that is no teardown itself would make a success of a run that failed.
        """
        if self._settled is None:
            name = self.task_id.rpartition(".")[2]
            self._settled = SettledOperator(
                task_id="settled" if name == "settle" else f"{name}_settled",
                settle=self,
                pawnqueue_conn_id=self.pawnqueue_conn_id,
                task_group=self.task_group,
                dag=self.dag,
            )
        return self._settled.output

    def execute(self, context: Context) -> dict[str, Any]:
        """Settle the claim, and fail if its work failed."""
        on_failure = _checked_action(self.on_failure, "on_failure")
        on_reported = _checked_action(self.on_reported or on_failure, "on_reported")
        # ⚑ A message that no task has worked on is never buried, whatever on_failure says.
        actions: dict[Cause, str] = {"failed": on_failure, "reported": on_reported, "not_started": "requeue"}
        delay = checked_delay(self.delay)
        self._check(context)
        results, report = results_of(context, self, self.claim_tasks), SettlementReport()
        outdated: list[str] = []

        def settle(held: Claim, known_ids: Collection[str]) -> Settlement:
            if _ended_before(held, clear_number_of(context)):
                outdated.append(held.stem)
            return self._settle(held, results.not_done_in(held, self.claim_tasks, known_ids), actions, delay)

        counts = self.settle_each(settle, mentioned_ids=results.mentioned_ids, after_each=report.add)
        ti: Any = context["ti"]
        # Pushed here because Airflow keeps no result of a task that fails, and the tasks after it are given this.
        ti.xcom_push(key="return_value", value=report.as_dict())
        self._log(results)
        too_early = (f"{name} (before the claim)" for name in results.too_early_names)
        if failed := [*results.unfinished_names, *too_early]:
            raise AirflowFailException(
                f"The claim is settled ({counts}). The run fails because of these tasks: {', '.join(failed)}."
            )
        if outdated:
            raise AirflowFailException(
                f"Claim {outdated[0]} had ended before this run was cleared, and not all of it was acked. The "
                "tasks that ran again since had no messages, or messages that another claim has. Clear the task "
                "that claims as well: it makes a new claim."
            )
        return report.as_dict()

    def _check(self, context: Context) -> None:
        """Skip this task if nothing was claimed; fail it if it would ack messages that nobody has worked on."""
        if not references.each_of(self.claim) and has_claimed(context, self.claim_tasks):
            raise AirflowFailException(
                "The task that claims has succeeded, but its reference to a claim is not in XCom. If it was marked as "
                "successful while it waited, clear it and the tasks after it: it makes a new claim. Otherwise the XCom "
                "was not pushed (do_xcom_push), or was deleted. Messages that were claimed are delivered again once "
                "the claim has expired."
            )
        self.claims()  # which skips if there is no claim
        if beside := tasks_beside(self, self.claim_tasks):
            raise AirflowFailException(
                f"{', '.join(beside)} would work on the claim while it is settled. Let the settlement come after the "
                "work (work >> settle; with claimed(...), indent the work into the block). Nothing is settled."
            )

    def _settle(
        self, held: Claim, not_done: Mapping[str, NotDone], actions: Mapping[Cause, str], delay: float
    ) -> Settlement:
        """Settle all messages of a claim in one request: ack those that are not among ``not_done``."""
        by_reason: dict[str, list[str]] = {}
        reasons: dict[str, dict[str, str]] = {"requeue": {}, "bury": {}}
        for message_id, why in not_done.items():
            reason = self.reason or why.reason
            by_reason.setdefault(reason, []).append(message_id)
            reasons[actions[why.cause]][message_id] = reason
        for reason, ids in by_reason.items():
            some = ", ".join(ids[:_MAX_NAMED_MESSAGES]) + (" ..." if len(ids) > _MAX_NAMED_MESSAGES else "")
            line = f"{len(ids)} messages of claim {held.stem} were not done ({some}): {reason}"
            self.log.info("%s", one_line(line))
        return self.hook.queue.settle(held, delay=delay, requeue=reasons["requeue"], bury=reasons["bury"])

    def _log(self, results: WorkResults) -> None:
        for name in results.ignored_names:
            self.log.warning(
                "%s did not run, because a task before it failed for some of the messages. The other messages are "
                "acked without it. If they are not done until %s has run, let it run with what there is: "
                "trigger_rule='all_done'.",
                name,
                name,
            )
        for message_id, reason in results.reported_unknown.items():
            self.log.warning(
                "%r was reported as failed, but is not a message of the claim (%s). All messages that the reporting "
                "task was given count as failed. Report message.id.",
                message_id,
                one_line(reason),
            )
        if results.too_early_names:
            self.log.warning(
                "%s ran before the claim was made, and cannot have seen its messages, so they are given back. To run "
                "the block again, clear the task that claims (%s) with all tasks after it.",
                ", ".join(results.too_early_names),
                ", ".join(self.claim_tasks) or "the sensor",
            )


def _ended_before(held: Claim, clear_number: int) -> bool:
    """Say whether a claim had ended before its run was cleared, with messages that are not acked."""
    owner = Owner.parse(held.owner)
    is_ended = not held and any(how != "acked" for how in held.decided.values())
    return is_ended and owner is not None and owner.clear_number < clear_number


class SettledOperator(PawnQueueOperator):
    """Hands on the result of a settlement to the tasks after it; a teardown whose failure does not fail the run.

    :param settle: the task that settles.
    """

    def __init__(self, *, settle: PawnQueueSettleOperator, **kwargs: Any) -> None:
        # The claim is settled: neither the run nor the tasks after this one should fail because a worker died here.
        super().__init__(**{"retries": 3, "retry_delay": timedelta(seconds=10), **kwargs})
        self.settle_id = settle.task_id
        self.set_upstream(settle)
        claimers: list[Any] = [self.dag.task_dict[each] for each in settle.claim_tasks]
        self.as_teardown(setups=claimers)

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the settlement's XCom."""
        ti: Any = context["ti"]
        settled: dict[str, Any] | None = ti.xcom_pull(task_ids=self.settle_id, map_indexes=ti.map_index)
        if settled is None:
            raise AirflowFailException(f"{self.settle_id} has not settled the claim: its log says why.")
        return settled


class SettlementReport:
    """What became of all messages of the claims, in this try and before it, and why: for XCom."""

    def __init__(self) -> None:
        self._counts = {"acked": 0, "buried": 0, "released": 0}
        self._ids_by_reason: dict[tuple[str, str], list[str]] = {}

    def add(self, held: Claim) -> None:
        """Count what was decided about a claim's messages."""
        reasons = held.reasons
        for message_id, decision in held.decided.items():
            outcome = "buried" if decision == "dead" else decision
            self._counts[outcome] += 1
            if outcome != "acked":
                self._ids_by_reason.setdefault((outcome, reasons.get(message_id, "")), []).append(message_id)

    def as_dict(self) -> dict[str, Any]:
        """Return the counts, and the reasons, those of the most messages first."""
        most = sorted(self._ids_by_reason.items(), key=lambda each: -len(each[1]))[:_MAX_REASONS]
        why = [
            {
                "outcome": outcome,
                "reason": reason[:_MAX_REASON_CHARACTERS],
                "count": len(ids),
                "ids": ids[:_MAX_NAMED_MESSAGES],
            }
            for (outcome, reason), ids in most
        ]
        return {**self._counts, "why": why}
