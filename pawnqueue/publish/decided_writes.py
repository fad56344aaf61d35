"""Carrying out a staged write that is decided, by the process that holds it: see :mod:`.writes` (§7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from pawnqueue.bucket.topics import topic_not_found_error
from pawnqueue.catalog import units
from pawnqueue.domain import layout
from pawnqueue.domain.times import iso
from pawnqueue.domain.write_record import TICKS_PER_SECOND, WriteRecord
from pawnqueue.errors import PawnQueueError, PublishError, StoreError, TopicNotFoundError, WriteBusyError
from pawnqueue.events import RowsLost, WriteDone, WriteDropped, logger_of
from pawnqueue.publish import staging, write_traces
from pawnqueue.publish.sending import Sent, has_landed, send, topic_may_exist
from pawnqueue.publish.write_outcome import describe_ranges, merge_ranges
from pawnqueue.registers.register import Versioned
from pawnqueue.registers.write_records import HOLD_SECONDS
from pawnqueue.runtime.cancellation import finish_despite_cancellation
from pawnqueue.runtime.concurrency import all_of, for_each

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.domain.envelope import Envelope

logger = logger_of("publish")

#: How many messages are begun by one note of progress. After a crash it is not known of these whether they are stored.
MESSAGES_PER_NOTE: Final = 500

TopicExists: TypeAlias = Callable[[str], Awaitable[bool]]


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
    """A message of a write, with the name in its key."""

    name: str
    id: str
    place: int
    envelope: Envelope | None  # None: its staged row is gone

    @classmethod
    def of(cls, row: staging.Row, place: int, write_id: str) -> Self:
        stamp = place / TICKS_PER_SECOND
        envelope = row.envelope
        if envelope is not None:
            envelope = envelope.model_copy(update={"created_at": iso(stamp), "write_id": write_id})
        return cls(units.name_at(stamp, row.id), row.id, place, envelope)


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
            await self._give_back(error)
            raise

    async def _give_back(self, error: PawnQueueError | None) -> None:
        """Let the next attempt begin at once, as this one has ended.

        ⚑ §7: only if no request of it can still publish a message. Nobody would look for that message again.
        """
        if self._may_land:
            return
        before = self._found.value
        self._ended.add(before.holder)
        update = {"until": 0.0, "ttl": 0.0, "unread_since": 0.0}
        try:
            if isinstance(error, write_traces.UnreadTracesError):
                update["unread_since"] = before.unread_since or await self._context.now()
            elif isinstance(error, staging.UnreadRowsError):
                update["rows_unread_since"] = before.rows_unread_since or await self._context.now()
            record = before.model_copy(update=update)
            await write_record(self._context.with_budget(), self._topic, record, self._found)
        except PawnQueueError as problem:
            logger.debug("Write %s of topic %r waits for its time: %s", before.write_id, self._topic, problem)

    async def _carry_out(self, is_enough: Callable[[], bool]) -> WriteRecord | None:
        record = self._found.value
        present = await staging.list_staged(self._context, self._topic, record.write_id) if self._taken_over else None
        rows = staging.RowReader(
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
            places = range(record.place + record.published, record.place + record.begun)
            taken = await rows.take(len(places))
            chunk = [_Placed.of(row, place, record.write_id) for row, place in zip(taken, places, strict=True)]
            # ⚑ §7: only of the chunk that was begun is it unknown whether it is stored.
            left = await self._without_trace(chunk) if in_doubt else chunk
            in_doubt = False
            gone = [each.place - record.place for each in left if each.envelope is None]
            is_invisible = not record.published and len(left) == len(chunk)
            if is_invisible and (gone or (present is not None and _are_some_gone(record, present))):
                return await self._drop()
            if not await self._publish(chunk, [each for each in left if each.envelope is not None]):
                return None
            # ⚑ §7: rows that were never begun, and cannot be read, are not looked for. One note names them all, however
            # many of them a forged record claims.
            passed = rows.skip_gone()
            lost = [*(range(each, each + 1) for each in gone), range(record.begun, record.begun + passed)]
            if not await self._note(published=record.begun + passed, lost=lost):
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
            results, there = await all_of(
                for_each(self._send, left, at_once=self._context.at_once),
                topic_may_exist(self._topic, self._topic_exists),
            )
            self._may_land = may_land or any(result.landed is None for result in results)
            if not there:
                await finish_despite_cancellation(lambda: self._withdraw(chunk))
                raise topic_not_found_error(self._topic, "commit_write")
            faults = [result.fault for result in results if result.fault is not None]
            if faults:
                raise self._publish_error(faults)
            in_doubt = any(result.landed is None for result in results)
            left = [each for each, result in zip(left, results, strict=True) if not result.landed]
            if left and not await self._note(published=self._found.value.published):
                return False
            left = await self._without_trace(left) if in_doubt else left
        return True

    async def _send(self, each: _Placed) -> Sent:
        async def is_sent() -> bool:
            # ⚑ §7: a consumer that has already claimed and acked it has left a trace in its claim record.
            return not await self._without_trace([each])

        if each.envelope is None:
            return Sent(landed=True)  # its row is gone: it is noted as lost
        body = each.envelope.encode()
        return await send(
            self._context, self._topic, each.name, each.id, body, may_send=self._is_trusted, is_sent=is_sent
        )

    def _is_trusted(self) -> bool:
        """⚑ §7: a process that may have been taken over sends nothing: it might land after the message's ack."""
        context = self._context
        until = context.time.trusted_until(self._found.value.until, context.margin, in_doubt=True)
        return context.clock.elapsed() < until

    async def _note(self, *, published: int, lost: Sequence[range] = ()) -> bool:
        """Note the progress and what is begun next, by compare-and-set; return False if another process took over."""
        now = await self._context.now()
        before = self._found.value
        is_done = published == before.count
        update: dict[str, Any] = {
            "published": published,
            "begun": max(before.begun, min(published + MESSAGES_PER_NOTE, before.count)),
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
        stored = await units.names_between(context.store, topic, chunk[0].name, chunk[-1].name)
        sought = [each for each in chunk if each.name not in stored]
        found = await for_each(
            lambda each: has_landed(context, topic, each.name, each.id), sought, at_once=context.at_once
        )
        sought = [each for each, landed in zip(sought, found, strict=True) if not landed]
        claimed = await self._claimed_since() if sought else set()
        return [each for each in sought if each.name not in claimed]

    async def _claimed_since(self) -> set[str]:
        """Return the names of the messages in claims that were changed since the write was decided."""
        record = self._found.value
        return await write_traces.find_claimed_since(
            self._context, self._topic, record, decided_at(self._context, record)
        )

    async def _withdraw(self, chunk: Sequence[_Placed]) -> None:
        """Remove messages that were written into a topic that was deleted meanwhile."""
        topic, write_id = self._topic, self._found.value.write_id
        keys = [units.key_of(topic, each.name) for each in chunk]
        failed = await self._context.registers.delete([*keys, layout.write(topic, write_id)])
        for key, error in failed.items():
            logger.warning("%s could not be removed from a topic that was deleted: %s", key, error)
        await staging.remove_all(self._context, topic, write_id)

    def _publish_error(self, faults: Sequence[StoreError]) -> PublishError:
        record = self._found.value
        return PublishError(
            f"Write {record.write_id} of topic {self._topic!r} is decided, but {len(faults):,} of its "
            f"{record.count:,} messages could not be published now: {faults[0]} The rest follows when it is committed "
            f"again, or when the topic is swept{f', after {HOLD_SECONDS:g} seconds' if self._may_land else ''}.",
            topic=self._topic,
            operation="commit_write",
            cause=faults[0],
        )


def _are_some_gone(record: WriteRecord, present: Mapping[str, int]) -> bool:
    """Say whether some of the staged objects are not stored any more."""
    return any(present.get(each.name) != each.size for each in record.objects)
