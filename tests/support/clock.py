"""A clock whose time passes only when everybody waits, or when a test says so: nothing sleeps for real."""

from __future__ import annotations

import asyncio
import heapq
import random
from typing import Any

#: The store's time when a clock begins. Machines' dates are three hours off.
EPOCH = 1_767_225_600.25
_BEGINNING = 1000.0


class VirtualClock:
    """See :class:`~pawnqueue.runtime.clock.Clock`.

    Time stops while any task has something to do, and then jumps to the next sleeper. A test may set it forward by
    :attr:`now`; a sleeper whose time is before that wakes late.

    :param seed: of its chance and of its ids.
    :param by_hand: time stops until :meth:`advance` is called, even if tasks wait.
    """

    def __init__(self, seed: int = 7, *, by_hand: bool = False) -> None:
        #: What is elapsed.
        self.now = _BEGINNING
        #: How long it was asked to sleep, and between which bounds for a random number, each time.
        self.slept: list[float] = []
        self.asked: list[tuple[float, float]] = []
        #: A task sleeps that did not when time was last advanced.
        self.fallen_asleep = asyncio.Event()
        self._by_hand = by_hand
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._ticking = False

    def elapsed(self) -> float:
        """See the port."""
        return self.now

    def wall(self) -> float:
        """See the port."""
        return self.server() + 3 * 3600

    def server(self) -> float:
        """The store's time, which the engine can only estimate."""
        return EPOCH + self.now - _BEGINNING

    async def sleep(self, seconds: float) -> None:
        """See the port."""
        loop = asyncio.get_running_loop()
        waker = loop.create_future()
        self.slept.append(seconds)
        heapq.heappush(self._sleepers, (self.now + max(seconds, 0.0), len(self.slept), waker))
        self.fallen_asleep.set()
        self._tick_later(loop)
        await waker

    async def advance(self, seconds: float) -> None:
        """Let time pass, once somebody waits for that."""
        await self.fallen_asleep.wait()
        self.fallen_asleep.clear()
        self.now += seconds
        while self._sleepers and self._sleepers[0][0] <= self.now:
            self._wake_next()

    def uniform(self, low: float, high: float) -> float:
        """See the port."""
        self.asked.append((low, high))
        return self._random.uniform(low, high)

    def nonce(self) -> str:
        """See the port."""
        return f"{self._random.getrandbits(256):064x}"

    def uuid(self) -> str:
        """See the port."""
        digits = f"{self._random.getrandbits(128):032x}"
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"

    def _tick_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._by_hand and not self._ticking and self._sleepers:
            self._ticking = True
            loop.call_soon(self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ticking = False
        while self._sleepers and self._sleepers[0][2].done():  # cancelled
            heapq.heappop(self._sleepers)
        if self._sleepers and not loop._ready:  # type: ignore[attr-defined]
            self._wake_next()
        self._tick_later(loop)

    def _wake_next(self) -> None:
        at, _, waker = heapq.heappop(self._sleepers)
        self.now = max(self.now, at)
        if not waker.done():
            waker.set_result(None)


class StandingClock:
    """The clock of a machine that may be stopped while the world's goes on."""

    def __init__(self, world: VirtualClock) -> None:
        self._world = world
        #: For how long it has.
        self.stood = 0.0

    def elapsed(self) -> float:
        """See the port."""
        return self._world.elapsed() - self.stood

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - everything else is the world's
        """Be the world's clock in all else."""
        return getattr(self._world, name)
