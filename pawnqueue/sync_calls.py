"""The calls of ``SyncPawnQueue``. Change ``queue.py`` instead: ``python -m tools.twins`` writes this file."""
# ruff: noqa: PLR0913 - as PawnQueue has them

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, TypeVar, Unpack

from pawnqueue.arguments import (
    Chosen,
    OnLost,
    Payloads,
    Reasons,
    Reference,
    TopicNames,
)
from pawnqueue.bucket.registry import Registration
from pawnqueue.bucket.topics import Topic, TopicOptions
from pawnqueue.claims import Claim, ClaimReference, Message, Settlement
from pawnqueue.claims.claim_reads import LastClaim
from pawnqueue.listening.draining import DRAIN_SECONDS
from pawnqueue.listening.handlers import SyncHandler
from pawnqueue.listening.report import Drained, Listened
from pawnqueue.listening.retry import Retry
from pawnqueue.maintenance import AskOwner, SweepReport
from pawnqueue.maintenance.redrive import OnProgress, RedriveResult
from pawnqueue.maintenance.removal import Removed
from pawnqueue.publish.new_messages import DedupKey
from pawnqueue.publish.packing import PackChoice
from pawnqueue.publish.publish_once import PublishedIds
from pawnqueue.publish.staging import Staged
from pawnqueue.publish.write_outcome import Written
from pawnqueue.queue import PawnQueue
from pawnqueue.reads.completed import CompletedPage
from pawnqueue.reads.counting import Backlog, Stats
from pawnqueue.reads.dead_letters import DeadLetter, DeadLetterPage
from pawnqueue.reads.health import Health
from pawnqueue.reads.inspect_topic import Location
from pawnqueue.reads.portions import FetchedPortion, Portion
from pawnqueue.reads.selection import Selection
from pawnqueue.registers.probe import ProbeResult
from pawnqueue.sync_callbacks import SyncKeepAlive
from pawnqueue.terms import (
    NACK,
)

G = TypeVar("G")
T = TypeVar("T")


