"""The front door: every call that a user makes. A method checks its arguments, and a room of the package does the work.

``SyncPawnQueue`` has the same calls. ``python -m tools.twins`` writes them from this file; run it after a change here.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import datetime
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from pawnqueue.arguments import (
    Chosen,
    OnLost,
    Payloads,
    Reasons,
    Reference,
    TopicNames,
    check_one_topic,
    checked_callback,
    checked_claim_ids,
    checked_count,
    checked_flag,
    checked_flags,
    checked_ids,
    checked_owners,
    checked_pack,
    checked_seconds,
    checked_topics,
    checked_ttl,
    chosen,
)
from pawnqueue.bucket.opening import ForAsyncWith, Opening, Sections, open_bucket
from pawnqueue.bucket.registry import Heartbeat, Registration, Registry
from pawnqueue.bucket.topics import KnownTopics, Topic, TopicOptions, Topics
from pawnqueue.claims import Claim, ClaimReference, Claims, KeepAlive, Message, Settlement
from pawnqueue.claims.claim_reads import LastClaim, last_claim, latest_generations, messages
from pawnqueue.claims.held import HeldClaim
from pawnqueue.claims.leaving import leave
from pawnqueue.claims.renewing import renew
from pawnqueue.claims.waiting import Place, until_free, until_there
from pawnqueue.domain import layout
from pawnqueue.domain.claim_record import Decision
from pawnqueue.domain.claim_terms import ClaimTerms
from pawnqueue.domain.object_sizes import MAX_CLAIM_PACKED_MESSAGES
from pawnqueue.errors import QueueClosedError, StoreError, TopicNotFoundError
from pawnqueue.listening.draining import AT_ONCE_SECONDS, DRAIN_SECONDS, Drain, end_workers
from pawnqueue.listening.handlers import Handler, checked_handler
from pawnqueue.listening.report import Drained, Listened
from pawnqueue.listening.retry import Retry
from pawnqueue.listening.signals import on_signals
from pawnqueue.listening.worker import Deadlines, Worker
from pawnqueue.maintenance import AskOwner, SweepReport, ask_by_record, finish, removal, sweep
from pawnqueue.maintenance.redrive import OnProgress, RedriveResult, RedriveTerms, redrive
from pawnqueue.maintenance.removal import Removed
from pawnqueue.publish import staging, writes
from pawnqueue.publish.backpressure import Backpressure
from pawnqueue.publish.calls import PublishCalls
from pawnqueue.publish.new_messages import DedupKey, check_dedup_keys, check_no_keys, checked_messages
from pawnqueue.publish.packing import PackChoice, chosen_packs
from pawnqueue.publish.publish_once import PublishedIds
from pawnqueue.publish.publisher import Publisher
from pawnqueue.publish.schedule import check_allowed, check_none, checked_schedule
from pawnqueue.publish.staging import Staged
from pawnqueue.publish.write_outcome import Written
from pawnqueue.reads.completed import CompletedPage, completed
from pawnqueue.reads.counting import Backlog, Stats, backlog, stats
from pawnqueue.reads.dead_letters import DeadLetter, DeadLetterPage, dead_letters
from pawnqueue.reads.health import Health, health
from pawnqueue.reads.inspect_topic import Location, find, peek
from pawnqueue.reads.portions import FetchedPortion, Portion, fetch_portion, read_portion, refresh_portion
from pawnqueue.reads.selection import Selection
from pawnqueue.registers.probe import ProbeResult, probe
from pawnqueue.runtime.cancellation import cancel_after
from pawnqueue.runtime.concurrency import all_of
from pawnqueue.runtime.lifetime import CLOSE_SECONDS, Lifetime
from pawnqueue.runtime.pacing import Pace
from pawnqueue.settings import Settings
from pawnqueue.terms import (
    NACK,
    CheckedTerms,
    Holding,
    NotDone,
    checked_cut,
    checked_keeping,
    checked_letter_filter,
    checked_portion,
    checked_rate,
    checked_renewal,
    checked_settlement,
)

if TYPE_CHECKING:
    from pawnqueue.claims.claim import Meant
    from pawnqueue.context import Context
    from pawnqueue.domain.layout import Role
    from pawnqueue.domain.records import BucketRecord, TopicRecord
    from pawnqueue.events import Listener
    from pawnqueue.publish.new_messages import Checked
    from pawnqueue.runtime.clock import Clock
    from pawnqueue.spans import Spans
    from pawnqueue.stores.credentials import Session
    from pawnqueue.stores.port import Store

#: The part of the time for closing a queue that its workers have.
WORKERS_SHARE = 0.5
#: How many messages a claim of a listener has at most, where its caller names no number.
MAX_LISTENED_MESSAGES = 1000
#: The least time that ``aclose`` gives background work to end, however long the claims have taken.
MIN_BACKGROUND_END_SECONDS = 0.5


class PawnQueue(ForAsyncWith):
    """A queue in a bucket. :meth:`open` makes one, for the event loop in which it was opened."""

    def __init__(self, context: Context, agreed: BucketRecord) -> None:
        self._context = context
        self._agreed = agreed
        self._life = Lifetime(context.clock)
        self._topics = Topics(context)
        self._known_topics = KnownTopics(context, self._topics)
        self._registry = Registry(context)
        self._heartbeat = Heartbeat(self._registry, context.clock, context.settings.registry.heartbeat_interval_seconds)
        self._publisher = Publisher(context, self._known_topics)
        backpressure = Backpressure(context, self._known_topics.recent, self._life.check_open)
        self._publish_calls = PublishCalls(self._publisher, backpressure)
        self._ended_commits: set[str] = set()
        self._claims = Claims(context, self._known_topics.recent)
        self._keepers: list[KeepAlive] = []
        self._drain = Drain(context, self._claims)
        self._signals = 0
        self._draining: list[asyncio.Task[Drained]] = []

    @staticmethod
    def open(  # noqa: PLR0913 - all have a default
        settings: Settings | Mapping[str, Any] | str | PathLike[str] | None = None,
        *,
        store: Store | None = None,
        session: Session | None = None,
        clock: Clock | None = None,
        on_event: Listener | None = None,
        tracing: Spans | None = None,
        **sections: Unpack[Sections],
    ) -> Opening[PawnQueue]:
        """Open the queue that is in a bucket.

        ``async with PawnQueue.open(...) as queue:`` closes it at the end of the block. After
        ``queue = await PawnQueue.open(...)``, ``await queue.aclose()`` does.

        The first process that opens a bucket tests what its store can do, which takes a few seconds.

        :param settings: :class:`Settings`, a dict, the path of a YAML file, or None for the environment alone.
            ``PAWNQUEUE_*`` variables override dicts and files. Sections given as keyword arguments (``s3={...}``)
            override both.
        :param store: your own store instead of the one in the settings (``MemoryStore()`` in your tests). You close it.
        :param session: a boto3 session whose credentials are used instead of those in the settings.
        :param clock: another source of time, randomness and ids, for simulations.
        :param on_event: called with each event (:mod:`.events`) in the queue's own thread, for metrics and traces. It
            must return at once. What it raises is logged.
        :param tracing: ``Tracing()`` of :mod:`pawnqueue.tracing`: a span of OpenTelemetry for each call that publishes,
            claims or settles, and for each message that :meth:`listen` handles.
        :raises ConfigError: a setting is wrong, or contradicts what the bucket's processes agreed on.
        :raises StoreError: the bucket cannot be reached or used, and why.
        :raises CompatibilityError: the bucket has a newer format, or its store cannot carry a queue.
        """

        async def opened() -> PawnQueue:
            return PawnQueue(
                *await open_bucket(
                    settings, sections, store=store, session=session, clock=clock, on_event=on_event, tracing=tracing
                )
            )

        return Opening(opened)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._life.is_over

    @property
    def is_draining(self) -> bool:
        """Whether it claims nothing more, as :meth:`drain` or the closing of it has begun."""
        return self._life.is_draining

    @property
    def strategy(self) -> str:
        """The lease strategy that all processes of this bucket follow."""
        return self._agreed.strategy

    @property
    def settings(self) -> Settings:
        """The settings that it was opened with. They show no secrets."""
        return self._context.settings

    async def probe(self) -> ProbeResult:
        """Test again what the store can do. This changes nothing: :attr:`strategy` stays what was agreed on."""
        self._life.check_open()
        return await probe(self._context.store, self._context.clock)

    async def health(self) -> Health:
        """Measure how well the store answers, and how far this machine's clock is from the store's."""
        self._life.check_open()
        return await health(self._context)

    # --- topics ---

    async def create_topic(self, topic: str, **settings: Unpack[TopicOptions]) -> Topic:
        """Create the topic if it does not exist, and return it. Creating it again changes nothing.

        :param max_deliveries: a message is buried when it was delivered this often and not settled (default 10); None:
            never.
        :param packs: whether many messages that are published at once become packs (default True), which makes
            publishing and consuming many much cheaper. Pass False if consumers of the topic use the pawn-queue library,
            or a version of this one that knows no packs: they do not see packs. None means the same here.
        :param max_pending: how many messages that are not finished (waiting, delayed, or held by consumers) the topic
            may have. Publishing more is held up. None (the default): any number. It is judged by a count that is up to
            30 seconds old, and one second where the topic is nearly full.
        :param overload: what becomes of a call that would publish more: ``"raise"`` (the default) a
            :class:`QueueFullError`, or ``"block"``: it waits for room.
        :param overload_timeout_seconds: for how long such a call waits (30 by default). Then it raises that error.
        :param max_age_seconds: a message that was published longer ago than this is buried, for the reason ``expired``,
            and handed out to nobody; None (the default): never. A redriven message counts from its redrive.
        :param priorities: whether messages may be published with a priority (default False). In a large topic a look is
            then one LIST more for each priority of over a thousand messages.
        :param delays: whether messages may be published with a delay (default False). Consumers of earlier versions,
            and of the pawn-queue library, do not wait for a delay to end.
        :param paused: whether nobody is given its messages until :meth:`resume` (default False).
        :param completed: a log of what was acked, by which consumer, when (default False): True, or a dict with
            ``max_count``, ``max_age_seconds`` and ``payloads``. :meth:`completed` reads it.
        :param dead_letters: which dead letters the janitor removes, after a warning: a dict with ``max_age_seconds``,
            ``max_count``, or both, and ``notice_seconds`` (default: a day), by which the warning comes before. None
            (the default): all are kept.
        :param dedup_window_seconds: for how long a message keeps others with its ``dedup_key`` from being published, by
            the store's time, from 1 to 30 days of seconds. None: an hour, from the first publish with a key on.
        :raises InvalidTopicError: it is not a valid topic name.
        :raises TopicExistsError: it exists with other settings than those given here.
        """
        self._life.check_open()
        return Topic.of(await self._topics.create(topic, settings))

    async def update_topic(self, topic: str, **settings: Unpack[TopicOptions]) -> Topic:
        """Change settings of the topic for all its users, and return it.

        After this call no process buries by a lower ``max_deliveries`` than the new one. All processes follow a lowered
        one within a minute.

        :param max_deliveries: as :meth:`create_topic` takes it. What is not named stays as it is.
        :param packs: whether packs are made from now on. All processes follow within a minute. Consumers still find
            older packs after False. A topic that never had any says None, and one that had can never be None again.
        :param max_pending: as :meth:`create_topic` takes it. Publishers follow a lower limit within a minute, and a
            higher one within 5 seconds.
        :param overload: as :meth:`create_topic` takes it. Calls that wait follow within 5 seconds.
        :param overload_timeout_seconds: as :meth:`create_topic` takes it.
        :param max_age_seconds: as :meth:`create_topic` takes it. No message is buried by an earlier limit after this
            call, and consumers follow a lower one within 5 seconds. It concerns no message that was handed out before.
        :param priorities: the same for priorities.
        :param delays: the same for delays. Messages that were published with one keep it.
        :param paused: as :meth:`pause` and :meth:`resume` set it.
        :param completed: as :meth:`create_topic` takes it; for claims from now on. False: what the log has stays until
            its limits remove it.
        :param dead_letters: the new limits, all of them: what the dict does not name has its default. None: all dead
            letters are kept from now on. What was warned of under the former limits is warned of again.
        :param dedup_window_seconds: counts within a minute, also for messages that were published before. It cannot be
            None again.
        """
        self._life.check_open()
        record = await self._known_topics.update(topic, settings)
        self._claims.look_again(topic)  # it may be resumed
        return Topic.of(record)

    async def pause(self, topic: str) -> Topic:
        """Let nobody be given messages of the topic, in any process, until :meth:`resume`. Return the topic.

        Claims of all processes find nothing from 5 seconds after this call on, and claims that wait go on waiting.
        Everything else goes on: publishing, and whatever is done with messages that consumers hold by then. A claim by
        an id that has messages already is given these. To pause a paused topic changes nothing.

        :raises TopicNotFoundError: it does not exist.
        """
        return await self.update_topic(topic, paused=True)

    async def resume(self, topic: str) -> Topic:
        """Let consumers be given messages of a paused topic again. Return the topic.

        Claims that wait find them within 5 seconds and the pause between two polls. To resume a topic that is not
        paused changes nothing.

        :raises TopicNotFoundError: it does not exist.
        """
        return await self.update_topic(topic, paused=False)

    async def topic(self, topic: str) -> Topic:
        """Return a topic: its settings, and when it was last swept.

        :raises TopicNotFoundError: it does not exist.
        """
        self._life.check_open()
        return Topic.of(await self._topics.get(topic), await self._topics.swept_at(topic))

    async def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        self._life.check_open()
        return await self._topics.list_names()

    async def delete_topic(self, topic: str, *, force: bool = False, dry_run: bool = False) -> Removed:
        """Delete the topic if it is empty, with what ended claims have left in it.

        It takes a second, for which other processes may still publish into it.

        :param force: delete all that is in it too: messages, claimed or not, and dead letters.
        :param dry_run: change nothing. Raise where the deletion would, else count what would be deleted.
        :raises TopicNotEmptyError: there are messages, leases, unfinished claims or dead letters. It says roughly how
            many.
        """
        self._life.check_open()
        checked_flags("delete_topic", force=force, dry_run=dry_run)
        self._claims.forget([topic])
        try:
            return await removal.delete(self._context, self._topics, topic, force=force, dry_run=dry_run)
        finally:
            self._known_topics.forget(topic)

    async def purge(
        self, topic: str, *, messages: bool = True, dead_letters: bool = False, dry_run: bool = False
    ) -> Removed:
        """Remove the messages of a topic, claimed or not, or its dead letters. The topic stays.

        :param messages: whether to remove messages.
        :param dead_letters: whether to remove dead letters.
        :param dry_run: change nothing, and count what would be removed.
        """
        checked_flags("purge", messages=messages, dead_letters=dead_letters, dry_run=dry_run)
        await self._topic(topic, "purge")
        try:
            return await removal.purge(
                self._context, topic, messages=messages, dead_letters=dead_letters, dry_run=dry_run
            )
        finally:
            self._claims.look_anew(topic)

    # --- producers and consumers ---

    async def register_producer(self, name: str) -> Registration:
        """Return the producer's registration. A name keeps one id for ever, in all processes."""
        return await self._register("producers", name)

    async def register_consumer(self, name: str) -> Registration:
        """Return the consumer's registration. A name keeps one id for ever, in all processes."""
        return await self._register("consumers", name)

    async def list_producers(self) -> list[Registration]:
        """Return every producer that ever registered, and when it was last seen."""
        self._life.check_open()
        return [Registration.of(entry) for entry in await self._registry.list_all("producers")]

    async def list_consumers(self) -> list[Registration]:
        """Return every consumer that ever registered, and when it was last seen."""
        self._life.check_open()
        return [Registration.of(entry) for entry in await self._registry.list_all("consumers")]

    # --- publishing ---

    async def publish(  # noqa: PLR0913 - all but the first two have a default
        self,
        topic: str,
        payloads: Payloads,
        *,
        producer: str | None = None,
        headers: Mapping[str, str] | None = None,
        create: bool = False,
        delay: float | None = None,
        not_before: datetime | None = None,
        priority: int = 0,
        dedup_key: DedupKey = None,
        pack: PackChoice = "auto",
        wait: float | None = None,
    ) -> PublishedIds:
        """Publish messages, and return their ids in order.

        :param payloads: JSON objects, as dicts, or a :class:`NewMessage` for one with headers of its own. Each is
            copied at the moment at which the iteration yields it.
        :param producer: the publisher's name. Its id is in each message.
        :param headers: text to text, the same for all of them.
        :param create: create the topic if it does not exist, with its default settings.
        :param delay: for how many seconds nobody is given them, if the topic allows delays (:meth:`create_topic`).
        :param not_before: before which time, by the store's clock, nobody is given them; in place of ``delay``.
        :param priority: from -9 to 9, if the topic allows priorities. Consumers are given higher ones first.
        :param dedup_key: publish no message whose key was published within the topic's ``dedup_window_seconds``: the
            result has the id of the message that was, and names the duplicates. A text for a single message, or a
            function that returns the key of each payload. A :class:`NewMessage` can have its own.
        :param pack: whether to put many messages into one object, a pack. ``"auto"``: if the topic allows packs
            (:meth:`create_topic`) and there are at least ``packs.min_messages`` of them, or several calls that wait at
            the same time, which share a pack then. True: always. False: never.
        :param wait: for how many seconds to wait for room if the topic has ``max_pending`` messages; without it, as its
            ``overload`` says.
        :raises QueueFullError: the topic has no room for them. Nothing was published.
        :raises InvalidArgumentError: the topic does not allow packs, delays or priorities, and the call asks for them;
            or a message has no valid key where some have one. Nothing was published.
        :raises TopicNotFoundError: the topic does not exist, or was deleted. Nothing was published.
        :raises InvalidPayloadError: one of the payloads is not a JSON object. Nothing was published.
        :raises PublishError: some were not published, or it could not be found out. It says which.
        """
        self._life.check_open()
        layout.checked_topic(topic)
        checked_flag(create, "create", "publish")
        choice = checked_pack(pack)
        seconds = None if wait is None else checked_seconds(wait, "wait", topic, "publish")
        schedule = checked_schedule(topic, delay, not_before, priority)
        limits = self._context.settings.limits
        checked = checked_messages(payloads, headers, limits, topic, schedule=schedule, dedup_key=dedup_key)
        has_keys = check_dedup_keys(checked, topic, dedup_key)

        async def send(messages: Sequence[Checked]) -> PublishedIds:
            if create:
                await self._known_topics.create(topic)
            record = await self._topic(topic, "publish")
            allowed = record.settings
            check_allowed(topic, (message.schedule for message in messages), allowed)
            packs = chosen_packs(choice, len(messages), topic, allowed, self._context.settings.packs)
            if not messages:
                return PublishedIds()
            producer_id = await self._producer_id(producer)
            may_share = choice == "auto" and bool(allowed.packs)
            try:
                return await self._publish_calls.publish(
                    record,
                    messages,
                    producer_id=producer_id,
                    packs=packs,
                    may_share=may_share,
                    wait=seconds,
                    has_keys=has_keys,
                )
            finally:
                self._claims.look_again(topic, sum(not message.schedule.delay for message in messages))

        return await self._context.spans.publish(send, topic, checked, producer)

    # --- staged writes: what many processes stage becomes visible at once ---

    async def stage(  # noqa: PLR0913 - all but the first four have a default
        self,
        topic: str,
        write_id: str,
        part: int,
        messages: Payloads,
        *,
        producer: str | None = None,
        after: Staged | None = None,
    ) -> Staged:
        """Stage messages of a write. Nobody sees them before :meth:`commit_write`, which takes what this returns.

        Their ids are made of the write's id, the part and their place in it: the same write has the same ids.

        :param write_id: names the write in its topic, as a claim id names a claim. A write is published only once.
        :param part: a number of your own: parts are published in the order of their numbers. Several attempts at a part
            may be staged; commit one of them.
        :param messages: as :meth:`publish` takes them.
        :param producer: the publisher's name. Its id is in each message.
        :param after: what this call returned for the rows before these, of the same part: for more messages than fit
            into memory.
        :raises TopicNotFoundError: the topic does not exist.
        :raises InvalidPayloadError: one of the payloads is not a JSON object. Nothing was staged.
        """
        self._life.check_open()
        layout.checked_topic(topic)
        layout.checked_write_id(write_id)
        layout.checked_part(part)
        before = staging.continue_part(Staged(topic, write_id, part), after)
        checked = checked_messages(messages, None, self._context.settings.limits, topic, first=len(before))
        check_none(topic, (message.schedule for message in checked))
        check_no_keys(topic, checked)
        allowed = (await self._topic(topic, "stage")).settings
        packs = self._context.settings.packs if allowed.packs else None
        return await staging.stage(self._context, before, checked, await self._producer_id(producer), packs)

    async def commit_write(
        self, topic: str, write_id: str, staged: Iterable[Staged], *, wait: float = 0.0, allow_empty: bool = False
    ) -> Written:
        """Publish all that was staged, once, even if processes die meanwhile; or publish nothing.

        One request decides it. Before that nothing is visible. After it all messages become visible, within the time of
        one PUT for each. If this process dies, the next commit of the same write, or the janitor, finishes it.
        Committing a write again publishes nothing: it returns the outcome, and removes what was staged since.

        :param staged: what :meth:`stage` has returned, of one attempt at each part.
        :param wait: for how many seconds to wait while another process commits this write.
        :param allow_empty: ignore rows of a write that was committed before without any. Else they are an error.
        :raises InvalidArgumentError: the write was committed before without rows, and now has some. They were not
            published.
        :raises TopicNotFoundError: the topic does not exist, or was deleted.
        :raises WriteBusyError: another process is committing it, or died less than a minute ago. It says when to try
            again.
        :raises StagedGoneError: some staged rows no longer exist. Nothing was published, unless the error names the
            rows that are missing.
        :raises PublishError: it is decided, and some of it could not be published now.
        """
        layout.checked_write_id(write_id)
        parts = staging.sort_parts(topic, write_id, staged)
        seconds = checked_seconds(wait, "wait", topic, "commit_write")
        await self._topic(topic, "commit_write")
        commit = writes.Commit(
            self._context,
            topic,
            write_id,
            parts,
            place=self._publisher.place,
            topic_exists=self._known_topics.exists,
            ended=self._ended_commits,
            allow_empty=allow_empty,
        )
        try:
            return await until_free(self._context, commit.carry_out, wait=seconds, check_open=self._life.check_open)
        finally:
            self._claims.look_again(topic)

    async def abort_write(self, topic: str, write_id: str, staged: Iterable[Staged] | None = None) -> int:
        """Remove what was staged for a write that is not decided, and return how many objects were removed.

        A write that is decided is left alone. The janitor removes what nobody commits or aborts for a day.

        :param staged: only this; without it, all that any process has staged under this id.
        :raises TopicNotFoundError: the topic does not exist.
        """
        layout.checked_write_id(write_id)
        parts = None if staged is None else staging.sort_parts(topic, write_id, staged)
        await self._topic(topic, "abort_write")
        return await writes.abort(self._context, topic, write_id, parts)

    # --- claiming ---

    async def claim(  # noqa: PLR0913 - all but the first two have a default
        self,
        topic: TopicNames,
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
        """Claim messages. No other consumer gets them until they are settled or the claim's time is over.

        :param topic: one topic, or several. A claim has messages of one topic. Of several, the one comes first that
            this queue has looked into longest ago, and the first one with messages is claimed from.
        :param consumer: the consumer's name.
        :param max_messages: how many at most; without it, ``polling.max_messages_per_poll``.
        :param max_bytes: their size together, at most; that of packed messages without compression. A message that is
            larger comes alone.
        :param ttl: for how many seconds; without it, ``polling.visibility_timeout_seconds``. Renew it in time.
        :param claim_id: makes claiming idempotent: the same id and owner return the same messages, as far as they are
            still theirs, and never a second batch. It names a claim in one topic, so it goes with one topic only.
        :param owner: on whose behalf, for ``claim_id``; without it, the consumer's name.
        :param wait: for how many seconds to look again while there is nothing, or while another session holds this id.
            If the store does not answer, ``retry.budget_seconds`` come on top.
        :param session_ttl: for how many seconds of ``ttl`` this process keeps the claim without renewing it; without
            it, all of them. Where another process renews the claim for its owner (the janitor of a DAG's run), a retry
            gets it after this time.
        :returns: a claim, which iterates over its messages and is false if there are none.
        :raises ClaimBusyError: another session holds this claim id. It names the owner, until when, and when to try
            again.
        :raises QueueDrainedError: :meth:`drain` has begun, before or while it waits.
        """
        self._life.check_claiming()
        names = checked_topics(topic, "claim")
        check_one_topic(names, claim_id)
        given = ClaimTerms(
            topic=names[0],
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
        records = {name: await self._topic(name, "claim") for name in names}
        places = [self._place(name, records[name], terms, one_of=len(names)) for name in self._claims.in_turn(names)]
        if self._context.settings.registry.register_consumers:
            self._heartbeat.register_in_background("consumers", consumer)
        work = until_there(
            self._context,
            places,
            wait=terms.times.wait,
            is_settled=terms.is_settled,
            check_open=self._life.check_claiming,
        )
        return await self._context.spans.receive(work, "claim", names, consumer)

    def _place(self, topic: str, record: TopicRecord, terms: CheckedTerms, *, one_of: int) -> Place:
        """Return a topic into which a claim looks, one of so many."""

        async def attempt() -> Claim:
            nonlocal record
            if one_of > 1:
                self._claims.note_turn(topic)
            # A call that waits follows the topic's settings as any other does. It may begin to have packs meanwhile.
            with suppress(TopicNotFoundError, StoreError):
                record = await self._topic(topic, "claim")
            return await self._claims.claim(terms.request(record))

        return Place(self._claims.idle_pauses_of(topic), attempt)

    async def attach(
        self,
        reference: Reference,
        *,
        ttl: float | None = None,
        session_ttl: float | None = None,
        wait: float = 0.0,
        payloads: bool = True,
    ) -> Claim:
        """Go on with a claim that another process handed over (``claim.hand_over()``).

        A claim that has ended is empty, and says what was decided (``.decided``, ``.state``).

        :param ttl: for how many seconds, now and at each renewal; without it, as it was claimed for. This never
            shortens the time that it has.
        :param session_ttl: for how many seconds of ``ttl`` this process keeps it without renewing it; without it, all.
        :param wait: for how many seconds to wait while another session holds it.
        :param payloads: read the messages. False: the claim has a length and ``.ids``, but no messages, and can be
            settled, renewed and left. It costs two requests, whatever its size.
        :raises ClaimBusyError: another session holds it. It names the owner, until when, and when to try again.
        :raises LeaseLostError: it has no record any more, or was taken over.
        :raises QueueDrainedError: :meth:`drain` has begun.
        """
        self._life.check_claiming()
        given = ClaimReference.of(reference)
        times = Holding.checked(
            self._context.settings, given.topic, "attach", ttl=ttl, session_ttl=session_ttl, wait=wait
        )
        checked_flag(payloads, "payloads", "attach")
        record = await self._topic(given.topic, "attach")
        work = until_free(
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
            check_open=self._life.check_claiming,
        )
        return await self._context.spans.receive(work, "attach", [given.topic])

    async def held(self, reference: Reference) -> Claim | None:
        """Return the claim of this reference if this very queue holds it already. It sends no request.

        Use it before :meth:`attach`, which would wait for this process's own session.
        """
        self._life.check_open()
        return self._claims.held(ClaimReference.of(reference))

    async def messages(self, reference: Reference) -> list[Message]:
        """Read what a claim has not settled, without attaching to it: nothing is written, and its holder goes on.

        To work on the messages, :meth:`attach`. Malformed and missing messages are left out.

        :raises LeaseLostError: it has no record any more, was taken over, or its time is over.
        :raises StoreError: one of them cannot be read now.
        """
        given = ClaimReference.of(reference)
        await self._topic(given.topic, "messages")
        return await messages(self._context, given)

    async def known_claims(self, topic: str, claim_ids: Iterable[str]) -> set[str]:
        """Return those of these claim ids that have a record, of any generation, in any state.

        It lists the records between the first and the last of them, in pages of a thousand.

        :param claim_ids: as ``claim`` was given them.
        """
        wanted = checked_claim_ids(claim_ids)
        await self._topic(topic, "known_claims")
        return set(await latest_generations(self._context, topic, wanted))

    async def last_claim(self, topic: str, claim_id: str) -> LastClaim | None:
        """Show the newest claim under an id without attaching to it; None if it has no record. Two requests."""
        layout.checked_claim_id(claim_id)
        await self._topic(topic, "last_claim")
        return await last_claim(self._context, topic, claim_id)

    async def renew(self, claim: Claim, *, ttl: float | None = None, session_ttl: float | None = None) -> None:
        """Keep the claim for its ttl from now on. One request, whatever its size.

        :param ttl: another time, in seconds from now.
        :param session_ttl: another time for which this process keeps it without renewing it.
        :raises LeaseLostError: it is no longer ours. Stop working on its messages.
        """
        self._life.check_open()
        held = HeldClaim.of(claim, "renew", self._context)
        await renew(self._context, held, *checked_renewal(self._context.settings, claim, ttl, session_ttl))

    def keep_alive(
        self, claim: Claim, *, on_lost: OnLost | None = None, ttl: float | None = None, interval: float | None = None
    ) -> KeepAlive:
        """Renew the claim in the background: ``async with queue.keep_alive(claim, on_lost=stop): work()``.

        A renewal that fails is logged and tried again while the claim is ours. If it is lost, ``on_lost`` is called.
        The end of the block waits for a renewal that is under way, for 5 seconds at most.

        :param on_lost: called once, with the error, when the claim is lost. What it raises is logged.
        :param ttl: what a renewal gives; without it, what the claim was given before.
        :param interval: seconds between renewals, less than the claim's time minus ``claims.margin_seconds``; without
            it, ``polling.lease_refresh_interval_seconds``, and never more than a third of that time.
        """
        self._life.check_open()
        held = HeldClaim.of(claim, "keep_alive", self._context)
        checked_callback(on_lost, "on_lost", "the error", "keep_alive")
        gives, between = checked_keeping(self._context.settings, claim, ttl, interval)
        return KeepAlive(self._context, held, ttl=gives, interval=between, on_lost=on_lost, kept=self._keepers)

    async def leave(self, claim: Claim) -> ClaimReference:
        """Stop working on the claim, and note that in its record, so that the next holder need not wait.

        The next holder attaches by the reference, or claims by the claim's id. Until then nobody else gets its
        messages, while its time lasts. This is ``claim.hand_over()`` and one request; none if all is settled. If the
        store does not answer, a claim by the id waits until this session's time is over. That is logged, not raised.

        :raises LeaseLostError: it is no longer ours.
        """
        self._life.check_open()
        return await leave(self._context, HeldClaim.of(claim, "leave", self._context))

    # --- settling ---

    async def ack(self, claim: Claim, ids: Chosen | None = None) -> Settlement:
        """Settle messages as done. They are not delivered again.

        :param ids: one or many of the claim's messages, or their ids; without it, all. An id means all messages of the
            claim that have it.
        :returns: the outcome of each message. ``.complete`` says whether all was decided and carried out.
        :raises LeaseLostError: others hold some of them, or may. Its ``.settlement`` has the outcome of each: those
            that were still the claim's are acked.
        :raises InvalidArgumentError: the claim does not have one of them. Nothing was settled.
        """
        self._life.check_open()
        held = HeldClaim.of(claim, "ack", self._context)
        decisions = dict.fromkeys(chosen(held, ids, "ack"), Decision(how="acked"))
        return await self._claims.settle(held, decisions, "ack")

    async def requeue(
        self, claim: Claim, ids: Chosen | None = None, *, delay: float = 0.0, reason: str = "", error: str = ""
    ) -> Settlement:
        """Give messages back to the queue. They are delivered again, up to ``max_deliveries`` times in all.

        For what may succeed later: a service that is down, a stock that is empty. After its last delivery a message
        becomes a dead letter, with the reason of its last requeue.

        :param ids: as :meth:`ack` takes them.
        :param delay: do not deliver them for this many seconds.
        :param reason: why. A dead letter begins with it, should the message become one.
        :param error: details, cut to 2,000 characters.
        :returns: the outcome of each message.
        :raises LeaseLostError: others hold some of them, or may. Its ``.settlement`` has the outcome of each.
        :raises InvalidArgumentError: the claim does not have one of them. Nothing was settled.
        """
        return await self._not_done("requeue", claim, ids, requeue=True, delay=delay, reason=reason, error=error)

    async def bury(self, claim: Claim, ids: Chosen | None = None, *, reason: str, error: str = "") -> Settlement:
        """Make dead letters of messages. They are not delivered again, unless somebody redrives them.

        For what can never succeed: a field that is missing, a customer that does not exist.

        :param ids: as :meth:`ack` takes them.
        :param reason: why, for the reader of the dead letter.
        :param error: details, cut to 2,000 characters.
        :returns: the outcome of each message.
        :raises LeaseLostError: others hold some of them, or may. Its ``.settlement`` has the outcome of each.
        :raises InvalidArgumentError: the claim does not have one of them. Nothing was settled.
        """
        return await self._not_done("bury", claim, ids, requeue=False, reason=reason, error=error)

    async def nack(  # noqa: PLR0913 - all but the claim have a default
        self,
        claim: Claim,
        ids: Chosen | None = None,
        *,
        requeue: bool = False,
        delay: float = 0.0,
        reason: str = NACK,
        error: str = "",
    ) -> Settlement:
        """Bury messages, as pawn-queue's nack does. Without ``requeue=True`` it buries: nothing is delivered again.

        For code that comes from pawn-queue. In SQS, AMQP and most other queues a nack means "again". In new code use
        :meth:`requeue` and :meth:`bury`, whose names say what they do.

        :param ids: as :meth:`ack` takes them.
        :param requeue: give them back instead, as :meth:`requeue` does.
        :param delay: with ``requeue``, do not deliver them for this many seconds.
        :param reason: why.
        :param error: details, cut to 2,000 characters.
        :returns: the outcome of each message.
        :raises LeaseLostError: others hold some of them, or may. Its ``.settlement`` has the outcome of each.
        :raises InvalidArgumentError: the claim does not have one of them. Nothing was settled.
        """
        return await self._not_done("nack", claim, ids, requeue=requeue, delay=delay, reason=reason, error=error)

    async def settle(
        self, claim: Claim, *, requeue: Reasons | None = None, bury: Reasons | None = None, delay: float = 0.0
    ) -> Settlement:
        """Settle all that a claim has, in one request: some messages are requeued, some buried, and the rest is acked.

        :param requeue: the messages to give back, or their ids, each with the reason.
        :param bury: the messages to make dead letters of, or their ids, each with the reason.
        :param delay: do not deliver those that are given back for this many seconds.
        :returns: the outcome of each message.
        :raises LeaseLostError: others hold some of them, or may. Its ``.settlement`` has the outcome of each.
        :raises InvalidArgumentError: the claim does not have one of them. Nothing was settled.
        """
        self._life.check_open()
        held = HeldClaim.of(claim, "settle", self._context)
        not_done = checked_settlement(held, requeue, bury, delay)
        now = await self._context.now() if not_done else 0.0
        decisions: dict[Meant, Decision] = {message: each.decided(now) for message, each in not_done.items()}
        return await self._claims.settle(held, decisions, "settle", rest=Decision(how="acked"))

    async def settle_overwritten(self, claim: Claim) -> list[str]:
        """Settle those of a claim's messages that others have overwritten or removed since they were claimed.

        For a process that hands out a claim once more, as a stream does after its restart. It reads all messages of the
        claim. What is no longer a message becomes a dead letter. What only another process can read (too large for this
        one, or of a newer format) is given back. What was removed is noted as gone.

        :returns: the ids of those messages, by which they are kept. The rest of the claim can be read.
        :raises LeaseLostError: the claim is no longer ours.
        :raises CompatibilityError: a message has a newer format, and was not overwritten. Nothing was settled.
        :raises StoreError: a message cannot be read now, or is too large and was not overwritten. Nothing was settled,
            or it could not be found out: call it again.
        """
        self._life.check_open()
        return await self._claims.settle_overwritten(HeldClaim.of(claim, "settle_overwritten", self._context))

    async def release(self, topic: str, claim_id: str, owner: str | Iterable[str], *, reason: str = "") -> list[str]:
        """Give back all that the claim of this id has, without attaching to it: its owner is not to work on it again.

        It is like ``claim(...)`` by the id and ``requeue(claim)``, but reads no messages, and makes no new claim if the
        last one has ended.

        :param owner: on whose behalf it was made; or several owners, one of whom must be the claim's.
        :param reason: why. A dead letter begins with it, should a message become one.
        :returns: the ids of the messages, by which they are kept. None if the newest generation has ended, has another
            owner, or has no record. If two processes release it at the same time, one of them returns them.
        :raises ClaimBusyError: another session holds it. It names the owner, until when, and when to try again.
        """
        named, owners = layout.checked_claim_id(claim_id), checked_owners(owner)
        decision = NotDone.checked(topic, "release", requeue=True, reason=reason).decided(0.0)
        return await self._claims.release(await self._topic(topic, "release"), named, owners, decision)

    # --- listening ---

    async def listen(  # noqa: PLR0913 - all but the first three have a default
        self,
        topics: TopicNames,
        handler: Handler,
        *,
        consumer: str,
        concurrency: int = 10,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        ttl: float | None = None,
        retry: Retry | float | None = None,
        handle_signals: bool = True,
        drain_timeout: float = DRAIN_SECONDS,
    ) -> Listened:
        """Work on messages until the queue is drained: claim them, call the handler with each, and settle them.

        A message is acked when its handler has returned. If the handler raises an exception, the message comes again
        later, and becomes a dead letter after the topic's ``max_deliveries``, with the exception's type and text. A
        handler may raise :class:`RequeueMessage` to choose the delay, or :class:`BuryMessage` to have a dead letter at
        once. If a claim is lost, its handlers are cancelled; one of a :class:`SyncPawnQueue` sees ``message.lost``.

        All claims are renewed while it works. If the store does not answer, it waits, and goes on when it does. It ends
        after :meth:`drain`, after :meth:`aclose`, and after SIGTERM or SIGINT, which drain the queue: handlers finish,
        and what they have not begun or finished is given back. A second signal ends it at once.

        :param topics: one topic, or several, which take turns.
        :param handler: an async function of one :class:`Message`; for a :class:`SyncPawnQueue` a plain function of one
            :class:`HandedMessage`, which runs in threads.
        :param consumer: the consumer's name.
        :param concurrency: how many handlers run at the same time.
        :param max_messages: how many messages a claim has at most. Without it, claims are as large as keeps the
            handlers busy, up to 1,000. It never holds more than two rounds of work in advance.
        :param max_bytes: as :meth:`claim` takes it.
        :param ttl: as :meth:`claim` takes it: how long the messages of a process that dies wait for another one.
        :param retry: how long a message waits after a failure: a :class:`Retry`, or a number of seconds.
        :param handle_signals: drain the queue at SIGTERM and SIGINT, if this is called in the main thread. The
            program's own handlers for them are restored at the end.
        :param drain_timeout: how long a drain may take after a signal, or after an error that ends this.
        :returns: how many messages were done, and which were given back.
        :raises InvalidArgumentError: an argument is wrong: the handler is not what this queue calls, for example.
        :raises TopicNotFoundError: a topic does not exist.
        :raises QueueDrainedError: the queue was drained before.
        """
        self._life.check_claiming()
        names = checked_topics(topics, "listen")
        handle = checked_handler(handler)
        layout.checked_holder(consumer, "consumer")
        at_once = checked_count(concurrency, "concurrency", "listen")
        most = MAX_LISTENED_MESSAGES
        if max_messages is not None:
            most = min(checked_count(max_messages, "max_messages", "listen"), MAX_CLAIM_PACKED_MESSAGES)
        if max_bytes is not None:
            checked_count(max_bytes, "max_bytes", "listen")
        lasts = checked_ttl(self._context.settings, ttl)
        policy = Retry.of(retry)
        checked_flag(handle_signals, "handle_signals", "listen")
        seconds = checked_seconds(drain_timeout, "drain_timeout", "", "listen")

        def take(count: int, wait: float) -> Awaitable[Claim]:
            return self.claim(names, consumer, max_messages=count, max_bytes=max_bytes, ttl=lasts, wait=wait)

        with suppress(StoreError):  # an outage at the beginning is waited for as any other
            for name in names:
                await self._topic(name, "listen")
        worker = Worker(
            self._context,
            self._claims,
            take=take,
            probe=lambda: self._context.with_budget().registers.look(layout.topic_marker(names[0])),
            keep=lambda claim, on_lost: self.keep_alive(claim, on_lost=on_lost),
            handle=self._context.spans.process(handle, consumer),
            concurrency=at_once,
            most=most,
            retry=policy,
        )
        loop = asyncio.get_running_loop()

        def heard() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._hear_signal, seconds)

        self._drain.workers.append(worker)
        with on_signals(self, heard) if handle_signals else nullcontext():
            try:
                report = await worker.run(seconds)
            finally:
                self._drain.workers.remove(worker)
            if self._draining:  # a signal's drain has an end that its log tells
                await asyncio.wait(list(self._draining))
            return report

    async def drain(self, timeout: float = DRAIN_SECONDS) -> Drained:  # noqa: ASYNC109 - the rest is given back then
        """Let the work of this queue come to its end: for a process that is to stop. No message is lost, or held on to.

        From now on the queue claims nothing: ``claim``, ``attach`` and ``listen`` raise :class:`QueueDrainedError`, and
        so do claims that wait. Publishing, renewing and settling go on. Handlers of :meth:`listen` finish, and other
        claims are settled by their consumers. What is left after three quarters of the time is given back: handlers
        that still run are cancelled before.

        A drained queue claims nothing for ever: close it, and open another one to go on.

        :param timeout: how many seconds it may take, whatever the store does.
        :returns: which messages were given back, and which claims could not be.
        """
        self._life.check_open()
        seconds = checked_seconds(timeout, "timeout", "", "drain")
        self._life.drain()
        return await self._drain_until(Deadlines.within(self._context.clock.elapsed(), seconds))

    def _hear_signal(self, seconds: float) -> None:
        """Drain the queue at a first signal; at a second one end it at once."""
        self._signals += 1
        if self._life.is_over or self._signals > 2:  # noqa: PLR2004 - the second one has done all that can be done
            return
        now = self._context.clock.elapsed()
        deadlines = Deadlines.within(now, seconds) if self._signals == 1 else Deadlines(now, now + AT_ONCE_SECONDS)
        self._life.drain()
        self._drain.stop(deadlines)
        draining = asyncio.ensure_future(self._drain_until(deadlines))
        self._draining.append(draining)
        draining.add_done_callback(self._draining.remove)

    async def _drain_until(self, deadlines: Deadlines) -> Drained:
        return await self._drain.run(deadlines, keep=self._context.settings.claims.keep_when_closed)

    # --- what was done ---

    async def completed(self, topic: str, *, max_messages: int = 50, after: str | None = None) -> CompletedPage:
        """Read the completed log: which messages were acked, by which consumer, when. The latest claims come first.

        A topic has a log if its setting ``completed`` says so. A claim is logged when all of its messages are settled.

        :param max_messages: how many a page has.
        :param after: continue after the page whose ``.next`` this is.
        """
        most = checked_count(max_messages, "max_messages", "completed")
        await self._topic(topic, "completed")
        return await completed(self._context, topic, most=most, after=after)

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
        """List dead letters by the time at which they were buried, each with its reason and its message.

        The store tells that time in whole seconds. Letters of one second come in any order.

        :param max_messages: how many a page has.
        :param newest_first: begin with those that were buried last; False: with the oldest.
        :param after: continue after the page whose ``.next`` this is.
        :param payloads: read the messages too, one more request for each.
        """
        most = checked_count(max_messages, "max_messages", "dead_letters")
        checked_flags("dead_letters", newest_first=newest_first, payloads=payloads)
        await self._topic(topic, "dead_letters")
        return await dead_letters(
            self._context, topic, most=most, newest_first=newest_first, after=after, payloads=payloads
        )

    async def redrive(  # noqa: PLR0913 - all but the first have a default
        self,
        topic: str,
        ids: Iterable[str] | str | None = None,
        *,
        reason: str | None = None,
        older_than: float | None = None,
        younger_than: float | None = None,
        max_messages: int | None = None,
        per_second: float | None = None,
        missing_ok: bool = False,
        dry_run: bool = False,
        on_progress: OnProgress | None = None,
    ) -> RedriveResult:
        """Give dead letters back to the queue, in the order of their ids. Their deliveries count from zero again.

        A consumer gets them in the order of their burials, to the second: those of one second come in any order.
        Each is a single message then, with the id that it had. It is kept under a new one, its ``unit``. Letters that
        are buried while the call goes on are left. A call that was cut off goes on when it is made again, as what was
        redriven is no dead letter any more.

        :param ids: which, by the ids of dead letters or of their messages; without it, all of them. What follows
            chooses among these: all that is given has to be true of a letter.
        :param reason: those that were buried for this reason, or one that begins with it: ``ValueError`` means
            ``ValueError: no amount`` too, and not ``ValueErrors``. A ``*`` in it means any text. It reads each reason.
        :param older_than: those that were buried at least this many seconds ago, by the store's dates.
        :param younger_than: those that were buried less than this many seconds ago.
        :param max_messages: how many at most.
        :param per_second: how many a second at most, evenly; such as 0.5 for one every two seconds.
        :param missing_ok: leave out ids that have no dead letter (any more), and name them in the result: for a call
            that goes on where one with the same ids was cut off.
        :param dry_run: change nothing, and return what would be redriven.
        :param on_progress: called with a :class:`RedriveProgress`, once a second at most and at the end, in the queue's
            own thread. It must return at once. If it raises, that is logged, and it is not called again.
        :raises InvalidArgumentError: one of these ids has no dead letter. None was given back.
        """
        only = checked_ids(ids, topic, "redrive")
        most = math.inf if max_messages is None else checked_count(max_messages, "max_messages", "redrive")
        wanted = checked_letter_filter(topic, reason, older_than, younger_than)
        pace = Pace(self._context.clock, checked_rate(per_second, topic))
        checked_flags("redrive", missing_ok=missing_ok, dry_run=dry_run)
        checked_callback(on_progress, "on_progress", "the progress", "redrive")
        packs = (await self._topic_now(topic, "redrive")).may_have_packs
        terms = RedriveTerms(wanted, pace, most, packs=packs, missing_ok=missing_ok, dry_run=dry_run)
        try:
            return await redrive(self._context, topic, terms, only=only, on_progress=on_progress)
        finally:
            self._claims.look_anew(topic)

    # --- looking after a topic ---

    async def sweep(self, topic: str, *, dry_run: bool = False, ask: AskOwner | None = None) -> SweepReport:
        """Let the janitor sweep the topic once: finish what crashed processes left, remove what nobody needs.

        :param dry_run: change nothing; the report says what would be done.
        :param ask: asked about each open claim whether its owner is "going" (the claim is renewed), has "ended" (the
            claim is fenced), or is unknown (None: the claim is left alone). A coroutine function is awaited; any other
            function runs in a thread of its own.
        """
        checked_flag(dry_run, "dry_run", "sweep")
        checked_callback(ask, "ask", "an open claim", "sweep")
        now = await self._topic_now(topic, "sweep")
        report = await sweep(self._context, now, dry_run=dry_run, ask=ask_by_record(topic, ask))
        self._claims.look_anew(topic)
        return await finish(self._context, report)

    async def peek(self, topic: str, max_messages: int = 10) -> list[Message]:
        """Read messages from the head without claiming them, whether or not others hold them.

        Their ``deliveries`` are not looked up, and are 0. :meth:`find` returns those of one message.

        :param max_messages: how many at most.
        """
        most = checked_count(max_messages, "max_messages", "peek")
        packs = (await self._topic(topic, "peek")).may_have_packs
        return await peek(self._context, topic, most, packs=packs)

    async def find(self, topic: str, message_id: str) -> Location | None:
        """Say where a message is, by the id under which it is kept; None if it is nowhere (any more).

        A redriven message is kept under another id than its own: find it by ``message.unit``, as ``peek`` shows it.

        In a topic with packs it looks for a message's own id too: it reads packs until it has found that id, and then
        dead letters.

        :param message_id: the id that ``publish`` has returned.
        """
        layout.checked_message_id(message_id)
        packs = (await self._topic(topic, "find")).may_have_packs
        return await find(self._context, topic, message_id, packs=packs)

    async def stats(self, topic: str) -> Stats:
        """Count the topic's messages, by LISTs, and by the records of claims whose leases look overdue.

        Of a pack that is held all messages count as in flight, also those that are finished.
        """
        record = await self._topic(topic, "stats")
        counted = await stats(self._context, topic, packs=record.may_have_packs)
        return replace(counted, paused=record.settings.paused)

    async def backlog(
        self, topic: str, at_least: int | None = None, *, claims: bool = False, set_aside: bool = True
    ) -> Backlog:
        """Count the messages that are claimable, cheaply: one LIST if there are none.

        A paused topic has none. Another process's ``pause`` shows within a minute, its ``resume`` within 5 seconds.

        :param at_least: stop counting at this many messages.
        :param claims: list the topic's claims too, one LIST for each thousand, if messages are claimable.
        :param set_aside: count those too that this process could not read, and tries again later.
        """
        checked_flag(claims, "claims", "backlog")
        checked_flag(set_aside, "set_aside", "backlog")
        enough = math.inf if at_least is None else checked_count(at_least, "at_least", "backlog")
        record = await self._topic(topic, "backlog")
        if record.settings.paused:
            now = await self._known_topics.recent(topic)
            if now is not None and now.settings.paused:
                return Backlog(0, None, paused=True)
        return await backlog(
            self._context,
            topic,
            enough,
            packs=record.may_have_packs,
            claims=claims,
            is_left_out=lambda name: not set_aside and self._claims.is_set_aside(topic, name),
        )

    # --- reading by many processes ---

    async def portions(
        self,
        of: Reference | str,
        *,
        parts: int | None = None,
        dead: bool = False,
        max_messages: int | None = None,
        only: Selection | None = None,
    ) -> list[Portion]:
        """Cut what a claim has, or what is in a topic, into portions that other processes :meth:`read`.

        Nothing is claimed, and nothing written. A portion can be pickled, and reading it twice gives the same.

        :param of: the reference of a claim: its messages that are not settled; or the name of a topic: all its
            messages, claimed or not.
        :param parts: how many at most; without it, as many as the messages' sizes are worth.
        :param dead: of a topic, its dead letters instead.
        :param max_messages: of a topic, how many at most, from its head.
        :param only: of a topic, which of them. ``max_messages`` counts these. If a listing does not tell which they
            are, there is one portion, which ``read`` reads until it has enough.
        :raises LeaseLostError: the claim has no record any more, was taken over, its time is over, or all of it is
            settled.
        """
        topic, cut = checked_cut(of, parts, dead, max_messages, only)
        return await cut(self._context, await self._topic(topic, "portions"))

    async def read(self, portion: Portion) -> list[Message] | list[DeadLetter]:
        """Read a portion: its messages, or its dead letters. It sends no other requests.

        :raises LeaseLostError: a message of the claim no longer exists: it was settled or lost.
        :raises StoreError: one of the claim's messages cannot be read now.
        """
        self._life.check_open()
        return await read_portion(self._context, checked_portion(portion, "read"))

    async def fetch(self, portion: Portion) -> FetchedPortion:
        """Fetch the messages of a portion, to make a table of them. It sends the same requests as :meth:`read`.

        :raises LeaseLostError: a message of the claim no longer exists: it was settled or lost.
        :raises StoreError: one of the claim's messages cannot be read now.
        """
        self._life.check_open()
        return await fetch_portion(self._context, checked_portion(portion, "fetch", dead=False))

    async def look_again(self, portion: Portion) -> Portion:
        """Return a portion of a topic with what its part of the topic has now: a LIST of that part.

        All portions of a topic together still cover all of it. If :meth:`portions` was given ``max_messages``, their
        end stays where it was. A portion of a claim is returned unchanged.
        """
        self._life.check_open()
        return await refresh_portion(self._context, checked_portion(portion, "look_again"))

    # --- its end ---

    async def aclose(self, *, keep_claims: bool | None = None, timeout: float = CLOSE_SECONDS) -> None:  # noqa: ASYNC109 - what it cuts off is logged
        """Close the queue: give back its open claims, end its background work and its connections.

        If it listens, its handlers finish first, for at most half of the time. After :meth:`drain` nothing is left.

        It may be called twice.

        :param keep_claims: keep the messages of open claims for the next claim by the same id, which need not wait.
            Nobody else gets them before the claims' time is over. Without it, ``claims.keep_when_closed``.
        :param timeout: for how many seconds at most it tries to give claims back, also if the store hangs. The log
            names what was not given back; others get it when its time is over.
        """
        self._life.check_loop()
        if keep_claims is not None:
            checked_flag(keep_claims, "keep_claims", "close")
        keep = self._context.settings.claims.keep_when_closed if keep_claims is None else keep_claims
        seconds = checked_seconds(timeout, "timeout", "", "close")
        await self._life.end(lambda: self._close(seconds, keep=keep))

    async def _close(self, seconds: float, *, keep: bool) -> None:
        clock = self._context.clock
        began = clock.elapsed()
        try:
            if not await cancel_after(self._give_back(seconds, keep=keep), clock, seconds):
                self._claims.abandon(seconds, keep=keep)
        finally:
            left = max(seconds - (clock.elapsed() - began), MIN_BACKGROUND_END_SECONDS)
            await cancel_after(self._end_background(), clock, left)
            await self._context.store.aclose()

    async def _give_back(self, seconds: float, *, keep: bool) -> None:
        if self._drain.workers:
            self._claims.stop_claiming(QueueClosedError)
            within = Deadlines.within(self._context.clock.elapsed(), seconds * WORKERS_SHARE)
            await end_workers(self._drain.workers, within, self._context)
        for draining in list(self._draining):
            draining.cancel()
        # Background renewals end first: they report that their claims are given back.
        await all_of(*(keeper.end("its queue was closed") for keeper in self._keepers))
        await self._claims.close(keep=keep)

    async def _end_background(self) -> None:
        await all_of(self._publisher.aclose(), self._heartbeat.stop(), self._context.time.aclose())

    # --- what the methods above share ---

    async def _topic(self, topic: str, operation: str) -> TopicRecord:
        """Refuse a closed queue, a name that is not valid, and a topic that does not exist."""
        self._life.check_open()
        return await self._known_topics.get(layout.checked_topic(topic), operation)

    async def _topic_now(self, topic: str, operation: str) -> TopicRecord:
        """Read a topic's record, whatever is cached of it.

        ⚑ §5: what this process read up to a minute ago may be out of date. A sweep that does not list the packs would
        take them for removed, and a redrive would move a letter that is still being buried. §7: a sweep that does not
        know of deduplication keys would remove what tells of them.
        """
        self._life.check_open()
        return await self._topics.get(topic, operation)

    async def _register(self, role: Role, name: str) -> Registration:
        self._life.check_open()
        registration = Registration.of(await self._registry.register(role, name))
        self._heartbeat.start()
        return registration

    async def _producer_id(self, producer: str | None) -> str:
        if producer is None:
            return ""
        self._life.check_open()
        producer_id = await self._registry.id_of("producers", producer)
        if self._registry.has_registered("producers", producer):
            self._heartbeat.start()
        return producer_id

    async def _not_done(
        self, operation: str, claim: Claim, ids: Chosen | None, *, requeue: bool, **why: Any
    ) -> Settlement:
        self._life.check_open()
        held = HeldClaim.of(claim, operation, self._context)
        meant = chosen(held, ids, operation)
        not_done = NotDone.checked(claim.topic, operation, requeue=requeue, **why)
        now = await self._context.now() if meant or not_done.requeue else 0.0
        return await self._claims.settle(held, dict.fromkeys(meant, not_done.decided(now)), operation)

    def __repr__(self) -> str:
        state = "closed" if self.closed else self._agreed.strategy
        return f"<{type(self).__name__} {self._context.settings.store.bucket_name!r}: {state}>"

    async def __aenter__(self) -> Self:
        """Use an open queue as a context manager, once more."""
        self._life.check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the queue."""
        await self.aclose()
