"""A topic's deduplication log: keys are reserved before their messages are sent, and noted as published later (§7).

The keys are divided among a few shards, by their hashes. A shard is a chain of segments, each of them a register: the
newest is open, and the others are sealed. So one compare-and-set reserves all keys of a call that belong to a shard,
those of other calls that wait, and notes what became of those before.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from pawnqueue.context import PER_OBJECT_RETRY_SECONDS
from pawnqueue.domain import layout
from pawnqueue.domain.dedup_segment import (
    SHARDS,
    Attempt,
    Fate,
    PublishedKey,
    ReservedKey,
    SegmentRows,
    id_of_row,
    shard_of,
)
from pawnqueue.domain.object_sizes import MAX_SEGMENT_RESERVATIONS
from pawnqueue.errors import PawnQueueError, StoreError
from pawnqueue.registers.dedup_segments import RESERVED_SECONDS, FoundSegment, is_possible
from pawnqueue.registers.register import Versioned
from pawnqueue.runtime.cancellation import shield_and_wait
from pawnqueue.runtime.concurrency import all_of, for_each

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.stores.port import ObjectInfo

#: A segment is sealed when it has this many published keys, as each compare-and-set writes all of it.
SEAL_ROWS: Final = 2048
#: After a compare-and-set that another process was faster at, the next attempt follows after up to the first of these,
#: then twice as long, up to the second.
FIRST_PAUSE_SECONDS: Final = 0.02
MAX_PAUSE_SECONDS: Final = 0.3
#: How many keys of a shard may be reserved at a time. What is over makes room, and what is not is waited for.
MAX_RESERVED_ROWS: Final = 16_384
#: How many keys make room at a time.
ROOM_ROWS: Final = 1024
#: One step reserves the keys of as many waiting calls as have this many in the shard.
MAX_STEP_ROWS: Final = 4096


@dataclass(frozen=True, slots=True)
class Want:
    """A message that is about to be sent, and the key that is to be reserved for it."""

    key_hash: bytes
    message_id: str
    unit: str
    """The name of its unit, without the ending."""
    instead_of: Attempt | None = None
    """An earlier attempt that is over, and has published nothing."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The key is reserved: the message may be sent until a margin before the end."""

    at: float
    until: float


#: What became of a want: admitted; a message of its key was published, or may have been; or it could not be found out.
Verdict: TypeAlias = Admitted | PublishedKey | ReservedKey | StoreError


class FullShardError(StoreError):
    """Too many keys of a shard are reserved at the moment."""


@dataclass(slots=True, eq=False)
class _Call:
    wants: Sequence[Want]
    window: float
    verdicts: list[Verdict] = field(default_factory=list)


