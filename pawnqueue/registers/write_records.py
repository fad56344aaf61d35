"""The register of one staged write (§7)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pawnqueue.domain import layout
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.domain.write_record import WriteRecord
from pawnqueue.errors import StoreError
from pawnqueue.registers.register import Register

if TYPE_CHECKING:
    from pawnqueue.registers.strategy import Registers
    from pawnqueue.stores.port import StoredObject

#: How long a note of progress is trusted. The next committer waits that long for a process that died.
HOLD_SECONDS: Final = 30.0
#: Stores tell the date of an object in whole seconds.
DATE_STEP_SECONDS: Final = 1.0


class WriteRecordRegister(Register[WriteRecord]):
    """The record of one staged write."""

    def __init__(self, registers: Registers, topic: str, write_id: str, margin: float) -> None:
        super().__init__(registers, layout.write(topic, write_id))
        self._topic = topic
        self._margin = margin

    def _understand(self, found: StoredObject) -> WriteRecord:
        """Return the record.

        :raises StoreError: what is stored under its key is not a record.
        """
        try:
            record = WriteRecord.decode(found.body, self._key)
        except UnreadableRecordError as problem:
            raise StoreError(
                f"{problem}: nobody can tell whether this write was published. Look for its messages, and delete it, "
                "or write under another id.",
                topic=self._topic,
                operation="commit_write",
            ) from None
        # ⚑ §7: its times are at most as late as the store's own date of the object allows: a forged one blocks nobody.
        latest = found.info.last_modified.timestamp() + DATE_STEP_SECONDS + self._margin
        return record.model_copy(
            update={
                "until": min(record.until, latest + HOLD_SECONDS),
                "unread_since": min(record.unread_since, latest),
                "rows_unread_since": min(record.rows_unread_since, latest),
            }
        )
