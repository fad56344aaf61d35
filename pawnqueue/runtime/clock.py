"""Time, sleep, randomness and ids: the only sources of them in the queue, so that a simulation can replace them."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from typing import Protocol

# It goes on while a machine is suspended: after an hour, a claim must not look young to it.
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    """Where the queue gets time, randomness and ids."""

    def elapsed(self) -> float:
        """Return seconds that never go back and never stop, from an arbitrary start."""

    def wall(self) -> float:
        """Return this machine's time, in seconds since 1970. It may be wrong by hours."""

    async def sleep(self, seconds: float) -> None:
        """Wait for these seconds."""

    def uniform(self, low: float, high: float) -> float:
        """Return a random number between the two; its quality does not matter."""

    def nonce(self) -> str:
        """Return 256 random bits in hex, of cryptographic quality: no two writes ever share one."""

    def uuid(self) -> str:
        """Return a fresh UUID, version 4."""


class SystemClock:
    """The real one."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def elapsed(self) -> float:
        """See :class:`Clock`."""
        return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)

    def wall(self) -> float:
        """See :class:`Clock`."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """See :class:`Clock`."""
        await asyncio.sleep(seconds)

    def uniform(self, low: float, high: float) -> float:
        """See :class:`Clock`."""
        return self._random.uniform(low, high)

    def nonce(self) -> str:
        """See :class:`Clock`."""
        return f"{self._random.getrandbits(256):064x}"

    def uuid(self) -> str:
        """See :class:`Clock`."""
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))
