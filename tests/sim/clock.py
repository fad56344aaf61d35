"""The clock of a simulated process: wrong about the date, a little fast or slow, and right about nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawnqueue.stores.server_time import MAX_DRIFT
from tests.sim.bucket import EPOCH
from tests.sim.loop import wake

if TYPE_CHECKING:
    import asyncio
    import random

    from tests.sim.processes import Process

#: How wrong a machine's date may be, in seconds.
WRONG_BY = 12 * 3600.0


class SimClock:
    """See :class:`pawnqueue.runtime.clock.Clock`.

    ``elapsed`` is CLOCK_BOOTTIME: it runs on while the process is paused, and stops only with the machine. How
    the clock is wrong is drawn from the one stream, randomness and ids from the others, so that more ids do not make
    another clock. It may be as wrong as the engine reckons with, and no more.
    """

    def __init__(self, process: Process, nature: random.Random, chance: random.Random, ids: random.Random) -> None:
        self._process = process
        self._loop = process.world.loop
        self._base = nature.uniform(0, 1e6)
        self._wall = EPOCH + nature.uniform(-WRONG_BY, WRONG_BY)
        #: Its seconds in a second of the store's.
        self.rate = 1 / (1 + nature.uniform(-MAX_DRIFT, MAX_DRIFT))
        self._stopped = 0.0
        self._stands_until = 0.0
        self._chance = chance
        self._bits = ids.getrandbits

    def elapsed(self) -> float:
        """See :class:`~pawnqueue.runtime.clock.Clock`."""
        # As :meth:`_run`: it is asked more than anything else.
        now, stands_until = self._loop.now, self._stands_until
        return self._base + ((max(now, stands_until)) - self._stopped) * self.rate

    def wall(self) -> float:
        """See :class:`~pawnqueue.runtime.clock.Clock`."""
        return self._wall + self._run() * self.rate

    async def sleep(self, seconds: float) -> None:
        """See :class:`~pawnqueue.runtime.clock.Clock`."""
        self._process.check_in()
        loop = self._loop
        waker = loop.create_future()
        loop.at(loop.now + max(seconds, 0.0) / self.rate, self._ring, (waker, self._stopped))
        await waker

    def stop(self, seconds: float) -> None:
        """Stop for this long from now on; sleepers sleep on. See :meth:`.Process.stop_clock`."""
        end = max(self._stands_until, self._loop.now + seconds)
        self._stopped += end - max(self._stands_until, self._loop.now)
        self._stands_until = end

    @property
    def lost(self) -> float:
        """For how many of the world's seconds it has been stopped by the time it runs again."""
        return self._stopped

    @property
    def stood_until(self) -> float:
        """When, in the world's time, it runs again, or did."""
        return self._stands_until

    def uniform(self, low: float, high: float) -> float:
        """See :class:`~pawnqueue.runtime.clock.Clock`."""
        return self._chance.uniform(low, high)

    def nonce(self) -> str:
        """See :class:`~pawnqueue.runtime.clock.Clock`."""
        return f"{self._bits(256):064x}"

    def uuid(self) -> str:
        """See :class:`~pawnqueue.runtime.clock.Clock`."""
        digits = f"{self._bits(128):032x}"
        variant = "89ab"[int(digits[16], 16) & 3]
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"

    def _run(self) -> float:
        """Return the world's time without the times in which the clock was stopped."""
        return max(self._loop.now, self._stands_until) - self._stopped

    def _ring(self, alarm: tuple[asyncio.Future[None], float]) -> None:
        waker, stopped = alarm
        missed = self._stopped - stopped
        if missed:  # the clock has stood still since the alarm was set
            self._loop.at(self._loop.now + missed, self._ring, (waker, self._stopped))
        else:
            wake(waker)
