"""Ending claims: acked, given back, buried, or whatever their tasks made of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    TriggerRule,
    XComArg,
)

from airflow_provider_pawnqueue.hooks import references
from airflow_provider_pawnqueue.hooks.arguments import (
    check_constants,
    checked_delay,
    checked_flag,
    checked_ids,
    checked_text,
    checked_word,
)
from airflow_provider_pawnqueue.hooks.identity import Owner
from airflow_provider_pawnqueue.lineage import inputs
from airflow_provider_pawnqueue.operators.base import PawnQueueOperator, failure_of
from airflow_provider_pawnqueue.operators.outcomes import Cause, Outcome, forgotten, has_claimed, outcome_of
from airflow_provider_pawnqueue.operators.outputs import without_messages
from pawnqueue import PawnQueueError
from pawnqueue.domain.settlement import Settlement
from pawnqueue.events import one_line

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_pawnqueue.hooks.references import Given
    from pawnqueue import Claim


_OUTCOMES = ("requeue", "bury")
#: How many reasons a settlement's XCom has at most, and how much of each.
_REASONS = 20
_LONGEST_REASON = 300
#: So many messages that fared alike are named in the log.
_NAMED = 5


class ClaimOperator(PawnQueueOperator):
    """An operator that is given a claim."""

    def __init__(self, *, claim: Any, **kwargs: Any) -> None:  # noqa: ANN401 - a reference, several, or an XComArg
        super().__init__(**kwargs)
        self.claim = without_messages(claim)

    def claims(self) -> list[Given]:
        """Return the claims that were given, or skip where the sensor was skipped."""
        claims = references.each_of(self.claim)
        if not claims:
            raise AirflowSkipException("There is no claim: the sensor was skipped, or has returned nothing.")
        return claims

    def settle_each(
        self,
        work: Callable[[Claim, Collection[str]], Settlement | None],
        *,
        told: Collection[str] = (),
        check: Callable[[Sequence[Claim]], None] | None = None,
        tally: Tally | None = None,
    ) -> Counts:
        """Settle each of the claims, whatever befalls the others; what went wrong with one is raised in the end.

        :param work: settles a claim, or nothing of it; it is passed the ids of all messages of all claims too.
        :param told: the ids by which it decides. Nearly always they are those under which the messages are kept, which
            a claim knows without reading one; where one is another, as of a redriven message, all are read.
        :param check: is passed all of the claims before anything is settled, and may raise.
        :param tally: counts what was decided of each claim, before too.
        """
        total = Counts()
        with ExitStack() as stack:
            held, errors = self._opened(stack, payloads=False)
            if _strangers(held, told):
                stack.close()
                held, errors = self._opened(stack, payloads=True)
            if check is not None and not errors:
                check(held)
            known = _ids_of(held)
            for opened in held:
                try:
                    done = work(opened, known) or Settlement()
                except PawnQueueError as error:
                    errors.append(error)
                    done = getattr(error, "settlement", None) or Settlement()
                total.add(done)
                if tally is not None:
                    tally.add(opened)
        self.log.info("Settled %s: %s.", _named(held) or "nothing", total)
        for other in errors:
            self.log.error("%s", other)
        if errors:
            raise failure_of(next((each for each in errors if _is_final(each)), errors[0])) from errors[0]
        if total.unknown:
            raise AirflowException(
                f"What became of {total.unknown} messages is not known: {total.fault} Another try settles them, or "
                "finds them settled."
            )
        return total

    def settle_some(self, given: object, work: Callable[[Claim, Collection[str] | None], Settlement]) -> dict[str, int]:
        """Settle those messages of the claims that are meant, each in its own claim, and return the counts.

        :param given: the ids of messages, as users pass them: each has to be in one of the claims; None: all messages.
        :param work: settles messages of a claim.
        """
        ids = checked_ids(given)

        def work_on(held: Claim, _: Collection[str]) -> Settlement | None:
            own = None if ids is None else [each for each in ids if held.has(each)]
            return work(held, own) if own is None or own else None

        def check(held: Sequence[Claim]) -> None:
            if strangers := _strangers(held, ids or ()):
                raise AirflowFailException(
                    f"There is no message with these ids in {_named(held)}, so nothing was settled: {strangers}."
                )

        return self.settle_each(work_on, told=ids or (), check=check).as_dict()

    def _opened(self, stack: ExitStack, *, payloads: bool) -> tuple[list[Claim], list[PawnQueueError]]:
        """Work on each of the claims that can be had; return them, and why the others cannot."""
        hook = self.hook
        held: list[Claim] = []
        errors: list[PawnQueueError] = []
        for claim in self.claims():
            try:
                held.append(stack.enter_context(hook.working_on(claim, payloads=payloads)))
            except PawnQueueError as error:
                errors.append(error)
        return held, errors

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ANN401 - of a package that may not be there
        """Tell OpenLineage what was read."""
        del task_instance
        topics = references.topics_of(self.claim)
        return inputs(self.hook.settings, *topics) if topics else None


def _ids_of(held: Iterable[Claim]) -> set[str]:
    return {message for claim in held for message in (*claim.ids, *claim.decided)}


def _strangers(held: Sequence[Claim], ids: Iterable[str]) -> list[str]:
    return sorted({each for each in ids if not any(claim.has(each) for claim in held)})


def _named(held: Iterable[Claim]) -> str:
    return ", ".join(f"claim {claim.stem} of topic {claim.topic}" for claim in held)


def _checked_outcome(given: object, name: str) -> str:
    return checked_word(given, name, of=_OUTCOMES)


def _is_final(error: PawnQueueError) -> bool:
    return isinstance(failure_of(error), AirflowFailException)


class PawnQueueAckOperator(ClaimOperator):
    """Settles messages as done; returns the counts: ``{"acked": 3, "buried": 0, "released": 0}``.

    :param claim: what the sensor returned.
    :param ids: which, by their ids; without it, all that are not settled.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("claim", "ids", "pawnqueue_conn_id")

    def __init__(self, *, claim: Any, ids: Sequence[str] | str | None = None, **kwargs: Any) -> None:  # noqa: ANN401 - as above
        super().__init__(claim=claim, **kwargs)
        check_constants(checked_ids, ids=ids)
        self.ids = ids

    def execute(self, context: Context) -> dict[str, int]:
        """Ack them."""
        del context
        return self.settle_some(self.ids, self.hook.ack)


