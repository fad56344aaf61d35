"""What goes wrong, and how often. One weather is drawn for a schedule, and each of them ends in :data:`CALM`."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random


class Fate(Enum):
    """What becomes of one request."""

    ANSWERED = "answered"
    LATE = "late"  # it is under way for long, and may land after its client has given up
    BUSY = "busy"  # 503, and not applied
    LOST = "lost"  # applied, and the answer never comes: the client gives up at its time-out
    DROPPED = "dropped"  # the connection ends early; the request lands in its own time, perhaps much later
    VANISHED = "vanished"  # it never lands, and the client hears of a lost connection or of nothing
    ERROR = "error"  # 500, although applied
    CONFLICT = "conflict"  # 409 on a conditional write, and not applied
    PARTIAL = "partial"  # a bulk delete reports errors for keys that it has deleted or not


@dataclass(frozen=True)
class Weather:
    """Means and probabilities. Those of fates are for each request; those of kills and pauses for each process.

    :param latency: mean seconds of each way.
    :param lateness: by how many seconds a late request lands later, at most.
    """

    latency: float = 0.05
    lateness: float = 45.0
    late: float = 0.0
    busy: float = 0.0
    lost: float = 0.0
    dropped: float = 0.0
    vanished: float = 0.0
    error: float = 0.0
    conflict: float = 0.0
    partial: float = 0.0
    kill: float = 0.0
    pause: float = 0.0

    @cached_property
    def fates(self) -> tuple[tuple[float, Fate], ...]:
        """Every fate but the ordinary one, with the cumulated probability below which a draw means it."""
        total, table = 0.0, []
        for fate in Fate:
            chance = getattr(self, fate.value, 0.0)
            if chance:
                total += chance
                table.append((total, fate))
        return tuple(table)

    @cached_property
    def trouble(self) -> float:
        """How often a request has anything but the ordinary fate."""
        return self.fates[-1][0] if self.fates else 0.0

    def times(self, factor: float) -> Weather:
        """Return a weather that is so many times as bad, at the same latency."""
        worse = {f.name: min(1.0, getattr(self, f.name) * factor) for f in fields(self)[2:]}
        return replace(self, **worse)

    def fate(self, draw: float) -> Fate:
        """Return the fate for a draw from [0, 1)."""
        for limit, fate in self.fates:
            if draw < limit:
                return fate
        return Fate.ANSWERED


CALM = Weather()
#: The same on a store for which the default pauses of ``csprng_verify`` are long enough by its own advice.
QUICK = Weather(latency=0.02)
NORMAL = Weather(
    late=0.01, busy=0.02, lost=0.01, dropped=0.01, vanished=0.005, error=0.01, conflict=0.01, partial=0.02,
    kill=0.3, pause=0.2,
)  # fmt: skip
STORMY = Weather(
    late=0.05, busy=0.04, lost=0.04, dropped=0.04, vanished=0.02, error=0.04, conflict=0.05, partial=0.1,
    kill=0.5, pause=0.4,
)  # fmt: skip
#: A store that takes its time, without much else going wrong.
SLOW = Weather(latency=0.6, late=0.1, lateness=60.0, kill=0.3, pause=0.3)

#: Requests that take seconds, and are often answered all the same, just in time or just too late.
SLUGGISH = Weather(lateness=9.0, late=0.25, lost=0.05, dropped=0.03, error=0.05, kill=0.1, pause=0.5)


def any_weather(chance: random.Random) -> Weather:
    """Draw the weather of a schedule."""
    return chance.choices((CALM, NORMAL, STORMY, SLOW, SLUGGISH), (1, 4, 4, 1, 4))[0]
