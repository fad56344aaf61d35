"""Messages as columns, for readers that make tables of them, and need no object for each message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from pawnqueue.domain.times import instant

if TYPE_CHECKING:
    from pawnqueue.claims.claim import Message
    from pawnqueue.claims.packs import PackPart


@dataclass(slots=True)
class MessageColumns:
    """What messages of a topic hold, in order: as many values in each column as there are messages."""

    topic: str
    """The topic of all of them."""
    ids: list[str] = field(default_factory=list)
    """Their ids."""
    producer_ids: list[str] = field(default_factory=list)
    """Their producers' ids."""
    created_at: list[str] = field(default_factory=list)
    """When they were published, as their publishers spelled it, which may be anything: see :meth:`times`."""
    payloads: list[Mapping[str, Any]] = field(default_factory=list)
    """Their payloads."""
    headers: list[Mapping[str, str]] = field(default_factory=list)
    """Their headers."""
    deliveries: list[int] = field(default_factory=list)
    """How often each was delivered, this time included; 0 for those that were only looked at."""
    stored_at: list[datetime] = field(default_factory=list)
    """The times by the names of their objects, which count where publishers named none."""

    @classmethod
    def of(cls, topic: str, messages: Iterable[Message]) -> Self:
        """Return the columns of messages."""
        columns = cls(topic)
        columns.add_all(messages)
        return columns

    def __len__(self) -> int:
        """Count the messages."""
        return len(self.ids)

    def times(self) -> list[datetime]:
        """Return when they were published."""
        pairs = zip(self.created_at, self.stored_at, strict=True)
        return [(instant(text) if text else None) or stored for text, stored in pairs]

    def add_all(self, messages: Iterable[Message]) -> None:
        """Add messages."""
        for message in messages:
            self.ids.append(message.id)
            self.producer_ids.append(message.producer_id)
            self.created_at.append("")
            self.payloads.append(message.payload)
            self.headers.append(message.headers)
            self.deliveries.append(message.deliveries)
            self.stored_at.append(message.created_at)

    def add_part(self, part: PackPart, stored_at: datetime) -> None:
        """Add messages of a pack."""
        entries = part.entries
        self.ids += [entry.id for entry in entries]
        self.producer_ids += [entry.producer_id for entry in entries]
        self.created_at += [entry.created_at for entry in entries]
        self.payloads += [entry.payload for entry in entries]
        self.headers += [entry.headers for entry in entries]
        self.deliveries += part.deliveries
        self.stored_at += [stored_at] * len(entries)
