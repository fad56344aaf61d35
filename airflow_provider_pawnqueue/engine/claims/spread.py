"""Consumers that meet each other's refusals spread over a wider window of the head of the queue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.claims.looking import Candidate
    from airflow_provider_pawnqueue.engine.clock import Clock

#: The window is at most so many times as wide as what is wanted.
WIDEST = 64
#: For so many seconds after a refusal others are taken to be still there.
MEMORY = 10.0
#: More refusals than this widen the window.
CONTENDED = 0.2


class Spread:
    """How far from the head of one topic this process takes its messages. Alone, it takes them in order."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._factor = 1
        self._met = -math.inf

    @property
    def is_alone(self) -> bool:
        """Whether nobody else was met lately."""
        return self._factor == 1 and self._clock.elapsed() - self._met > MEMORY

    def meet(self) -> None:
        """Remember that somebody else is at work here."""
        self._met = self._clock.elapsed()

    def picks(self, pool: Sequence[Candidate]) -> Picks:
        """Begin to pick from what could be had."""
        return Picks(self, self._clock, pool)

    def window(self, wanted: int) -> int:
        """Return from how many of the first candidates to pick so many."""
        return wanted * self._factor

    def learn(self, tried: int, refused: int) -> None:
        """Widen after refusals, fast where everything was refused, and narrow again without them."""
        if refused:
            self.meet()
        if refused == tried:
            self._factor = min(self._factor * 4, WIDEST)
        elif refused > tried * CONTENDED:
            self._factor = min(self._factor * 2, WIDEST)
        elif refused == 0 and self._factor > 1:
            self._factor //= 2


class Picks:
    """What is left of a pool: whoever was refused something picks another, so nobody leaves while there is plenty."""

    def __init__(self, spread: Spread, clock: Clock, pool: Sequence[Candidate]) -> None:
        self._spread = spread
        self._clock = clock
        self.left = list(pool)

    def take(self, count: int) -> list[Candidate]:
        """Take up to so many neighbours out of the pool: from its head, or from anywhere in the window."""
        window = min(self._spread.window(count), len(self.left))
        first = 0 if window <= count else int(self._clock.uniform(0, window - count + 1))
        first = min(first, max(len(self.left) - count, 0))
        taken = self.left[first : first + count]
        del self.left[first : first + count]
        return taken
