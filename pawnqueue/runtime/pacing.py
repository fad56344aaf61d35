"""Keep work to a number of beginnings a second, evenly."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pawnqueue.runtime.clock import Clock


class Pace:
    """Turns that are given one by one, never closer together than the pace allows, also after a pause."""

    def __init__(self, clock: Clock, per_second: float | None) -> None:
        """:param per_second: how many turns a second are given; None: any number."""
        self._clock = clock
        self._interval = 0.0 if per_second is None else 1 / per_second
        self._next = -math.inf

    async def turn(self) -> None:
        """Wait for the next turn."""
        if not self._interval:
            return
        now = self._clock.elapsed()
        at = max(now, self._next)
        self._next = at + self._interval
        if at > now:
            await self._clock.sleep(at - now)
