"""The staged writes that this process knows to be done."""

from __future__ import annotations

from datetime import datetime
from typing import Final

#: How many writes are remembered. Asking for a forgotten one costs a HEAD.
MAX_REMEMBERED_WRITES: Final = 1000


class DoneWrites:
    """Remembers the writes that are done, so that each of them is read once.

    A write's id may be used again after its record was removed. The messages of the later write are younger, so a write
    is known to be done for messages up to a time only.
    """

    def __init__(self) -> None:
        self._latest: dict[tuple[str, str], datetime] = {}

    def has(self, topic: str, write_id: str, latest: datetime) -> bool:
        """Say whether the write that published a message at this time is known to be done."""
        known = self._latest.get((topic, write_id))
        return known is not None and latest <= known

    def add(self, topic: str, write_id: str, latest: datetime) -> None:
        """Remember that the write that published a message at this time, or before it, is done."""
        known = self._latest.pop((topic, write_id), latest)
        self._latest[topic, write_id] = max(known, latest)
        if len(self._latest) > MAX_REMEMBERED_WRITES:
            del self._latest[next(iter(self._latest))]
