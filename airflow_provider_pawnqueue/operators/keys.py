"""Under which keys of XCom tasks tell whoever settles what became of their messages."""

from typing import Final

#: A task's exception.
ERROR_KEY: Final = "pawnqueue_error"
#: What a task says itself.
REPORT_KEY: Final = "pawnqueue_report"
