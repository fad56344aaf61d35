"""Consumers that meet each other's refusals spread over a wider window of the head of the queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.claims.looking import Candidate
    from airflow_provider_pawnqueue.engine.clock import Clock

WIDEST = 16
#: More refusals than this widen the window.
CONTENDED = 0.2


class Spread:
    """How far from the head of one topic this process looks. Alone, it takes messages in order."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._factor = 1

    def window(self, wanted: int) -> int:
        """Return how many candidates to look for."""
        return wanted * self._factor

    def chosen(self, candidates: Sequence[Candidate], wanted: int) -> list[Candidate]:
        """Return the candidates in the order in which to try for them: a run of neighbours, begun at random."""
        if self._factor == 1 or len(candidates) <= wanted:
            return list(candidates)
        start = int(self._clock.uniform(0, len(candidates)))
        return [*candidates[start:], *candidates[:start]]

    def learn(self, tried: int, refused: int) -> None:
        """Widen after refusals, and narrow again without them."""
        if refused > tried * CONTENDED:
            self._factor = min(self._factor * 2, WIDEST)
        elif refused == 0 and self._factor > 1:
            self._factor //= 2
