"""Whether the reason of a burial is the one that is looked for."""

from __future__ import annotations

#: In a reason that is looked for: any text.
_ANYTHING = "*"


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
