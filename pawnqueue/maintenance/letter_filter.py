"""Which dead letters a redrive is for: by their ids, by the reason of their burial, by their age."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pawnqueue.reads.dead_letters import read_reason

if TYPE_CHECKING:
    from pawnqueue.catalog.letters import ListedLetter
    from pawnqueue.context import Context

#: In a reason that is looked for: any text.
_ANYTHING = "*"


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """What dead letters have to be like. All that is given has to be true of a letter."""

    reason: str | None = None
    """The reason, or its beginning: see :func:`is_reason`."""
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


def is_reason(reason: str, wanted: str) -> bool:
    """Say whether a reason is the wanted one, or begins with it.

    The wanted text ends at the end of a word: ``ValueError`` finds ``ValueError: no amount``, and not ``ValueErrors``.
    A ``*`` in it means any text.
    """
    if not wanted:
        return not reason
    first, *others = wanted.split(_ANYTHING)
    if not reason.startswith(first):
        return False
    if not others:
        return _ends_a_word(reason, len(first))
    *between, last = others
    at = len(first)
    for part in between:
        at = reason.find(part, at)
        if at < 0:
            return False
        at += len(part)
    while (at := reason.find(last, at)) >= 0:
        if not last or _ends_a_word(reason, at + len(last)):
            return True
        at += 1
    return False


def _ends_a_word(text: str, at: int) -> bool:
    return at == len(text) or not (_is_of_word(text[at - 1]) and _is_of_word(text[at]))


def _is_of_word(character: str) -> bool:
    return character.isalnum() or character == "_"
