"""PawnQueue: the front door. Each method checks what it was given, and hands it to the room that does the work."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from pawnqueue.arguments import (
    checked_callback,
    checked_claim_ids,
    checked_count,
    checked_flag,
    checked_flags,
    checked_ids,
    checked_seconds,
)
from pawnqueue.bucket.opening import ForAsyncWith, Opening, Sections, open_bucket
from pawnqueue.claims import Claim, ClaimReference, KeepAlive, Message
from pawnqueue.claims.held import HeldClaim
from pawnqueue.claims.leaving import leave
from pawnqueue.claims.looking import LastClaim, last_claim, messages
from pawnqueue.claims.recorded import latest_generations
from pawnqueue.claims.renewing import renew
from pawnqueue.claims.waiting import until_free, until_there
from pawnqueue.decisions import Decisions
from pawnqueue.domain import layout
from pawnqueue.domain.claim_terms import ClaimTerms
from pawnqueue.maintenance import AskOwner, SweepReport, asking, finish, sweep
from pawnqueue.maintenance.redrive import RedriveResult, redrive
from pawnqueue.publish.publisher import NewMessage, checked_messages
from pawnqueue.reads.counting import Backlog, Stats, backlog, stats
from pawnqueue.reads.dead_letters import DeadLetterPage, dead_letters
from pawnqueue.reads.health import Health, health
from pawnqueue.reads.inspect_topic import Location, find, peek
from pawnqueue.registers.probe import ProbeResult, probe
from pawnqueue.runtime.cancellation import cancel_after
from pawnqueue.runtime.concurrency import all_of
from pawnqueue.runtime.lifetime import CLOSE_SECONDS
from pawnqueue.settings import Settings
from pawnqueue.terms import CheckedTerms, Holding, Keeping, Renewal

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.domain.records import BucketRecord
    from pawnqueue.errors import LeaseLostError
    from pawnqueue.events import Listener
    from pawnqueue.runtime.clock import Clock
    from pawnqueue.stores.credentials import Session
    from pawnqueue.stores.port import Store


#: How long a queue that is closed late waits for its background work to end.
LAST_SECONDS = 0.5


class PawnQueue(Decisions, ForAsyncWith):
    """A queue in a bucket. Made by :meth:`open`, and used in the event loop that opened it."""

    def __init__(self, context: Context, agreed: BucketRecord) -> None:
        super().__init__(context)
        self._agreed = agreed
        self._kept: list[KeepAlive] = []

    @staticmethod
    def open(
        settings: Settings | Mapping[str, Any] | str | PathLike[str] | None = None,
        *,
        store: Store | None = None,
        session: Session | None = None,
        clock: Clock | None = None,
        on_event: Listener | None = None,
        **sections: Unpack[Sections],
    ) -> Opening[PawnQueue]:
        """Open the queue that is in a bucket.

        ``async with PawnQueue.open(...) as queue:`` closes it again; so does ``await queue.aclose()`` after
        ``queue = await PawnQueue.open(...)``.

        The first process that opens a bucket probes what its store can do and writes that down; it takes a few seconds.

        :param settings: :class:`Settings`, a dict, the path of a YAML file, or None for the environment alone; dicts
            and files are overridden by ``PAWNQUEUE_*`` variables, and those by the sections given as keyword arguments
            (``s3={...}``).
        :param store: a store of your own instead of the one the settings describe (``MemoryStore()`` in your tests). It
            is not closed with the queue.
        :param session: a boto3 session whose credentials are used instead of those in the settings.
        :param clock: another source of time, randomness and ids, for simulations.
        :param on_event: called with each event (:mod:`.events`) as it happens, in the queue's own thread: for metrics
            and traces. It must return at once; what it raises is logged.
        :raises ConfigError: a setting is wrong or contradicts what the bucket's processes agreed on.
        :raises StoreError: the bucket cannot be reached or used, and why.
        :raises CompatibilityError: the bucket has a newer format, or its store cannot carry a queue.
        """

        async def opened() -> PawnQueue:
            return PawnQueue(
                *await open_bucket(settings, sections, store=store, session=session, clock=clock, on_event=on_event)
            )

        return Opening(opened)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._life.is_over

    @property
    def strategy(self) -> str:
        """The lease strategy that all processes of this bucket follow."""
        return self._agreed.strategy

    @property
    def settings(self) -> Settings:
        """The settings that it was opened with. Secrets in them do not show."""
        return self._context.settings

    async def probe(self) -> ProbeResult:
        """Ask the store again what it can do. Changes nothing; :attr:`strategy` stays what was agreed on."""
        self._life.check_open()
        return await probe(self._context.store, self._context.clock)

    async def health(self) -> Health:
        """Measure how well the store answers, and how far this machine's clock is from its own."""
        self._life.check_open()
        return await health(self._context)

    # --- messages ---

    async def publish(
        self,
        topic: str,
        payloads: Iterable[Mapping[str, Any] | NewMessage],
        *,
        producer: str | None = None,
        headers: Mapping[str, str] | None = None,
        create: bool = False,
    ) -> list[str]:
        """Publish messages, and return their ids in order.

        :param payloads: JSON objects, as dicts, or :class:`NewMessage` where one has headers of its own. Each is taken
            as it is when it is iterated over.
        :param producer: who publishes, by name; its id is in each message.
        :param headers: text to text, the same for all of them.
        :param create: create the topic if it does not exist.
        :raises TopicNotFoundError: there is no such topic, or it was deleted; nothing was published.
        :raises InvalidPayloadError: one of the payloads is no JSON object; nothing was published.
        :raises PublishError: some were not published, or nobody can tell; it says which.
        """
        self._life.check_open()
        layout.checked_topic(topic)
        checked_flag(create, "create", "publish")
        checked = checked_messages(payloads, headers, self._context.settings.limits, topic)
        if create:
            await self._known_topics.create(topic)
        await self._topic(topic, "publish")
        if not checked:
            return []
        producer_id = await self._producer_id(producer)
        try:
            return await self._publisher.publish(
                topic, checked, producer_id=producer_id, is_there=self._known_topics.is_there
            )
        finally:
            self._claims.look_again(topic, len(checked))

    async def claim(  # noqa: PLR0913 - all but the first two have a default
        self,
        topic: str,
        consumer: str,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        ttl: float | None = None,
        claim_id: str | None = None,
        owner: str | None = None,
        wait: float = 0.0,
        session_ttl: float | None = None,
    ) -> Claim:
        """Claim messages: nobody else is given them until they are settled, or the claim's time is over.

        :param consumer: who claims, by name.
        :param max_messages: how many at most; without it, ``polling.max_messages_per_poll``.
        :param max_bytes: how large they may be together, as they are stored. One that is larger by itself comes alone.
        :param ttl: for how many seconds; without it, ``polling.visibility_timeout_seconds``. Renew it in time.
        :param claim_id: with it, claiming is idempotent: the same id and owner give the same messages, as far as they
            are still theirs, and never a second batch.
        :param owner: on whose behalf, for ``claim_id``; without it, the consumer's name.
        :param wait: look again for so many seconds while there is nothing, or while another one works for this id.
            Where the store does not answer, ``retry.budget_seconds`` come on top.
        :param session_ttl: for how many seconds of ``ttl`` this process is trusted with the claim without renewing it;
            without it, all of them. Where somebody else (the janitor of a DAG's run) keeps the claim for its owner, a
            retry has it after so long.
        :returns: a claim, which iterates over its messages and is false if there are none.
        :raises ClaimBusyError: somebody else works for the claim id: who, until when, and when to try again.
        """
        self._life.check_open()
        layout.checked_topic(topic)
        given = ClaimTerms(
            topic=topic,
            consumer=consumer,
            owner=owner,
            claim_id=claim_id,
            max_messages=max_messages,
            max_bytes=max_bytes,
            ttl=ttl,
            session_ttl=session_ttl,
            wait=wait,
        )
        terms = CheckedTerms.of(self._context.settings, given)
        request = terms.request(await self._topic(topic, "claim"))
        if self._context.settings.registry.register_consumers:
            self._heartbeat.enlist("consumers", consumer)
        return await until_there(
            self._context,
            self._claims.idleness(topic),
            lambda: self._claims.claim(request),
            wait=terms.times.wait,
            is_settled=terms.is_settled,
            check_open=self._life.check_open,
        )

    async def attach(
        self,
        reference: ClaimReference | Mapping[str, Any],
        *,
        ttl: float | None = None,
        session_ttl: float | None = None,
        wait: float = 0.0,
        payloads: bool = True,
    ) -> Claim:
        """Go on with a claim that another process handed over (``claim.hand_over()``).

        One that has ended is empty, and tells what was decided (``.decided``, ``.state``).

        :param ttl: for how many seconds from now, and from each renewal on; without it, as it was claimed for. What
            it has is never shortened by this.
        :param session_ttl: for how many seconds of ``ttl`` this process is trusted with it; without it, all of them.
        :param wait: for how many seconds to wait while another process works for it.
        :param payloads: read the messages. Without them, two requests do for a claim of any size, and it can be
            settled, renewed and left as ever; it has a length and ``.ids``, and no messages.
        :raises ClaimBusyError: somebody else works for it: who, until when, and when to try again.
        :raises LeaseLostError: it has no record any more, or was taken over.
        """
        self._life.check_open()
        given = ClaimReference.of(reference)
        times = Holding.checked(
            self._context.settings, given.topic, "attach", ttl=ttl, session_ttl=session_ttl, wait=wait
        )
        checked_flag(payloads, "payloads", "attach")
        record = await self._topic(given.topic, "attach")
        return await until_free(
            self._context,
            lambda: self._claims.attach(
                record,
                given,
                ttl=times.ttl,
                session_ttl=times.session_ttl if ttl is not None or session_ttl is not None else math.inf,
                payloads=payloads,
                own_ttl=ttl is not None,
            ),
            wait=times.wait,
            check_open=self._life.check_open,
        )

    async def held(self, reference: ClaimReference | Mapping[str, Any]) -> Claim | None:
        """Return the claim that a reference names, if this queue works on it already; no request is sent.

        Who attaches to a claim of its own waits for itself: two sessions never have one claim.
        """
        self._life.check_open()
        return self._claims.held(ClaimReference.of(reference))

    async def messages(self, reference: ClaimReference | Mapping[str, Any]) -> list[Message]:
        """Read what a claim has not settled, without working for it: whoever does so goes on, and nothing is written.

        This is a look only: who works on the messages attaches. Malformed ones, and those that are gone, are left out.

        :raises LeaseLostError: it has no record any more, was taken over, or its time is over.
        :raises StoreError: one of them cannot be read now.
        """
        self._life.check_open()
        given = ClaimReference.of(reference)
        await self._topic(given.topic, "messages")
        return await messages(self._context, given)

    async def known_claims(self, topic: str, claim_ids: Iterable[str]) -> set[str]:
        """Return those of these claim ids that have a record, of any generation, in any state.

        One LIST of the records between the first and the last of them, a page at a time, however many ids there are.

        :param claim_ids: the ids, as claims were asked for by them.
        """
        self._life.check_open()
        layout.checked_topic(topic)
        wanted = checked_claim_ids(claim_ids)
        await self._topic(topic, "known_claims")
        return set(await latest_generations(self._context, topic, wanted))

    async def last_claim(self, topic: str, claim_id: str) -> LastClaim | None:
        """Show the newest claim under an id without working for it, or None where there is no record: two requests."""
        self._life.check_open()
        layout.checked_topic(topic)
        layout.checked_claim_id(claim_id)
        await self._topic(topic, "last_claim")
        return await last_claim(self._context, topic, claim_id)

    async def renew(self, claim: Claim, *, ttl: float | None = None, session_ttl: float | None = None) -> None:
        """Keep the claim for as long as it was claimed for, from now on: one request, whatever its size.

        :param ttl: for another time, in seconds, from now on.
        :param session_ttl: the same of the time for which this process is trusted.
        :raises LeaseLostError: it is no longer ours; stop working on its messages.
        """
        self._life.check_open()
        held = HeldClaim.of(claim, "renew", self._context)
        times = Renewal.checked(self._context.settings, claim, ttl=ttl, session_ttl=session_ttl)
        await renew(self._context, held, times.ttl, times.session_ttl)

    async def leave(self, claim: Claim) -> ClaimReference:
        """Work on the claim no more, and have its record say so: whoever comes next need not wait.

        Others attach by the reference, or claim by the claim's id, at once; until then its messages are nobody's while
        its time lasts. It is ``claim.hand_over()`` and one request; none, where all is settled. If the store does not
        answer, who comes by the id waits until this session's time is over, which is logged, and is no error.

        :raises LeaseLostError: it is no longer ours.
        """
        self._life.check_open()
        return await leave(self._context, HeldClaim.of(claim, "leave", self._context))

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
        self._life.check_open()
        held = HeldClaim.of(claim, "keep_alive", self._context)
        checked_callback(on_lost, "on_lost", "the error", "keep_alive")
        keeping = Keeping.checked(self._context.settings, claim, ttl=ttl, interval=interval)
        return KeepAlive(
            self._context, held, ttl=keeping.ttl, interval=keeping.interval, on_lost=on_lost, kept=self._kept
        )

    # --- dead letters ---

    async def dead_letters(
        self,
        topic: str,
        *,
        max_messages: int = 50,
        newest_first: bool = True,
        after: str | None = None,
        payloads: bool = True,
    ) -> DeadLetterPage:
        """List dead letters by the time at which they were buried, each with why, and the message itself.

        :param max_messages: how many a page has.
        :param newest_first: begin with those that were buried last; False: with the eldest.
        :param after: go on behind the page whose ``.next`` this is.
        :param payloads: read the messages too, one more request for each.
        """
        self._life.check_open()
        most = checked_count(max_messages, "max_messages", "dead_letters")
        checked_flags("dead_letters", newest_first=newest_first, payloads=payloads)
        await self._topic(topic, "dead_letters")
        return await dead_letters(
            self._context, topic, most=most, newest_first=newest_first, after=after, payloads=payloads
        )

    async def redrive(
        self, topic: str, ids: Iterable[str] | str | None = None, *, max_messages: int | None = None
    ) -> RedriveResult:
        """Give dead letters back to the queue, with their count of deliveries at zero, in the order of their ids.

        :param ids: which, by the ids of dead letters or of their messages; without it, all of them.
        :param max_messages: how many at most.
        :raises InvalidArgumentError: there is no dead letter of one of these ids; none was given back.
        """
        self._life.check_open()
        only = checked_ids(ids, topic, "redrive")
        most = None if max_messages is None else checked_count(max_messages, "max_messages", "redrive")
        await self._topic(topic, "redrive")
        try:
            return await redrive(self._context, topic, only=only, most=most)
        finally:
            self._claims.look_anew(topic)

    # --- looking after a topic ---

    async def sweep(self, topic: str, *, dry_run: bool = False, ask: AskOwner | None = None) -> SweepReport:
        """Let the janitor sweep the topic once: finish what crashed processes left, remove what nobody needs.

        :param dry_run: change nothing; the report says what would be done.
        :param ask: asked about each open claim whether its owner goes on ("going": it is renewed), has "ended" (it is
            fenced), or is not known (None: it is left alone). Awaited, if it is a coroutine function; else called in a
            thread of its own.
        """
        self._life.check_open()
        checked_flag(dry_run, "dry_run", "sweep")
        checked_callback(ask, "ask", "an open claim", "sweep")
        await self._topic(topic, "sweep")
        report = await sweep(self._context, topic, dry_run=dry_run, ask=asking(topic, ask))
        self._claims.look_anew(topic)
        return await finish(self._context, report)

    async def peek(self, topic: str, max_messages: int = 10) -> list[Message]:
        """Read messages from the head without claiming them, whether or not others have them.

        Their ``deliveries`` are not looked up, and are 0: :meth:`find` tells those of one.

        :param max_messages: how many at most.
        """
        self._life.check_open()
        most = checked_count(max_messages, "max_messages", "peek")
        await self._topic(topic, "peek")
        return await peek(self._context, topic, most)

    async def find(self, topic: str, message_id: str) -> Location | None:
        """Say where a message is, by the id under which it is kept, or None if it is nowhere (any more).

        :param message_id: the id that ``publish`` has returned.
        """
        self._life.check_open()
        layout.checked_topic(topic)
        layout.checked_message_id(message_id)
        await self._topic(topic, "find")
        return await find(self._context, topic, message_id)

    async def stats(self, topic: str) -> Stats:
        """Count the topic's messages, by LISTs, and by the records of claims whose leases look overdue."""
        self._life.check_open()
        await self._topic(topic, "stats")
        return await stats(self._context, topic)

    async def backlog(self, topic: str, at_least: int | None = None, *, claims: bool = False) -> Backlog:
        """Count the messages that could be claimed, cheaply: one LIST where there are none.

        :param at_least: stop counting at this many messages.
        :param claims: list the topic's claims too, one LIST for each thousand, if there are messages to be claimed.
        """
        self._life.check_open()
        checked_flag(claims, "claims", "backlog")
        enough = math.inf if at_least is None else checked_count(at_least, "at_least", "backlog")
        await self._topic(topic, "backlog")
        return await backlog(self._context, topic, enough, claims=claims)

    # --- its end ---

    async def aclose(self, *, keep_claims: bool | None = None, timeout: float = CLOSE_SECONDS) -> None:  # noqa: ASYNC109 - a part of what it does is cut off, and told
        """Close the queue: give back its open claims, end its background work, give back its connections.

        May be called twice.

        :param keep_claims: leave the messages of open claims to whoever comes by their claim ids next, who need not
            wait; nobody else has them before the claims' time is over. Without it, ``claims.keep_when_closed``.
        :param timeout: for how many seconds at most it tries to give claims back. A store that hangs takes no longer;
            the log names what was not given back, which others have when its time is over.
        """
        self._life.check_loop()
        if keep_claims is not None:
            checked_flag(keep_claims, "keep_claims", "close")
        seconds = checked_seconds(timeout, "timeout", "", "close")
        await self._life.end(lambda: self._close(keep_claims, seconds))

    async def _close(self, keep_claims: bool | None, seconds: float) -> None:  # noqa: FBT001 - as it was given
        keep = self._context.settings.claims.keep_when_closed if keep_claims is None else keep_claims
        clock = self._context.clock
        began = clock.elapsed()
        try:
            if not await cancel_after(self._part(keep=keep), clock, seconds):
                self._claims.abandon(seconds, keep=keep)
        finally:
            left = max(seconds - (clock.elapsed() - began), LAST_SECONDS)
            await cancel_after(self._end_background(), clock, left)
            await self._context.store.aclose()

    async def _part(self, *, keep: bool) -> None:
        # Background renewals end first: they report that their claims are given back.
        await all_of(*(keeper.end("its queue was closed") for keeper in self._kept))
        await self._claims.close(keep=keep)

    async def _end_background(self) -> None:
        await all_of(self._heartbeat.stop(), self._context.time.aclose())

    def __repr__(self) -> str:
        """Show which queue it is: no secret is in it."""
        state = "closed" if self.closed else self._agreed.strategy
        return f"<{type(self).__name__} {self._context.settings.s3.bucket_name!r}: {state}>"

    async def __aenter__(self) -> Self:
        """Use an open queue as a context manager, once more."""
        self._life.check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the queue."""
        await self.aclose()
