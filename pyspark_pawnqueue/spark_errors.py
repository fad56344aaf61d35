"""How an error of the queue leaves Spark: as one sentence, which can be found among the stack traces of Java."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pawnqueue import InvalidArgumentError, PawnQueueError

#: Begins the text of every :class:`PawnQueueSparkError`. The submit operator looks for it in a job's output.
ERROR_PREFIX: Final = "PawnQueue: "


class PawnQueueSparkError(RuntimeError):
    """An error of the queue, as Spark reports it: the same sentence, after the prefix ``PawnQueue:``.

    :when: a query of the format ``pawnqueue`` is planned, read, written or committed; ``confirm``.
    :done: what the section of the original error says.
    :remedy: as with the original error.
    """

    #: Where users import it from. Spark's stack traces show this name too.
    __module__ = "pyspark_pawnqueue"


@contextmanager
def raise_spark_errors() -> Iterator[None]:
    """Turn errors of the queue into :class:`PawnQueueSparkError`, without the stack trace of their causes."""
    try:
        yield
    except PawnQueueError as error:
        raise PawnQueueSparkError(f"{ERROR_PREFIX}{error}") from None


def invalid_argument(sentence: str) -> InvalidArgumentError:
    """Return the error for a query's wrong option, schema or column."""
    return InvalidArgumentError(sentence, operation="spark")


def shorten(value: object, max_characters: int = 60) -> str:
    """Return a value as Python writes it, cut to a length that fits in an error."""
    if isinstance(value, str):
        return repr(value if len(value) <= max_characters else f"{value[:max_characters]}…")
    text = repr(value)
    return text if len(text) <= max_characters else f"{text[:max_characters]}…"
