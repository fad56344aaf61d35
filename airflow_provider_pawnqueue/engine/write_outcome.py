"""What a commit of a staged write returns, and what it says where the write was done before with other rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pawnqueue.engine.errors import InvalidArgumentError
from airflow_provider_pawnqueue.engine.events import logger_of

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.records import WriteRecord
    from airflow_provider_pawnqueue.engine.staging import Staged

logger = logger_of("publish")


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
