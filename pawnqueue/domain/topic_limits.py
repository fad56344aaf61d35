"""Settings of a topic that have parts: how many dead letters it keeps, and for how long."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from pawnqueue.domain.bounds import LONGEST_DURATION, MOST_COUNT
from pawnqueue.domain.record import Part

#: How long before its removal a dead letter is warned of, unless its topic says otherwise; and at least.
NOTICE_SECONDS: Final = 86_400.0
MIN_NOTICE_SECONDS: Final = 60.0


class DeadLetterLimits(Part):
    """Which dead letters of a topic the janitor removes, after a warning."""

    max_age_seconds: float | None = Field(
        default=None,
        gt=0,
        le=LONGEST_DURATION,
        description="A dead letter is removed when it has been one for this many seconds; None: not for its age.",
    )
    max_count: int | None = Field(
        default=None,
        ge=1,
        le=MOST_COUNT,
        description="This many dead letters stay, and the oldest beyond them are removed; None: any number stays.",
    )
    notice_seconds: float = Field(
        default=NOTICE_SECONDS,
        ge=MIN_NOTICE_SECONDS,
        le=LONGEST_DURATION,
        description="How many seconds before its removal a dead letter is warned of, at least.",
    )
