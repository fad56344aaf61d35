"""What a commit of a staged write returns or raises when the write has other rows, or fewer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pawnqueue.domain import layout
from pawnqueue.domain.bounds import MOST_RANGES
from pawnqueue.domain.write_record import Rows
from pawnqueue.errors import InvalidArgumentError, StagedGoneError
from pawnqueue.events import logger_of

if TYPE_CHECKING:
    from pawnqueue.domain.write_record import StagedObject, WriteRecord
    from pawnqueue.publish.staging import Staged

logger = logger_of("publish")

#: How many runs of rows an error or an event names.
SHOWN_RANGES: Final = 10


@dataclass(frozen=True, slots=True)
class Written:
    """The outcome of a write: all of it is in the topic."""

    topic: str
    """The topic."""
    write_id: str
    """The write's id."""
    count: int
    """How many messages were published."""
    already: bool = False
    """It was decided before: the rows of this commit were not used, and are removed."""


def check_same_rows(done: WriteRecord, topic: str, staged: Sequence[Staged], *, allow_empty: bool) -> None:
    """Compare a commit, whose rows are not published, with the write that was done before under its id.

    If the two differ, the log says so. ⚑ §7: if the write was done without rows, that is an error, as all rows of this
    commit would be lost.

    :raises InvalidArgumentError: the write was done without rows, this commit has some, and that was not allowed.
    """
    again = [each for part in staged for each in part.objects]
    count, size = sum(each.count for each in again), sum(each.size for each in again)
    if count and not done.count and not allow_empty:
        raise InvalidArgumentError(
            f"Write {done.write_id} of topic {topic!r} was committed before, without any rows, and is done: the "
            f"{count:,} rows of this commit were not published. Write them under another write id; or, if later rows "
            "of such a write are to be left out, say so: allow_empty=True, and on Spark the option allowEmpty.",
            topic=topic,
            operation="commit_write",
        )
    if (count, size) != (done.count, done.size):
        logger.warning(
            "Write %s of topic %r had been decided with %d messages (%d bytes), and was committed again with %d "
            "(%d bytes): those were not published. Other rows need another write id.",
            done.write_id,
            topic,
            done.count,
            done.size,
            count,
            size,
        )


def merge_ranges(before: Sequence[Rows], lost: Sequence[range]) -> list[Rows]:
    """Append rows to those that were lost before: they come later, and are in order.

    ⚑ §1: no record is written that would not be read. Beyond the bound, the last run covers all rows from there on.
    """
    rows = list(before)
    for each in lost:
        is_joined = rows and (len(rows) == MOST_RANGES or rows[-1].first + rows[-1].count == each.start)
        if each and is_joined:
            rows[-1] = rows[-1].model_copy(update={"count": each.stop - rows[-1].first})
        elif each:
            rows.append(Rows(first=each.start, count=len(each)))
    return rows


def describe_ranges(lost: Sequence[Rows]) -> str:
    """Return the first runs of rows as a text, and the number of the others."""
    first = lost[:SHOWN_RANGES]
    parts = [f"{rows.first}-{rows.first + rows.count - 1}" if rows.count > 1 else f"{rows.first}" for rows in first]
    more = len(lost) - len(first)
    return ", ".join(parts) + (f" and {more:,} more" if more else "")


def incomplete_error(topic: str, record: WriteRecord) -> StagedGoneError:
    """Return the error for a write that is done without some of its rows."""
    return StagedGoneError(
        f"Write {record.write_id} of topic {topic!r} is done without {sum(each.count for each in record.lost):,} of "
        f"its {record.count:,} messages: their staged rows were removed or changed after the decision, or no process "
        f"could read them for a week. They are rows {describe_ranges(record.lost)}, counted from 0 (the field `lost` "
        f"of {layout.write(topic, record.write_id)} has them all). Publish these rows anew, under another write id.",
        topic=topic,
        operation="commit_write",
    )


def missing_error(topic: str, write_id: str, each: StagedObject) -> StagedGoneError:
    """Return the error for a commit that was not decided, as one of its staged objects is missing."""
    return StagedGoneError(
        f"Write {write_id} of topic {topic!r} was not committed, as {layout.staged_object(topic, write_id, each.name)} "
        "does not exist (any more): the write was aborted, or the janitor has removed the object, as nothing was "
        "staged for a day. Nothing was published: stage its rows again, all of them.",
        topic=topic,
        operation="commit_write",
    )


def dropped_error(topic: str, write_id: str) -> StagedGoneError:
    """Return the error for a write that was decided and then dropped, as its rows were gone."""
    return StagedGoneError(
        f"Write {write_id} of topic {topic!r} was not finished: its staged rows were removed or changed, or no "
        "process could read them for a week. Nothing was published: stage its rows again, all of them.",
        topic=topic,
        operation="commit_write",
    )
