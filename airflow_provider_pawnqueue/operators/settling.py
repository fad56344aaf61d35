"""Ending claims: acked, given back, buried, or whatever their tasks made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException, TriggerRule

from airflow_provider_pawnqueue.hooks import references
from airflow_provider_pawnqueue.lineage import inputs
from airflow_provider_pawnqueue.operators.base import PawnQueueOperator, failures
from airflow_provider_pawnqueue.operators.outcomes import Outcome, outcome_of

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_pawnqueue.engine import Settlement
    from airflow_provider_pawnqueue.hooks.references import Given


class ClaimOperator(PawnQueueOperator):
    """An operator that is given a claim."""

    def __init__(self, *, claim: Any, **kwargs: Any) -> None:  # noqa: ANN401 - a reference, several, or an XComArg
        super().__init__(**kwargs)
        self.claim = claim

    def claims(self) -> list[Given]:
        """Return the claims that were given, or skip where the sensor was skipped."""
        claims = references.each_of(self.claim)
        if not claims:
            raise AirflowSkipException("There is no claim to settle: the sensor was skipped, or has returned nothing.")
        return claims

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ANN401 - of a package that may not be there
        """Tell OpenLineage what was read."""
        del task_instance
        topics = [claim["topic"] for claim in references.each_of(self.claim) if isinstance(claim, dict)]
        return inputs(self.hook.settings, topics[0]) if topics else None


class PawnQueueAckOperator(ClaimOperator):
    """Settles messages as done; returns how many were acked.

    :param claim: what the sensor returned.
    :param ids: which, by their ids; without it, all that are not settled.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("claim", "ids", "pawnqueue_conn_id")

    def __init__(self, *, claim: Any, ids: Sequence[str] | str | None = None, **kwargs: Any) -> None:  # noqa: ANN401 - as above
        super().__init__(claim=claim, **kwargs)
        self.ids = ids

    def execute(self, context: Context) -> dict[str, int]:
        """Ack them."""
        del context
        total = Counts()
        for claim in self.claims():
            with failures():
                total.add(self.hook.ack(claim, self.ids))
        return total.as_dict()


class PawnQueueNackOperator(ClaimOperator):
    """Settles messages as not done: buries them, or gives them back; returns how many.

    :param claim: what the sensor returned.
    :param ids: which, by their ids; without it, all that are not settled.
    :param requeue: give them back, to be delivered again; else they become dead letters.
    :param delay: requeue: not to be delivered for so many seconds.
    :param reason: why.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("claim", "ids", "requeue", "delay", "reason", "pawnqueue_conn_id")

    def __init__(
        self,
        *,
        claim: Any,  # noqa: ANN401 - as above
        ids: Sequence[str] | str | None = None,
        requeue: bool = False,
        delay: float = 0.0,
        reason: str = "nacked by its DAG",
        **kwargs: Any,
    ) -> None:
        super().__init__(claim=claim, **kwargs)
        self.ids = ids
        self.requeue = requeue
        self.delay = delay
        self.reason = reason

    def execute(self, context: Context) -> dict[str, int]:
        """Nack them."""
        del context
        total = Counts()
        for claim in self.claims():
            with failures():
                total.add(
                    self.hook.nack(claim, self.ids, requeue=self.requeue, delay=float(self.delay), reason=self.reason)
                )
        return total.as_dict()


class PawnQueueSettleOperator(ClaimOperator):
    """Settles a claim by what its tasks made of it: acks what succeeded, nacks what did not; a teardown of the claim.

    It looks at the tasks between the claim and itself. Of a mapped task, each index speaks for the messages that it was
    given (``claim.messages``, or lists of them); what failed is nacked with its exception as the reason. A task that
    knows better reports it: ``PawnQueueHook.report(context, failed={id: why})``.

    It runs whatever became of them. The run fails if one of them failed, and if settling failed: so this task fails
    after it has settled where one of them did, as else a teardown would make a success of the run.

    :param claim: what the sensor returned.
    :param on_failure: what to do with messages of tasks that failed: ``requeue`` gives them back, to be delivered again
        until they have been delivered too often; ``bury`` makes dead letters of them.
    :param delay: requeue: not to be delivered for so many seconds.
    :param reason: what to say in place of the tasks' errors.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = ("claim", "on_failure", "delay", "reason", "pawnqueue_conn_id")

    def __init__(
        self,
        *,
        claim: Any,  # noqa: ANN401 - as above
        on_failure: Literal["requeue", "bury"] | str = "requeue",  # noqa: PYI051 - or a template
        delay: float = 0.0,
        reason: str | None = None,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("trigger_rule", TriggerRule.ALL_DONE)
        super().__init__(claim=claim, **kwargs)
        self.on_failure = on_failure
        self.delay = delay
        self.reason = reason
        claimer = getattr(claim, "operator", None)
        self.claim_tasks = [] if claimer is None else [claimer.task_id]
        if claimer is not None and self.get_dag() is not None:
            self.as_teardown(setups=claimer, on_failure_fail_dagrun=True)

    def execute(self, context: Context) -> dict[str, int]:
        """Settle."""
        if self.on_failure not in {"requeue", "bury"}:
            raise AirflowFailException(f"on_failure={self.on_failure!r}: pass 'requeue' or 'bury'.")
        total = Counts()
        failed: list[str] = []
        for claim in self.claims():
            outcome = outcome_of(context, self, self.claim_tasks, claim)
            with failures():
                self._settle(claim, outcome, total)
            failed += [task for task in outcome.tasks if task not in failed]
        self.log.info("Settled: %s.", total)
        if failed:
            raise AirflowFailException(
                f"The claim is settled ({total}), and the run fails, as tasks of it did: {', '.join(failed)}."
            )
        return total.as_dict()

    def _settle(self, claim: Given, outcome: Outcome, total: Counts) -> None:
        """Decide of all messages at once: one request, whatever became of them."""
        hook = self.hook
        # Which messages are meant by what was reported, their bodies tell; where all fare alike, none is read.
        by_message = bool(outcome.failed or outcome.done)
        with hook.working_on(claim, payloads=by_message) as held:
            failed = {message: why for message, why in outcome.failed.items() if message in held.ids}
            if outcome.all_failed is not None:
                others = (message for message in held.ids if message not in outcome.done)
                failed = dict.fromkeys(others, outcome.all_failed) | failed
            done = hook.queue.settle(
                held,
                failed={message: self.reason or why for message, why in failed.items()},
                requeue=self.on_failure == "requeue",
                delay=float(self.delay),
            )
            total.add(done)


class Counts:
    """How many messages were settled, and how."""

    def __init__(self) -> None:
        self._counts = {"acked": 0, "buried": 0, "released": 0}
        self._unfinished = 0

    def add(self, done: Settlement) -> None:
        """Count those of one settlement."""
        self._counts["acked"] += len(done.acked)
        self._counts["buried"] += len(done.buried)
        self._counts["released"] += len(done.released)
        self._unfinished += len(done.unknown) + len(done.unfinished)

    def as_dict(self) -> dict[str, int]:
        """Return the counts, for XCom."""
        return dict(self._counts)

    def __str__(self) -> str:
        text = f"{self._counts['acked']} acked, {self._counts['buried']} buried, {self._counts['released']} given back"
        return f"{text}; the janitor finishes {self._unfinished} of them" if self._unfinished else text
