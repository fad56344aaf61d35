"""The time of the store, by which all processes that share a bucket agree on when a lease ends."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from airflow_provider_pawnqueue.engine import layout
from airflow_provider_pawnqueue.engine.clock import iso
from airflow_provider_pawnqueue.engine.errors import StoreError

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.clock import Clock
    from airflow_provider_pawnqueue.engine.store.retry import ResilientStore

#: A sample whose round trip took longer says too little.
LONGEST_ROUND_TRIP = 0.5
#: How long a sample is relied upon.
FRESH = 240.0
#: How far a local clock may run away from the store's, a second.
DRIFT = 200e-6
#: After so many slow samples the best of them is taken.
PATIENCE = 4


class ServerTime:
    """An interval that holds (server time - local elapsed time), narrowed by every sample.

    With the write of an object sent at *s* and answered at *r*, and its Last-Modified *L* in whole seconds, the server
    wrote it between L and L + 1 by its own clock and between s and r by ours: the difference lies in [L - r, L + 1 -
    s].
    """

    def __init__(self, store: ResilientStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._low = 0.0
        self._high = 0.0
        self._sampled_at: float | None = None

    @property
    def error(self) -> float:
        """How far :meth:`now` may be off, in seconds."""
        return (self._high - self._low) / 2 + self._drift()

    def observe(self, last_modified: datetime, sent: float, received: float) -> bool:
        """Take a sample: an object of ours, whose PUT was sent and answered at these elapsed times.

        Returns False where the round trip was too slow for it to say anything.
        """
        if received - sent > LONGEST_ROUND_TRIP:
            return False
        self._narrow(last_modified, sent, received)
        return True

    async def now(self) -> float:
        """Return the store's time, in seconds since 1970, after a new sample if the last one is old."""
        if self._sampled_at is None or self._clock.elapsed() - self._sampled_at > FRESH:
            await self._sample()
        return self.estimate()

    async def now_iso(self) -> str:
        """Return the store's time as records have it."""
        return iso(await self.now())

    def estimate(self) -> float:
        """Return the store's time from the samples there are; :meth:`now` has been awaited before."""
        return self._clock.elapsed() + (self._low + self._high) / 2

    async def _sample(self) -> None:
        best: tuple[datetime, float, float] | None = None
        for _ in range(PATIENCE):
            sample = await self._probe()
            if self.observe(*sample):
                return
            if best is None or sample[2] - sample[1] < best[2] - best[1]:
                best = sample
        if best is not None:  # a slow store; its best sample is wider, and `error` says so
            self._narrow(*best)

    async def _probe(self) -> tuple[datetime, float, float]:
        key = layout.probe(self._clock.uuid())
        backoff = self._store.backoff()
        while True:
            sent = self._clock.elapsed()
            version = await self._store.overwrite(key, version_body(self._clock))
            received = self._clock.elapsed()
            found = await self._store.head(key)
            await self._store.delete([key])
            # An earlier attempt that lands late would bring its own time; only the write that was answered counts.
            if found is not None and found.version == version:
                return found.last_modified, sent, received
            if not await backoff.pause():
                raise StoreError(
                    f"The store did not show {key} after it had accepted it: it has no read-after-write consistency.",
                    operation="server time",
                )

    def _narrow(self, last_modified: datetime, sent: float, received: float) -> None:
        stamp = last_modified.replace(microsecond=0).timestamp()
        # The sample holds for a moment after `sent`, which may be long ago; the interval is kept as of now.
        since = DRIFT * (self._clock.elapsed() - sent)
        low, high = stamp - received - since, stamp + 1 - sent + since
        if self._sampled_at is not None:
            drift = self._drift()
            narrow_low, narrow_high = max(low, self._low - drift), min(high, self._high + drift)
            # No common point: one of the clocks was set. What was believed before is worth nothing.
            if narrow_low <= narrow_high:
                low, high = narrow_low, narrow_high
        self._low, self._high, self._sampled_at = low, high, self._clock.elapsed()

    def _drift(self) -> float:
        return DRIFT * (self._clock.elapsed() - self._sampled_at) if self._sampled_at is not None else 0.0


def version_body(clock: Clock) -> bytes:
    """Return a body that no other write has: what is read back is then ours or is not."""
    return clock.nonce().encode()
