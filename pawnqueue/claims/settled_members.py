"""What became of members of a claim that were to be settled."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pawnqueue.domain.claim_record import Decision
    from pawnqueue.errors import PawnQueueError, StoreError


@dataclass(slots=True)
class SettledMembers:
    """By the uuid in the message's key: what the record says, what was lost, what nobody can tell."""

    decided: dict[str, Decision] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    fault: PawnQueueError | None = None
    """Why nobody can tell it."""
    unfinished: dict[str, StoreError] = field(default_factory=dict)
    """Decided, and not carried out yet: why."""

    def of(self, uuids: Collection[str]) -> SettledMembers:
        """Return the same of these members alone."""
        return SettledMembers(
            decided={uuid: self.decided[uuid] for uuid in uuids if uuid in self.decided},
            lost=self.lost.intersection(uuids),
            unknown=self.unknown.intersection(uuids),
            unfinished={uuid: self.unfinished[uuid] for uuid in uuids if uuid in self.unfinished},
            fault=self.fault if self.unknown.intersection(uuids) else None,
        )

    @property
    def gave_back(self) -> bool:
        """Whether anything was released."""
        return any(decision.how == "released" for decision in self.decided.values())
