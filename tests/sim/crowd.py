"""A schedule of people with odd manners, drawn anew each time, in all weathers; then calm, and judgement."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.sim import manners
from tests.sim.actors import act, consumer, dag_janitor, forked, janitor, publisher, redriver, start
from tests.sim.afterwards import POLL, UNTIL_ALL_IS_TAKEN, afterwards, quiet
from tests.sim.pack_truth import any_stage
from tests.sim.prepared import establish
from tests.sim.scenario import plant_bad_things
from tests.sim.stage import ALL_SETTINGS, RETENTION, SHORT_RETENTION, TROUBLED

if TYPE_CHECKING:
    from tests.sim.stage import Stage
    from tests.sim.world import World

#: Groups that come together, by the names of their processes.
GROUPS = {
    "cancelling": {"H1": manners.hasty, "H2": manners.hasty},
    "keeping": {"K1": manners.keeper, "K2": manners.keeper},
    "two minds": {"T1": manners.two_minded},
    "attaching": {"G1": manners.giver, "E1": manners.heir, "E2": manners.heir, "E3": manners.heir},
    "leaving": {"L1": manners.leaver, "L2": manners.leaver, "L3": manners.leaver},
    "forked": {"Z1": forked, "Z2": forked, "Z3": forked},
    "twins": {"I1": manners.hasty_twin, "I2": manners.hasty_twin, "I3": manners.hasty_twin},
    "starting": {"N1": manners.newcomer, "N2": manners.newcomer},
    "frozen": {"F1": manners.frozen, "F2": manners.frozen},
    "picky": {"P9": manners.publisher_of_big_ones, "Y1": manners.picky},
}
#: How often a task is started again.
LIVES = 3


def crowd(world: World) -> list[str]:
    """Run one such schedule to its end, and return every promise that it broke."""
    return world.run(_crowd)


async def _crowd(world: World) -> list[str]:
    stage = any_stage(world, "crowd")
    chance = stage.chance
    establish(world.bucket)
    stage.retention = chance.choice((RETENTION, SHORT_RETENTION))
    stage.create_topic(chance.choice((None, 1, 3, 10)), packs=stage.has_packs)
    plant_bad_things(stage)
    start(stage, "P1", publisher)
    start(stage, "A", consumer)
    for group in chance.sample(sorted(GROUPS), 3):
        for name, actor in GROUPS[group].items():
            start(stage, name, actor, manners.PICKY_SETTINGS if actor is manners.picky else ())
    for name, actor in (("P2", publisher), ("R1", redriver), ("J1", janitor), ("J2", dag_janitor)):
        if chance.random() < 0.5:
            start(stage, name, actor)
    tasks = ("D1", "D2") if chance.random() < 0.4 else ()
    await asyncio.gather(*(_lives(stage, name) for name in tasks))
    await world.until_idle(at_most=600.0)
    await quiet(stage)
    return await afterwards(stage, UNTIL_ALL_IS_TAKEN if stage.has_packs else POLL)


async def _lives(stage: Stage, name: str) -> None:
    """Start a task again and again, under its one name, as soon as it has died: each time it is a fresh process."""
    for life in range(LIVES):
        process = stage.world.process(f"{name}.{life}")
        process.spawn(act(stage, process, manners.doomed, ALL_SETTINGS[stage.retention]))
        await stage.world.until_idle(process, at_most=TROUBLED)
