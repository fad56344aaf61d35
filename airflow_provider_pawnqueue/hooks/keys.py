"""Under which keys of XCom tasks tell whoever settles what became of their messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

#: What a task knew as it began: the round of its run, and the claims that had been made for it.
BEGUN_KEY: Final = "pawnqueue_begun"
#: A task's exception.
ERROR_KEY: Final = "pawnqueue_error"
#: That a task has skipped itself.
SKIPPED_KEY: Final = "pawnqueue_skipped"
#: What a task says itself.
REPORT_KEY: Final = "pawnqueue_report"
#: In what a task tells: how often its run had been cleared. Without it, never.
ROUND: Final = "round"
#: In what a task tells as it begins: the claims that had been made, as lists of topic, claim id and generation. A claim
#: that is not in the list is in its first generation, number 0.
CLAIMS: Final = "claims"
#: So long is what is told of an error, at most.
LONGEST_ERROR: Final = 2000


def round_of(context: Context) -> int:
    """Return how often the run had been cleared as this task began."""
    return getattr(context.get("dag_run"), "clear_number", None) or 0


def is_of_round(marker: Mapping[str, Any] | object, number: int) -> bool:
    """Say whether a task told this since its run was cleared for the last time.

    ⚑ Airflow deletes what a task has told as the task begins again, and not as it is cleared: of one that was cleared
    and has not begun again, an earlier round's is there.
    """
    return (marker.get(ROUND, 0) if isinstance(marker, Mapping) else 0) == number


def claims_in(value: object) -> Iterator[tuple[str, str, int]]:
    """Return topic, id and generation of the claims in what a task returned or was given: a reference, or several."""
    if isinstance(value, Mapping):
        found = value.get("topic"), value.get("claim_id"), value.get("generation")
        if isinstance(found[0], str) and isinstance(found[1], str) and isinstance(found[2], int):
            yield found[0], found[1], found[2]
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for each in value:
            yield from claims_in(each)


def told(why: object) -> str:
    """Write an error as a reason has it: without what Airflow's logs hide, as neither XCom nor the bucket does."""
    from airflow.providers.common.compat.sdk import redact  # noqa: PLC0415 - not at import: plugins are loaded everywhere

    text = f"{type(why).__name__}: {why}" if isinstance(why, BaseException) else str(why)
    return str(redact(text))[:LONGEST_ERROR]
