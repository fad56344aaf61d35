"""A segment of a topic's deduplication log: which keys were published, and which are reserved (§7)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, Self, TypeAlias

from pydantic import Field

from pawnqueue.domain import layout
from pawnqueue.domain.bounds import MessageName, Time
from pawnqueue.domain.object_sizes import MAX_SEGMENT_RESERVATIONS, MAX_SEGMENT_ROWS
from pawnqueue.domain.record import Part, Record, are_few_unknown, parts_of

#: How many registers the keys of a topic are divided among, by their hashes. All versions use the same number.
SHARDS: Final = 4
#: The longest deduplication key, in bytes of UTF-8.
MAX_KEY_BYTES: Final = 1024

#: What was reserved longer than this before the last reservation is over.
LIVE_SECONDS: Final = 30.0
_KEY_BYTES: Final = 16
_RESERVED_ROW: Final = struct.Struct("16s16s")  # the key's hash, the message's id
_PUBLISHED_ROW: Final = struct.Struct("16s16sI")  # and when it was published, in seconds since 1970

#: The unit in which a key's message is, without the ending of its name, and until when its publisher may send it. No
#: two attempts at publishing a key have both in common.
Attempt: TypeAlias = tuple[str, float]

#: What became of an attempt: its messages were published, or never can be. Or they were not when its time was over: a
#: request that lands late can still publish them, so the next attempt uses the same ids.
Fate: TypeAlias = Literal["published", "failed", "unsent"]


def hash_of_key(key: str) -> bytes:
    """Return what is stored of a key."""
    return hashlib.sha256(key.encode()).digest()[:_KEY_BYTES]


def shard_of(key_hash: bytes) -> int:
    """Return the number of the shard that a key belongs to."""
    return key_hash[0] % SHARDS


class Reservation(Part):
    """Keys whose messages were about to be sent, in one unit, when this was written."""

    unit: MessageName  # without the ending, which tells the number of a pack's messages
    at: Time  # when it was written: their window begins here
    until: Time  # the publisher sends nothing later than a margin before
    unsent: bool = False  # its time was over, and nothing of it had been published
    rows: str = ""


class DedupSegment(Record):
    """``{topic}/dedup/{tag}-{shard}.{number}.json``: one part of a topic's deduplication log.

    A segment that is sealed changes no more. What is reserved in it goes on in the next one.
    """

    what: ClassVar[str] = "segment of a deduplication log"

    sealed: bool = False
    published: str = ""
    reserved: list[Reservation] = Field(default=[], max_length=MAX_SEGMENT_RESERVATIONS)

    @classmethod
    def is_bounded(cls, data: Mapping[str, Any]) -> bool:
        """See :meth:`Record.is_bounded`."""
        return are_few_unknown((cls, [data]), (Reservation, parts_of(data.get("reserved"))))

    def fits(self, key: str) -> bool:
        """See :meth:`Record.fits`."""
        if layout.parse_dedup_segment(key) is None:
            return False
        published = _count(self.published, _PUBLISHED_ROW)
        reserved = [_count(each.rows, _RESERVED_ROW) for each in self.reserved]
        return published is not None and None not in reserved and published <= MAX_SEGMENT_ROWS


def _count(text: str, row: struct.Struct) -> int | None:
    """Return how many rows a text has, or None where it has no whole number of them."""
    try:
        count, rest = divmod(len(_from_text(text)), row.size)
    except ValueError:
        return None
    return None if rest else count


def _from_text(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as problem:
        raise ValueError(str(problem)) from None


def _to_text(rows: list[bytes]) -> str:
    return base64.b64encode(b"".join(rows)).decode()


@dataclass(frozen=True, slots=True)
class PublishedKey:
    """A message that was published under a key."""

    message_id: str
    at: int
    """When, in seconds since 1970, rounded up."""


@dataclass(frozen=True, slots=True)
class ReservedKey:
    """A message that may have been published under a key: its publisher has not noted yet what became of it."""

    key_hash: bytes
    message_id: str
    unit: str
    at: float
    until: float
    is_unsent: bool = False
    """Whether it was found out that its publisher has died before it sent the message."""

    @property
    def attempt(self) -> Attempt:
        """The attempt at publishing it."""
        return self.unit, self.until


@dataclass(slots=True)
class _Held:
    at: float
    ids: dict[bytes, bytes]
    is_unsent: bool = False


@dataclass(slots=True)
class SegmentRows:
    """The rows of a segment, as they are looked up and changed."""

    sealed: bool = False
    published: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    reserved: dict[Attempt, _Held] = field(default_factory=dict)
    _attempts: dict[bytes, Attempt] = field(default_factory=dict)

    @classmethod
    def of(cls, record: DedupSegment, latest: float, latest_until: float) -> Self:
        """Return what a record says.

        :param latest: ⚑ §7: the store's date of the record: nothing in it can have been written later.
        :param latest_until: and no publisher can have written a later end of its time.
        """
        rows = cls(sealed=record.sealed)
        for key_hash, message_id, at in _PUBLISHED_ROW.iter_unpack(_from_text(record.published)):
            rows.published[key_hash] = (message_id, min(at, int(latest) + 1))
        for each in record.reserved:
            ids = dict(_RESERVED_ROW.iter_unpack(_from_text(each.rows)))
            rows.hold((each.unit, min(each.until, latest_until)), min(each.at, latest), ids, is_unsent=each.unsent)
        return rows

    def record(self, *, over: DedupSegment | None) -> DedupSegment:
        """Return the record with these rows.

        :param over: the record that it replaces. The fields that this version does not know are kept.
        """
        update = {
            "sealed": self.sealed,
            "published": _to_text(
                [_PUBLISHED_ROW.pack(key_hash, *message) for key_hash, message in self.published.items()]
            ),
            "reserved": [
                Reservation(
                    unit=unit,
                    at=held.at,
                    until=until,
                    unsent=held.is_unsent,
                    rows=_to_text(list(map(b"".join, held.ids.items()))),
                )
                for (unit, until), held in self.reserved.items()
            ],
        }
        return (over or DedupSegment()).model_copy(update=update)

    def copy(self) -> Self:
        """Return the same rows, to be changed."""
        made = type(self)(self.sealed, dict(self.published))
        for attempt, held in self.reserved.items():
            made.hold(attempt, held.at, dict(held.ids), is_unsent=held.is_unsent)
        return made

    def successor(self) -> Self:
        """Return the first rows of the next segment: what is reserved goes on there."""
        made = self.copy()
        made.sealed, made.published = False, {}
        return made

    @property
    def reserved_count(self) -> int:
        """How many keys are reserved."""
        return len(self._attempts)

    def find_reserved(self, key_hash: bytes) -> ReservedKey | None:
        """Return the reservation of a key, or None."""
        attempt = self._attempts.get(key_hash)
        if attempt is None:
            return None
        held = self.reserved[attempt]
        return ReservedKey(
            key_hash, str(uuid.UUID(bytes=held.ids[key_hash])), attempt[0], held.at, attempt[1], held.is_unsent
        )

    def all_reserved(self) -> Iterator[ReservedKey]:
        """Give every reservation."""
        for key_hash in list(self._attempts):
            found = self.find_reserved(key_hash)
            if found is not None:
                yield found

    def reserve(self, key_hash: bytes, message_id: str, attempt: Attempt, at: float) -> None:
        """Reserve a key for a message that is about to be sent."""
        self._free(key_hash)
        held = self.reserved.get(attempt)
        row = {key_hash: uuid.UUID(message_id).bytes}
        if held is None:
            self.hold(attempt, at, row)
        else:
            held.ids.update(row)
            self._attempts[key_hash] = attempt

    def conclude(self, attempt: Attempt, fate: Fate) -> bool:
        """Note what became of an attempt; return False where that is known, or it has no key any more."""
        if fate == "unsent":
            unsent = self.reserved.get(attempt)
            if unsent is None or unsent.is_unsent:
                return False
            unsent.is_unsent = True
            return True
        held = self.reserved.pop(attempt, None)
        if held is None:
            return False
        for key_hash, message_id in held.ids.items():
            del self._attempts[key_hash]
            if fate == "published":
                self.published[key_hash] = (message_id, int(held.at) + 1)
        return True

    def drop_over(self, until: float, at: float) -> None:
        """Drop the attempts that ended before one time, and whose window began before another."""
        for attempt, held in list(self.reserved.items()):
            if attempt[1] < until and held.at < at:
                self.conclude(attempt, "failed")

    @property
    def live_count(self) -> int:
        """How many keys are reserved since a while before the last reservation: their publishers may be at work."""
        since = max((until for _, until in self.reserved), default=0.0) - LIVE_SECONDS
        return sum(len(held.ids) for (_, until), held in self.reserved.items() if until >= since)

    def make_room(self, keys: int, until: float) -> int:
        """Drop about this many keys of attempts that ended before a time; return how many were dropped.

        Those that were surely not sent go first, then the oldest.
        """
        over = [(not held.is_unsent, attempt[1], attempt) for attempt, held in self.reserved.items()]
        dropped = 0
        for _, ended, attempt in sorted(over):
            if dropped >= keys:
                break
            if ended < until:
                dropped += len(self.reserved[attempt].ids)
                self.conclude(attempt, "failed")
        return dropped

    def hold(self, attempt: Attempt, at: float, ids: dict[bytes, bytes], *, is_unsent: bool = False) -> None:
        """Reserve the keys of an attempt. In garbage a key may be reserved twice: the later one counts."""
        for key_hash in ids:
            self._free(key_hash)
        if ids:
            self.reserved[attempt] = _Held(at, ids, is_unsent)
            self._attempts.update(dict.fromkeys(ids, attempt))

    def _free(self, key_hash: bytes) -> None:
        attempt = self._attempts.pop(key_hash, None)
        if attempt is None:
            return
        held = self.reserved[attempt]
        del held.ids[key_hash]
        if not held.ids:
            del self.reserved[attempt]


def id_of_row(row: tuple[bytes, int]) -> PublishedKey:
    """Return what a row of a published key says."""
    return PublishedKey(str(uuid.UUID(bytes=row[0])), row[1])
