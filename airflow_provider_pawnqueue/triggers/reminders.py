"""Decides when an event trigger fires again for a backlog for which it has fired before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: An event that no claim has answered is repeated after this time, then after twice as long, and so on. A run usually
#: takes less time from the event to its claim. Each event in between would start a run that finds nothing.
FIRST_REPEAT_SECONDS: Final = 60.0
#: The same while claims hold messages: the run of the last event probably waits for one of those to end.
FIRST_REPEAT_WHILE_BUSY_SECONDS: Final = 600.0
#: An event is repeated at least this often, so that a lost event strands no message.
MAX_REPEAT_SECONDS: Final = 3600.0


class Reminders:
    """Decides at each poll that finds a backlog whether to fire.

    Since Airflow 3.4 each event starts a run, and before that each burst of events does. So the trigger fires anew only
    after its last event was answered: a claim was made since. An event without an answer may be lost, as the triggerer
    was killed or the DAG is paused. It is repeated at growing intervals.
    """

    def __init__(self) -> None:
        self._known: frozenset[str] | None = None  # the claims that had a record at the last event
        self._fired_at = 0.0
        self._repeats = 0

    def is_due(self, now: float, claims: Mapping[str, bool]) -> bool:
        """Return whether to fire now. The caller must then do so: this counts as done.

        :param now: the time in seconds, of a clock that does not jump.
        :param claims: the recorded claims of the topic, and whether each holds messages.
        """
        if self._known is None or not claims.keys() <= self._known:
            self._repeats = 0
        elif now - self._fired_at < self._pause(is_busy=any(claims.values())):
            return False
        else:
            self._repeats += 1
        self._known, self._fired_at = frozenset(claims), now
        return True

    def _pause(self, *, is_busy: bool) -> float:
        first = FIRST_REPEAT_WHILE_BUSY_SECONDS if is_busy else FIRST_REPEAT_SECONDS
        return min(first * 2.0**self._repeats, MAX_REPEAT_SECONDS)