class DedupLog:
    """The deduplication log of one topic, as it was created at one time."""

    def __init__(self, context: Context, topic: str, tag: str) -> None:
        self._context = context
        self._topic = topic
        self._tag = tag
        self._listing = asyncio.Lock()
        self._listed: list[ObjectInfo] = []
        self._listed_at = -math.inf
        self.shards = [_Shard(context, self, number) for number in range(SHARDS)]

    @property
    def has_notes(self) -> bool:
        """Whether something is to be noted."""
        return any(shard.notes for shard in self.shards)

    @property
    def is_used(self) -> bool:
        """Whether something is under way, or to be noted."""
        return any(shard.notes or shard.is_busy for shard in self.shards)

    @property
    def is_crowded(self) -> bool:
        """Whether others may have to wait until reserved keys are noted."""
        return any(shard.notes and shard.is_crowded for shard in self.shards)

    async def reserve(self, wants: Sequence[Want], window: float) -> list[Verdict]:
        """Reserve the keys, or return of each what is known of its message; in the order of the wants.

        :param window: the topic's, in seconds.
        """
        verdicts: dict[int, Verdict] = {}

        async def reserve_in(number: int) -> None:
            positions = [at for at, want in enumerate(wants) if shard_of(want.key_hash) == number]
            if positions:
                answers = await self.shards[number].reserve([wants[at] for at in positions], window)
                verdicts.update(zip(positions, answers, strict=True))

        await all_of(*(reserve_in(number) for number in range(SHARDS)))
        return [verdicts[at] for at in range(len(wants))]

    async def count_new(self, key_hashes: set[bytes], window: float) -> tuple[int, list[ReservedKey]]:
        """Return how many of the keys are not known to be published, and which of these others have reserved."""
        others: list[ReservedKey] = []
        by_shard = [[each for each in key_hashes if shard_of(each) == number] for number in range(SHARDS)]
        counts: list[int] = await all_of(
            *(shard.count_new(keys, window, others) for shard, keys in zip(self.shards, by_shard, strict=True) if keys)
        )
        return sum(counts), others

    def note(self, key_hash: bytes, attempt: Attempt, fate: Fate) -> None:
        """Let the next compare-and-set of the key's shard note what became of an attempt."""
        self.shards[shard_of(key_hash)].notes[attempt] = fate

    async def retract(self, attempts: Mapping[bytes, tuple[Attempt, str]]) -> set[str]:
        """Free keys whose messages their publisher withdraws; return the ids of those that must stay.

        :param attempts: by the keys, with the messages' ids.
        :raises StoreError: it is not known which of them are free: none may be withdrawn.
        """
        stay: list[set[str]] = await all_of(
            *(
                self.shards[number].retract({key: each for key, each in attempts.items() if shard_of(key) == number})
                for number in sorted(set(map(shard_of, attempts)))
            )
        )
        return set().union(*stay)

    def forget(self, key_hashes: Iterable[bytes]) -> None:
        """Read the newest segments of these keys again before the next verdict: others may have noted something."""
        for number in set(map(shard_of, key_hashes)):
            self.shards[number].forget()

    async def flush(self, context: Context | None = None) -> None:
        """Note all that is to be noted.

        :raises StoreError: it could not be noted now.
        """
        await all_of(*(shard.flush(context) for shard in self.shards))

    async def segments(self, shard: int, since: float) -> dict[int, ObjectInfo]:
        """List the segments of a shard, by their numbers. The listing began at this elapsed time, or later."""
        async with self._listing:
            if self._listed_at < since:
                began = self._context.clock.elapsed()
                folder = layout.dedup(self._topic)
                self._listed = [info async for page in self._context.registers.pages(folder) for info in page]
                self._listed_at = began
        parsed = [(layout.parse_dedup_segment(info.key), info) for info in self._listed]
        return {each[2]: info for each, info in parsed if each is not None and each[:2] == (self._tag, shard)}

    async def read(self, context: Context, shard: int, number: int) -> FoundSegment | None:
        """Read one segment."""
        return await context.dedup_segment(self._topic, self._tag, shard, number).read_rows()

    async def write(
        self, context: Context, shard: int, number: int, rows: SegmentRows, over: FoundSegment | None
    ) -> FoundSegment | None:
        """Create a segment, or replace what was found; None: another process was faster."""
        register = context.dedup_segment(self._topic, self._tag, shard, number)
        record = rows.record(over=None if over is None else over.record)
        if over is None:
            written = await register.create(record)
        else:
            written = await register.replace(Versioned(over.record, over.version), record)
        return None if written is None else FoundSegment(rows, record, written.version)

    def full_error(self, rows: SegmentRows) -> FullShardError:
        """Return the error for a shard in which no key can be reserved now."""
        return FullShardError(
            f"The deduplication log of topic {self._topic!r} has {rows.reserved_count:,} reserved keys of one shard, "
            f"and at most {MAX_RESERVED_ROWS:,} of {MAX_SEGMENT_RESERVATIONS:,} messages or packs fit: too many "
            "messages are being published at the same time. Publish again.",
            topic=self._topic,
            operation="publish",
            transient=True,
        )

    def contended_error(self) -> StoreError:
        """Return the error for a shard that others kept changing."""
        return StoreError(
            f"Others kept changing the deduplication log of topic {self._topic!r}: publish again.",
            topic=self._topic,
            operation="publish",
            transient=True,
        )


