"""What a commit of a staged write returns, and what it says where the write has other rows, or fewer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pawnqueue.domain import layout
from pawnqueue.domain.bounds import MOST_RANGES
from pawnqueue.domain.records import Rows
from pawnqueue.errors import InvalidArgumentError, StagedGoneError
from pawnqueue.events import logger_of

if TYPE_CHECKING:
    from pawnqueue.domain.records import StagedObject, WriteRecord
    from pawnqueue.publish.staging import Staged

logger = logger_of("publish")

#: Of the runs of rows that an error or an event names.
SHOWN_RANGES: Final = 10


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a write: all of it is in the topic."""

    topic: str
    """The topic."""
    write_id: str
    """The write's id."""
    count: int
    """How many messages were published."""
    already: bool = False
    """It had been decided before: what was staged for this commit was not used, and is removed."""


def check_same_rows(done: WriteRecord, topic: str, staged: Sequence[Staged], *, allow_empty: bool) -> None:
    """Compare a commit with the write that was done before under its id, as the commit's rows are not published.

    Where the two differ, the log says so. ⚑ §7: a write that was done without rows is another case, as all of its rows
    would be lost to a line in a log.

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


def together(before: Sequence[Rows], lost: Sequence[range]) -> list[Rows]:
    """Add rows to those that were lost before; they are behind them, and in order.

    ⚑ §1: what would not be read is not written. Beyond the bound, the last run has all rows from there on.
    """
    rows = list(before)
    for each in lost:
        is_joined = rows and (len(rows) == MOST_RANGES or rows[-1].first + rows[-1].count == each.start)
        if each and is_joined:
            rows[-1] = rows[-1].model_copy(update={"count": each.stop - rows[-1].first})
        elif each:
            rows.append(Rows(first=each.start, count=len(each)))
    return rows


def shown(lost: Sequence[Rows]) -> str:
    """Return the first runs of rows as a text, and how many more there are."""
    first = lost[:SHOWN_RANGES]
    parts = [f"{rows.first}-{rows.first + rows.count - 1}" if rows.count > 1 else f"{rows.first}" for rows in first]
    more = len(lost) - len(first)
    return ", ".join(parts) + (f" and {more:,} more" if more else "")


def incomplete(topic: str, record: WriteRecord) -> StagedGoneError:
    """Say that a write is done without some of its rows."""
    return StagedGoneError(
        f"Write {record.write_id} of topic {topic!r} is done without {sum(each.count for each in record.lost):,} of "
        f"its {record.count:,} messages, as somebody else has removed or changed what was staged of them, after the "
        f"decision, or nobody could read it for a week: rows {shown(record.lost)}, counted from 0 (the field `lost` of "
        f"{layout.write(topic, record.write_id)} has them all). Publish these rows anew, under another write id.",
        topic=topic,
        operation="commit_write",
    )


def not_there(topic: str, write_id: str, each: StagedObject) -> StagedGoneError:
    """Say that a commit was not decided, as an object that it relies on is not stored."""
    return StagedGoneError(
        f"Write {write_id} of topic {topic!r} was not committed, as {layout.staged_object(topic, write_id, each.name)} "
        "is not there (any more): it was aborted, or the janitor has removed it, as nothing was staged for it for a "
        "day. Nothing was published: stage its rows again, all of them.",
        topic=topic,
        operation="commit_write",
    )


def gone_before_the_end(topic: str, write_id: str) -> StagedGoneError:
    """Say that a write was decided and then dropped, as its rows were gone."""
    return StagedGoneError(
        f"Write {write_id} of topic {topic!r} was not finished, as somebody else has removed or changed what was "
        "staged for it, or nobody could read it for a week. Nothing was published: stage its rows again, all of them.",
        topic=topic,
        operation="commit_write",
    )
