"""Kinds of schedules that are played on a store without conditions, in weathers of their own.

:func:`csprng` plays them within the assumption of ``csprng_verify``, where every promise is kept.
:func:`csprng_late` plays beyond it, where nothing is lost. The seed decides the kind and the weather.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING
from unittest import mock

from pawnqueue import PawnQueue
from tests.sim import duel as duel_arena
from tests.sim.duel import duel
from tests.sim.pack_truth import any_stage
from tests.sim.planting import plant_few
from tests.sim.prepared import TOPIC, establish
from tests.sim.scenario import schedule
from tests.sim.stage import ALL_SETTINGS, RETENTION, TROUBLE
from tests.sim.weather import STORMY, Weather

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from tests.sim.processes import Process
    from tests.sim.stage import Stage
    from tests.sim.world import World

#: Requests are refused and answered with errors, and their senders die and freeze.
FAIR = Weather(latency=0.02, busy=0.02, error=0.02, partial=0.05, kill=0.3, pause=0.4)
#: Some requests take seconds. They are answered, so it can be measured.
SLOW_BUT_ANSWERED = Weather(latency=0.05, lateness=3.0, late=0.2, busy=0.02, kill=0.2, pause=0.3)
#: All that can go wrong, often.
HARSH = Weather(
    latency=0.06, lateness=3.0, late=0.03, busy=0.02, lost=0.02, error=0.02, dropped=0.02, vanished=0.01, partial=0.1,
    kill=0.4, pause=0.5,
)  # fmt: skip
#: Requests land when nobody counts on them any more: the assumption is broken, and nobody can measure it.
BROKEN = STORMY.times(1.5)


def csprng(world: World) -> list[str]:
    """Play one of the kinds, in one of the weathers in which the assumption is kept."""
    chance = world.stream("csprng")
    kind, weather = chance.choice(list(KINDS)), chance.choice((FAIR, SLOW_BUT_ANSWERED, HARSH))
    return [f"{kind}: {one}" for one in _play(world, kind, weather)]


def csprng_late(world: World) -> list[str]:
    """Play a schedule in which requests land long after their time-out, and return only what was lost."""
    weather = world.stream("csprng").choice((BROKEN, BROKEN, SLOW_BUT_ANSWERED, HARSH))
    return [one for one in _play(world, "schedule", weather) if "lost" in one]


def _play(world: World, kind: str, weather: Weather) -> list[str]:
    world.weather = world.first_weather = weather
    return KINDS[kind](world, weather)


def cut_duel(world: World, weather: Weather) -> list[str]:
    """Run a duel in which everything that is going on in a process is cancelled time and again, and begun anew."""
    with mock.patch.object(duel_arena, "_fight", time_and_again(duel_arena._fight)):
        return duel(world, weather)


def time_and_again(fight: Callable[[Stage, Process], Awaitable[None]]) -> Callable[[Stage, Process], Awaitable[None]]:
    """Return a fighter that is cancelled every few seconds, at any await, and begins again."""

    async def be_cut(stage: Stage, process: Process) -> None:
        chance, loop = stage.world.stream(f"cuts {process.name}"), stage.world.loop
        while loop.now < duel_arena.LASTS:
            fighting = asyncio.ensure_future(fight(stage, process))
            await process.clock.sleep(chance.expovariate(0.2))
            for holder in {who for who, _ in stage.history.open_holds if who.process == process.name}:
                stage.history.drop(holder, loop.now)
            fighting.cancel()
            await asyncio.gather(fighting, return_exceptions=True)

    return be_cut


def brawl(world: World, weather: Weather) -> list[str]:
    """Let six fight for one message, three of them by one claim's id: many write, and read, one register at once."""
    world.weather = world.first_weather = weather

    async def scenario(world: World) -> list[str]:
        stage = any_stage(world, "brawl")
        establish(world.bucket, TOPIC)
        plant_few(stage, 1)
        fight = time_and_again(_brawler) if stage.chance.random() < 0.3 else _brawler
        for number in range(6):
            process = world.process(f"C{number}")
            process.spawn(fight(stage, process))
            process.trouble(duel_arena.LASTS, 300)
        await world.until_idle(at_most=600.0)
        return stage.history.violations(left=stage.history.published)

    return world.run(scenario)


async def _brawler(stage: Stage, process: Process) -> None:
    chance, loop = stage.world.stream(f"actor {process.name}"), stage.world.loop
    while loop.now < duel_arena.LASTS:
        with suppress(*TROUBLE):
            async with PawnQueue.open(ALL_SETTINGS[RETENTION][0], store=process.store, clock=process.clock) as queue:
                try:
                    await _brawl_on(stage, process, queue, chance)
                finally:
                    stage.history.leave(process.name, loop.now)  # closing gives back what it has
        await process.clock.sleep(0.2)


async def _brawl_on(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    loop, by_id = stage.world.loop, process.name in {"C0", "C2", "C4"}
    while loop.now < duel_arena.LASTS:
        claim_id = f"job-{loop.now // 25:.0f}" if by_id else None
        ttl = chance.choice((4.5, 4.5, 6.0))
        claim = await queue.claim(TOPIC, process.name, max_messages=1, ttl=ttl, claim_id=claim_id, owner="run")
        if claim:
            await duel_arena._hold(stage, process, queue, claim, chance)
        await process.clock.sleep(chance.uniform(0, 0.1))


#: Where the strategy is attacked, by their names.
KINDS: dict[str, Callable[[World, Weather], list[str]]] = {
    "schedule": lambda world, _: schedule(world),
    "duel": duel,
    "cut duel": cut_duel,
    "brawl": brawl,
}
