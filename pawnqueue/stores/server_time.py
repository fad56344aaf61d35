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

#: A sample (a PUT and a HEAD) that took longer is inexact: it is followed by another one.
MAX_ROUND_TRIP_SECONDS = 1.0
#: How long a sample is used before another one is taken.
SAMPLE_CACHE_SECONDS = 240.0
#: How far a local clock may drift from the store's, in seconds for each second.
MAX_DRIFT = 200e-6
#: After this many slow samples, the interval that they have in common is used.
MAX_SAMPLES = 4
#: A store may round the date of an object to the next second.
DATE_ROUNDING_SECONDS = 1.0


def local_seconds(seconds: float) -> float:
    """Return how many seconds of a local clock, which may be slow, certainly fit into these of the store's.

    ⚑ §2: deadlines allow for drift. Where the store's time is known, :meth:`ServerTime.trusted_until` allows for its
    error too.
    """
    return seconds * (1 - MAX_DRIFT)


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval that holds (server time - local elapsed time) at a local time. Clocks drift: it grows with time."""

    low: float
    high: float
    at: float

    @property
    def middle(self) -> float:
        """The most likely difference."""
        return (self.low + self.high) / 2

    @property
    def half(self) -> float:
        """How far the middle may be wrong."""
        return (self.high - self.low) / 2

    def as_of(self, elapsed: float) -> Interval:
        """Return the interval at a later time: it is wider."""
        drift = MAX_DRIFT * (elapsed - self.at)
        return Interval(self.low - drift, self.high + drift, elapsed)

    def half_as_of(self, elapsed: float) -> float:
        """Return how far the middle may be wrong at a later time: each request asks."""
        drift = MAX_DRIFT * (elapsed - self.at)
        return ((self.high + drift) - (self.low - drift)) / 2

    def intersect(self, earlier: Interval) -> Interval | None:
        """Return what it has in common with an earlier one, or None: then a clock was set or stopped."""
        before = earlier.as_of(self.at)
        low, high = max(self.low, before.low), min(self.high, before.high)
        return Interval(low, high, self.at) if low <= high else None


@dataclass(frozen=True, slots=True)
class _Suspicion:
    """An object's date that is later than the store's time can be: our clock may have stopped, or the date is false.

    :param ahead: how far the date is ahead of our elapsed time, in seconds.
    """

    date: float
    ahead: float


class ServerTime:
    """The store's time, as an interval that holds (server time - local elapsed time) and is narrowed by every sample.

    ⚑ §2: a sample is a PUT, sent at *s*, of a key that nobody else writes, and then a HEAD, answered at *r*. It shows
    the Last-Modified *L* in whole seconds. The object that HEAD saw was written by that PUT: by the attempt that was
    answered, or by a repetition on the way, with the same body and so the same ETag, that landed after the answer. All
    of them were sent after s, and the one that HEAD saw had landed before r. So at some moment between s and r of our
    clock the server's was between L and L + 1: the difference lies in [L - r, L + 1 - s]. An interval that ended with
    the PUT's answer would not hold it.
    """

    def __init__(self, store: ResilientStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: Interval | None = None
        self._suspicion: _Suspicion | None = None
        self._disproved_until = -math.inf  # a sample has disproved a date as late as this: such dates do not count
        self._sampling: asyncio.Task[None] | None = None
        self._removals: set[asyncio.Task[None]] = set()
        #: How often a sample has contradicted the interval known before.
        self.jumps = 0

    @property
    def error(self) -> float:
        """How far :meth:`now` may be wrong, in seconds."""
        return math.inf if self._known is None else self._known.half_as_of(self._clock.elapsed())

    async def now(self, *, within: float = math.inf) -> float:
        """Return the store's time, in seconds since 1970; it takes a sample if the last one is old or in doubt.

        :param within: it takes a sample too if :attr:`error` is more than this. It may still be more afterwards.
        """
        if self._needs_sample(within) and self._sampling is not None:
            await self._share_a_sample()  # it may have begun before the doubt arose: then another one is needed
        if self._needs_sample(within):
            await self._share_a_sample()
        return self.estimate()

    async def now_iso(self) -> str:
        """Return the store's time as the text that records contain."""
        return iso(await self.now())

    def estimate(self) -> float:
        """Return the store's time without a new sample.

        :raises RuntimeError: there is no sample yet: await :meth:`now` first.
        """
        return self._clock.elapsed() + self._require_known().middle

    def trusted_until(self, until: float, margin: float, *, in_doubt: bool = False) -> float:
        """Return the elapsed time at which a holder stops trusting a lease that ends at ``until`` by the store's time.

        ⚑ §2: ``margin`` before its end, and early enough that the store's time cannot have reached it: with the error
        that our estimate has now, and the drift to come.

        :param in_doubt: believe an object's date that says that our clock stopped, before a sample has judged it.
        :raises RuntimeError: there is no sample yet: await :meth:`now` first.
        """
        known = self._require_known()
        # The latest elapsed time e with  e + middle + margin <= until  and  e + high + MAX_DRIFT * (e - at) <= until.
        trusted = min(until - margin - known.middle, (until - known.high + MAX_DRIFT * known.at) / (1 + MAX_DRIFT))
        if in_doubt and self._suspicion is not None:
            trusted = min(trusted, until - self._suspicion.ahead)
        return trusted

    def note_date(self, last_modified: datetime) -> None:
        """Take note of an object's date that the store shows. It never narrows the interval, as it may be false.

        ⚑ §2: a date that is later than the store's time can be says that our clock stopped, with the whole machine:
        :meth:`now` then takes a sample. But clients can give dates to objects (rclone keeps those of files): a date
        that the sample disproves is remembered, and no date up to it counts any more.
        """
        date = last_modified.timestamp()
        if self._known is None or date <= self._disproved_until:
            return
        elapsed = self._clock.elapsed()
        ahead = date - elapsed
        latest = self._known.high + MAX_DRIFT * (elapsed - self._known.at)
        if ahead > latest + DATE_ROUNDING_SECONDS and (self._suspicion is None or ahead > self._suspicion.ahead):
            self._suspicion = _Suspicion(date, ahead)

    async def aclose(self) -> None:
        """Cancel the running sample, and wait until the probes are removed."""
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.wait([self._sampling])
        if self._removals:
            await asyncio.wait(self._removals)

    def _require_known(self) -> Interval:
        if self._known is None:
            raise RuntimeError("The store's time is not known yet: await now() before asking for an estimate.")
        return self._known

    def _needs_sample(self, within: float) -> bool:
        """Whether the interval is unknown, in doubt, too old, or wider than ``within`` seconds on each side."""
        if self._known is None or self._suspicion is not None:
            return True
        return self._clock.elapsed() - self._known.at > SAMPLE_CACHE_SECONDS or self.error > within

    async def _share_a_sample(self) -> None:
        """Take a sample, or wait for the one that is being taken. A cancelled caller does not end it for the others."""
        if self._sampling is None:
            self._sampling = asyncio.create_task(self._sample(), name="pawnqueue-server-time")
            self._sampling.add_done_callback(self._forget_sample)
        sampling = self._sampling
        await asyncio.wait([sampling])
        sampling.result()

    def _forget_sample(self, sampling: asyncio.Task[None]) -> None:
        self._sampling = None
        if not sampling.cancelled():
            sampling.exception()  # marks it as retrieved: its waiters raise it, if there are any left

    async def _sample(self) -> None:
        suspicion = self._suspicion
        found: Interval | None = None
        for _ in range(MAX_SAMPLES):
            sample, took = await self._probe()
            found = (found and sample.intersect(found)) or sample
            if took <= MAX_ROUND_TRIP_SECONDS:
                break
        if found is not None:
            self._believe(found, suspicion)

    def _believe(self, sample: Interval, suspicion: _Suspicion | None) -> None:
        """Adopt a sample, and resolve the suspicion: either the interval allows for its date, or the date is disproved.

        :param suspicion: the one that was known before the sample was taken; a later one is left to the next sample.
        """
        common = sample if self._known is None else sample.intersect(self._known)
        if common is None:  # a clock was set or stopped: the interval known before is worthless
            self._note_jump(sample)
        elif suspicion is not None and suspicion.ahead <= sample.high + DATE_ROUNDING_SECONDS:
            common = sample  # too slow to tell whether our clock stopped: only the sample itself is certain
        self._known = common or sample
        current = self._suspicion
        if current is None or current.ahead <= self._known.high + DATE_ROUNDING_SECONDS:
            self._suspicion = None  # the interval allows for the date
        elif current == suspicion:
            self._disproved_until = max(self._disproved_until, current.date)  # the date was false
            self._suspicion = None

    def _note_jump(self, sample: Interval) -> None:
        self.jumps += 1
        logger.warning(
            "The store's time is %.1f seconds off from what it was by this machine's clock: one of the two was set, or "
            "this machine stood still. Claims that are over by the store's time are lost.",
            sample.middle - self._require_known().middle,
        )

    async def _probe(self) -> tuple[Interval, float]:
        """Take one sample; return it, and how long it took."""
        key = layout.probe(self._clock.uuid())
        backoff = self._store.backoff()
        while True:
            sent = self._clock.elapsed()
            version = await self._store.overwrite(key, unique_body(self._clock))
            found = await self._store.head(key)
            answered = self._clock.elapsed()
            # Another version comes from an earlier round that has landed late: it was sent before `sent`.
            if found is not None and found.version == version:
                self._remove(key)
                return _sample_of(found.last_modified, sent, answered), answered - sent
            if not await backoff.pause():
                self._remove(key)
                raise StoreError(
                    f"The store did not show {key} after it had accepted it: it has no read-after-write consistency.",
                    operation="server time",
                )

    def _remove(self, key: str) -> None:
        """Delete a probe in the background, in one attempt; a janitor finds what is left."""

        async def remove() -> None:
            with suppress(StoreError):
                await self._store.with_budget(0).delete([key])

        removal = asyncio.create_task(remove(), name="pawnqueue-remove-probe")
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)


def _sample_of(last_modified: datetime, sent: float, answered: float) -> Interval:
    stamp = last_modified.replace(microsecond=0).timestamp()
    # It is true at some moment between the two; the interval is given for the end.
    drift = MAX_DRIFT * (answered - sent)
    return Interval(stamp - answered - drift, stamp + 1 - sent + drift, answered)


def unique_body(clock: Clock) -> bytes:
    """Return a body that no other write has, so that it can be recognised when it is read back."""
    return clock.nonce().encode()
