"""The sensor, which waits for messages and claims them for its DAG run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, NoReturn

from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
    BaseSensorOperator,
    Context,
    PokeReturnValue,
    conf,
)

from airflow_provider_pawnqueue.hooks import references
from airflow_provider_pawnqueue.hooks.arguments import (
    DEFAULT_CONN_ID,
    check_early,
    checked_batch,
    checked_count,
    checked_delay,
    checked_flag,
    checked_seconds,
    checked_topics,
    is_constant,
)
from airflow_provider_pawnqueue.hooks.identity import Owner
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.hooks.task_claims import (
    UnforeseenError,
    claim_for_task,
    claim_id_of,
    hand_over,
    is_enough,
    release_all,
)
from airflow_provider_pawnqueue.operators.base import PawnQueueOperator, failure_of, failures
from airflow_provider_pawnqueue.operators.outputs import ClaimsOutput
from airflow_provider_pawnqueue.triggers.pawnqueue import PawnQueueClaimTrigger
from pawnqueue import ClaimBusyError, LeaseLostError, PawnQueue, PawnQueueError, StoreError, SyncPawnQueue
from pawnqueue.domain.claim_terms import ClaimTerms

#: How long ``on_kill`` waits for another process that works on the claim. Airflow allows it five seconds.
SENSOR_RELEASE_SECONDS: Final = 3.0


class PawnQueueSensor(PawnQueueOperator, BaseSensorOperator):
    """Waits for messages in a topic, claims them for its run, and returns a reference to the claim.

    Pass the reference on: ``PawnQueueSettleOperator(claim=sensor.output)``. In a task,
    ``PawnQueueHook().messages(claim)`` returns the messages. Few and small messages are in the reference too
    (``claim["messages"]``).

    The task has the same claim in each of its tries, and after each restart of the process that waits for it. When it
    is cleared, it releases that claim and claims anew.

    :param topic: the topic, or a list of topics. With a list, the sensor returns a list of references as soon as one
        topic has messages.
    :param max_messages: how many to claim at most; without it, the connection's ``max_messages_per_poll``, which is 10
        unless it is set.
    :param min_messages: wait until this many are claimable (a batch that is worth a Spark job's start) ...
    :param max_wait: ... or until the oldest has waited for this long (seconds, or a timedelta). Without it, there is no
        such limit. A claim has packs or single messages: in a topic that has both it may have fewer than
        ``min_messages``.
    :param consumer: the name under which it claims; without it, ``{dag_id}.{task_id}``.
    :param ttl: for how many seconds the claim lasts without a renewal. A task that works on it renews it, and so does
        the janitor. Without it, the connection's ``visibility_timeout_seconds``, which is 300 unless it is set.
    :param inline: carry few and small messages along in XCom. Otherwise tasks read them from the bucket.
    :param deferrable: wait in the triggerer, which needs no worker. Otherwise the sensor polls, by ``mode`` and
        ``poke_interval``.
    :param pawnqueue_conn_id: the connection of the queue.
    """

    template_fields: Sequence[str] = ("topic", "consumer", "max_messages", "min_messages", "ttl", "pawnqueue_conn_id")

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
        # Another try finds the same claim. It helps where Airflow loses the task: a worker dies, or a trigger fires
        # while the sensor is deferred. A timeout fails the task at once all the same, and so does an error that only a
        # person can mend.
        kwargs = {"retries": 2, "retry_delay": timedelta(seconds=10), **kwargs}
        super().__init__(pawnqueue_conn_id=pawnqueue_conn_id, poke_interval=poke_interval, max_wait=max_wait, **kwargs)
        if not self.do_xcom_push:
            raise ValueError(
                f"{type(self).__name__} {self.task_id!r} returns its claim by XCom: leave do_xcom_push on, also where "
                "default_args of its DAG turn it off."
            )
        check_early(poke_interval, checked_seconds, "poke_interval")
        check_early(max_wait, checked_delay, "max_wait")
        self.topic = check_early(topic, checked_topics, "topic")
        self.max_messages = check_early(max_messages, checked_count, "max_messages")
        self.min_messages = check_early(min_messages, checked_count, "min_messages")
        if is_constant(max_messages) and is_constant(min_messages):
            checked_batch(max_messages, min_messages)
        self.consumer = consumer
        self.ttl = check_early(ttl, checked_seconds, "ttl")
        self.inline = checked_flag(inline, "inline")
        self.deferrable = checked_flag(deferrable, "deferrable")
        self._terms: list[ClaimTerms] = []

    @property
    def output(self) -> ClaimsOutput:
        """The reference to the claim, for the tasks that work on it."""
        return ClaimsOutput(self)

    def execute(self, context: Context) -> Any:  # noqa: ANN401 - one reference, or a list
        """Claim what is claimable. If nothing is, wait in the triggerer, or poll."""
        self._terms = self._terms_of(context)  # for on_kill
        if not self.deferrable:
            return super().execute(context)
        # Before 3.4, Airflow often fails a task whose trigger fires within a second of the deferral, as it would for a
        # topic with messages. The trigger makes the same claim, as the claim's id is the task's.
        claims = self._first_claims()
        return self._returned(claims) if claims else self._wait(self._terms, self._time_left(context))

    def poke(self, context: Context) -> PokeReturnValue:
        """Claim what is claimable."""
        claims = self._claims(self._terms_of(context))
        return PokeReturnValue(bool(claims), self._returned(claims) if claims else None)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:  # noqa: ANN401 - likewise
        """Go on with the trigger's event, perhaps hours after it fired."""
        if "error" in event:
            # After an error that does not pass, another try would fail in the same way: a person has to mend it.
            raise (AirflowException if event.get("transient") else AirflowFailException)(event["error"])
        self._terms = self._terms_of(context)  # for on_kill
        hook = self.hook
        claims = []
        for claim in event["claims"]:
            try:
                with failures():
                    claims.append(self._with_messages(hook, claim))
            except AirflowException as failed:
                if not isinstance(failed.__cause__, LeaseLostError):
                    raise
                self.log.warning("The claim was lost before this task went on, so it waits again: %s", failed)
        kept = [claim for claim in claims if claim is not None]
        if not kept:
            return self._wait(self._terms, self._time_left(context))
        return self._returned(kept)

    def on_kill(self) -> None:
        """Release what was claimed, as a user has ended the task, or it took too long."""
        if not self._terms:
            return
        release = partial(release_all, each=self._terms, reason="its task was ended", wait=SENSOR_RELEASE_SECONDS)
        try:
            self.hook.queue.run(release)
        except Exception as error:  # noqa: BLE001 - at the end of a process, Python itself refuses threads and more
            self.log.warning("What was claimed could not be released, and waits for its ttl: %s", error)

    # --- claiming ---

    def _first_claims(self) -> list[dict[str, Any]]:
        """Claim before the task defers. An error fails the task as the trigger's error would."""
        try:
            return self._claims(self._terms)
        except AirflowException as failed:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(f"Skipped, as this sensor may not fail: {failed}") from failed
            if isinstance(failed, AirflowNotFoundException):
                raise AirflowFailException(str(failed)) from failed
            raise

    def _claims(self, wanted: Sequence[ClaimTerms]) -> list[dict[str, Any]]:
        """Poll each topic once, and claim what is claimable. An error that may pass is logged only."""
        hook = self.hook
        claims: list[dict[str, Any]] = []
        with self._until_the_next_poll():
            queue = hook.queue  # opened first: the task waits for a store that does not answer once, not once a topic
            for terms in wanted:
                with self._until_the_next_poll():
                    claims += self._claims_of(hook, queue, terms)
        return claims

    def _claims_of(self, hook: PawnQueueHook, queue: SyncPawnQueue, terms: ClaimTerms) -> list[dict[str, Any]]:
        try:
            claim = queue.run(partial(_claim_once, terms=terms))
            claim = None if claim is None else self._with_messages(hook, claim)
        except (PawnQueueError, AirflowException):
            raise
        except Exception as error:  # noqa: BLE001 - its text may quote a payload
            raise AirflowException(str(UnforeseenError.of(error, "Claiming", terms.topic))) from None
        return [] if claim is None else [claim]

    @contextmanager
    def _until_the_next_poll(self) -> Iterator[None]:
        try:
            yield
        except (ClaimBusyError, LeaseLostError) as error:
            self.log.info("%s", error)
        except PawnQueueError as error:
            failure = failure_of(error)
            if isinstance(failure, AirflowFailException) or (isinstance(error, StoreError) and error.denied):
                raise failure from error
            self.log.warning("The store did not answer. The next poll tries again: %s", error)

    # --- the terms ---

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

    # --- the result ---

    def _with_messages(self, hook: PawnQueueHook, claim: dict[str, Any]) -> dict[str, Any] | None:
        """Renew the claim, leave it to the next task, and return its reference; None: all of it is settled."""
        small = self.inline and claim["bytes"] <= references.MAX_INLINE_BYTES
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


async def _claim_once(queue: PawnQueue, terms: ClaimTerms) -> dict[str, Any] | None:
    """Claim once, if as much is claimable as the task waits for."""
    if terms.min_messages > 1 and not await queue.known_claims(terms.topic, [claim_id_of(terms)]):
        backlog = await queue.backlog(terms.topic, at_least=terms.min_messages)
        if not is_enough(terms, backlog.pending, backlog):
            return None
    claim = await claim_for_task(queue, terms)
    return await hand_over(queue, claim) if claim else None
