"""How well the store answers: for a first look at a store, and for diagnosis."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pawnqueue.domain import layout

if TYPE_CHECKING:
    from pawnqueue.context import Context

#: How many requests are timed.
_TIMED_REQUESTS = 5


@dataclass(frozen=True, slots=True)
class Health:
    """What :meth:`health` has measured."""

    round_trip_seconds: float
    """The median time of a small request."""

    clock_offset_seconds: float
    """How far this machine's clock is ahead of the store's. The queue uses the store's time only."""

    clock_error_seconds: float
    """How far the offset may be wrong."""


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
