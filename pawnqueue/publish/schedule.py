"""When a new message may be claimed, and before which others: its delay and its priority (§1, *Lanes*)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from pawnqueue.domain.bounds import LONGEST_DURATION, within_bounds
from pawnqueue.domain.lanes import MAX_PRIORITY
from pawnqueue.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pawnqueue.domain.records import TopicSettings


class Schedule(NamedTuple):
    """The delay and the priority of a new message."""

    priority: int = 0
    delay: float = 0.0
    """For how many seconds it must not be claimed."""
    not_before: float = 0.0
    """The server time before which it must not be claimed; 0.0: there is none."""

    @property
    def has_delay(self) -> bool:
        """Whether it may have to wait."""
        return bool(self.delay or self.not_before)

    def due(self, published: float, error_seconds: float) -> float | None:
        """Return the server time from which it may be claimed; None: at once.

        :param published: the server time at which it is published, give or take the error.
        """
        if self.delay:
            return published + error_seconds + self.delay
        return self.not_before if self.not_before > published - error_seconds else None


AT_ONCE: Final = Schedule()


def checked_schedule(
    topic: str, delay: object, not_before: object, priority: object, *, position: int | None = None
) -> Schedule:
    """Return a schedule, or raise an error that says what to pass.

    :param position: of the message whose schedule it is; without it, it is that of the call.
    """
    of_message = "" if position is None else f"payloads[{position}]."
    if delay is not None and not_before is not None:
        raise _error(topic, f"{of_message}delay and {of_message}not_before are both given", "pass one of them")
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > MAX_PRIORITY:
        raise _error(topic, f"{of_message}priority is wrong", "pass a whole number from -9 to 9, higher ones first")
    seconds = 0.0 if delay is None else _seconds(delay)
    if seconds is None:
        raise _error(topic, f"{of_message}delay is wrong", "pass a number of seconds from 0 to ten years")
    at = 0.0 if not_before is None else _time(not_before)
    if at is None:
        raise _error(topic, f"{of_message}not_before is wrong", "pass a datetime with a time zone, after 1970")
    return AT_ONCE if (priority, seconds, at) == AT_ONCE else Schedule(priority, seconds, at)


def check_allowed(topic: str, schedules: Iterable[Schedule], allowed: TopicSettings) -> None:
    """Refuse priorities and delays that the topic does not allow: its consumers may not look for them."""
    for position, schedule in enumerate(schedules):
        lane = "priorities" if schedule.priority and not allowed.priorities else ""
        if schedule.has_delay and not allowed.delays:
            lane = "delays"
        if lane:
            what = "a priority" if lane == "priorities" else "a delay"
            raise _error(
                topic,
                f"payloads[{position}] has {what}, which this topic does not allow",
                f"call update_topic({topic!r}, {lane}=True) once all its consumers have this version",
            )


def check_none(topic: str, schedules: Iterable[Schedule]) -> None:
    """Refuse priorities and delays of staged messages."""
    if any(schedule is not AT_ONCE for schedule in schedules):
        raise InvalidArgumentError(
            f"Staged messages for topic {topic!r} have no priority and no delay: publish them instead. Nothing was "
            "staged.",
            topic=topic,
            operation="stage",
        )


def _seconds(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < LONGEST_DURATION:
        return None
    return float(value)


def _time(value: object) -> float | None:
    if not isinstance(value, datetime) or value.utcoffset() is None:
        return None
    time = within_bounds(value)
    return None if time is None or time.timestamp() <= 0 else time.timestamp()


def _error(topic: str, what: str, remedy: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"For topic {topic!r}, {what}: {remedy}. Nothing was published.", topic=topic, operation="publish"
    )
