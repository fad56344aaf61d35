"""Carrying out a staged write that is decided, by the process that holds it: see :mod:`.writes` (§7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from pawnqueue.bucket.topics import topic_not_found_error
from pawnqueue.catalog import units
from pawnqueue.domain import layout
from pawnqueue.domain.times import iso
from pawnqueue.domain.write_record import TICKS_PER_SECOND, WriteRecord
from pawnqueue.errors import PawnQueueError, PublishError, StoreError, TopicNotFoundError, WriteBusyError
from pawnqueue.events import RowsLost, WriteDone, WriteDropped, logger_of
from pawnqueue.publish import staging, write_traces
from pawnqueue.publish.sending import Sent, has_landed, send, topic_may_exist
from pawnqueue.publish.staging import Piece, StagedReader
from pawnqueue.publish.write_outcome import describe_ranges, merge_ranges
from pawnqueue.registers.register import Versioned
from pawnqueue.registers.write_records import HOLD_SECONDS
from pawnqueue.runtime.cancellation import finish_despite_cancellation
from pawnqueue.runtime.concurrency import SharedWork, all_of, for_each

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.stores.port import Outcome

logger = logger_of("publish")

#: How many rows and packs are begun by one note of progress. After a crash it is not known of these whether they are
#: stored.
PIECES_PER_NOTE: Final = 500


class TopicExists(Protocol):
    """Says whether a topic still exists."""

    async def __call__(self, topic: str, *, with_packs: bool = False) -> bool:
        """Say it.

        :param with_packs: whether its consumers have to look for packs, too.
        """


def decided_at(context: Context, record: WriteRecord) -> float:
    """Return the earliest time at which the write can have been decided: earlier changes leave no trace of it."""
    return record.created_at - context.margin - 1


async def take_over(
    context: Context, topic: str, found: Versioned[WriteRecord], topic_exists: TopicExists, ended: set[str]
) -> DecidedWrite | None:
    """Continue a write that has been decided; None: another process was faster.

    :param ended: the attempts of this process that have ended. Nobody waits for their time to be over.
    :raises WriteBusyError: the time of its holder is not over.
    """
    now = await context.now()
    record = found.value
    # ⚑ §2: the holder stops a margin before its time, and the next committer waits until a margin after it.
    if record.holder not in ended and not context.is_over(record.until, now):
        over = record.until + context.margin
        raise WriteBusyError(
            f"Another process commits write {record.write_id} of topic {topic!r}, and has it until {iso(over)}: commit "
            "it again after that, or pass wait=.",
            topic=topic,
            operation="commit_write",
            write_id=record.write_id,
            until=datetime.fromtimestamp(over, UTC),
            retry_after=max(0.0, over - now),
        )
    ours = record.model_copy(update={"until": now + HOLD_SECONDS, "ttl": HOLD_SECONDS, "holder": context.clock.uuid()})
    taken = await begin_attempt(context, topic, ours, found, ended)
    return None if taken is None else DecidedWrite(context, topic, taken, topic_exists, ended, taken_over=True)


async def begin_attempt(
    context: Context, topic: str, record: WriteRecord, found: Versioned[WriteRecord] | None, ended: set[str]
) -> Versioned[WriteRecord] | None:
    """Write the record with which an attempt begins; None: another process has written it."""
    try:
        return await write_record(context, topic, record, found)
    except StoreError:
        ended.add(record.holder)  # it has begun nothing, even if its record lands
        raise


async def write_record(
    context: Context, topic: str, record: WriteRecord, found: Versioned[WriteRecord] | None
) -> Versioned[WriteRecord] | None:
    """Create a record, or replace the one that was found, by compare-and-set; None: another process has written it.

    :raises StoreError: it is not known whether it was written.
    """
    register = context.write_record(topic, record.write_id)
    return await (register.create(record) if found is None else register.replace(found, record))


@dataclass(frozen=True, slots=True)
class _Placed:
    """A row or a pack of a write, with the name in its key."""

    name: str
    place: int
    piece: Piece

    @classmethod
    def of(cls, pieces: Iterable[Piece], place: int) -> list[Self]:
        """Place pieces behind each other: a tick for each message."""
        placed = []
        for piece in pieces:
            stamp, uuid = place / TICKS_PER_SECOND, layout.uuid_of(piece.id)
            name = units.pack_name_at(stamp, uuid, piece.count) if piece.is_pack else units.name_at(stamp, uuid)
            placed.append(cls(name, place, piece))
            place += piece.count
        return placed

    @property
    def messages(self) -> range:
        """The places of its messages."""
        return range(self.place, self.place + self.piece.count)


class DecidedWrite:
    """A decided write that this process holds and carries out."""

    def __init__(  # noqa: PLR0913 - the parts of one thing, made in two places
        self,
        context: Context,
        topic: str,
        found: Versioned[WriteRecord],
        topic_exists: TopicExists,
        ended: set[str],
        *,
        taken_over: bool = False,
    ) -> None:
        self._context = context
        self._topic = topic
        self._found = found
        self._topic_exists = topic_exists
        self._ended = ended
        self._taken_over = taken_over
        self._looks: SharedWork[str, set[str]] = SharedWork()
        self._looking = asyncio.Lock()
        self._may_land = False  # a request that publishes a message may be in flight

    async def finish(self, is_enough: Callable[[], bool] = lambda: False) -> WriteRecord | None:
        """Publish what is not published yet, and note it; None: another process has taken over, or it is enough.

        If staged rows are gone, the write is dropped if nothing of it is visible; else it is done without them.

        :param is_enough: called before each step. If it returns True, the next attempt continues with the rest.
        :raises PublishError: some of it could not be published now; the next attempt continues.
        """
        try:
            return await self._carry_out(is_enough)
        except PawnQueueError as error:
            # A process that has taken over may have finished the write, and removed what was to be copied.
            if not await self._give_back(error) and isinstance(error, PublishError):
                return None
            raise

    async def _give_back(self, error: PawnQueueError | None) -> bool:
        """Let the next attempt begin at once, as this one has ended; return False if another process has taken over.

        ⚑ §7: only if no request of it can still publish a message. Nobody would look for that message again.
        """
        if self._may_land:
            return True
        before = self._found.value
        self._ended.add(before.holder)
        update = {"until": 0.0, "ttl": 0.0, "unread_since": 0.0}
        try:
            if isinstance(error, write_traces.UnreadTracesError):
                update["unread_since"] = before.unread_since or await self._context.now()
            elif isinstance(error, staging.UnreadRowsError):
                update["rows_unread_since"] = before.rows_unread_since or await self._context.now()
            record = before.model_copy(update=update)
            return await write_record(self._context.with_budget(), self._topic, record, self._found) is not None
        except PawnQueueError as problem:
            logger.debug("Write %s of topic %r waits for its time: %s", before.write_id, self._topic, problem)
            return True

    async def _carry_out(self, is_enough: Callable[[], bool]) -> WriteRecord | None:
        record = self._found.value
        present = await staging.list_staged(self._context, self._topic, record.write_id) if self._taken_over else None
        staged = StagedReader(
            self._context,
            self._topic,
            record.write_id,
            record.objects,
            record.published,
            present,
            is_wait_over=await self._is_wait_for_rows_over(),
        )
        in_doubt = self._taken_over
        while record.state != "done":
            if is_enough():
                await self._leave_the_rest()
                return None
            pieces = await staged.take(record.begun - record.published)
            chunk = _Placed.of(pieces, record.place + record.published)
            # ⚑ §7: only of the chunk that was begun is it unknown whether it is stored.
            left = await self._without_trace(chunk) if in_doubt else chunk
            in_doubt = False
            gone = [each.messages for each in left if each.piece.is_gone]
            is_invisible = not record.published and len(left) == len(chunk)
            if is_invisible and (gone or (present is not None and _are_some_gone(record, present))):
                return await self._drop()
            if not await self._publish(chunk, [each for each in left if not each.piece.is_gone]):
                return None
            # ⚑ §7: rows that were never begun, and cannot be read, are not looked for. One note names them all, however
            # many of them a forged record claims.
            published = record.begun + staged.skip_gone()
            lost = [range(each.start - record.place, each.stop - record.place) for each in gone]
            lost.append(range(record.begun, published))
            if not await self._note(published, published + staged.ahead(PIECES_PER_NOTE), lost):
                return None
            record = self._found.value
        if record.lost:
            count = sum(each.count for each in record.lost)
            self._context.events.tell(
                RowsLost(topic=self._topic, write_id=record.write_id, count=count, rows=describe_ranges(record.lost))
            )
        self._context.events.tell(
            WriteDone(topic=self._topic, write_id=record.write_id, count=record.count, taken_over=self._taken_over)
        )
        return record

    async def _is_wait_for_rows_over(self) -> bool:
        # Progress does not restart the wait: a forged write may have an unreadable row in each of its chunks.
        since = self._found.value.rows_unread_since
        return since > 0 and await self._context.now() >= since + staging.MAX_WAIT_FOR_ROWS_SECONDS

    async def _leave_the_rest(self) -> None:
        """Let the next attempt continue at once behind the last note."""
        record = self._found.value
        logger.info(
            "Of write %s of topic %r, %d of %d messages are published: the next sweep continues.",
            record.write_id,
            self._topic,
            record.published,
            record.count,
        )
        await self._give_back(None)

    async def _drop(self) -> WriteRecord | None:
        """Revoke the decision of a write of which nothing is visible; None: another process has taken over.

        ⚑ §7: else every sweep would fail on a write whose rows are gone. Its id can be used again at once.
        """
        before = self._found.value
        names = [each.name for each in before.objects]
        dropped = WriteRecord(
            write_id=before.write_id,
            state="dropped",
            created_at=await self._context.now(),
            place=before.place,
            dropped=sorted({*before.dropped, *names}),
        )
        if await write_record(self._context, self._topic, dropped, self._found) is None:
            return None
        self._context.events.tell(WriteDropped(topic=self._topic, write_id=before.write_id, count=before.count))
        keys = [layout.staged_object(self._topic, before.write_id, name) for name in names]
        await staging.remove(self._context, keys)
        return dropped

    async def _publish(self, chunk: Sequence[_Placed], left: Sequence[_Placed]) -> bool:
        """Put messages into the topic; return False if another process has taken over."""
        while left:
            may_land, self._may_land = self._may_land, True
            has_packs = any(each.piece.is_pack for each in left)
            results, there = await all_of(
                for_each(self._send, left, at_once=self._context.at_once),
                topic_may_exist(self._topic, partial(self._topic_exists, with_packs=has_packs)),
            )
            self._may_land = may_land or any(result.landed is None for result in results)
            if not there:
                await finish_despite_cancellation(lambda: self._withdraw(chunk))
                raise topic_not_found_error(self._topic, "commit_write")
            faults = {each.place: result.fault for each, result in zip(left, results, strict=True) if result.fault}
            if faults:
                count = sum(each.piece.count for each in left if each.place in faults)
                raise self._publish_error(count, next(iter(faults.values())))
            in_doubt = any(result.landed is None for result in results)
            left = [each for each, result in zip(left, results, strict=True) if not result.landed]
            record = self._found.value
            if left and not await self._note(record.published, record.begun):
                return False
            left = await self._without_trace(left) if in_doubt else left
        return True

    async def _send(self, each: _Placed) -> Sent:
        async def is_sent() -> bool:
            # ⚑ §7: a consumer that has already claimed and acked it has left a trace in its claim record.
            return not await self._without_trace([each])

        context, key = self._context.with_budget(0.0), units.key_of(self._topic, each.name)

        async def put() -> Outcome:
            if each.piece.envelope is None:
                return await context.store.copy(each.piece.source, key)
            about = {"created_at": iso(each.place / TICKS_PER_SECOND), "write_id": self._found.value.write_id}
            return await context.store.put(key, each.piece.envelope.model_copy(update=about).encode())

        return await send(
            self._context, self._topic, each.name, each.piece.id, put, may_send=self._is_trusted, is_sent=is_sent
        )

    def _is_trusted(self) -> bool:
        """⚑ §7: a process that may have been taken over sends nothing: it might land after the message's ack."""
        context = self._context
        until = context.time.trusted_until(self._found.value.until, context.margin, in_doubt=True)
        return context.clock.elapsed() < until

    async def _note(self, published: int, begun: int, lost: Sequence[range] = ()) -> bool:
        """Note the progress and what is begun next, by compare-and-set; return False if another process took over."""
        now = await self._context.now()
        before = self._found.value
        is_done = published == before.count
        update: dict[str, Any] = {
            "published": published,
            "begun": begun,
            "lost": merge_ranges(before.lost, lost),
            "unread_since": 0.0,
        }
        if is_done:
            record = before.model_copy(
                update={**update, "state": "done", "objects": [], "dropped": [], "until": 0.0, "ttl": 0.0}
            )
        else:
            record = before.model_copy(update={**update, "until": now + HOLD_SECONDS, "ttl": HOLD_SECONDS})
        noted = await write_record(self._context, self._topic, record, self._found)
        if noted is None:
            if await self._context.write_record(self._topic, before.write_id).read() is None:
                raise TopicNotFoundError(
                    f"Topic {self._topic!r} was deleted, and with it write {before.write_id}, of which "
                    f"{before.published:,} of {before.count:,} messages had been published.",
                    topic=self._topic,
                    operation="commit_write",
                )
            return False
        self._found = noted
        return True

    async def _without_trace(self, chunk: Sequence[_Placed]) -> list[_Placed]:
        """Return the messages of a chunk, begun by another attempt, that left no trace: they are sent, perhaps again.

        A message is looked for before its lease, and the lease before the claim record, as they vanish in this order.
        ⚑ §7: each of them counts by the message's full name, as another message may have the same uuid.
        """
        if not chunk:
            return []
        context, topic = self._context, self._topic
        rows = [each.name for each in chunk if not each.piece.is_pack]
        stored = await units.names_between(context.store, topic, rows[0], rows[-1]) if rows else set()
        sought = [each for each in chunk if each.name not in stored]
        found = await for_each(
            lambda each: has_landed(context, topic, each.name, each.piece.id), sought, at_once=context.at_once
        )
        sought = [each for each, landed in zip(sought, found, strict=True) if not landed]
        claimed = await self._claimed_since() if sought else set()
        return [each for each in sought if each.name not in claimed]

    async def _claimed_since(self) -> set[str]:
        """Return the names of the messages in claims that were changed since the write was decided.

        One look at a time. A caller that comes during one shares the next one: this one may have passed by the claim
        that the caller needs. A store that answers a whole chunk with errors is not asked again for each message.
        """

        async def look() -> set[str]:
            async with self._looking:
                self._looks.stop_sharing(record.write_id)
                since = decided_at(self._context, record)
                return await write_traces.find_claimed_since(self._context, self._topic, record, since)

        record = self._found.value
        return await self._looks.do(record.write_id, look)

    async def _withdraw(self, chunk: Sequence[_Placed]) -> None:
        """Remove messages that were written into a topic that was deleted meanwhile."""
        topic, write_id = self._topic, self._found.value.write_id
        keys = [units.key_of(topic, each.name) for each in chunk]
        failed = await self._context.registers.delete([*keys, layout.write(topic, write_id)])
        for key, error in failed.items():
            logger.warning("%s could not be removed from a topic that was deleted: %s", key, error)
        await staging.remove_all(self._context, topic, write_id)

    def _publish_error(self, count: int, why: StoreError) -> PublishError:
        record = self._found.value
        return PublishError(
            f"Write {record.write_id} of topic {self._topic!r} is decided, but {count:,} of its "
            f"{record.count:,} messages could not be published now: {why} The rest follows when it is committed "
            f"again, or when the topic is swept{f', after {HOLD_SECONDS:g} seconds' if self._may_land else ''}.",
            topic=self._topic,
            operation="commit_write",
            cause=why,
        )


def _are_some_gone(record: WriteRecord, present: Mapping[str, int]) -> bool:
    """Say whether some of the staged objects are not stored any more."""
    return any(present.get(each.name) != each.size for each in record.objects)