class SyncCalls(ABC):
    """Each call of :class:`~.queue.PawnQueue`, without ``await``."""

    @abstractmethod
    def run(self, work: Callable[[PawnQueue], Awaitable[T]]) -> T:
        """Run ``work`` in the queue's own event loop, and wait for it."""

    @abstractmethod
    def _as_list(self, given: G) -> G | list[Any]:
        """Iterate an argument in the thread of the caller."""

    @abstractmethod
    def _copied(
        self,
        topic: str,
        payloads: Payloads,
        headers: Mapping[str, str] | None,
        *,
        create: bool,
        dedup_key: DedupKey,
        pack: PackChoice,
        **schedule: Any,
    ) -> Payloads:
        """Check and copy payloads in the thread of the caller."""

    @abstractmethod
    def _kept_alive(
        self, claim: Claim, *, on_lost: OnLost | None, ttl: float | None, interval: float | None
    ) -> AbstractContextManager[SyncKeepAlive]:
        """Renew a claim in the background."""

    @abstractmethod
    def _listened(  # as listen
        self,
        topics: TopicNames,
        handler: SyncHandler,
        *,
        concurrency: int,
        handle_signals: bool,
        drain_timeout: float,
        **more: Any,
    ) -> Listened:
        """Have threads call a handler."""

    def probe(self) -> ProbeResult:
        """Test again what the store can do. This changes nothing: :attr:`strategy` stays what was agreed on."""
        return self.run(lambda queue: queue.probe())

    def health(self) -> Health:
        """Measure how well the store answers, and how far this machine's clock is from the store's."""
        return self.run(lambda queue: queue.health())

    def create_topic(self, topic: str, **settings: Unpack[TopicOptions]) -> Topic:
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
        return self.run(lambda queue: queue.create_topic(topic, **settings))

    def update_topic(self, topic: str, **settings: Unpack[TopicOptions]) -> Topic:
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
        return self.run(lambda queue: queue.update_topic(topic, **settings))

    def pause(self, topic: str) -> Topic:
        """Let nobody be given messages of the topic, in any process, until :meth:`resume`. Return the topic.

        Claims of all processes find nothing from 5 seconds after this call on, and claims that wait go on waiting.
        Everything else goes on: publishing, and whatever is done with messages that consumers hold by then. A claim by
        an id that has messages already is given these. To pause a paused topic changes nothing.

        :raises TopicNotFoundError: it does not exist.
        """
        return self.run(lambda queue: queue.pause(topic))

    def resume(self, topic: str) -> Topic:
        """Let consumers be given messages of a paused topic again. Return the topic.

        Claims that wait find them within 5 seconds and the pause between two polls. To resume a topic that is not
        paused changes nothing.

        :raises TopicNotFoundError: it does not exist.
        """
        return self.run(lambda queue: queue.resume(topic))

    def topic(self, topic: str) -> Topic:
        """Return a topic: its settings, and when it was last swept.

        :raises TopicNotFoundError: it does not exist.
        """
        return self.run(lambda queue: queue.topic(topic))

    def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return self.run(lambda queue: queue.list_topics())

    def delete_topic(self, topic: str, *, force: bool = False, dry_run: bool = False) -> Removed:
        """Delete the topic if it is empty, with what ended claims have left in it.

        It takes a second, for which other processes may still publish into it.

        :param force: delete all that is in it too: messages, claimed or not, and dead letters.
        :param dry_run: change nothing. Raise where the deletion would, else count what would be deleted.
        :raises TopicNotEmptyError: there are messages, leases, unfinished claims or dead letters. It says roughly how
            many.
        """
        return self.run(lambda queue: queue.delete_topic(topic, force=force, dry_run=dry_run))

    def purge(self, topic: str, *, messages: bool = True, dead_letters: bool = False, dry_run: bool = False) -> Removed:
        """Remove the messages of a topic, claimed or not, or its dead letters. The topic stays.

        :param messages: whether to remove messages.
        :param dead_letters: whether to remove dead letters.
        :param dry_run: change nothing, and count what would be removed.
        """
        return self.run(lambda queue: queue.purge(topic, messages=messages, dead_letters=dead_letters, dry_run=dry_run))

    def register_producer(self, name: str) -> Registration:
        """Return the producer's registration. A name keeps one id for ever, in all processes."""
        return self.run(lambda queue: queue.register_producer(name))

    def register_consumer(self, name: str) -> Registration:
        """Return the consumer's registration. A name keeps one id for ever, in all processes."""
        return self.run(lambda queue: queue.register_consumer(name))

    def list_producers(self) -> list[Registration]:
        """Return every producer that ever registered, and when it was last seen."""
        return self.run(lambda queue: queue.list_producers())

    def list_consumers(self) -> list[Registration]:
        """Return every consumer that ever registered, and when it was last seen."""
        return self.run(lambda queue: queue.list_consumers())

    def publish(
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
        payloads = self._copied(
            topic,
            payloads,
            headers,
            create=create,
            delay=delay,
            not_before=not_before,
            priority=priority,
            dedup_key=dedup_key,
            pack=pack,
        )
        return self.run(
            lambda queue: queue.publish(
                topic,
                payloads,
                producer=producer,
                headers=headers,
                create=create,
                delay=delay,
                not_before=not_before,
                priority=priority,
                dedup_key=dedup_key,
                pack=pack,
                wait=wait,
            )
        )

    def stage(
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
        messages = self._as_list(messages)
        return self.run(lambda queue: queue.stage(topic, write_id, part, messages, producer=producer, after=after))

    def commit_write(
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
        staged = self._as_list(staged)
        return self.run(lambda queue: queue.commit_write(topic, write_id, staged, wait=wait, allow_empty=allow_empty))

    def abort_write(self, topic: str, write_id: str, staged: Iterable[Staged] | None = None) -> int:
        """Remove what was staged for a write that is not decided, and return how many objects were removed.

        A write that is decided is left alone. The janitor removes what nobody commits or aborts for a day.

        :param staged: only this; without it, all that any process has staged under this id.
        :raises TopicNotFoundError: the topic does not exist.
        """
        staged = self._as_list(staged)
        return self.run(lambda queue: queue.abort_write(topic, write_id, staged))

    def claim(
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
        topic = self._as_list(topic)
        return self.run(
            lambda queue: queue.claim(
                topic,
                consumer,
                max_messages=max_messages,
                max_bytes=max_bytes,
                ttl=ttl,
                claim_id=claim_id,
                owner=owner,
                wait=wait,
                session_ttl=session_ttl,
            )
        )

    def attach(
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
        return self.run(
            lambda queue: queue.attach(reference, ttl=ttl, session_ttl=session_ttl, wait=wait, payloads=payloads)
        )

    def held(self, reference: Reference) -> Claim | None:
        """Return the claim of this reference if this very queue holds it already. It sends no request.

        Use it before :meth:`attach`, which would wait for this process's own session.
        """
        return self.run(lambda queue: queue.held(reference))

    def messages(self, reference: Reference) -> list[Message]:
        """Read what a claim has not settled, without attaching to it: nothing is written, and its holder goes on.

        To work on the messages, :meth:`attach`. Malformed and missing messages are left out.

        :raises LeaseLostError: it has no record any more, was taken over, or its time is over.
        :raises StoreError: one of them cannot be read now.
        """
        return self.run(lambda queue: queue.messages(reference))

    def known_claims(self, topic: str, claim_ids: Iterable[str]) -> set[str]:
        """Return those of these claim ids that have a record, of any generation, in any state.

        It lists the records between the first and the last of them, in pages of a thousand.

        :param claim_ids: as ``claim`` was given them.
        """
        claim_ids = self._as_list(claim_ids)
        return self.run(lambda queue: queue.known_claims(topic, claim_ids))

    def last_claim(self, topic: str, claim_id: str) -> LastClaim | None:
        """Show the newest claim under an id without attaching to it; None if it has no record. Two requests."""
        return self.run(lambda queue: queue.last_claim(topic, claim_id))

    def renew(self, claim: Claim, *, ttl: float | None = None, session_ttl: float | None = None) -> None:
        """Keep the claim for its ttl from now on. One request, whatever its size.

        :param ttl: another time, in seconds from now.
        :param session_ttl: another time for which this process keeps it without renewing it.
        :raises LeaseLostError: it is no longer ours. Stop working on its messages.
        """
        self.run(lambda queue: queue.renew(claim, ttl=ttl, session_ttl=session_ttl))

    def keep_alive(
        self, claim: Claim, *, on_lost: OnLost | None = None, ttl: float | None = None, interval: float | None = None
    ) -> AbstractContextManager[SyncKeepAlive]:
        """Renew the claim in the background: ``async with queue.keep_alive(claim, on_lost=stop): work()``.

        A renewal that fails is logged and tried again while the claim is ours. If it is lost, ``on_lost`` is called.
        The end of the block waits for a renewal that is under way, for 5 seconds at most.

        :param on_lost: called once, with the error, when the claim is lost. What it raises is logged.
        :param ttl: what a renewal gives; without it, what the claim was given before.
        :param interval: seconds between renewals, less than the claim's time minus ``claims.margin_seconds``; without
            it, ``polling.lease_refresh_interval_seconds``, and never more than a third of that time.
        """
        return self._kept_alive(claim, on_lost=on_lost, ttl=ttl, interval=interval)

    def leave(self, claim: Claim) -> ClaimReference:
        """Stop working on the claim, and note that in its record, so that the next holder need not wait.

        The next holder attaches by the reference, or claims by the claim's id. Until then nobody else gets its
        messages, while its time lasts. This is ``claim.hand_over()`` and one request; none if all is settled. If the
        store does not answer, a claim by the id waits until this session's time is over. That is logged, not raised.

        :raises LeaseLostError: it is no longer ours.
        """
        return self.run(lambda queue: queue.leave(claim))

    def ack(self, claim: Claim, ids: Chosen | None = None) -> Settlement:
        """Settle messages as done. They are not delivered again.

        :param ids: one or many of the claim's messages, or their ids; without it, all. An id means all messages of the
            claim that have it.
        :returns: the outcome of each message. ``.complete`` says whether all was decided and carried out.
        :raises LeaseLostError: others hold some of them, or may. Its ``.settlement`` has the outcome of each: those
            that were still the claim's are acked.
        :raises InvalidArgumentError: the claim does not have one of them. Nothing was settled.
        """
        ids = self._as_list(ids)
        return self.run(lambda queue: queue.ack(claim, ids))

    def requeue(
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
        ids = self._as_list(ids)
        return self.run(lambda queue: queue.requeue(claim, ids, delay=delay, reason=reason, error=error))

    def bury(self, claim: Claim, ids: Chosen | None = None, *, reason: str, error: str = "") -> Settlement:
        """Make dead letters of messages. They are not delivered again, unless somebody redrives them.

        For what can never succeed: a field that is missing, a customer that does not exist.

        :param ids: as :meth:`ack` takes them.
        :param reason: why, for the reader of the dead letter.
        :param error: details, cut to 2,000 characters.
        :returns: the outcome of each message.
        :raises LeaseLostError: others hold some of them, or may. Its ``.settlement`` has the outcome of each.
        :raises InvalidArgumentError: the claim does not have one of them. Nothing was settled.
        """
        ids = self._as_list(ids)
        return self.run(lambda queue: queue.bury(claim, ids, reason=reason, error=error))

    def nack(
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
        ids = self._as_list(ids)
        return self.run(lambda queue: queue.nack(claim, ids, requeue=requeue, delay=delay, reason=reason, error=error))

    def settle(
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
        return self.run(lambda queue: queue.settle(claim, requeue=requeue, bury=bury, delay=delay))

    def settle_overwritten(self, claim: Claim) -> list[str]:
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
        return self.run(lambda queue: queue.settle_overwritten(claim))

    def release(self, topic: str, claim_id: str, owner: str | Iterable[str], *, reason: str = "") -> list[str]:
        """Give back all that the claim of this id has, without attaching to it: its owner is not to work on it again.

        It is like ``claim(...)`` by the id and ``requeue(claim)``, but reads no messages, and makes no new claim if the
        last one has ended.

        :param owner: on whose behalf it was made; or several owners, one of whom must be the claim's.
        :param reason: why. A dead letter begins with it, should a message become one.
        :returns: the ids of the messages, by which they are kept. None if the newest generation has ended, has another
            owner, or has no record. If two processes release it at the same time, one of them returns them.
        :raises ClaimBusyError: another session holds it. It names the owner, until when, and when to try again.
        """
        owner = self._as_list(owner)
        return self.run(lambda queue: queue.release(topic, claim_id, owner, reason=reason))

    def listen(
        self,
        topics: TopicNames,
        handler: SyncHandler,
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
        topics = self._as_list(topics)
        return self._listened(
            topics,
            handler,
            consumer=consumer,
            concurrency=concurrency,
            max_messages=max_messages,
            max_bytes=max_bytes,
            ttl=ttl,
            retry=retry,
            handle_signals=handle_signals,
            drain_timeout=drain_timeout,
        )

    def drain(self, timeout: float = DRAIN_SECONDS) -> Drained:
        """Let the work of this queue come to its end: for a process that is to stop. No message is lost, or held on to.

        From now on the queue claims nothing: ``claim``, ``attach`` and ``listen`` raise :class:`QueueDrainedError`, and
        so do claims that wait. Publishing, renewing and settling go on. Handlers of :meth:`listen` finish, and other
        claims are settled by their consumers. What is left after three quarters of the time is given back: handlers
        that still run are cancelled before.

        A drained queue claims nothing for ever: close it, and open another one to go on.

        :param timeout: how many seconds it may take, whatever the store does.
        :returns: which messages were given back, and which claims could not be.
        """
        return self.run(lambda queue: queue.drain(timeout))

    def completed(self, topic: str, *, max_messages: int = 50, after: str | None = None) -> CompletedPage:
        """Read the completed log: which messages were acked, by which consumer, when. The latest claims come first.

        A topic has a log if its setting ``completed`` says so. A claim is logged when all of its messages are settled.

        :param max_messages: how many a page has.
        :param after: continue after the page whose ``.next`` this is.
        """
        return self.run(lambda queue: queue.completed(topic, max_messages=max_messages, after=after))

    def dead_letters(
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
        return self.run(
            lambda queue: queue.dead_letters(
                topic, max_messages=max_messages, newest_first=newest_first, after=after, payloads=payloads
            )
        )

    def redrive(
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
        ids = self._as_list(ids)
        return self.run(
            lambda queue: queue.redrive(
                topic,
                ids,
                reason=reason,
                older_than=older_than,
                younger_than=younger_than,
                max_messages=max_messages,
                per_second=per_second,
                missing_ok=missing_ok,
                dry_run=dry_run,
                on_progress=on_progress,
            )
        )

    def sweep(self, topic: str, *, dry_run: bool = False, ask: AskOwner | None = None) -> SweepReport:
        """Let the janitor sweep the topic once: finish what crashed processes left, remove what nobody needs.

        :param dry_run: change nothing; the report says what would be done.
        :param ask: asked about each open claim whether its owner is "going" (the claim is renewed), has "ended" (the
            claim is fenced), or is unknown (None: the claim is left alone). A coroutine function is awaited; any other
            function runs in a thread of its own.
        """
        return self.run(lambda queue: queue.sweep(topic, dry_run=dry_run, ask=ask))

    def peek(self, topic: str, max_messages: int = 10) -> list[Message]:
        """Read messages from the head without claiming them, whether or not others hold them.

        Their ``deliveries`` are not looked up, and are 0. :meth:`find` returns those of one message.

        :param max_messages: how many at most.
        """
        return self.run(lambda queue: queue.peek(topic, max_messages))

    def find(self, topic: str, message_id: str) -> Location | None:
        """Say where a message is, by the id under which it is kept; None if it is nowhere (any more).

        A redriven message is kept under another id than its own: find it by ``message.unit``, as ``peek`` shows it.

        In a topic with packs it looks for a message's own id too: it reads packs until it has found that id, and then
        dead letters.

        :param message_id: the id that ``publish`` has returned.
        """
        return self.run(lambda queue: queue.find(topic, message_id))

    def stats(self, topic: str) -> Stats:
        """Count the topic's messages, by LISTs, and by the records of claims whose leases look overdue.

        Of a pack that is held all messages count as in flight, also those that are finished.
        """
        return self.run(lambda queue: queue.stats(topic))

    def backlog(
        self, topic: str, at_least: int | None = None, *, claims: bool = False, set_aside: bool = True
    ) -> Backlog:
        """Count the messages that are claimable, cheaply: one LIST if there are none.

        A paused topic has none. Another process's ``pause`` shows within a minute, its ``resume`` within 5 seconds.

        :param at_least: stop counting at this many messages.
        :param claims: list the topic's claims too, one LIST for each thousand, if messages are claimable.
        :param set_aside: count those too that this process could not read, and tries again later.
        """
        return self.run(lambda queue: queue.backlog(topic, at_least, claims=claims, set_aside=set_aside))

    def portions(
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
        return self.run(lambda queue: queue.portions(of, parts=parts, dead=dead, max_messages=max_messages, only=only))

    def read(self, portion: Portion) -> list[Message] | list[DeadLetter]:
        """Read a portion: its messages, or its dead letters. It sends no other requests.

        :raises LeaseLostError: a message of the claim no longer exists: it was settled or lost.
        :raises StoreError: one of the claim's messages cannot be read now.
        """
        return self.run(lambda queue: queue.read(portion))

    def fetch(self, portion: Portion) -> FetchedPortion:
        """Fetch the messages of a portion, to make a table of them. It sends the same requests as :meth:`read`.

        :raises LeaseLostError: a message of the claim no longer exists: it was settled or lost.
        :raises StoreError: one of the claim's messages cannot be read now.
        """
        return self.run(lambda queue: queue.fetch(portion))

    def look_again(self, portion: Portion) -> Portion:
        """Return a portion of a topic with what its part of the topic has now: a LIST of that part.

        All portions of a topic together still cover all of it. If :meth:`portions` was given ``max_messages``, their
        end stays where it was. A portion of a claim is returned unchanged.
        """
        return self.run(lambda queue: queue.look_again(portion))
