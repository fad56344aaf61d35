"""A unit: what one lease covers."""

from __future__ import annotations

from dataclasses import dataclass

from pawnqueue.domain import layout
from pawnqueue.domain.identifiers import UnitId


@dataclass(frozen=True, slots=True)
class Unit:
    """An object in a topic that one lease covers: a single message, or a pack of messages."""

    id: UnitId
    """What its lease is named after: the uuid in its key, and for a pack also the numbers of its messages."""
    name: str
    """The last part of its key."""
    size: int = 0
    """The size of the object in bytes."""
    count: int = 1
    """How many messages are in it."""

    @property
    def is_pack(self) -> bool:
        """Whether it is a pack. A pack may have a single message."""
        return layout.count_of(self.id) is not None
