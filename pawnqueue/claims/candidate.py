"""A unit that may be claimed, and what a claim would have of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pawnqueue.claims import packs
from pawnqueue.domain import layout, numbers, share

if TYPE_CHECKING:
    from pawnqueue.domain.lease import Lease
    from pawnqueue.domain.unit import Unit
    from pawnqueue.registers.register import Versioned

#: How many times as large as a pack its messages are, about.
PACK_EXPANSION = 4


@dataclass(frozen=True, slots=True)
class Candidate:
    """A unit that may be claimed, by creating its lease or by replacing the one that it has."""

    unit: Unit
    lease: Versioned[Lease] | None = None
    root: Versioned[Lease] | None = None
    """Of a slice: the lease by which its pack was split."""
    of: int = 0
    """Of a pack: the numbers of those messages that a claim may take now."""
    is_cut: bool = False
    """Whether there are more, which this claim does not want."""
    is_alone: bool = False
    """Whether a claim may have nothing beside it."""

    @property
    def id(self) -> str:
        """The id under which the lease is kept."""
        return self.unit.id

    @property
    def history(self) -> Lease | None:
        """The lease that tells what became of its messages before."""
        told = self.lease or self.root
        return None if told is None else told.value

    @property
    def due_at(self) -> float:
        """Of a slice without a lease of its own: the server time from which its first message may be claimed."""
        return 0.0 if self.root is None else min(one.until for one in packs.shares_of(self.unit, self.root.value))

    @property
    def count(self) -> int:
        """How many messages a claim may take."""
        return self.of.bit_count() if self.of else self.unit.count

    @property
    def size(self) -> int:
        """About how many bytes of messages a claim takes."""
        whole = self.unit.size * PACK_EXPANSION if self.unit.is_pack else self.unit.size
        return whole * self.count // layout.count_in(self.unit.name) if self.unit.is_pack else whole

    @property
    def parts(self) -> int:
        """How many parts the record of a claim has of it, at most; 0 for a single message."""
        if not self.unit.is_pack or self.history is None:
            return int(self.unit.is_pack)
        shares = share.only(self.history.shares, self.unit.numbers)
        return sum(1 for one in shares for _ in numbers.runs(one.of)) or 1

    def cut(self, messages: int) -> Candidate:
        """Return the candidate with no more messages than these."""
        if self.of.bit_count() <= messages:
            return self
        return replace(self, of=numbers.lowest(self.of, messages), is_cut=True)


def messages_of(candidates: Sequence[Candidate]) -> int:
    """Return how many messages claims may take of these."""
    return sum(candidate.count for candidate in candidates)


def enough(candidates: Sequence[Candidate], most: int) -> int:
    """Return how many of the first candidates have this number of messages together, or more by a part of the last."""
    messages = 0
    for number, candidate in enumerate(candidates):
        if messages >= most:
            return number
        messages += candidate.count
    return len(candidates)