class PawnQueueRequeueOperator(ClaimOperator):
    """Gives messages back to the queue, to be delivered again; returns the counts, as the ack operator does.

    They are delivered ``max_deliveries`` times in all; then they become dead letters, with the reason given here.

    :param claim: what the sensor returned.
    :param ids: which, by their ids; without it, all that are not settled.
    :param delay: do not deliver them for this many seconds.
    :param reason: why.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("claim", "ids", "delay", "reason", "pawnqueue_conn_id")

    def __init__(
        self,
        *,
        claim: Any,  # noqa: ANN401 - as above
        ids: Sequence[str] | str | None = None,
        delay: float = 0.0,
        reason: str = "requeued by its DAG",
        **kwargs: Any,
    ) -> None:
        super().__init__(claim=claim, **kwargs)
        check_constants(checked_ids, ids=ids)
        check_constants(checked_delay, delay=delay)
        self.ids = ids
        self.delay = delay
        self.reason = reason

    def execute(self, context: Context) -> dict[str, int]:
        """Give them back."""
        del context
        delay = checked_delay(self.delay)
        return self.settle_some(self.ids, partial(self.hook.requeue, delay=delay, reason=self.reason))


class PawnQueueBuryOperator(ClaimOperator):
    """Makes dead letters of messages; returns the counts, as the ack operator does.

    :param claim: what the sensor returned.
    :param ids: which, by their ids; without it, all that are not settled.
    :param reason: why.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("claim", "ids", "reason", "pawnqueue_conn_id")

    def __init__(
        self,
        *,
        claim: Any,  # noqa: ANN401 - as above
        ids: Sequence[str] | str | None = None,
        reason: str = "buried by its DAG",
        **kwargs: Any,
    ) -> None:
        super().__init__(claim=claim, **kwargs)
        check_constants(checked_ids, ids=ids)
        check_constants(checked_text, reason=reason)
        self.ids = ids
        self.reason = reason

    def execute(self, context: Context) -> dict[str, int]:
        """Bury them."""
        del context
        return self.settle_some(self.ids, partial(self.hook.bury, reason=self.reason))


