"""PawnQueue: the front door."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_pawnqueue.engine import bucket, layout, removal
from airflow_provider_pawnqueue.engine.claims import Claim, ClaimReference, Claims, KeepAlive, Message, Settlement
from airflow_provider_pawnqueue.engine.claims.bodies import LONGEST_ERROR
from airflow_provider_pawnqueue.engine.claims.held import HeldClaim
from airflow_provider_pawnqueue.engine.claims.keeping import renew, session_time
from airflow_provider_pawnqueue.engine.clock import Clock, SystemClock
from airflow_provider_pawnqueue.engine.context import Context
from airflow_provider_pawnqueue.engine.errors import ClaimBusyError, ConfigError, LeaseLostError, QueueClosedError
from airflow_provider_pawnqueue.engine.gather import together, uncut
from airflow_provider_pawnqueue.engine.inspect_topic import Found, Stats, find, peek, stats
from airflow_provider_pawnqueue.engine.janitor import Ask, Report, sweep, sweep_probes
from airflow_provider_pawnqueue.engine.payload import checked_headers, checked_payload
from airflow_provider_pawnqueue.engine.probe import Finding, probe
from airflow_provider_pawnqueue.engine.publish import Publisher
from airflow_provider_pawnqueue.engine.records import Decision
from airflow_provider_pawnqueue.engine.redrive import Redriven, redrive
from airflow_provider_pawnqueue.engine.registry import Heartbeat, Registry
from airflow_provider_pawnqueue.engine.server_time import ServerTime
from airflow_provider_pawnqueue.engine.settings import Settings
from airflow_provider_pawnqueue.engine.store.connect import connect
from airflow_provider_pawnqueue.engine.store.retry import ResilientStore
from airflow_provider_pawnqueue.engine.topics import KnownTopics, Topics

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.layout import Role
    from airflow_provider_pawnqueue.engine.records import BucketRecord, Registration, TopicRecord, TopicSettings
    from airflow_provider_pawnqueue.engine.store.credentials import Session
    from airflow_provider_pawnqueue.engine.store.port import Store


#: The first pause of a claim that waits; the following ones double.
FIRST_PAUSE = 0.25
#: How long closing goes on for who is cancelled meanwhile.
LONGEST_CLOSE = 30.0
#: The reason of who gives none.
NACK = "nack"
MOST_DELAY = 10 * 365 * 86_400.0


class PawnQueue:
    """A queue in a bucket. Made by :meth:`open`."""

    def __init__(self, store: ResilientStore, clock: Clock, settings: Settings, agreed: BucketRecord) -> None:
        at_once = settings.concurrency.max_in_flight
        registers = bucket.registers_for(agreed, store, clock, settings)
        time = ServerTime(store, clock)
        store.watch(time.seen)
        self._store = store
        self._clock = clock
        self._settings = settings
        self._agreed = agreed
        self._context = Context(store, registers, clock, time, settings)
        self._topics = Topics(store, registers, time, at_once=at_once)
        self._known_topics = KnownTopics(self._topics, store, clock)
        self._publisher = Publisher(self._context)
        self._claims = Claims(self._context)
        self._registry = Registry(store, registers, time, at_once=at_once)
        self._heartbeat = Heartbeat(self._registry, clock, settings.registry.heartbeat_interval_seconds)
        self._kept: list[KeepAlive] = []
        self._closed = False
        self._closing: asyncio.Future[None] | None = None

    @staticmethod
    def open(
        settings: Settings | Mapping[str, Any] | str | PathLike[str] | None = None,
        *,
        store: Store | None = None,
        session: Session | None = None,
        clock: Clock | None = None,
        **explicit: Any,
    ) -> Opening:
        """Open the queue that is in a bucket.

        ``async with PawnQueue.open(...) as queue:`` closes it again; so does ``await queue.aclose()`` after
        ``queue = await PawnQueue.open(...)``.

        The first process that opens a bucket probes what its store can do and writes that down; it takes a few seconds.

        :param settings: :class:`Settings`, a dict, the path of a YAML file, or None for the environment alone; dicts
        and files are overridden by ``PAWNQUEUE_*`` variables, and those by the sections given as keyword arguments
        (``s3={...}``).
        :param store: a store of your own instead of the one the settings describe. It is not closed with the queue.
        :param session: a boto3 session whose credentials are used instead of those in the settings.
        :param clock: another source of time, randomness and ids, for simulations.
        :raises ConfigError: a setting is wrong or contradicts what the bucket's processes agreed on.
        :raises StoreError: the bucket cannot be reached or used, and why.
        :raises CompatibilityError: the bucket has a newer format, or its store cannot carry a queue.
        """
        return Opening(settings, store, session, clock, explicit)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def strategy(self) -> str:
        """The lease strategy that all processes of this bucket follow."""
        return self._agreed.strategy

    async def probe(self) -> Finding:
        """Ask the store again what it can do. Changes nothing; :attr:`strategy` stays what was agreed on."""
        self._check_open()
        return await probe(self._store, self._clock)

    async def create_topic(self, topic: str, **settings: Any) -> TopicSettings:
        """Create the topic if it does not exist, and return its settings. Creating it again changes nothing.

        :raises InvalidTopicError: it is no topic name.
        :raises TopicExistsError: it exists with other settings than those given here.
        """
        self._check_open()
        return (await self._topics.create(topic, settings)).settings

    async def update_topic(self, topic: str, **settings: Any) -> TopicSettings:
        """Change settings of the topic for everyone, and return all of them."""
        self._check_open()
        try:
            return (await self._topics.update(topic, settings)).settings
        finally:
            self._known_topics.forget(topic)

    async def topic(self, topic: str) -> TopicRecord:
        """Return what is stored of the topic.

        :raises TopicNotFoundError: it does not exist.
        """
        self._check_open()
        return await self._topics.get(topic)

    async def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        self._check_open()
        return await self._topics.names()

    async def delete_topic(self, topic: str, *, force: bool = False) -> None:
        """Delete the topic, if nothing is left in it; what claims have left that have ended goes with it.

        It takes a second, which is how long other processes may go on publishing into it.

        :param force: delete all that is in it too: messages, whoever works on them, and dead letters.
        :raises TopicNotEmptyError: there are messages, leases, unfinished claims or dead letters: how many, roughly.
        """
        self._check_open()
        self._claims.forget([topic])
        try:
            await removal.delete(self._context, self._topics, topic, force=force)
        finally:
            self._known_topics.forget(topic)

    async def register_producer(self, name: str) -> Registration:
        """Return the producer's registration; a name has one id, in all processes and for ever."""
        return await self._register("producers", name)

    async def register_consumer(self, name: str) -> Registration:
        """Return the consumer's registration; a name has one id, in all processes and for ever."""
        return await self._register("consumers", name)

    async def list_producers(self) -> list[Registration]:
        """Return every producer that ever registered, and when it was last seen."""
        self._check_open()
        return await self._registry.everyone("producers")

    async def list_consumers(self) -> list[Registration]:
        """Return every consumer that ever registered, and when it was last seen."""
        self._check_open()
        return await self._registry.everyone("consumers")

    async def publish(
        self,
        topic: str,
        payloads: Iterable[Mapping[str, Any]],
        *,
        producer: str | None = None,
        headers: Mapping[str, str] | None = None,
        create: bool = False,
    ) -> list[str]:
        """Publish messages, and return their ids in order.

        :param payloads: JSON objects, as dicts. Each is taken as it is when it is iterated over.
        :param producer: who publishes, by name; its id is in each message.
        :param headers: text to text, the same for all of them.
        :param create: create the topic if it does not exist.
        :raises TopicNotFoundError: there is no such topic, or it was deleted; nothing was published.
        :raises InvalidPayloadError: one of the payloads is no JSON object; nothing was published.
        :raises PublishError: some were not published, or nobody can tell; it says which.
        """
        self._check_open()
        layout.checked_topic(topic)
        limits = self._settings.limits
        own_headers = checked_headers(headers, topic)
        checked = [checked_payload(one, limits, topic, position) for position, one in enumerate(payloads)]
        if create:
            await self._known_topics.create(topic)
        await self._topic(topic, "publish")
        if not checked:
            return []
        producer_id = (await self._register("producers", producer)).entity_id if producer else ""
        return await self._publisher.publish(
            topic, checked, producer_id=producer_id, headers=own_headers, is_there=self._known_topics.is_there
        )

    async def claim(  # noqa: PLR0913 - all but the first two have a default
        self,
        topic: str,
        consumer: str,
        *,
        max_messages: int | None = None,
        ttl: float | None = None,
        claim_id: str | None = None,
        owner: str | None = None,
        wait: float = 0.0,
        session_ttl: float | None = None,
    ) -> Claim:
        """Claim messages: nobody else is given them until they are settled, or the claim's time is over.

        :param consumer: who claims, by name.
        :param max_messages: how many at most; without it, ``polling.max_messages_per_poll``.
        :param ttl: for how many seconds; without it, ``polling.visibility_timeout_seconds``. Renew it in time.
        :param claim_id: with it, claiming is idempotent: the same id and owner give the same messages, as far as they
            are still theirs, and never a second batch.
        :param owner: on whose behalf, for ``claim_id``; without it, the consumer's name.
        :param wait: look again for so many seconds while there is nothing, or while another one works for this id.
        :param session_ttl: for how many seconds of ``ttl`` this process is trusted with the claim without renewing it;
            without it, all of them. Where somebody else (the janitor of a DAG's run) keeps the claim for its owner, a
            retry has it after so long.
        :returns: a claim, which iterates over its messages and is false if there are none.
        :raises ClaimBusyError: somebody else works for the claim id: who, until when, and when to try again.
        """
        self._check_open()
        layout.checked_topic(topic)
        layout.checked_holder(consumer, "consumer")
        layout.checked_holder(owner or consumer, "owner")
        if claim_id is not None:
            layout.checked_claim_id(claim_id)
        most = self._settings.polling.max_messages_per_poll if max_messages is None else _checked_count(max_messages)
        time = self._checked_ttl(ttl)
        session = time if session_ttl is None else self._checked_ttl(session_ttl)
        give_up = self._clock.elapsed() + _checked_wait(wait, topic)
        record = await self._topic(topic, "claim")
        pause = FIRST_PAUSE
        while True:
            busy: ClaimBusyError | None = None
            claim: Claim | None = None
            try:
                claim = await self._claims.claim(
                    record,
                    claim_id=claim_id,
                    owner=owner or consumer,
                    consumer=consumer,
                    most=most,
                    ttl=time,
                    session_ttl=session,
                )
            except ClaimBusyError as error:
                busy = error
            left = give_up - self._clock.elapsed()
            if busy is not None and left <= 0:
                raise busy
            if claim is not None and (claim or left <= 0 or (claim_id is not None and claim.was_handed_out)):
                return claim
            self._check_open()
            # An idle consumer costs one LIST a look, and looks less often the longer there is nothing.
            jitter = self._clock.uniform(0, self._settings.polling.jitter_max_ms / 1000)
            await self._clock.sleep(min(pause + jitter, left))
            pause = min(pause * 2, max(self._settings.polling.interval_seconds, FIRST_PAUSE))
            self._check_open()

    async def attach(
        self,
        reference: ClaimReference | Mapping[str, Any],
        *,
        ttl: float | None = None,
        session_ttl: float | None = None,
        wait: float = 0.0,
    ) -> Claim:
        """Go on with a claim that another process handed over (``claim.hand_over()``).

        One that has ended is empty, and tells what was decided (``.decided``, ``.state``).

        :param wait: for how many seconds to wait while another process works for it.
        :raises ClaimBusyError: somebody else works for it: who, until when, and when to try again.
        :raises LeaseLostError: it has no record any more, or was taken over.
        """
        self._check_open()
        given = reference if isinstance(reference, ClaimReference) else ClaimReference.from_dict(reference)
        layout.checked_claim_id(given.claim_id)
        time = self._checked_ttl(ttl)
        session = time if session_ttl is None else self._checked_ttl(session_ttl)
        give_up = self._clock.elapsed() + _checked_wait(wait, given.topic)
        record = await self._topic(given.topic, "attach")
        while True:
            try:
                return await self._claims.attach(record, given, ttl=time, session_ttl=session)
            except ClaimBusyError as busy:
                left = give_up - self._clock.elapsed()
                if left <= 0:
                    raise
                pause = min(busy.retry_after + FIRST_PAUSE, self._settings.polling.interval_seconds)
                await self._clock.sleep(min(pause, left))
                self._check_open()

    async def renew(self, claim: Claim, *, ttl: float | None = None, session_ttl: float | None = None) -> None:
        """Keep the claim for as long as it was claimed for, from now on: one request, whatever its size.

        :param ttl: for another time, in seconds, from now on.
        :param session_ttl: the same of the time for which this process is trusted.
        :raises LeaseLostError: it is no longer ours; stop working on its messages.
        """
        self._check_open()
        time = None if ttl is None else self._checked_ttl(ttl)
        held = HeldClaim.of(claim, "renew")
        await renew(self._context, held, time, None if session_ttl is None else self._checked_ttl(session_ttl))

    def keep_alive(
        self,
        claim: Claim,
        *,
        on_lost: Callable[[LeaseLostError], Awaitable[None] | None] | None = None,
        ttl: float | None = None,
        interval: float | None = None,
    ) -> KeepAlive:
        """Renew the claim in the background: ``async with queue.keep_alive(claim, on_lost=stop): work()``.

        The renewals never end in silence: whatever goes wrong is logged and tried again while the claim is trusted,
        and then told. Leaving the block waits for a renewal that is under way, for 5 seconds at most.

        :param on_lost: called once, with the error, when the claim is lost all the same. What it raises is logged.
        :param ttl: what a renewal gives; without it, what the claim was given before.
        :param interval: seconds between renewals, less than the claim is trusted after one (its time but for
            ``claims.margin_seconds``); without it, ``polling.lease_refresh_interval_seconds``, and never more than a
            third of that time.
        """
        self._check_open()
        held = HeldClaim.of(claim, "keep_alive")
        margin = self._context.margin
        own = claim.ttl if claim.ttl > margin else None  # one that found nothing has none, and needs none
        time = self._checked_ttl(own if ttl is None else ttl)
        trusted = min(time, session_time(claim, time)) - margin
        if interval is None:
            pause = min(self._settings.polling.lease_refresh_interval_seconds, trusted / 3)
        elif _is_number(interval) and 0 < interval < trusted:
            pause = float(interval)
        else:
            raise ConfigError(
                f"interval={interval!r}: pass a number of seconds between 0 and {trusted:g}, for which the claim is "
                "trusted after a renewal; or none, to have it renewed three times in that time.",
                topic=claim.topic,
                operation="keep_alive",
            )
        return KeepAlive(self._context, held, ttl=time, interval=pause, on_lost=on_lost, kept=self._kept)

    async def ack(self, claim: Claim, ids: Iterable[str] | None = None) -> Settlement:
        """Settle messages as done, all of the claim's or those with these ids. They are not delivered again."""
        return await self._settle(HeldClaim.of(claim, "ack"), ids, Decision(how="acked"))

    async def nack(  # noqa: PLR0913 - all but the claim have a default
        self,
        claim: Claim,
        ids: Iterable[str] | None = None,
        *,
        requeue: bool = False,
        delay: float = 0.0,
        reason: str = NACK,
        error: str = "",
    ) -> Settlement:
        """Settle messages as not done: buried in the dead-letter prefix, or with ``requeue`` given back to the queue.

        :param delay: requeue: not to be delivered for so many seconds.
        :param reason: why, for whoever looks at the dead letter, now or when the message has been given back once too
            often; ``error`` has room for details, 2,000 characters of them.
        """
        self._check_open()
        held = HeldClaim.of(claim, "nack")
        if not all(_is_text(given) for given in (reason, error)):
            raise ConfigError(
                f"reason and error are texts, not {reason!r} and {error!r}: use str(error).",
                topic=claim.topic,
                operation="nack",
            )
        if delay and not requeue:
            raise ConfigError(
                "delay is for messages that are given back: pass requeue=True with it.",
                topic=claim.topic,
                operation="nack",
            )
        if not requeue:
            at = await self._context.now() if claim else 0.0
            return await self._settle(
                held, ids, Decision(how="dead", reason=reason[:LONGEST_ERROR], error=error[:LONGEST_ERROR], until=at)
            )
        if not _is_number(delay) or not 0 <= delay < MOST_DELAY:
            raise ConfigError(
                f"delay is a number of seconds from 0, not {delay!r}.", topic=claim.topic, operation="nack"
            )
        until = await self._context.now() + delay
        told = {"reason": reason[:LONGEST_ERROR] if reason != NACK else "", "error": error[:LONGEST_ERROR]}
        return await self._settle(held, ids, Decision(how="released", until=until if delay else 0.0, **told))

    async def redrive(
        self, topic: str, ids: Iterable[str] | None = None, *, max_messages: int | None = None
    ) -> Redriven:
        """Give dead letters back to the queue, all or those with these ids, with their count of deliveries at zero."""
        self._check_open()
        only = None if ids is None else {ids} if isinstance(ids, str) else set(ids)
        most = None if max_messages is None else _checked_count(max_messages)
        await self._topic(topic, "redrive")
        try:
            return await redrive(self._context, topic, only=only, most=most)
        finally:
            self._claims.look_anew(topic)

    async def sweep(self, topic: str, *, dry_run: bool = False, ask: Ask | None = None) -> Report:
        """Let the janitor sweep the topic once: finish what crashed processes left, remove what nobody needs.

        :param dry_run: change nothing; the report says what would be done.
        :param ask: asked about each open claim, by its record, whether its owner goes on ("going": it is renewed), has
            "ended" (it is fenced), or is not known (None: it is left alone).
        """
        self._check_open()
        await self._topic(topic, "sweep")
        report = await sweep(self._context, topic, dry_run=dry_run, ask=ask)
        self._claims.look_anew(topic)
        report.removed_leftovers += await sweep_probes(self._context, dry_run=dry_run)
        return report

    async def peek(self, topic: str, max_messages: int = 10) -> list[Message]:
        """Read messages from the head without claiming them, whether or not others have them."""
        self._check_open()
        most = _checked_count(max_messages)
        await self._topic(topic, "peek")
        return await peek(self._context, topic, most)

    async def find(self, topic: str, message_id: str) -> Found | None:
        """Say where a message is, by the id under which it is kept, or None if it is nowhere (any more)."""
        self._check_open()
        await self._topic(topic, "find")
        return await find(self._context, topic, message_id)

    async def stats(self, topic: str) -> Stats:
        """Count the topic's messages, by LISTs, and by the records of claims whose leases look overdue."""
        self._check_open()
        await self._topic(topic, "stats")
        return await stats(self._context, topic)

    async def aclose(self, *, keep_claims: bool | None = None) -> None:
        """Close the queue: give back its open claims, end its background work, give back its connections.

        May be called twice.

        :param keep_claims: leave the messages of open claims to whoever comes by their claim ids next, who need not
            wait; nobody else has them before the claims' time is over. Without it, ``claims.keep_when_closed``.
        """
        if self._closing is None:
            self._closed = True
            self._closing = asyncio.ensure_future(self._close(keep_claims))
        # Whoever is cancelled leaves nothing half closed, and a second call waits for the same end.
        await uncut(self._closing, self._clock, LONGEST_CLOSE)

    async def _close(self, keep_claims: bool | None) -> None:  # noqa: FBT001 - as it was given
        keep = self._settings.claims.keep_when_closed if keep_claims is None else keep_claims
        try:
            # Those first who work on what is given back then: they are told.
            await together(*(one.end("its queue was closed") for one in self._kept))
            await self._claims.close(keep=keep)
        finally:
            await self._heartbeat.stop()
            await self._context.time.aclose()
            await self._store.aclose()

    async def _settle(self, claim: HeldClaim, ids: Iterable[str] | None, decision: Decision) -> Settlement:
        self._check_open()
        chosen = claim.ids if ids is None else [ids] if isinstance(ids, str) else ids
        return await self._claims.settle(claim, dict.fromkeys(chosen, decision))

    async def _topic(self, topic: str, operation: str) -> TopicRecord:
        return await self._known_topics.get(topic, operation)

    def _checked_ttl(self, ttl: float | None) -> float:
        time = self._settings.polling.visibility_timeout_seconds if ttl is None else ttl
        margin = self._context.margin
        if not _is_number(time) or not margin < time < MOST_DELAY:
            raise ConfigError(
                f"ttl={time!r}: pass a number of seconds above claims.margin_seconds={margin:g}, which is taken off at "
                "its end, and below ten years."
            )
        return float(time)

    async def _register(self, role: Role, name: str) -> Registration:
        self._check_open()
        registration = await self._registry.register(role, name)
        self._heartbeat.start()
        return registration

    def _check_open(self) -> None:
        if self._closed:
            raise QueueClosedError

    async def __aenter__(self) -> Self:
        """Use an open queue as a context manager, once more."""
        self._check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the queue."""
        await self.aclose()


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _checked_wait(wait: object, topic: str) -> float:
    if isinstance(wait, int | float) and not isinstance(wait, bool) and wait >= 0:
        return float(wait)
    raise ConfigError(f"wait is a number of seconds from 0, not {wait!r}.", topic=topic, operation="claim")


def _checked_count(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise ConfigError(f"max_messages is a whole number from 1, not {value!r}.")


class Opening:
    """A queue that is about to be opened: await it, or enter it."""

    def __init__(
        self,
        settings: Settings | Mapping[str, Any] | str | PathLike[str] | None,
        store: Store | None,
        session: Session | None,
        clock: Clock | None,
        explicit: dict[str, Any],
    ) -> None:
        self._settings = settings
        self._given = store
        self._session = session
        self._clock = clock or SystemClock()
        self._explicit = explicit
        self._queue: PawnQueue | None = None

    async def _open(self) -> PawnQueue:
        if self._given is not None:
            self._explicit = {
                "s3": {"bucket_name": "own-store"},
                **self._explicit,
            }  # where the bucket is, only it knows
        settings = Settings.load(self._settings, **self._explicit)
        # Importing boto3, reading profiles and making clients take a while, and other work of this loop goes on.
        made = self._given if self._given is not None else await asyncio.to_thread(connect, settings.s3, self._session)
        store = ResilientStore(made, settings.retry, self._clock, owned=self._given is None)
        try:
            return PawnQueue(store, self._clock, settings, await bucket.agree(store, self._clock, settings))
        except BaseException:
            await store.aclose()
            raise

    def __await__(self) -> Generator[Any, None, PawnQueue]:
        """Open the queue; its user closes it."""
        return self._open().__await__()

    async def __aenter__(self) -> PawnQueue:
        """Open the queue for the length of a block."""
        self._queue = await self._open()
        return self._queue

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the queue."""
        if self._queue is not None:
            await self._queue.aclose()
