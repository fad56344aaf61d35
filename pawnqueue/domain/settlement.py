"""What became of messages that were to be settled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Settlement:
    """What became of the messages that were to be settled, as lists of ids."""

    acked: list[str] = field(default_factory=list)
    """Done: they are not delivered again."""
    buried: list[str] = field(default_factory=list)
    """Dead letters now."""
    released: list[str] = field(default_factory=list)
    """Given back, to be delivered again."""
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
