"""Under which keys of XCom tasks tell whoever settles what became of their messages."""

from typing import Final

#: A task's exception.
ERROR_KEY: Final = "pawnqueue_error"
#: That a task has skipped itself.
SKIPPED_KEY: Final = "pawnqueue_skipped"
#: What a task says itself.
REPORT_KEY: Final = "pawnqueue_report"
#: So long is what is told of an error, at most.
LONGEST_ERROR: Final = 2000


def told(why: object) -> str:
    """Write an error as a reason has it: without what Airflow's logs hide, as neither XCom nor the bucket does."""
    from airflow.providers.common.compat.sdk import redact  # noqa: PLC0415 - not at import: plugins are loaded everywhere

    text = f"{type(why).__name__}: {why}" if isinstance(why, BaseException) else str(why)
    return str(redact(text))[:LONGEST_ERROR]
