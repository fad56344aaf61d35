"""A small schedule at the edge of time: a few consumers, two messages, claims that are hardly longer than the margin.

A holder trusts its claim to its very end, and the others try all the time: an error of a second shows here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawnqueue import ClaimBusyError, LeaseLostError, PawnQueue, StoreError
from tests.sim.pack_truth import any_stage
from tests.sim.planting import plant_few
from tests.sim.prepared import TOPIC, establish
from tests.sim.stage import ALL_SETTINGS, RETENTION
from tests.sim.weather import SLUGGISH
from tests.support.claims import trusted_until

if TYPE_CHECKING:
    import random

    from pawnqueue import Claim
    from tests.sim.processes import Process
    from tests.sim.stage import Stage
    from tests.sim.weather import Weather
    from tests.sim.world import World

LASTS = 70.0
TTLS = (4.5, 6.0, 14.0)


def duel(world: World, weather: Weather | None = None) -> list[str]:
    """Run one duel to its end, and return every promise that it broke.

    :param weather: without it, mostly that in which requests take seconds.
    """
    sluggish = SLUGGISH if world.stream("weather").random() < 0.7 else world.weather
    world.weather = world.first_weather = weather or sluggish
    return world.run(_duel)


async def _duel(world: World) -> list[str]:
    stage = any_stage(world, "duel")
    establish(world.bucket, TOPIC)
    plant_few(stage, 2)
    for name in ("A", "B", "C"):
        process = world.process(name)
        process.spawn(_fight(stage, process))
        process.trouble(LASTS, 60)
    await world.until_idle(at_most=600.0)
    return stage.violations(left=stage.history.published)


async def _fight(stage: Stage, process: Process) -> None:
    chance = stage.world.stream(f"actor {process.name}")
    settings = chance.choice(ALL_SETTINGS[RETENTION])
    while stage.world.loop.now < LASTS:
        try:
            async with PawnQueue.open(settings, store=process.store, clock=process.clock) as queue:
                try:
                    await _claim_and_hold(stage, process, queue, chance)
                finally:
                    stage.history.leave(process.name, stage.world.loop.now)  # closing gives back what it has
        except (StoreError, LeaseLostError, ClaimBusyError):
            await process.clock.sleep(0.2)


async def _claim_and_hold(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    by_id = chance.random() < 0.6
    while stage.world.loop.now < LASTS:
        ttl = chance.choice(TTLS)
        # By one id for a while, and for the same owner: each is the zombie of the others, or their retry.
        claim_id = f"job-{stage.world.loop.now // 25:.0f}" if by_id else None
        try:
            claim = await queue.claim(TOPIC, process.name, max_messages=2, ttl=ttl, claim_id=claim_id, owner="run")
        except ClaimBusyError as busy:  # at the very moment at which it can be claimed
            await process.clock.sleep(min(busy.retry_after, max(TTLS) + 5))
            continue
        if claim:
            await _hold(stage, process, queue, claim, chance)
        await process.clock.sleep(chance.uniform(0, 0.6))


async def _hold(stage: Stage, process: Process, queue: PawnQueue, claim: Claim, chance: random.Random) -> None:
    """Trust the claim to its end, renewed once or not at all; then let it be over."""
    holder = stage.believe(process, claim)
    for _ in range(chance.choice((0, 1, 2))):
        try:
            await queue.renew(claim, ttl=chance.choice(TTLS))
            stage.renewed(process, claim)
        except LeaseLostError:
            stage.history.drop(holder, stage.world.loop.now)
            return
        except StoreError:
            break  # nobody knows: it is trusted as before
    await process.clock.sleep(max(0.0, trusted_until(claim) - process.clock.elapsed()))
    stage.history.drop(holder, stage.world.loop.now)
