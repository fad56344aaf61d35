"""Points in time as the bucket's records have them: ISO 8601."""

from __future__ import annotations

from datetime import UTC, datetime

from pawnqueue.domain.bounds import within_bounds


def iso(seconds: float) -> str:
    """Write a point in time as the bucket's records have it: ISO 8601, UTC, with ``+00:00``."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")


def instant(text: str) -> datetime | None:
    """Read an ISO 8601 time, or return None for any other text and for a time out of the bounds of §1.

    A time without a zone is UTC.
    """
    time = any_instant(text)
    return None if time is None else within_bounds(time)


def any_instant(text: str) -> datetime | None:
    """Read an ISO 8601 time as :func:`instant` does, but of any year."""
    try:
        # Not whatever zone this machine is in; and what is at an end of the calendar is in no other zone.
        read = datetime.fromisoformat(text)
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
