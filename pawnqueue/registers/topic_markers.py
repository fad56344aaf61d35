"""The register of one topic: its marker, with the topic's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawnqueue.domain import layout
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.domain.records import TopicRecord
from pawnqueue.registers.register import Register

if TYPE_CHECKING:
    from pawnqueue.registers.strategy import Registers
    from pawnqueue.stores.port import StoredObject


class TopicMarker(Register[TopicRecord]):
    """The marker of one topic. The topic exists while it exists."""

    def __init__(self, registers: Registers, topic: str) -> None:
        super().__init__(registers, layout.topic_marker(topic))
        self._topic = topic

    def _understand(self, found: StoredObject) -> TopicRecord:
        try:
            record = TopicRecord.decode(found.body, self._key)
        except UnreadableRecordError:
            # The marker makes the topic, whatever is in it: an empty object made by hand is one too.
            record = TopicRecord(v=0, topic=self._topic)
        # Its key names it: pawn-queue's "team/orders" is our "orders" below the prefix "team/", and a marker may be a
        # copy of another topic's.
        return record.model_copy(update={"name": self._topic})
