"""How well the store answers: for whoever opens a queue for the first time, or asks what is wrong."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pawnqueue.domain import layout

if TYPE_CHECKING:
    from pawnqueue.context import Context

#: So many requests are timed.
_TIMED_REQUESTS = 5


@dataclass(frozen=True, slots=True)
class Health:
    """What was measured."""

    round_trip_seconds: float
    """How long a small request takes, in the median."""

    clock_offset_seconds: float
    """How far this machine's clock is ahead of the store's; the queue goes by the store's alone."""

    clock_error_seconds: float
    """How far that may be off."""


async def health(context: Context) -> Health:
    """Time a few requests, and compare the clocks. Changes nothing."""
    clock = context.clock
    taken = []
    for _ in range(_TIMED_REQUESTS):
        began = clock.elapsed()
        await context.store.head(layout.BUCKET_RECORD)
        taken.append(clock.elapsed() - began)
    now = await context.now()
    return Health(statistics.median(taken), clock.wall() - now, context.time.error)
