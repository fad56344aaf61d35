"""The register of one segment of a topic's deduplication log (§7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pawnqueue.domain import layout
from pawnqueue.domain.dedup_segment import DedupSegment, SegmentRows
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.events import logger_of
from pawnqueue.registers.register import Register
from pawnqueue.registers.write_records import DATE_STEP_SECONDS

if TYPE_CHECKING:
    from pawnqueue.domain.identifiers import Version
    from pawnqueue.registers.strategy import Registers
    from pawnqueue.stores.port import StoredObject

logger = logger_of("publish")

#: How long after a reservation its publisher may send the messages. The next publisher of a key waits that long for one
#: that died.
RESERVED_SECONDS: Final = 30.0
#: No log goes on faster: each segment takes several requests, one after the other.
MAX_SEGMENTS_PER_SECOND: Final = 100


def is_possible(number: int, now: float) -> bool:
    """Say whether a segment may have this number by now.

    ⚑ §7: a log goes on behind its last segment. No forged number may be the last one that there can be.
    """
    return number <= MAX_SEGMENTS_PER_SECOND * now


@dataclass(frozen=True, slots=True)
class FoundSegment:
    """A segment as it is stored."""

    rows: SegmentRows
    record: DedupSegment
    version: Version


class DedupSegmentRegister(Register[DedupSegment]):
    """One segment of a deduplication log."""

    def __init__(self, registers: Registers, topic: str, segment: tuple[str, int, int], margin: float) -> None:
        super().__init__(registers, layout.dedup_segment(topic, *segment))
        self._margin = margin

    async def read_rows(self) -> FoundSegment | None:
        """Return what the segment says, or None where it does not exist."""
        stored = await self._registers.read(self._key)
        if stored is None:
            return None
        record = self._understand(stored)
        # ⚑ §7: no time in it is later than the store's own date of the object allows: a forged one blocks nobody.
        latest = stored.info.last_modified.timestamp() + DATE_STEP_SECONDS + self._margin
        return FoundSegment(SegmentRows.of(record, latest, latest + RESERVED_SECONDS), record, stored.info.version)

    def _understand(self, found: StoredObject) -> DedupSegment:
        try:
            return DedupSegment.decode(found.body, self._key)
        except UnreadableRecordError as problem:
            # ⚑ §7: never is a message kept back by garbage. The log goes on in the next segment.
            logger.error(  # noqa: TRY400 - the error says enough
                "%s: messages whose keys it had may be published once more. Deduplication goes on in the next segment.",
                problem,
            )
            return DedupSegment(sealed=True)
