"""The record of a staged write: what it publishes, and how much of that is published (§7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from pawnqueue.domain import layout, size_hint
from pawnqueue.domain.bounds import (
    LATEST_PLACE,
    MIN_STAGED_ROW_BYTES,
    MOST_RANGES,
    MOST_WRITE_BYTES,
    ByteCount,
    Count,
    HolderText,
    Time,
)
from pawnqueue.domain.numbers import MAX_PACK_MESSAGES
from pawnqueue.domain.object_sizes import MAX_STAGED_OBJECTS
from pawnqueue.domain.record import FORMAT, NEWEST_FORMAT, Part, Record, are_few_unknown, parts_of

#: Each message of one publisher, and of one write, has a time of its own: at least one tick after the message before
#: it, so that LIST is publish order. Ticks are whole numbers, as a float of seconds since 1970 has only four steps to
#: the microsecond.
TICKS_PER_SECOND = 1_000_000
#: How many rows and packs a note of progress may leave in doubt: a taker holds them all in memory.
MOST_IN_DOUBT = 10_000


class StagedObject(Part):
    """An object with rows of a write, as they were staged: lines, or a pack."""

    name: str  # of its key below the write's folder
    size: ByteCount
    count: Count  # of the messages in it

    @property
    def is_pack(self) -> bool:
        """Whether it becomes a pack as it is, and not a message for each row."""
        return layout.is_pack_name(self.name)

    @property
    def is_possible(self) -> bool:
        """Whether its bytes can hold this number of rows."""
        return 0 < self.count <= MAX_PACK_MESSAGES if self.is_pack else self.count * MIN_STAGED_ROW_BYTES <= self.size


class Rows(Part):
    """Some rows of a write that follow each other."""

    first: Count  # counted from 0, over all parts
    count: Count


class WriteRecord(Record):
    """``{topic}/writes/{write_id}.json``: the register of a write that becomes visible as a whole (§7).

    ``begun`` as soon as it is decided: the next process that finds it finishes it. ``done`` when all was published.
    ``dropped``: nothing of it is visible, and some of what had been staged for it is removed, or will be.
    """

    what: ClassVar[str] = "write record"
    newest: ClassVar[int] = NEWEST_FORMAT

    write_id: str
    state: Literal["begun", "done", "dropped"] = "begun"
    created_at: Time = 0.0
    until: Time = 0.0  # until then, its writer is trusted to go on with it
    holder: HolderText = ""  # who wrote this: one attempt at carrying it out
    ttl: Time = 0.0  # the same from when it was written: the record's size tells it
    place: int = Field(default=0, ge=0, le=LATEST_PLACE)  # of the first message, in ticks since 1970
    count: Count = 0  # of all messages
    size: int = Field(default=0, ge=0, le=MOST_WRITE_BYTES)  # of all that was staged for them, in bytes
    published: Count = 0  # of those from the first on, how many are known to be in the topic
    begun: Count = 0  # those behind them, up to here, may be
    objects: list[StagedObject] = Field(default=[])
    dropped: list[str] = Field(default=[])  # the names of objects that no commit may rely on
    lost: list[Rows] = Field(default=[], max_length=MOST_RANGES)  # not published: gone after the decision
    unread_since: Time = 0.0  # since then it waits for claim records that cannot be read
    rows_unread_since: Time = 0.0  # since then some process could not read some of its staged rows

    @classmethod
    def is_bounded(cls, data: Mapping[str, Any]) -> bool:
        """See :meth:`Record.is_bounded`."""
        objects, dropped, lost = (parts_of(data.get(name)) for name in ("objects", "dropped", "lost"))
        # ⚑ §1: a write that is begun can note its progress, and be dropped: its record has room for that.
        if objects and len(objects) + len(dropped) > MAX_STAGED_OBJECTS:
            return False
        return are_few_unknown((cls, [data]), (StagedObject, objects), (Rows, lost))

    def fits(self, key: str) -> bool:
        """See :meth:`Record.fits`."""
        # Whoever finishes a write reads as many rows as its record says, and goes on until all are published.
        names = [*self.dropped, *(each.name for each in self.objects)]
        return (
            layout.parse_write(key) == self.write_id
            and 0 <= self.published <= self.begun <= self.count
            and self._is_little_in_doubt()
            and (self.state != "begun" or sum(each.count for each in self.objects) == self.count)
            and self._is_lost_in_order()
            and all(map(layout.is_staged_name, names))
            and len({each.name for each in self.objects}) == len(self.objects)
            and all(each.is_possible for each in self.objects)
        )

    def stamped(self, nonce: str) -> Self:
        """See :meth:`Record.stamped`. ⚑ §7: a version that knows no packs leaves a write with packs alone."""
        names = [*self.dropped, *(each.name for each in self.objects)]
        has_packs = any(map(layout.is_pack_name, names))
        return self.model_copy(update={"nonce": nonce, "v": NEWEST_FORMAT if has_packs else FORMAT})

    def _is_little_in_doubt(self) -> bool:
        """Whether a taker can hold what is begun, which ends between two packs."""
        start = packs = 0  # packs: how many messages are in those that are begun, but for one of each
        for each in self.objects:
            end = start + each.count
            if each.is_pack and end > self.published and start < self.begun:
                if start < self.published or end > self.begun:
                    return False
                packs += each.count - 1
            start = end
        return self.begun - self.published - packs <= MOST_IN_DOUBT

    def _is_lost_in_order(self) -> bool:
        # Each note adds rows behind those before, of which all were published or are gone.
        end = 0
        for each in self.lost:
            if each.first < end or not each.count:
                return False
            end = each.first + each.count
        return end <= self.published

    def encode(self) -> bytes:
        """Return the body. Its size shows state and time to live in a LIST."""
        return size_hint.padded(super().encode(), size_hint.WRITE_STATES[self.state], self.ttl)
