"""The clock of a simulated process: wrong about the date, a little fast or slow, and right about nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.bucket import EPOCH
from tests.sim.loop import wake

if TYPE_CHECKING:
    import random

    from tests.sim.processes import Process

#: How far a clock may run away from the store's, a second.
DRIFT = 100e-6
#: How wrong a machine's date may be, in seconds.
WRONG_BY = 12 * 3600.0


class SimClock:
    """See :class:`airflow_provider_pawnqueue.engine.clock.Clock`.

    ``elapsed`` is CLOCK_BOOTTIME: it runs on while the process is paused. How the clock is wrong is drawn from the one
    stream, randomness and ids from the others, so that more ids do not make another clock.
    """

    def __init__(self, process: Process, nature: random.Random, chance: random.Random, ids: random.Random) -> None:
        self._process = process
        self._loop = process.world.loop
        self._base = nature.uniform(0, 1e6)
        self._wall = EPOCH + nature.uniform(-WRONG_BY, WRONG_BY)
        self.rate = 1 + nature.uniform(-DRIFT, DRIFT)
        self._chance = chance
        self._bits = ids.getrandbits

    def elapsed(self) -> float:
        """See :class:`~airflow_provider_pawnqueue.engine.clock.Clock`."""
        return self._base + self._loop.now * self.rate

    def wall(self) -> float:
        """See :class:`~airflow_provider_pawnqueue.engine.clock.Clock`."""
        return self._wall + self._loop.now * self.rate

    async def sleep(self, seconds: float) -> None:
        """See :class:`~airflow_provider_pawnqueue.engine.clock.Clock`."""
        self._process.check_in()
        loop = self._loop
        waker = loop.create_future()
        loop.at(loop.now + max(seconds, 0.0) / self.rate, wake, waker)
        await waker

    def uniform(self, low: float, high: float) -> float:
        """See :class:`~airflow_provider_pawnqueue.engine.clock.Clock`."""
        return self._chance.uniform(low, high)

    def nonce(self) -> str:
        """See :class:`~airflow_provider_pawnqueue.engine.clock.Clock`."""
        return f"{self._bits(256):064x}"

    def uuid(self) -> str:
        """See :class:`~airflow_provider_pawnqueue.engine.clock.Clock`."""
        digits = f"{self._bits(128):032x}"
        variant = "89ab"[int(digits[16], 16) & 3]
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
