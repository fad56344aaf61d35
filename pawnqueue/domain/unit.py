"""A unit: what one lease covers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pawnqueue.domain import layout, numbers
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
        """Whether it is a pack, or a slice of one. A pack may have a single message."""
        return layout.is_of_pack(self.id)

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the messages of its object."""
        return not self.is_pack or layout.is_whole_pack(self.name, self.id)

    @property
    def numbers(self) -> int:
        """The numbers of the messages of a pack that it covers."""
        return numbers.between(*(layout.range_of(self.id) or (0, 1)))

    def slices(self, length: int) -> list[Unit]:
        """Return the slices of this length that a pack is split into; the last may have fewer."""
        uuid = layout.uuid_of(self.id)
        bounds = [(begin, min(begin + length, self.count)) for begin in range(0, self.count, length)]
        return [replace(self, id=layout.slice_id(uuid, begin, end), count=end - begin) for begin, end in bounds]
