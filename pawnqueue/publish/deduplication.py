"""Publish a message of each key once in a topic's window: the log, what became of earlier attempts, and the notes (§7).

The log (:mod:`.dedup_log`) says which keys are published, and which are reserved. A key that stays reserved, as its
publisher died or does not know what became of its message, is resolved here, by the traces that the message has left.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

from pawnqueue.catalog import units
from pawnqueue.domain import layout
from pawnqueue.domain.dedup_segment import Attempt, Fate, PublishedKey, ReservedKey
from pawnqueue.errors import PawnQueueError, StoreError
from pawnqueue.events import logger_of
from pawnqueue.publish.dedup_log import DedupLog, Verdict, Want
from pawnqueue.publish.packing import stem_of
from pawnqueue.publish.write_traces import MAX_WAIT_FOR_RECORDS_SECONDS, read_claimed_since
from pawnqueue.runtime.concurrency import all_of, for_each

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.domain.records import TopicRecord
    from pawnqueue.publish.write_traces import KnownClaims

logger = logger_of("publish")

#: How long what was published waits for another reservation of its shard, with which it is noted.
NOTE_WITHIN_SECONDS: Final = 10.0
#: How many topics' logs are kept in memory.
MAX_LOGS: Final = 64
#: A publisher that waits for another one looks again after this, and then after twice as long, up to the second.
FIRST_LOOK_SECONDS: Final = 0.05
MAX_LOOK_SECONDS: Final = 2.0


class NeverSent(Enum):
    """An attempt is over, and has published nothing: its key may be reserved instead of it."""

    NEVER_SENT = 0


#: What became of another attempt at a key; None: it may be under way, or the log says more now. Or why it is not known.
Found: TypeAlias = NeverSent | StoreError | None


class Deduplication:
    """The deduplication logs of a process."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._logs: OrderedDict[tuple[str, str], DedupLog] = OrderedDict()
        self._flushing: asyncio.Task[None] | None = None

    async def reserve(self, topic: TopicRecord, wants: Sequence[Want], window: float) -> list[Verdict]:
        """Reserve keys, and return for each what is known of its message."""
        return await self._log(topic).reserve(wants, window)

    async def count_new(self, topic: TopicRecord, key_hashes: set[bytes], window: float, *, anew: bool) -> int:
        """Return how many of the keys are not known to be published.

        :param anew: read the log again, and look for the messages of the keys that others have reserved.
        """
        log = self._log(topic)
        if anew:
            log.forget(key_hashes)
        try:
            new, others = await log.count_new(key_hashes, window)
            attempts = {key.attempt: key for key in others} if anew else {}
            traces = await find_traces(self._context, topic.name, list(attempts.values()))
            seen = [key for key, trace in zip(attempts.values(), traces, strict=True) if trace]
            if seen and await self._note_now(topic, seen) is None:
                new, _ = await log.count_new(key_hashes, window)
        except PawnQueueError:
            return len(key_hashes)
        return new

    def note(self, topic: TopicRecord, key_hash: bytes, attempt: Attempt, fate: Fate) -> None:
        """Let it be noted what became of a message. Nothing waits for that."""
        self._log(topic).note(key_hash, attempt, fate)
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._flush_later(), name="pawnqueue-deduplication")

    async def note_if_crowded(self, topic: TopicRecord) -> None:
        """Note now what was published if others may wait for that."""
        if self._log(topic).is_crowded:
            await self.free(topic)

    async def free(self, topic: TopicRecord) -> None:
        """Note now what is to be noted, so that another attempt need not wait. It is noted later if this fails."""
        try:
            await self._log(topic).flush(self._context.with_budget())
        except PawnQueueError as error:
            logger.debug("Keys of topic %r stay reserved for a while: %s", topic.name, error)

    async def retract(self, topic: TopicRecord, attempts: Mapping[bytes, tuple[Attempt, str]]) -> set[str]:
        """See :meth:`DedupLog.retract`."""
        return await self._log(topic).retract(attempts)

    async def resolve(
        self, topic: TopicRecord, keys: Sequence[ReservedKey], waited: int, known: KnownClaims
    ) -> list[Found]:
        """Find out what became of other attempts at some keys. Wait a little if one may still be under way.

        :param waited: how often this call has waited for them.
        :param known: what it has read before of claim records.
        """
        context = self._context
        # ⚑ §7: what is looked for after the attempt's time has left its traces, or never will.
        now = await context.now()
        attempts = {key.attempt: key for key in keys}
        try:
            traces = await find_traces(context, topic.name, list(attempts.values()), known)
        except StoreError as error:
            return [error] * len(keys)
        by_attempt = {
            attempt: self._judge(topic, key, now, trace=trace)
            for (attempt, key), trace in zip(attempts.items(), traces, strict=True)
        }
        seen = [key for key in keys if isinstance(by_attempt[key.attempt], PublishedKey)]
        fault = await self._note_now(topic, seen) if seen else None
        if None in by_attempt.values():
            left = min(key.until for key in keys if by_attempt[key.attempt] is None) + context.margin - now + 0.01
            await context.clock.sleep(max(0.0, min(FIRST_LOOK_SECONDS * 2**waited, MAX_LOOK_SECONDS, left)))
            self._log(topic).forget([key.key_hash for key in keys])
        judged = [by_attempt[key.attempt] for key in keys]
        return [fault if isinstance(each, PublishedKey) else each for each in judged]

    async def _note_now(self, topic: TopicRecord, keys: Sequence[ReservedKey]) -> StoreError | None:
        """Note that the messages of other publishers were seen; return why that failed.

        ⚑ §7: a message counts as published when the log says so, and not before. Its publisher may withdraw it.
        """
        log = self._log(topic)
        for key in keys:
            log.note(key.key_hash, key.attempt, "published")
        try:
            await log.flush()
        except StoreError as error:
            return error
        return None

    def _judge(self, topic: TopicRecord, key: ReservedKey, now: float, *, trace: bool | None) -> PublishedKey | Found:
        """Say what became of an attempt, by the traces that it has left."""
        if trace:
            return PublishedKey(key.message_id, int(key.at) + 1)
        is_over = self._context.is_over(key.until, now)
        if key.is_unsent or (is_over and trace is not None):
            return NeverSent.NEVER_SENT
        if is_over and now < key.until + MAX_WAIT_FOR_RECORDS_SECONDS:
            return StoreError(
                f"It is not known yet whether a message of this key was published into topic {topic.name!r}: a claim "
                "record that may name it cannot be read. Publish again.",
                topic=topic.name,
                operation="publish",
                transient=True,
            )
        if is_over:
            logger.warning(
                "Message %s of topic %r is published again, under the same id: claim records that may name it cannot "
                "be read.",
                key.message_id,
                topic.name,
            )
            return NeverSent.NEVER_SENT
        return None

    async def aclose(self) -> None:
        """Note what is to be noted."""
        if self._flushing is not None:
            self._flushing.cancel()
            await asyncio.wait((self._flushing,))
        await self._flush(self._context.with_budget())

    def _log(self, topic: TopicRecord) -> DedupLog:
        tag = layout.dedup_tag(topic.created_at)
        which = (topic.name, tag)
        log = self._logs.get(which)
        if log is None:
            log = self._logs[which] = DedupLog(self._context, topic.name, tag)
            unused = [each for each, other in self._logs.items() if other is not log and not other.is_used]
            for each in unused[: max(0, len(self._logs) - MAX_LOGS)]:
                del self._logs[each]
        self._logs.move_to_end(which)
        return log

    async def _flush_later(self) -> None:
        while any(log.has_notes for log in self._logs.values()):
            await self._context.clock.sleep(NOTE_WITHIN_SECONDS)
            await self._flush(self._context)

    async def _flush(self, context: Context) -> None:
        async def flush(log: DedupLog) -> None:
            try:
                await log.flush(context)
            except PawnQueueError as error:
                # Nothing is lost by that: the next publisher of such a key looks for its message.
                logger.debug("What was published could not be noted: %s", error)

        await all_of(*(flush(log) for log in list(self._logs.values()) if log.has_notes))


