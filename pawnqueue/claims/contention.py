"""Consumers that meet each other's refusals spread over a wider window of the head of the queue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pawnqueue.claims.candidate import Candidate
    from pawnqueue.runtime.clock import Clock

#: The window is at most this many times as wide as the batch that is wanted.
MAX_WINDOW_FACTOR = 64
#: For this long after a refusal, other consumers are assumed to be at work.
CONTENTION_MEMORY_SECONDS = 10.0
#: A larger share of refusals than this widens the window.
CONTENDED_SHARE = 0.2
#: After this many rounds without a refusal the window is halved.
QUIET_ROUNDS = 8
#: How many leases are requested at once before anything is known of other consumers, and at least after refusals.
FIRST_LEASE_REQUESTS = 16
MIN_LEASE_REQUESTS = 8


class Contention:
    """How far from the head of a topic this process takes its messages. A consumer that is alone takes them in order.

    :param by_the_piece: every lease that is requested in vain costs a request, so a few are requested before the rest.
    """

    def __init__(self, clock: Clock, *, by_the_piece: bool = True) -> None:
        self._clock = clock
        self._factor = 1
        self._met = -math.inf
        self._quiet = 0
        self._by_the_piece = by_the_piece
        #: How many leases to request at once.
        self.pace: float = FIRST_LEASE_REQUESTS if by_the_piece else math.inf

    @property
    def is_alone(self) -> bool:
        """Whether no other consumer was met lately."""
        return self._factor == 1 and self._clock.elapsed() - self._met > CONTENTION_MEMORY_SECONDS

    def meet(self) -> None:
        """Note that another consumer is at work."""
        self._met = self._clock.elapsed()

    @property
    def is_narrow(self) -> bool:
        """Whether messages are taken from the head, in order."""
        return self._factor == 1

    def picks(self, pool: Sequence[Candidate], wanted: int) -> Picks:
        """Begin to pick ``wanted`` candidates from a pool."""
        return Picks(self, self._clock, pool, wanted)

    def window(self, wanted: int) -> int:
        """Return from how many of the first candidates to pick ``wanted``."""
        return wanted * self._factor

    def learn(self, tried: int, refused: int) -> None:
        """Widen the window after refusals, faster if all were refused. Narrow it slowly without refusals."""
        if refused:
            self.meet()
            self._quiet = 0
        if refused == tried:
            self._factor = min(self._factor * 4, MAX_WINDOW_FACTOR)
        elif refused > tried * CONTENDED_SHARE:
            self._factor = min(self._factor * 2, MAX_WINDOW_FACTOR)
        elif refused == 0:
            self._quiet += 1
            if self._quiet >= QUIET_ROUNDS:
                # Not at once: the other consumers are still at work, and every second claim would meet them again.
                self._factor, self._quiet = max(self._factor // 2, 1), 0
        if refused > tried * CONTENDED_SHARE and self._by_the_piece:
            self.pace = max(tried - refused, MIN_LEASE_REQUESTS)
        elif refused == 0:
            self.pace = math.inf


class Picks:
    """What is left of a pool. A consumer that was refused a lease picks another one from it."""

    def __init__(self, contention: Contention, clock: Clock, pool: Sequence[Candidate], wanted: int) -> None:
        self._contention = contention
        self._clock = clock
        self._wanted = wanted
        self.left = list(pool)

    def take(
        self, messages: int, max_bytes: float = math.inf, *, max_parts: float = math.inf, is_first: bool = True
    ) -> list[Candidate]:
        """Take up to ``messages`` messages of neighbours out of the pool: from its head, or anywhere in the window.

        ⚑ No claim is given more than it asked for. Of a pack with more messages only some are taken, if it is the first
        of its claim. ⚑ §5.6: nothing is taken beside what is to be alone.

        :param max_bytes: how large they may be together. A larger one is taken alone if it is the first of its claim.
            Otherwise no consumer with such a limit would ever be given it.
        :param max_parts: how many parts of a claim's record they may take together.
        """
        count = int(min(messages, self._contention.pace))
        first = 0
        if not self._contention.is_narrow:
            # As wide for a few as for all that are wanted, because the other consumers are at the head.
            window = min(self._contention.window(self._wanted), len(self.left))
            first = int(self._clock.uniform(0, max(window - count, 0) + 1))
            first = min(first, max(len(self.left) - count, 0))
        taken = self.left[first : first + count]
        if taken and taken[0].is_alone:
            taken = taken[:1] if is_first else []
        else:
            taken = list(takewhile(lambda candidate: not candidate.is_alone, taken))
        sizes = list(accumulate(candidate.size for candidate in taken))
        counts = accumulate(candidate.count for candidate in taken)
        parts = accumulate(candidate.parts for candidate in taken)
        together = zip(sizes, counts, parts, strict=True)
        fitting = sum(size <= max_bytes and count <= messages and part <= max_parts for size, count, part in together)
        if not fitting and is_first and taken:
            fitting = 1
            taken[0] = taken[0].cut(messages)
        del self.left[first : first + fitting]
        return taken[:fitting]
