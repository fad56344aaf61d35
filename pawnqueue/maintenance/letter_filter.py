"""Which dead letters a redrive is for: by their ids, by the reason of their burial, by their age."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pawnqueue.domain.reasons import is_reason
from pawnqueue.reads.dead_letters import read_reason

if TYPE_CHECKING:
    from pawnqueue.catalog.letters import ListedLetter
    from pawnqueue.context import Context


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """What dead letters have to be like. All that is given has to be true of a letter."""

    reason: str | None = None
    """The reason, or its beginning: see :func:`.is_reason`."""
    older_than: float | None = None
    """For how many seconds they have been buried at least."""
    younger_than: float | None = None
    """For less than this many seconds."""

    def has_age(self, letter: ListedLetter, now: float) -> bool:
        """Say whether a letter has the right age, which its date in a LIST tells."""
        age = now - letter.written_at.timestamp()
        return (self.older_than is None or age >= self.older_than) and (
            self.younger_than is None or age < self.younger_than
        )

    async def has_reason(self, context: Context, topic: str, letter: ListedLetter) -> bool:
        """Say whether a letter has the right reason: a GET, unless any reason is right.

        A letter whose reason is missing, garbage or of a newer format has none that could be looked for.

        :raises StoreError: the store does not tell.
        """
        if self.reason is None:
            return True
        reason = await read_reason(context, topic, letter.id)
        return reason is not None and is_reason(reason.reason, self.reason)
