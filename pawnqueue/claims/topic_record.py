"""A topic's record, read from its marker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawnqueue.domain import layout
from pawnqueue.domain.records import TopicRecord, UnreadableRecordError

if TYPE_CHECKING:
    from pawnqueue.registers.strategy import Registers


async def read(registers: Registers, topic: str) -> tuple[TopicRecord, str] | None:
    """Return the topic's record and its version, or None if there is no such topic."""
    key = layout.topic_marker(topic)
    found = await registers.look(key)
    if found is None:
        return None
    try:
        record = TopicRecord.decode(found.body, key)
    except UnreadableRecordError:
        # The marker makes the topic, whatever is in it: an empty object made by hand is one too.
        record = TopicRecord(v=0, topic=topic)
    # Its key names it: pawn-queue's "team/orders" is our "orders" below the prefix "team/", and a marker may be a copy
    # of another topic's.
    return record.model_copy(update={"name": topic}), found.info.version
