"""The time of the store, by which all processes that share a bucket agree on when a lease ends."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pawnqueue.domain import layout
from pawnqueue.domain.times import iso
from pawnqueue.errors import StoreError
from pawnqueue.events import logger_of

if TYPE_CHECKING:
    from pawnqueue.runtime.clock import Clock
    from pawnqueue.stores.retry import ResilientStore

logger = logger_of("store")

#: A sample, a PUT and a HEAD, that took longer says little: it is followed by another one.
MAX_ROUND_TRIP_SECONDS = 1.0
#: How long a sample is relied upon.
SAMPLE_CACHE_SECONDS = 240.0
#: How far a local clock may run away from the store's, a second.
MAX_DRIFT = 200e-6
#: After so many slow samples what they say together is taken.
MAX_SAMPLES = 4
#: A store may round the date of an object to the next second.
DATE_ROUNDING_SECONDS = 1.0


def local_seconds(seconds: float) -> float:
    """Return for how long by a local clock, which may be slow, one can trust what lasts so long by the store's.

    ⚑ §2: deadlines reckon with drift. Where the store's time is known, :meth:`ServerTime.trusted_until` reckons with
    the error too.
    """
    return seconds * (1 - MAX_DRIFT)


@dataclass(frozen=True, slots=True)
class Interval:
    """Where (server time - local elapsed time) lies, as of a local time: both clocks drift, and it grows with time."""

    low: float
    high: float
    at: float

    @property
    def middle(self) -> float:
        """What it most likely is."""
        return (self.low + self.high) / 2

    @property
    def half(self) -> float:
        """How far the middle may be off."""
        return (self.high - self.low) / 2

    def as_of(self, elapsed: float) -> Interval:
        """Return what is left of it at a later time."""
        drift = MAX_DRIFT * (elapsed - self.at)
        return Interval(self.low - drift, self.high + drift, elapsed)

    def common(self, earlier: Interval) -> Interval | None:
        """Return what it has in common with an earlier one, or None: then a clock was set, or stood still."""
        before = earlier.as_of(self.at)
        low, high = max(self.low, before.low), min(self.high, before.high)
        return Interval(low, high, self.at) if low <= high else None


@dataclass(frozen=True, slots=True)
class _Suspicion:
    """The date of an object that is later than the store's time can be, and by how much it is ahead of our clock."""

    date: float
    ahead: float


