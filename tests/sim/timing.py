"""The store's time alone: processes that ask for it in any weather, with clocks that run wrong and stop.

A wrong time shows in a schedule only where somebody has a message at that very moment. Here every returned time is
judged, and every deadline that is made of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pawnqueue import StoreError
from pawnqueue.settings import RetrySettings
from pawnqueue.stores.retry import ResilientStore
from pawnqueue.stores.server_time import DATE_ROUNDING_SECONDS, ServerTime
from tests.sim.bucket import EPOCH
from tests.sim.weather import Weather

if TYPE_CHECKING:
    import random

    from tests.sim.processes import Process
    from tests.sim.world import World

#: Requests are given up and sent again all the time, and what was given up lands all the same.
ECHOES = Weather(lateness=9.0, late=0.4, dropped=0.3)
BEATS = "beats/"
ROUNDS = 6
#: How long something lasts that a process trusts in: up to hours, in which 200 ppm are seconds.
LASTS = (5.0, 60.0, 4 * 3600.0)
MARGINS = (0.0, 2.0)
#: How long a machine is stopped at most: hardly longer than a slow sample is wide, or much longer.
STOPS = (8.0, 90.0)
#: Of floating-point numbers around EPOCH.
SLACK = 1e-4


@dataclass
class _Asker:
    """One process that asks."""

    process: Process
    chance: random.Random
    broken: list[str]
    time: ServerTime = field(init=False)

    def __post_init__(self) -> None:
        process = self.process
        self.store = ResilientStore(process.store, RetrySettings(budget_seconds=15), process.clock)
        self.time = ServerTime(self.store, process.clock)
        self.store.watch(self.time.note_date)

    async def run(self) -> None:
        for _ in range(ROUNDS):
            await self.process.clock.sleep(self.chance.uniform(0, 300))
            try:
                await self._ask_and_trust()
            except StoreError:
                continue

    async def _ask_and_trust(self) -> None:
        """Look at what the others do, ask for the time, and trust in something until it is too late by our clock."""
        process, time = self.process, self.time
        await self.store.put(f"{BEATS}{process.name}", b"")
        dates = [info.last_modified async for page in self.store.pages(BEATS) for info in page]
        if not dates:
            return
        age, stops = self._now() - max(dates).timestamp(), process.stops
        told = await time.now(within=self.chance.choice((1.0, 2.0, 100.0)))
        error, behind = time.error, self._now() - told
        # A clock that stood still is noticed by what is younger than it can be: what is not, may hide as much.
        hidden = DATE_ROUNDING_SECONDS + age if process.stops else 0.0
        if stops == process.stops and not -error - SLACK <= behind <= error + hidden + SLACK:
            self._say(f"says {told - EPOCH:.3f} with an error of {error:.3f}")
        until = told + self.chance.choice(LASTS)
        trusted = time.trusted_until(until, self.chance.choice(MARGINS))
        await process.clock.sleep(trusted - process.clock.elapsed())
        if not process.stops and trusted >= process.clock.elapsed() - SLACK and self._now() > until + SLACK:
            self._say(f"has trusted in what was over at {until - EPOCH:.3f}")

    def _now(self) -> float:
        return self.process.world.bucket.server_time()

    def _say(self, what: str) -> None:
        self.broken.append(f"wrong time: {self.process.name} {what} at {self._now() - EPOCH:.3f}")


def timing(world: World) -> list[str]:
    """Let a few processes ask for the time, and return all that was wrong."""
    return world.run(_timing)


async def _timing(world: World) -> list[str]:
    chance, broken = world.stream("timing"), list[str]()
    if chance.random() < 0.3:
        world.weather = world.first_weather = ECHOES
    stand_still = chance.random() < 0.5
    for name in ("A", "B", "C"):
        process = world.process(name)
        process.spawn(_Asker(process, world.stream(f"actor {name}"), broken).run())
        process.trouble(1000, 60)
        for _ in range(3 if stand_still else 0):
            length = chance.uniform(0, chance.choice(STOPS))
            world.loop.at(chance.uniform(0, 1000), process.stop_clock, length)
    await world.until_idle()
    return broken
