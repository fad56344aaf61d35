"""A unit: what one lease covers."""

from __future__ import annotations

from dataclasses import dataclass

from pawnqueue.domain.identifiers import UnitId


@dataclass(frozen=True, slots=True)
class Unit:
    """An object in a topic that is claimed as a whole. Today it has one message in it."""

    id: UnitId
    """The uuid in its key. Its lease and its dead letter are kept under this id."""
    name: str
    """The last part of its key."""
    size: int = 0
    """The size of the object in bytes."""
    count: int = 1
    """How many messages are in it."""