class PawnQueueNackOperator(PawnQueueRequeueOperator):
    """Buries messages, as pawn-queue's nack does, or with ``requeue`` gives them back; returns the counts.

    :class:`PawnQueueBuryOperator` and :class:`PawnQueueRequeueOperator` say in their name what they do.

    :param claim: what the sensor returned.
    :param ids: which, by their ids; without it, all that are not settled.
    :param requeue: give them back, to be delivered again; without it, they become dead letters.
    :param delay: with ``requeue``, do not deliver them for this many seconds.
    :param reason: why.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("claim", "ids", "requeue", "delay", "reason", "pawnqueue_conn_id")

    def __init__(self, *, requeue: bool = False, reason: str = "nacked by its DAG", **kwargs: Any) -> None:
        super().__init__(reason=reason, **kwargs)
        check_constants(checked_flag, requeue=requeue)
        self.requeue = requeue

    def execute(self, context: Context) -> dict[str, int]:
        """Nack them."""
        del context
        requeue, delay = checked_flag(self.requeue, "requeue"), checked_delay(self.delay)
        return self.settle_some(self.ids, partial(self.hook.nack, requeue=requeue, delay=delay, reason=self.reason))


class PawnQueueSettleOperator(ClaimOperator):
    """Settles a claim by what its tasks made of it: acks what succeeded, requeues or buries the rest; a teardown.

    It looks at the tasks between the claim and itself. Of a mapped task, each index speaks for the messages that it was
    given (``claim.messages``, or lists of them); what failed is given back or buried, with its exception as the
    reason. A task that knows better reports it: ``PawnQueueHook.report(failed={id: why}, done=[ids])``.

    Messages are acked only for tasks that began after their claim was made. Airflow clears the sensor with any task of
    its block: of what it claims anew, a task that was not cleared has seen nothing, so all of it is given back.

    It runs whatever became of them. The run fails if one of them failed, and if settling failed: so this task fails
    after it has settled where one of them did, as else a teardown would make a success of the run.

    What died and what was reported are two things. A task that ends by a ``ConnectionError`` says nothing about its
    messages: ``on_failure`` decides about those. A message that a task reports was looked at, and rejected:
    ``on_reported`` decides about that. What is requeued is delivered ``max_deliveries`` times in all, whoever failed,
    and then it is a dead letter with the last reason.

    A task that did not run, as an index of a mapped task before it has failed, speaks for no message: only what failed
    fails. If it would have been mapped itself, the messages that did not come to it are given back.

    Its XCom has what became of the messages: ``acked``, ``buried`` and ``released``, and ``why``, a list of
    ``outcome``, ``reason``, ``count`` and the first ``ids``. It is there too where this task fails: :attr:`settled`
    hands it on.

    :param claim: what the sensor returned.
    :param on_failure: what to do with messages of tasks that failed: ``requeue`` gives them back, to be delivered again
        until they have been delivered too often; ``bury`` makes dead letters of them.
    :param on_reported: what to do with messages that tasks reported, ``requeue`` or ``bury``; without it, what
        ``on_failure`` says.
    :param delay: requeue: not to be delivered for so many seconds.
    :param reason: what to say in place of the tasks' errors.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("claim", "on_failure", "on_reported", "delay", "reason", "pawnqueue_conn_id")

    def __init__(
        self,
        *,
        claim: Any,  # noqa: ANN401 - as above
        on_failure: Literal["requeue", "bury"] | str = "requeue",  # noqa: PYI051 - or a template
        on_reported: Literal["requeue", "bury"] | str | None = None,  # noqa: PYI051 - or a template
        delay: float = 0.0,
        reason: str | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("trigger_rule", TriggerRule.ALL_DONE)
        # Only a store that does not answer is worth another try, and what is not settled is worked on again.
        kwargs.setdefault("retries", 3)
        kwargs.setdefault("retry_delay", timedelta(seconds=30))
        super().__init__(claim=claim, **kwargs)
        # Without on_failure nothing could be decided; without on_reported, what on_failure says is.
        check_constants(_checked_outcome, on_failure=on_failure or "", on_reported=on_reported or None)
        check_constants(checked_delay, delay=delay)
        # What is claimed is settled, whatever became of the run before.
        self.depends_on_past = False
        self.on_failure = on_failure
        self.on_reported = on_reported
        self.delay = delay
        self.reason = reason
        self._clear_number = 0
        self._outdated: list[str] = []
        self._settled: SettledOperator | None = None
        claimers: list[Any] = [operator for operator, _ in XComArg.iter_xcom_references(claim)]
        self.claim_tasks = [claimer.task_id for claimer in claimers]
        if claimers and any(one.has_dag() for one in (self, *claimers)):
            self.as_teardown(setups=claimers, on_failure_fail_dagrun=True)

    @classmethod
    def partial(cls, **_: Any) -> NoReturn:
        """Refuse to be mapped: a mapped task is no teardown to Airflow, and would not run where work has failed."""
        raise TypeError(
            f"{cls.__name__} cannot be mapped, as Airflow makes no teardown of a mapped task: give one of them all "
            "claims (claim=sensor.output, of a mapped sensor too), or let it stand in a mapped task group."
        )

    @property
    def settled(self) -> XComArg:
        """What became of the messages, for tasks that come after the settlement: ``alert(settle.settled)``.

        It is the output of a task that is made where it is first asked for. That one succeeds where the claim is
        settled, whatever became of the work: so what comes after it needs no trigger rule. And it leaves the state of
        the run to this task: behind a teardown itself, a task that goes well would make a success of a run that failed.
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
        """Settle."""
        on_failure = _checked_outcome(self.on_failure, "on_failure")
        on_reported = _checked_outcome(self.on_reported or on_failure, "on_reported")
        delay = checked_delay(self.delay)
        self._check(context)
        outcome = outcome_of(context, self, self.claim_tasks)
        # ⚑ What never came to a task is not to blame, whatever on_failure says of what did.
        outcomes: dict[Cause, str] = {"failed": on_failure, "reported": on_reported, "not_started": "requeue"}
        tally = Tally()
        total = self.settle_each(partial(self._settle, outcome, outcomes, delay), told=outcome.told, tally=tally)
        ti: Any = context["ti"]
        # Here and now: of a task that fails Airflow keeps no result, and what comes after it is to know.
        ti.xcom_push(key="return_value", value=tally.as_dict())
        for task in outcome.silent:
            self.log.warning(
                "%s did not run, as a task before it had failed for some of the messages. It speaks for no message: "
                "those of the other indexes are done. If they are done by %s only, let it run with what there is: "
                "trigger_rule='all_done'.",
                task,
                task,
            )
        for message, why in outcome.strange.items():
            self.log.warning(
                "%r is no message of the claim, and was reported as failed (%s): all messages that its task was given "
                "count as failed. Report message.id.",
                message,
                one_line(why),
            )
        if outcome.early:
            self.log.warning(
                "%s ran before the claim was made, and cannot have seen its messages, so they are given back. To have "
                "a run tried again, clear the task that claims (%s) with all tasks after it.",
                ", ".join(outcome.early),
                ", ".join(self.claim_tasks) or "the sensor",
            )
        if tasks := [*outcome.tasks, *(f"{each} (before the claim)" for each in outcome.early)]:
            raise AirflowFailException(
                f"The claim is settled ({total}), and the run fails, as tasks of it did: {', '.join(tasks)}."
            )
        if self._outdated:
            raise AirflowFailException(
                f"Claim {self._outdated[0]} had ended before this run was cleared, and not all of it was acked: what "
                "was tried again since has worked on nothing, or on messages that others have. Clear the task that "
                "claims as well: it claims anew."
            )
        return tally.as_dict()

    def _check(self, context: Context) -> None:
        """Skip where nothing was claimed, and refuse what would ack messages that nobody has worked on."""
        if not references.each_of(self.claim) and has_claimed(context, self.claim_tasks):
            raise AirflowFailException(
                "The task that claims has succeeded, but its reference to a claim is not in XCom. Was it marked as "
                "successful while it waited? Then clear it, and what comes after it: it claims anew. Else the XCom was "
                "not pushed (do_xcom_push), or was deleted. Messages that were claimed are delivered again when the "
                "claim's time is over."
            )
        self.claims()  # which skips where there is none
        aside = forgotten(self, self.claim_tasks)
        if aside:
            raise AirflowFailException(
                f"{', '.join(aside)} would work on the claim beside this: let this come after the work "
                "(work >> settle; with claimed(...), indent it into the block). Nothing is settled."
            )
        run: Any = context.get("dag_run")
        self._clear_number = getattr(run, "clear_number", None) or 0

    def _settle(
        self, outcome: Outcome, outcomes: Mapping[Cause, str], delay: float, held: Claim, known: Collection[str]
    ) -> Settlement:
        """Decide of all messages at once: one request, whatever became of them."""
        owner = Owner.parse(held.owner)
        ended = not held and any(how != "acked" for how in held.decided.values())
        if ended and owner is not None and owner.clear_number < self._clear_number:
            self._outdated.append(held.stem)
        failed = outcome.failed_of(held, self.claim_tasks, known)
        alike: dict[str, list[str]] = {}
        told: dict[str, dict[str, str]] = {"requeue": {}, "bury": {}}
        for message, each in failed.items():
            why = self.reason or each.why
            alike.setdefault(why, []).append(message)
            told[outcomes[each.cause]][message] = why
        for why, messages in alike.items():
            some = ", ".join(messages[:_NAMED]) + (" ..." if len(messages) > _NAMED else "")
            line = f"{len(messages)} messages of claim {held.stem} were not done ({some}): {why}"
            self.log.info("%s", one_line(line))
        return self.hook.queue.settle(held, delay=delay, requeue=told["requeue"], bury=told["bury"])


class SettledOperator(PawnQueueOperator):
    """Hands on what a settlement has told, to tasks that come after it; a teardown whose failure fails no run.

    :param settle: the task that settles.
    """

    def __init__(self, *, settle: PawnQueueSettleOperator, **kwargs: Any) -> None:
        # All is settled: neither the run nor what comes after this task should fail because a worker died here.
        kwargs.setdefault("retries", 3)
        kwargs.setdefault("retry_delay", timedelta(seconds=10))
        super().__init__(**kwargs)
        self.settle_id = settle.task_id
        self.set_upstream(settle)
        claimers: list[Any] = [self.dag.task_dict[each] for each in settle.claim_tasks]
        self.as_teardown(setups=claimers)

    def execute(self, context: Context) -> dict[str, Any]:
        """Read what it has told."""
        ti: Any = context["ti"]
        told: dict[str, Any] | None = ti.xcom_pull(task_ids=self.settle_id, map_indexes=ti.map_index)
        if told is None:
            raise AirflowFailException(f"{self.settle_id} has not settled the claim: its log says why.")
        return told


class Tally:
    """What became of all messages of claims, in this try and before it, and why: for XCom."""

    def __init__(self) -> None:
        self._counts = {"acked": 0, "buried": 0, "released": 0}
        self._why: dict[tuple[str, str], list[str]] = {}

    def add(self, held: Claim) -> None:
        """Count what was decided of a claim's messages."""
        reasons = held.reasons
        for message, how in held.decided.items():
            outcome = "buried" if how == "dead" else how
            self._counts[outcome] += 1
            if outcome != "acked":
                self._why.setdefault((outcome, reasons.get(message, "")), []).append(message)

    def as_dict(self) -> dict[str, Any]:
        """Return the counts, and the reasons of most messages first."""
        most = sorted(self._why.items(), key=lambda each: -len(each[1]))[:_REASONS]
        why = [
            {"outcome": outcome, "reason": reason[:_LONGEST_REASON], "count": len(ids), "ids": ids[:_NAMED]}
            for (outcome, reason), ids in most
        ]
        return {**self._counts, "why": why}


class Counts:
    """How many messages were settled, and how."""

    def __init__(self) -> None:
        self._counts = {"acked": 0, "buried": 0, "released": 0}
        self._unfinished = 0
        #: Of how many nobody knows whether anything was decided.
        self.unknown = 0
        self.fault = ""

    def add(self, done: Settlement) -> None:
        """Count those of one settlement."""
        self._counts["acked"] += len(done.acked)
        self._counts["buried"] += len(done.buried)
        self._counts["released"] += len(done.released)
        self._unfinished += len(done.unfinished)
        self.unknown += len(done.unknown)
        self.fault = self.fault or done.fault

    def as_dict(self) -> dict[str, int]:
        """Return the counts, for XCom."""
        return dict(self._counts)

    def __str__(self) -> str:
        text = f"{self._counts['acked']} acked, {self._counts['buried']} buried, {self._counts['released']} given back"
        return f"{text}; the janitor finishes {self._unfinished} of them" if self._unfinished else text
