"""After how long a message comes again whose handler failed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from pawnqueue.arguments import checked_seconds, is_number, shown
from pawnqueue.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Retry:
    """How long a message waits after its handler has failed: longer after each delivery, up to a limit.

    After its first delivery it waits for ``first`` seconds, and after each further one ``factor`` times as long as
    before, up to ``most`` seconds. Of that a random part is taken off, up to ``jitter`` of it, so that messages that
    failed together do not come again together. ``Retry(5, factor=1, jitter=0)`` is always five seconds.
    """

    first: float = 1.0
    """Seconds after the first delivery."""
    factor: float = 2.0
    """How many times as long it takes after each further delivery."""
    most: float = 300.0
    """Seconds at most."""
    jitter: float = 0.25
    """The largest part of it that is taken off at random, from 0 to 1."""

    def __post_init__(self) -> None:
        """Check the numbers.

        :raises InvalidArgumentError: one of them is not one, or out of its range.
        """
        checked_seconds(self.first, "first", "", "Retry")
        checked_seconds(self.most, "most", "", "Retry")
        if not is_number(self.factor) or not 1 <= self.factor < math.inf:
            raise InvalidArgumentError(f"factor is a number from 1, not {shown(self.factor)}.", operation="Retry")
        if not is_number(self.jitter) or not 0 <= self.jitter <= 1:
            raise InvalidArgumentError(f"jitter is a number from 0 to 1, not {shown(self.jitter)}.", operation="Retry")

    @classmethod
    def of(cls, given: Retry | float | None) -> Retry:
        """Return a policy that is given as such, or as a constant number of seconds."""
        if given is None:
            return cls()
        if isinstance(given, cls):
            return given
        seconds = checked_seconds(given, "retry", "", "listen")
        return cls(seconds, factor=1.0, most=seconds, jitter=0.0)

    def seconds(self, deliveries: int, uniform: Callable[[float, float], float]) -> float:
        """Return how long a message waits that was delivered this often.

        :param uniform: returns a random number between two.
        """
        try:
            grown = self.first * self.factor ** max(0, deliveries - 1)
        except OverflowError:
            grown = math.inf
        longest = min(grown, self.most)
        return longest * uniform(1 - self.jitter, 1) if self.jitter else longest
