"""Sets of numbers of a pack's messages. In memory such a set is an integer with a bit for each number."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Final, TypeAlias

from pydantic import BeforeValidator, PlainSerializer

#: How many messages one pack has at most.
MAX_PACK_MESSAGES: Final = 4096

#: The packs of a claim have the same few sets of numbers, and its record is read again and again.
MAX_CACHED_SETS: Final = 256

_TEXT: Final = re.compile(r"(?:\d{1,4}(?:-\d{1,4})?(?:,\d{1,4}(?:-\d{1,4})?)*)?")


def first(count: int) -> int:
    """Return the set of the numbers below ``count``."""
    return (1 << count) - 1


def between(begin: int, end: int) -> int:
    """Return the set of the numbers from ``begin`` on, and below ``end``."""
    return first(end) & ~first(begin)


def runs(numbers: int) -> Iterator[tuple[int, int]]:
    """Give the first and the last number of each run of numbers that follow each other."""
    base = 0
    while numbers:
        skipped = (numbers & -numbers).bit_length() - 1
        numbers >>= skipped
        length = (~numbers & (numbers + 1)).bit_length() - 1
        yield base + skipped, base + skipped + length - 1
        numbers >>= length
        base += skipped + length


def each(numbers: int) -> list[int]:
    """Return the numbers of a set, in order."""
    return [number for begin, end in runs(numbers) for number in range(begin, end + 1)]


def lowest(numbers: int, count: int) -> int:
    """Return the set of the lowest ``count`` numbers of a set."""
    if numbers.bit_count() <= count:
        return numbers
    return sum(1 << number for number in each(numbers)[:count])


@lru_cache(MAX_CACHED_SETS)
def to_text(numbers: int) -> str:
    """Write a set as the bucket has it: ``0-99,105``."""
    return ",".join(str(begin) if begin == end else f"{begin}-{end}" for begin, end in runs(numbers))


@lru_cache(MAX_CACHED_SETS)
def from_text(text: str) -> int:
    """Read what :func:`to_text` wrote.

    :raises ValueError: it has another spelling, or a number that no pack has.
    """
    if not _TEXT.fullmatch(text):
        raise ValueError("these are not numbers of messages")
    found = 0
    for run in text.split(",") if text else ():
        begin, _, end = run.partition("-")
        found |= first(int(end or begin) + 1) & ~first(int(begin))
    if to_text(found) != text or found.bit_length() > MAX_PACK_MESSAGES:
        raise ValueError("these are not numbers of messages")
    return found


def _read(given: object) -> int:
    if isinstance(given, int) and 0 <= given < 1 << MAX_PACK_MESSAGES:
        return given
    if isinstance(given, str):
        return from_text(given)
    raise ValueError("these are not numbers of messages")


#: Of a record: stored as text.
Numbers: TypeAlias = Annotated[int, BeforeValidator(_read), PlainSerializer(to_text)]