class _Refusals:
    """The pauses after compare-and-sets that others were faster at. An answer came, so they stay short."""

    def __init__(self, context: Context, seconds: float) -> None:
        self._clock = context.clock
        self._ends = context.clock.elapsed() + seconds
        self._ceiling = FIRST_PAUSE_SECONDS

    async def pause(self) -> bool:
        """Wait before the next attempt and return True, or return False at once if the retry budget is used up."""
        if self._clock.elapsed() >= self._ends:
            return False
        await self._clock.sleep(self._clock.uniform(0, self._ceiling))
        self._ceiling = min(self._ceiling * 2, MAX_PAUSE_SECONDS)
        return True


class _Shard:
    """The part of a log that some keys belong to. One compare-and-set of it is under way at a time."""

    def __init__(self, context: Context, log: DedupLog, number: int) -> None:
        self._context = context
        self._log = log
        self._number = number
        self._newest = -1
        self._found: FoundSegment | None = None  # the newest segment, as it was read or written last; None: not known
        self._sealed: dict[int, Mapping[bytes, tuple[bytes, int]]] = {}
        self._window = 0.0  # the older segments were read for a window of this length
        self._is_known = False
        self._lock = asyncio.Lock()
        self._waiting: list[_Call] = []
        self.notes: dict[Attempt, Fate] = {}

    @property
    def is_crowded(self) -> bool:
        rows = None if self._found is None else self._found.rows
        most = MAX_RESERVED_ROWS // 4
        return rows is not None and rows.reserved_count > most and rows.live_count > most

    @property
    def is_busy(self) -> bool:
        return self._lock.locked()

    async def reserve(self, wants: Sequence[Want], window: float) -> list[Verdict]:
        call = _Call(wants, window)
        self._waiting.append(call)
        try:
            async with self._lock:
                while not call.verdicts:  # else it was served with another call
                    # The other calls that are served with it need the answer, even if this one is cancelled.
                    await shield_and_wait(self._serve(self._first_waiting()), self._context.clock)
        except asyncio.CancelledError:
            self._give_back(call)
            raise
        finally:
            if call in self._waiting:
                self._waiting.remove(call)
        return call.verdicts

    async def flush(self, context: Context | None = None) -> None:
        async with self._lock:
            if self.notes:
                await self._change([], context or self._context)

    async def count_new(self, keys: Sequence[bytes], window: float, others: list[ReservedKey]) -> int:
        async with self._lock:
            now = await self._context.now()
            if not await self._know(now, window, self._context):
                return len(keys)
            rows = SegmentRows() if self._found is None else self._found.rows
            new = 0
            for key_hash in keys:
                reserved = rows.find_reserved(key_hash)
                is_published = (
                    self._find_published(rows, key_hash, window, now) is not None
                    if reserved is None
                    else self.notes.get(reserved.attempt) == "published"
                )
                new += not is_published
                if reserved is not None and not is_published:
                    others.append(reserved)
            return new

    async def retract(self, attempts: Mapping[bytes, tuple[Attempt, str]]) -> set[str]:
        async with self._lock:
            own = {attempt for attempt, _ in attempts.values()}
            self.notes.update(dict.fromkeys(own, "failed"))
            try:
                await self._change([], self._context)
            finally:
                self._forget_notes(dict.fromkeys(own, "failed"))  # if this failed, the messages stay
            rows = SegmentRows() if self._found is None else self._found.rows
            stay = set()
            for key_hash, (_, message_id) in attempts.items():
                # ⚑ §7: what others have noted they may have returned, and what others reserve they send.
                others: ReservedKey | PublishedKey | None = rows.find_reserved(key_hash) or self._find_published(
                    rows, key_hash, math.inf, 0.0
                )
                if others is not None and others.message_id == message_id:
                    stay.add(message_id)
            return stay

    def forget(self) -> None:
        self._found = None

    async def unresolved(self, now: float) -> list[ReservedKey]:
        """Return what is reserved."""
        async with self._lock:
            await self._load(now, 0.0, self._context)
            return list(self._found.rows.all_reserved()) if self._found is not None else []

    def _first_waiting(self) -> list[_Call]:
        """Return the calls that are served in one step: the first, and as many others as are not too large."""
        chosen: list[_Call] = []
        keys = 0
        for call in self._waiting:
            keys += len(call.wants)
            if chosen and keys > MAX_STEP_ROWS:
                break
            chosen.append(call)
        return chosen

    async def _serve(self, calls: list[_Call]) -> None:
        try:
            verdicts = await self._change(calls, self._context)
        except StoreError as error:
            verdicts = [[error] * len(call.wants) for call in calls]
        except PawnQueueError as error:
            fault = StoreError(str(error), operation="publish")
            verdicts = [[fault] * len(call.wants) for call in calls]
        for call, answers in zip(calls, verdicts, strict=True):
            call.verdicts = answers
            if call in self._waiting:
                self._waiting.remove(call)
                continue
            self._give_back(call)

    def _give_back(self, call: _Call) -> None:
        """Free the keys of a call whose caller was cancelled, and sends nothing."""
        for want, answer in zip(call.wants, call.verdicts, strict=bool(call.verdicts)):
            if isinstance(answer, Admitted):
                self.notes[want.unit, answer.until] = "failed"

    async def _change(self, calls: Sequence[_Call], context: Context) -> list[list[Verdict]]:
        """Take one step: reserve what the calls want, and note what is to be noted."""
        budget = min(context.settings.retry.budget_seconds, math.inf if calls else PER_OBJECT_RETRY_SECONDS)
        refused = _Refusals(context, budget)
        # By its end, all that is reserved now is noted, or over.
        full = _Refusals(context, RESERVED_SECONDS + 2 * context.margin + 1)
        tried: set[float] = set()  # until when keys were reserved by the steps before, which may have been taken
        window = max((call.window for call in calls), default=self._window)
        while True:
            # ⚑ §7: before anything is read. A publisher that was held up between its look and its reservation must not
            # trust the latter: meanwhile the segment may have been sealed, and removed with those behind it.
            now = await context.now()
            if not await self._know(now, window, context):
                await self._pause_or_raise(refused)
                continue
            found, notes = self._found, dict(self.notes)
            is_new = found is None or found.rows.sealed
            rows = SegmentRows() if found is None else found.rows.successor() if is_new else found.rows.copy()
            noted = [rows.conclude(attempt, fate) for attempt, fate in notes.items()]
            if calls:
                rows.drop_over(now - context.margin, now - window)
            if len(rows.published) >= SEAL_ROWS and not is_new:
                rows.sealed = True
                if await self._write(rows, context, notes, is_new=False) is None:
                    await self._pause_or_raise(refused)
                continue
            verdicts = [[self._judge(rows, want, call.window, now, tried) for want in call.wants] for call in calls]
            is_full = any(isinstance(verdict, FullShardError) for answers in verdicts for verdict in answers)
            if is_full and await full.pause():
                refused = _Refusals(context, budget)
                self._found = None  # others may have noted something
                continue
            is_wanted = any(isinstance(verdict, Admitted) for answers in verdicts for verdict in answers)
            if not is_wanted and not (any(noted) and not calls):
                if not any(noted):
                    self._forget_notes(notes)
                return verdicts
            tried.add(now + RESERVED_SECONDS)
            if await self._write(rows, context, notes, is_new=is_new):
                return verdicts
            await self._pause_or_raise(refused)

    async def _pause_or_raise(self, refused: _Refusals) -> None:
        if not await refused.pause():
            raise self._log.contended_error()

    def _judge(self, rows: SegmentRows, want: Want, window: float, now: float, tried: set[float]) -> Verdict:
        """Reserve the key in the rows, or say what is known of it."""
        reserved = rows.find_reserved(want.key_hash)
        if reserved is not None and reserved.unit == want.unit and reserved.until in tried:
            # ⚑ §2: a refusal may follow a step of ours that was taken: then others have written on top of it.
            return Admitted(reserved.at, reserved.until)
        if reserved is not None and reserved.attempt != want.instead_of and now < reserved.at + window:
            return reserved
        published = None if reserved is not None else self._find_published(rows, want.key_hash, window, now)
        if published is not None:
            return published
        # ⚑ §7: attempts that are over keep nobody from publishing. Rather a duplicate than that.
        is_full = rows.reserved_count >= MAX_RESERVED_ROWS or len(rows.reserved) >= MAX_SEGMENT_RESERVATIONS
        if is_full and not rows.make_room(ROOM_ROWS, now - self._context.margin):
            return self._log.full_error(rows)
        until = now + RESERVED_SECONDS
        rows.reserve(want.key_hash, want.message_id, (want.unit, until), now)
        return Admitted(now, until)

    def _find_published(self, rows: SegmentRows, key_hash: bytes, window: float, now: float) -> PublishedKey | None:
        older = (self._sealed[number] for number in sorted(self._sealed, reverse=True))
        for published in (rows.published, *older):
            row = published.get(key_hash)
            if row is not None:
                return id_of_row(row) if now < row[1] + window else None
        return None

    async def _write(
        self, rows: SegmentRows, context: Context, notes: Mapping[Attempt, Fate], *, is_new: bool
    ) -> FoundSegment | None:
        before, self._found = self._found, None  # if this is interrupted, it has to be read again
        number = self._newest + is_new
        written = await self._log.write(context, self._number, number, rows, None if is_new else before)
        if written is None:
            return None
        if is_new and before is not None:
            self._sealed[self._newest] = before.rows.published
        self._newest, self._found = number, written
        self._forget_notes(notes)
        return written

    def _forget_notes(self, notes: Mapping[Attempt, Fate]) -> None:
        for attempt in notes:
            self.notes.pop(attempt, None)

    async def _know(self, now: float, window: float, context: Context) -> bool:
        """Read what is not known; return False if it has to be tried again."""
        if self._is_known and window <= self._window:
            if self._found is None and self._newest >= 0:
                self._found = await self._log.read(context, self._number, self._newest)
            if self._found is not None and not self._found.rows.sealed:
                return True
        # ⚑ §7: a segment is begun only behind the last one of a listing that began after ``now`` was taken.
        return await self._load(now, window, context)

    async def _load(self, now: float, window: float, context: Context) -> bool:
        self._is_known = False
        listed = await self._log.segments(self._number, context.clock.elapsed())
        listed = {number: info for number, info in listed.items() if is_possible(number, now)}
        newest = max(listed, default=-1)
        # Of a sealed segment, all keys are older than its last change.
        oldest = now - window - 2 * context.margin - 1
        wanted = [n for n, info in listed.items() if n == newest or info.last_modified.timestamp() >= oldest]
        unread = [n for n in wanted if n not in self._sealed or n == newest]
        read = await for_each(lambda n: self._log.read(context, self._number, n), unread, at_once=context.at_once)
        found = dict(zip(unread, read, strict=True))
        if any(each is None for each in read):
            return False
        sealed = {n: self._sealed[n] for n in wanted if n not in found}
        sealed |= {n: each.rows.published for n, each in found.items() if each is not None and n != newest}
        self._newest, self._found, self._sealed, self._window = newest, found.get(newest), sealed, window
        if self._found is not None and self._found.rows.sealed:
            self._sealed[newest] = self._found.rows.published
        self._is_known = True
        return True