class ServerTime:
    """An interval that holds (server time - local elapsed time), narrowed by every sample.

    ⚑ §2: a sample is a PUT of a key that nobody else writes, sent at *s*, and then a HEAD, answered at *r*, which tells
    the Last-Modified *L* in whole seconds. What HEAD saw was written by that PUT: by the attempt that was answered, or
    by another one that was repeated under way, with the same body and so with the same ETag, and landed after the
    answer. All of them were sent after s, and what HEAD saw had landed before r. So somewhere between s and r of our
    clock the server's was between L and L + 1: the difference lies in [L - r, L + 1 - s]. An interval that ended with
    the PUT's answer would not hold it.
    """

    def __init__(self, store: ResilientStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: Interval | None = None
        self._suspicion: _Suspicion | None = None
        self._disproved = -math.inf
        self._sampling: asyncio.Task[None] | None = None
        self._removals: set[asyncio.Task[None]] = set()
        #: How often a sample has contradicted what was believed before.
        self.jumps = 0

    @property
    def error(self) -> float:
        """How far :meth:`now` may be off, in seconds."""
        return math.inf if self._known is None else self._known.as_of(self._clock.elapsed()).half

    async def now(self, *, within: float = math.inf) -> float:
        """Return the store's time, in seconds since 1970, after a new sample if the last one is old, or in doubt.

        :param within: a sample is taken too if :attr:`error` is more than this. It may still be more afterwards.
        """
        if self._is_due(within) and self._sampling is not None:
            await self._share_a_sample()  # it may have begun before there was a doubt, and not dispel it
        if self._is_due(within):
            await self._share_a_sample()
        return self.estimate()

    async def now_iso(self) -> str:
        """Return the store's time as records have it."""
        return iso(await self.now())

    def estimate(self) -> float:
        """Return the store's time from the samples there are.

        :raises RuntimeError: there are none, as nobody has awaited :meth:`now`.
        """
        return self._clock.elapsed() + self._believed().middle

    def trusted_until(self, until: float, margin: float, *, in_doubt: bool = False) -> float:
        """Return the elapsed time at which a holder stops to trust what lasts until ``until`` by the store's time.

        ⚑ §2: ``margin`` before its time, and early enough that the store's time cannot have reached it, whatever is
        wrong with ours by then: the error there is, and the drift to come.

        :param in_doubt: take the date of an object that says that our clock stood still at its word, before a sample
            has judged it.
        :raises RuntimeError: nobody has awaited :meth:`now`.
        """
        known = self._believed()
        # The latest elapsed time e with  e + middle + margin <= until  and  e + high + MAX_DRIFT * (e - at) <= until.
        trusted = min(until - margin - known.middle, (until - known.high + MAX_DRIFT * known.at) / (1 + MAX_DRIFT))
        if in_doubt and self._suspicion is not None:
            trusted = min(trusted, until - self._suspicion.ahead)
        return trusted

    def seen(self, last_modified: datetime) -> None:
        """Hear the date of an object that the store shows. It never narrows the interval, as it may lie.

        ⚑ §2: a date that is later than the store's time can be says that our clock stood still, with the whole machine:
        :meth:`now` then takes a sample. But clients can give dates to objects (rclone keeps those of files): what the
        sample disproves is remembered, and no date up to it says anything any more.
        """
        date = last_modified.timestamp()
        if self._known is None or date <= self._disproved:
            return
        elapsed = self._clock.elapsed()
        doubt = _Suspicion(date, date - elapsed)
        latest = self._known.as_of(elapsed).high
        if doubt.ahead > latest + DATE_ROUNDING_SECONDS and (
            self._suspicion is None or doubt.ahead > self._suspicion.ahead
        ):
            self._suspicion = doubt

    async def aclose(self) -> None:
        """End what is under way."""
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.wait([self._sampling])
        if self._removals:
            await asyncio.wait(self._removals)

    def _believed(self) -> Interval:
        if self._known is None:
            raise RuntimeError("The store's time is not known yet: await now() before you ask for an estimate.")
        return self._known

    def _is_due(self, within: float) -> bool:
        if self._known is None or self._suspicion is not None:
            return True
        return self._clock.elapsed() - self._known.at > SAMPLE_CACHE_SECONDS or self.error > within

    async def _share_a_sample(self) -> None:
        """Take a sample, or wait for the one that somebody takes. Who is cancelled does not end it for the others."""
        if self._sampling is None:
            self._sampling = asyncio.create_task(self._sample(), name="pawnqueue-server-time")
            self._sampling.add_done_callback(self._sampled)
        sampling = self._sampling
        await asyncio.wait([sampling])
        sampling.result()

    def _sampled(self, sampling: asyncio.Task[None]) -> None:
        self._sampling = None
        if not sampling.cancelled():
            sampling.exception()  # those who wait for it are told; there may be none left

    async def _sample(self) -> None:
        suspicion = self._suspicion
        found: Interval | None = None
        for _ in range(MAX_SAMPLES):
            sample, took = await self._probe()
            found = (found and sample.common(found)) or sample
            if took <= MAX_ROUND_TRIP_SECONDS:
                break
        if found is not None:
            self._believe(found, suspicion)

    def _believe(self, sample: Interval, suspicion: _Suspicion | None) -> None:
        """Take what was sampled, and judge what was suspected before that."""
        both = sample if self._known is None else sample.common(self._known)
        if both is None:  # a clock was set, or stood still: what was believed before is worth nothing
            self._jumped(sample)
        elif suspicion is not None and suspicion.ahead <= sample.high + DATE_ROUNDING_SECONDS:
            both = sample  # too slow to say whether our clock stood still: only what it says by itself is certain
        self._known = both or sample
        doubt = self._suspicion
        if doubt is None or doubt.ahead <= self._known.high + DATE_ROUNDING_SECONDS:
            self._suspicion = None
        elif doubt == suspicion:
            self._disproved = max(self._disproved, doubt.date)
            self._suspicion = None
        # Otherwise it has come up meanwhile, and the next sample judges it.

    def _jumped(self, sample: Interval) -> None:
        self.jumps += 1
        logger.warning(
            "The store's time is %.1f seconds off from what it was by this machine's clock: one of the two was set, or "
            "this machine stood still. Claims that are over by the store's time are lost.",
            sample.middle - self._believed().middle,
        )

    async def _probe(self) -> tuple[Interval, float]:
        """Take one sample; return it, and how long it took."""
        key = layout.probe(self._clock.uuid())
        backoff = self._store.backoff()
        while True:
            sent = self._clock.elapsed()
            version = await self._store.overwrite(key, unique_body(self._clock))
            found = await self._store.head(key)
            told = self._clock.elapsed()
            # Another version is that of an earlier round, which has landed late: it was not sent after `sent`.
            if found is not None and found.version == version:
                self._remove(key)
                return _sample_of(found.last_modified, sent, told), told - sent
            if not await backoff.pause():
                self._remove(key)
                raise StoreError(
                    f"The store did not show {key} after it had accepted it: it has no read-after-write consistency.",
                    operation="server time",
                )

    def _remove(self, key: str) -> None:
        """Delete a probe, in one attempt for which nobody waits; a janitor finds what is left."""

        async def remove() -> None:
            with suppress(StoreError):
                await self._store.with_budget(0).delete([key])

        removal = asyncio.create_task(remove(), name="pawnqueue-remove-probe")
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)


def _sample_of(last_modified: datetime, sent: float, told: float) -> Interval:
    stamp = last_modified.replace(microsecond=0).timestamp()
    # It holds for a moment between the two; the interval is kept as of the end.
    drift = MAX_DRIFT * (told - sent)
    return Interval(stamp - told - drift, stamp + 1 - sent + drift, told)


def unique_body(clock: Clock) -> bytes:
    """Return a body that no other write has: what is read back is then ours or is not."""
    return clock.nonce().encode()
