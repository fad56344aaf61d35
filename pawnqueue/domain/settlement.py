"""What became of messages that were to be settled."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pawnqueue.domain import layout

if TYPE_CHECKING:
    from pawnqueue.domain.claim_record import Decision
    from pawnqueue.errors import PawnQueueError, StoreError


@dataclass(slots=True)
class Settlement:
    """What became of the messages that were to be settled, as lists of ids."""

    acked: list[str] = field(default_factory=list)
    """Done: they are not delivered again."""
    buried: list[str] = field(default_factory=list)
    """Dead letters now. Those of a pack become dead letters once the claim has settled all its messages of the pack, or
    has ended."""
    released: list[str] = field(default_factory=list)
    """Given back, to be delivered again; those of a pack at the same moment."""
    lost: list[str] = field(default_factory=list)
    """Another claim has them, or may have: nothing was changed."""
    unknown: list[str] = field(default_factory=list)
    """It could not be found out; settle them again to know."""
    fault: str = field(default="", compare=False)
    """Why it could not be found out what became of those in ``unknown``."""
    unfinished: dict[str, str] = field(default_factory=dict)
    """Decided, as the other lists say, but not carried out yet, and why: the store refuses to delete a message, say.
    They are not delivered twice. The queue tries again while it is open, and so does the janitor."""

    @property
    def complete(self) -> bool:
        """Whether everything that was asked for was decided by this claim, and carried out."""
        return not (self.lost or self.unknown or self.unfinished)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Give each id with what became of it."""
        for outcome in ("acked", "buried", "released", "lost", "unknown"):
            for message_id in getattr(self, outcome):
                yield message_id, outcome


@dataclass(slots=True)
class SettledMembers:
    """What became of members of a claim that were to be settled, by the uuids in their keys."""

    decided: dict[str, Decision] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    fault: PawnQueueError | None = None
    """Why nobody can tell it."""
    unfinished: dict[str, StoreError] = field(default_factory=dict)
    """Decided, and not carried out yet: why."""

    def of(self, uuids: Collection[str]) -> SettledMembers:
        """Return the same of these members alone, and of messages of packs."""
        units = {layout.parse_entry(uuid)[0] for uuid in uuids}
        return SettledMembers(
            decided={uuid: self.decided[uuid] for uuid in uuids if uuid in self.decided},
            lost=self.lost.intersection(uuids),
            unknown=self.unknown.intersection(uuids),
            unfinished={unit_id: why for unit_id, why in self.unfinished.items() if unit_id in units},
            fault=self.fault if self.unknown.intersection(uuids) else None,
        )

    @property
    def gave_back(self) -> bool:
        """Whether anything was released."""
        return any(decision.how == "released" for decision in self.decided.values())
