"""Settings of a topic that have parts: how many dead letters it keeps, and for how long."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from pawnqueue.domain.bounds import LONGEST_DURATION, MOST_COUNT
from pawnqueue.domain.record import Part

#: How long before its removal a dead letter is warned of, unless its topic says otherwise; and at least.
NOTICE_SECONDS: Final = 86_400.0
MIN_NOTICE_SECONDS: Final = 60.0


class CompletedLog(Part):
    """The completed log of a topic: which messages were acked, by which consumer, when."""

    is_on: bool = Field(default=True, description="Whether claims are logged. False: not any more.")
    max_count: int = Field(
        default=100_000, ge=1, le=MOST_COUNT, description="How many messages it keeps, of the latest claims."
    )
    max_age_seconds: float = Field(
        default=7 * 86_400.0, gt=0, le=LONGEST_DURATION, description="For how many seconds it keeps them at most."
    )
    payloads: bool = Field(default=False, description="Whether it has their payloads, too.")


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
