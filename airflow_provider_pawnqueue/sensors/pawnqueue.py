"""The sensor: it waits for messages and claims them for its DAG run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
    BaseSensorOperator,
    PokeReturnValue,
    conf,
)

from airflow_provider_pawnqueue.hooks import claiming, references
from airflow_provider_pawnqueue.hooks.arguments import (
    DEFAULT_CONN_ID,
    check_constants,
    checked_batch,
    checked_count,
    checked_delay,
    checked_flag,
    checked_seconds,
    checked_topics,
    is_constant,
)
from airflow_provider_pawnqueue.hooks.claiming import UnforeseenError
from airflow_provider_pawnqueue.hooks.identity import Owner
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.links import TopicLink
from airflow_provider_pawnqueue.operators.base import failure_of, failures
from airflow_provider_pawnqueue.operators.outputs import ClaimsOutput
from airflow_provider_pawnqueue.triggers.pawnqueue import PawnQueueClaimTrigger
from pawnqueue import ClaimBusyError, LeaseLostError, PawnQueueError, StoreError
from pawnqueue.domain.claim_terms import ClaimTerms

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from pawnqueue import PawnQueue, SyncPawnQueue


#: How long ``on_kill`` waits for another process that works on the claim. Airflow allows it five seconds.
RELEASE_WAIT_SECONDS: Final = 3.0


class PawnQueueSensor(BaseSensorOperator):
    """Waits for messages in a topic, and claims them for its run; returns a reference to the claim.

    Pass that on: ``PawnQueueSettleOperator(claim=sensor.output)``; ``PawnQueueHook().messages(claim)`` gives the
    messages in a task. While they are few and small, they are in the reference too (``claim["messages"]``).

    In each of its tries, and after every restart of whatever waits for it, this task has the same claim. Once it is
    cleared it gives back what it had, and claims anew.

    :param topic: the topic; a list of them: as soon as one has messages, a list of references is returned.
    :param max_messages: how many to claim at most; without it, what the connection says (``max_messages_per_poll``),
        which is 10 where it says nothing.
    :param min_messages: wait until there are so many (a batch that is worth a Spark job's start) ...
    :param max_wait: ... or until the oldest has waited for so long (seconds, or a timedelta). Without it, for all.
    :param consumer: the name under which it claims; without it, ``{dag_id}.{task_id}``.
    :param ttl: for how many seconds the claim lasts unless it is renewed, by a task that works on it or by the janitor;
        without it, what the connection says (``visibility_timeout_seconds``), which is 300 where it says nothing.
    :param inline: carry messages along in XCom while they are few and small; else tasks read them from the bucket.
    :param deferrable: wait in the triggerer, which needs no worker. Else the sensor polls, by ``mode`` and
        ``poke_interval``.
    :param pawnqueue_conn_id: the connection that says where the queue is.
    """

    template_fields: Sequence[str] = (
        "topic",
        "consumer",
        "max_messages",
        "min_messages",
        "ttl",
        "pawnqueue_conn_id",
    )
    operator_extra_links = (TopicLink(),)
    ui_color = "#e8f0d8"

    def __init__(  # noqa: PLR0913 - each but the topic has a default
        self,
        *,
        topic: str | Sequence[str],
        max_messages: int | str | None = None,
        min_messages: int | str = 1,
        max_wait: float | timedelta | None = None,
        consumer: str | None = None,
        ttl: float | str | None = None,
        pawnqueue_conn_id: str = DEFAULT_CONN_ID,
        inline: bool = True,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        poke_interval: float | timedelta = 5.0,
        **kwargs: Any,
    ) -> None:
        # Another try finds the same claim. It is for what Airflow itself loses (a worker that dies, a trigger that
        # fires as the sensor is deferred): what only a person can mend, and a timeout, fail at once all the same.
        kwargs.setdefault("retries", 2)
        kwargs.setdefault("retry_delay", timedelta(seconds=10))
        super().__init__(poke_interval=poke_interval, max_wait=max_wait, **kwargs)
        if not self.do_xcom_push:
            raise ValueError(
                f"{type(self).__name__} {self.task_id!r} returns its claim by XCom: leave do_xcom_push on, also where "
                "default_args of its DAG turn it off."
            )
        check_constants(checked_topics, topic=topic)
        check_constants(checked_count, max_messages=max_messages, min_messages=min_messages)
        if is_constant(max_messages) and is_constant(min_messages):
            checked_batch(max_messages, min_messages)
        check_constants(checked_seconds, ttl=ttl, poke_interval=poke_interval)
        check_constants(checked_delay, max_wait=max_wait)
        self.topic = topic
        self.max_messages = max_messages
        self.min_messages = min_messages
        self.consumer = consumer
        self.ttl = ttl
        self.pawnqueue_conn_id = pawnqueue_conn_id
        self.inline = checked_flag(inline, "inline")
        self.deferrable = checked_flag(deferrable, "deferrable")
        self._terms: list[ClaimTerms] = []

    @property
    def output(self) -> ClaimsOutput:
        """The claim, for the tasks that work on it."""
        return ClaimsOutput(self)

    def execute(self, context: Context) -> Any:  # noqa: ANN401 - one reference, or a list
        """Claim what there is; where there is nothing, wait in the triggerer, or poll."""
        self._terms = self._terms_of(context)  # for on_kill
        if not self.deferrable:
            return super().execute(context)
        # Before 3.4, Airflow often fails a task whose trigger fires within a second of the deferral, as one does for a
        # topic with messages. The trigger would make the same claim: the claim's identity is the task's.
        claims = self._first_claims()
        return self._returned(claims) if claims else self._wait(self._terms, self._time_left(context))

    def poke(self, context: Context) -> PokeReturnValue:
        """Claim what there is."""
        claims = self._claims(self._terms_of(context))
        return PokeReturnValue(bool(claims), self._returned(claims) if claims else None)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:  # noqa: ANN401 - likewise
        """Go on when the trigger has fired: hours may have passed since."""
        if "error" in event:
            self._fail(event)
        self._terms = self._terms_of(context)  # for on_kill
        hook = PawnQueueHook(self.pawnqueue_conn_id)
        claims = []
        for claim in event["claims"]:
            try:
                with failures():
                    claims.append(self._with_messages(hook, claim))
            except AirflowException as failed:
                if not isinstance(failed.__cause__, LeaseLostError):
                    raise
                self.log.warning("What was claimed was lost before this task went on, so it waits again: %s", failed)
        kept = [claim for claim in claims if claim is not None]
        if not kept:
            return self._wait(self._terms, self._time_left(context))
        return self._returned(kept)

    def on_kill(self) -> None:
        """Give back what was claimed, as a user has ended the task, or it took too long."""
        for terms in self._terms:
            try:
                count = PawnQueueHook(self.pawnqueue_conn_id).queue.run(
                    partial(claiming.released, terms=terms, reason="its task was ended", wait=RELEASE_WAIT_SECONDS)
                )
                if count:
                    self.log.info("Gave back %d messages of topic %s.", count, terms.topic)
            except Exception as error:  # noqa: BLE001 - at the end of a process, Python itself refuses threads and more
                self.log.warning("What was claimed is given back when its time is over: %s", error)

    # --- what there is ---

    def _first_claims(self) -> list[dict[str, Any]]:
        """Claim what there is before this task defers; what fails here fails it as the trigger's error would."""
        try:
            return self._claims(self._terms)
        except AirflowException as failed:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(f"Skipped, as this sensor may not fail: {failed}") from failed
            if isinstance(failed, AirflowNotFoundException):
                raise AirflowFailException(str(failed)) from failed
            raise

    def _claims(self, wanted: Sequence[ClaimTerms]) -> list[dict[str, Any]]:
        """Look once at each topic, and claim what there is. What another look may not meet is logged, and no error."""
        hook = PawnQueueHook(self.pawnqueue_conn_id)
        claims: list[dict[str, Any]] = []
        with self._until_the_next_look():
            queue = hook.queue  # opened first: a store that is away is waited for once, not once for each topic
            for terms in wanted:
                with self._until_the_next_look():
                    claims += self._claims_of(hook, queue, terms)
        return claims

    def _claims_of(self, hook: PawnQueueHook, queue: SyncPawnQueue, terms: ClaimTerms) -> list[dict[str, Any]]:
        try:
            claim = queue.run(partial(_claimed, terms=terms))
            claim = None if claim is None else self._with_messages(hook, claim)
        except (PawnQueueError, AirflowException):
            raise
        except Exception as error:  # noqa: BLE001 - its text may quote a payload
            raise AirflowException(str(UnforeseenError.of(error, "Claiming", terms.topic))) from None
        return [] if claim is None else [claim]

    @contextmanager
    def _until_the_next_look(self) -> Iterator[None]:
        try:
            yield
        except (ClaimBusyError, LeaseLostError) as error:
            self.log.info("%s", error)
        except PawnQueueError as error:
            failure = failure_of(error)
            if isinstance(failure, AirflowFailException) or (isinstance(error, StoreError) and error.denied):
                raise failure from error
            self.log.warning("The store did not answer, and is asked again: %s", error)

    # --- what it waits for ---

    def _terms_of(self, context: Context) -> list[ClaimTerms]:
        owner = Owner.of(context)
        max_messages, min_messages = checked_batch(self.max_messages, self.min_messages)
        return [
            ClaimTerms(
                topic=topic,
                owner=str(owner),
                consumer=self.consumer or f"{owner.dag_id}.{owner.task_id}",
                max_messages=max_messages,
                min_messages=min_messages,
                max_wait=None if self.max_wait is None else self.max_wait.total_seconds(),
                ttl=self._ttl,
            )
            for topic in checked_topics(self.topic)
        ]

    @property
    def _ttl(self) -> float | None:
        return None if self.ttl is None else checked_seconds(self.ttl, "ttl")

    def _wait(self, terms: Sequence[ClaimTerms], seconds: float) -> NoReturn:
        topics = [each.topic for each in terms]
        self.log.info(
            "Waiting in the triggerer for messages of %s, for at most %.0f seconds.",
            " or ".join(map(repr, topics)),
            seconds,
        )
        self.defer(
            trigger=PawnQueueClaimTrigger(
                topics=topics,
                pawnqueue_conn_id=self.pawnqueue_conn_id,
                **{name: value for name, value in terms[0].to_dict().items() if name != "topic"},
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=seconds),
        )
        raise AssertionError  # defer() has raised

    def _time_left(self, context: Context) -> float:
        started: datetime | None = getattr(context["ti"], "start_date", None)
        left = self.timeout if started is None else self.timeout - (datetime.now(UTC) - started).total_seconds()
        return max(1.0, left)

    # --- what it returns ---

    def _with_messages(self, hook: PawnQueueHook, claim: dict[str, Any]) -> dict[str, Any] | None:
        """Find the claim as it stands now, renewed, and leave it to the next task; None: nothing of it is left."""
        small = self.inline and claim["bytes"] <= references.LARGEST_INLINE
        with hook.working_on(claim, ttl=self._ttl, payloads=small) as held:
            if not held:
                return None
            count = len(held)
            messages = held.messages if small else None
        reference = references.from_xcom(held, hook.settings, "claim")
        return references.to_xcom(reference, hook.settings, count=count, size=claim["bytes"], messages=messages)

    def _returned(self, claims: Sequence[dict[str, Any]]) -> Any:  # noqa: ANN401 - likewise
        for claim in claims:
            self.log.info("Claim %s of topic %s has %d messages.", claim["claim_id"], claim["topic"], claim["count"])
        return claims[0] if isinstance(self.topic, str) else list(claims)

    def _fail(self, event: dict[str, Any]) -> NoReturn:
        if event.get("transient"):
            raise AirflowException(event["error"])
        # Another try would meet the same: a person has to mend it.
        raise AirflowFailException(event["error"])


async def _claimed(queue: PawnQueue, terms: ClaimTerms) -> dict[str, Any] | None:
    """Claim once, if there is as much as is wanted."""
    if terms.min_messages > 1 and not await queue.known_claims(terms.topic, [claiming.claim_id_of(terms)]):
        backlog = await queue.backlog(terms.topic, at_least=terms.min_messages)
        if not claiming.is_worth_it(terms, backlog.pending, backlog):
            return None
    claim = await claiming.claimed(queue, terms)
    return await claiming.handed_over(queue, claim) if claim else None
