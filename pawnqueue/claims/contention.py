"""Consumers that meet each other's refusals spread over a wider window of the head of the queue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pawnqueue.claims.candidates import Candidate
    from pawnqueue.runtime.clock import Clock

#: The window is at most so many times as wide as what is wanted.
WIDEST = 64
#: For so many seconds after a refusal others are taken to be still there.
MEMORY = 10.0
#: More refusals than this widen the window.
CONTENDED = 0.2
#: After so many rounds without any the window is narrowed again, to half.
QUIET = 8
#: So many leases are asked for at first, before anything is known of others, and so many at least after refusals.
FIRST_TRY = 16
LEAST_TRY = 8


class Contention:
    """How far from the head of one topic this process takes its messages. Alone, it takes them in order.

    :param by_the_piece: each lease that is asked for in vain costs something: a few are asked for before the rest.
    """

    def __init__(self, clock: Clock, *, by_the_piece: bool = True) -> None:
        self._clock = clock
        self._factor = 1
        self._met = -math.inf
        self._quiet = 0
        self._by_the_piece = by_the_piece
        self._pace: float = FIRST_TRY if by_the_piece else math.inf

    @property
    def is_alone(self) -> bool:
        """Whether nobody else was met lately."""
        return self._factor == 1 and self._clock.elapsed() - self._met > MEMORY

    def meet(self) -> None:
        """Remember that somebody else is at work here."""
        self._met = self._clock.elapsed()

    @property
    def is_narrow(self) -> bool:
        """Whether messages are taken from the head, in order."""
        return self._factor == 1

    @property
    def pace(self) -> float:
        """How many leases to ask for at once."""
        return self._pace

    def picks(self, pool: Sequence[Candidate], wanted: int) -> Picks:
        """Begin to pick so many from what could be had."""
        return Picks(self, self._clock, pool, wanted)

    def window(self, wanted: int) -> int:
        """Return from how many of the first candidates to pick so many."""
        return wanted * self._factor

    def learn(self, tried: int, refused: int) -> None:
        """Widen after refusals, fast where everything was refused, and narrow again, slowly, without them."""
        if refused:
            self.meet()
            self._quiet = 0
        if refused == tried:
            self._factor = min(self._factor * 4, WIDEST)
        elif refused > tried * CONTENDED:
            self._factor = min(self._factor * 2, WIDEST)
        elif refused == 0:
            self._quiet += 1
            if self._quiet >= QUIET:
                # Not at once: others are still there, and would be met again by every second claim.
                self._factor, self._quiet = max(self._factor // 2, 1), 0
        if refused > tried * CONTENDED and self._by_the_piece:
            self._pace = max(tried - refused, LEAST_TRY)
        elif refused == 0:
            self._pace = math.inf


class Picks:
    """What is left of a pool: whoever was refused something picks another, so nobody leaves while there is plenty."""

    def __init__(self, contention: Contention, clock: Clock, pool: Sequence[Candidate], wanted: int) -> None:
        self._contention = contention
        self._clock = clock
        self._wanted = wanted
        self.left = list(pool)

    def take(self, count: int, max_bytes: float = math.inf, *, is_first: bool = True) -> list[Candidate]:
        """Take up to so many neighbours out of the pool: from its head, or from anywhere in the window.

        :param max_bytes: how large they may be together. One that is larger by itself is taken alone, if it is the
            first of its claim: else nobody with such a limit would ever be given it.
        """
        count = int(min(count, self._contention.pace))
        first = 0
        if not self._contention.is_narrow:
            # As wide for a few as for all that are wanted: the head is where the others are.
            window = min(self._contention.window(self._wanted), len(self.left))
            first = int(self._clock.uniform(0, max(window - count, 0) + 1))
            first = min(first, max(len(self.left) - count, 0))
        taken = self.left[first : first + count]
        sizes = list(accumulate(candidate.unit.size for candidate in taken))
        fitting = sum(size <= max_bytes for size in sizes)
        if not fitting and is_first:
            fitting = 1
        del self.left[first : first + fitting]
        return taken[:fitting]