async def find_traces(
    context: Context, topic: str, keys: Sequence[ReservedKey], known: KnownClaims | None = None
) -> list[bool | None]:
    """Say of each attempt whether its message has left a trace; None: a claim record could not be read.

    ⚑ §7: a message that is gone was consumed, and the record of the claim that had it is kept until the key is
    resolved. So the message is looked for first, and the records after that: they appear before it vanishes.
    """
    stored = await for_each(lambda key: _is_stored(context, topic, key), keys, at_once=context.at_once)
    gone = [key for key, is_stored in zip(keys, stored, strict=True) if not is_stored]
    names: set[str] = set()
    is_unread = False
    if gone:
        since = min(key.at for key in gone) - context.margin - 1
        claimed, unread = await read_claimed_since(context, topic, since, known)
        names, is_unread = {stem_of(name) for name in claimed}, bool(unread)
    return [
        True if is_stored or key.unit in names else None if is_unread else False
        for key, is_stored in zip(keys, stored, strict=True)
    ]


async def _is_stored(context: Context, topic: str, key: ReservedKey) -> bool:
    if key.unit.endswith(f"-{key.message_id}"):
        return await context.store.head(units.key_of(topic, f"{key.unit}.json")) is not None
    return await units.find_pack(context.store, topic, key.unit) is not None
