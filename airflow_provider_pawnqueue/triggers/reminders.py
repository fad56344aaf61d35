"""When an event trigger rings again for a backlog for which it has rung before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: A ring that no claim has answered is repeated after this time, then after twice as long, and so on. It is longer
#: than a run usually takes from the event to its claim: each ring in between would start a run that finds nothing.
FIRST_REPEAT_SECONDS: Final = 60.0
#: The same while claims hold messages: the run of the last ring probably waits for one of theirs to end.
FIRST_REPEAT_WHILE_BUSY_SECONDS: Final = 600.0
#: A ring is repeated at least this often, so that a lost event strands no message.
LONGEST_REPEAT_SECONDS: Final = 3600.0


class Reminders:
    """Decides, at each look that finds a backlog, whether to ring.

    Since Airflow 3.4 each ring is a run of its own, and before that each burst of rings is. So the trigger rings anew
    only when its last ring was answered: a claim was made since. An unanswered ring is repeated ever more seldom, as
    its event may be lost: the triggerer was killed, or the DAG is paused.
    """

    def __init__(self) -> None:
        self._known: frozenset[str] | None = None  # the claims that had a record at the last ring
        self._rang = 0.0
        self._repeats = 0

    def is_due(self, now: float, claims: Mapping[str, bool]) -> bool:
        """Return whether to ring now, and take it that this is then done.

        :param now: the time, in seconds, by a clock that does not jump.
        :param claims: of each recorded claim of the topic, whether it holds messages.
        """
        if self._known is None or not claims.keys() <= self._known:
            self._repeats = 0
        elif now - self._rang < self._pause(is_busy=any(claims.values())):
            return False
        else:
            self._repeats += 1
        self._known, self._rang = frozenset(claims), now
        return True

    def _pause(self, *, is_busy: bool) -> float:
        first = FIRST_REPEAT_WHILE_BUSY_SECONDS if is_busy else FIRST_REPEAT_SECONDS
        return min(first * 2.0**self._repeats, LONGEST_REPEAT_SECONDS)
