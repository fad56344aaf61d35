"""One large schedule: everyone against each other in bad weather, then calm, then judgement.

Everyone uses the engine's own front door. What they believe is written into a :class:`~tools.kit.history.History`,
and what the bucket holds in the end is looked at directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawnqueue.catalog import units
from pawnqueue.domain import layout
from tests.sim.actors import consumer, dag_janitor, forked, janitor, publisher, redriver, start
from tests.sim.afterwards import POLL, UNTIL_ALL_IS_TAKEN, afterwards, quiet
from tests.sim.pack_truth import any_stage
from tests.sim.prepared import TOPIC, establish
from tests.sim.stage import BAD_NAME, BAD_UUID, RETENTION, SHORT_RETENTION, STRANGER

if TYPE_CHECKING:
    from tests.sim.stage import Stage
    from tests.sim.world import World


def schedule(world: World) -> list[str]:
    """Run one schedule to its end, and return every promise that it broke."""
    return world.run(_schedule)


async def _schedule(world: World) -> list[str]:
    stage = any_stage(world, "scenario")
    establish(world.bucket)
    stage.retention = stage.chance.choice((RETENTION, SHORT_RETENTION))
    stage.create_topic(stage.chance.choice((None, 1, 3, 10)), packs=stage.has_packs)
    plant_bad_things(stage)
    for name in ("P1", "P2"):
        start(stage, name, publisher)
    for name in ("A", "B", "C"):
        start(stage, name, consumer)
    if stage.chance.random() < 0.4:  # a zombie and its retry: one claim id, one owner, two processes
        for name in ("Z1", "Z2"):
            start(stage, name, forked)
    for name in ("R1", "R2"):
        start(stage, name, redriver)
    start(stage, "J1", janitor)
    start(stage, "J2", dag_janitor)
    await world.until_idle(at_most=600.0)
    await quiet(stage)
    return await afterwards(stage, UNTIL_ALL_IS_TAKEN if stage.has_packs else POLL)


def plant_bad_things(stage: Stage) -> None:
    """Put into the topic what no publisher of ours wrote: promise 6 says that none of it blocks the others."""
    bucket, chance = stage.world.bucket, stage.chance
    if chance.random() < 0.3:
        bucket.plant(units.key_of(TOPIC, BAD_NAME), chance.choice((b"", b"{", b"[1]", b'{"id":7}', b"\xff")))
        if chance.random() < 0.5:
            bucket.plant(layout.lease(TOPIC, BAD_UUID), chance.choice((b"", b"null", b'{"v":1,"until":"x"}')))
    if chance.random() < 0.2:
        bucket.plant(STRANGER, b"not ours")
