"""Which messages or dead letters of a topic a query reads, by its options and its columns.

These are options because Spark's own pushdown returns wrong rows. With
``spark.sql.python.filterPushdown.enabled``, PySpark 4.2 and 4.3 store the plan for a query's filters in the frame. The
frame's next query without filters, and both sides of a union, are read by that plan and lack rows. So no reader here
defines ``pushFilters``: whether that switch is on or off, Spark filters the rows itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from pawnqueue import InvalidArgumentError, Selection
from pyspark_pawnqueue.spark_errors import invalid_argument, shorten
from pyspark_pawnqueue.spark_options import SparkOptions

#: What the LIST of dead letters tells, and what their reasons tell beside it.
_LISTED: Final = frozenset({"letter_id", "topic"})
_OF_REASONS: Final = _LISTED | {"buried_at", "reason", "error", "max_deliveries", "deliveries"}
_FOR_DEAD_LETTERS: Final = ("buriedAfter", "buriedBefore", "reason", "letterIds")


def selection_of(options: SparkOptions, columns: Iterable[str]) -> Selection:
    """Return what a query of a topic reads.

    :param columns: those of the query.
    :raises InvalidArgumentError: an option has a value that it cannot have, or needs the mode ``dead``.
    """
    if not options.reads_dead_letters():
        for name in _FOR_DEAD_LETTERS:
            if name.lower() in options.given:
                raise invalid_argument(
                    f'The option {name} is for dead letters: add .option("mode", "dead"), or leave it out.'
                )
    names = {name.lower() for name in columns}
    try:
        return Selection(
            created_after=_time(options, "createdAfter"),
            created_before=_time(options, "createdBefore"),
            buried_after=_time(options, "buriedAfter"),
            buried_before=_time(options, "buriedBefore"),
            reason=_text(options, "reason"),
            letter_ids=_ids(options),
            reads_reasons=not names <= _LISTED,
            reads_messages=not names <= _OF_REASONS,
        )
    except InvalidArgumentError as error:
        raise invalid_argument(str(error)) from None


def _time(options: SparkOptions, name: str) -> datetime | None:
    text = options.given.get(name.lower())
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text.strip())
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise invalid_argument(
            f'{name}={shorten(text)} is not a time: write "2026-03-01T12:00:00Z". Without a zone it is UTC.'
        ) from None


def _text(options: SparkOptions, name: str) -> str | None:
    text = options.given.get(name.lower())
    if text is not None and not text:
        raise invalid_argument(f"The option {name} is empty: pass a text, or leave it out.")
    return text


def _ids(options: SparkOptions) -> frozenset[str] | None:
    text = _text(options, "letterIds")
    return None if text is None else frozenset(each.strip() for each in text.split(","))
