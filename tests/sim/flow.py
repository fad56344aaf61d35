"""A topic that is paused and resumed under its users: nobody is given anything of it meanwhile, and nothing is lost."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pawnqueue import PawnQueue, StoreError
from pawnqueue.bucket.topics import RECENT_RECORD_SECONDS
from pawnqueue.domain import layout
from tests.sim.actors import consumer, forked, janitor, publisher, redriver, start
from tests.sim.afterwards import POLL, UNTIL_ALL_IS_TAKEN, afterwards, quiet
from tests.sim.pack_truth import any_stage
from tests.sim.prepared import TOPIC, establish
from tests.sim.truth import json_in

if TYPE_CHECKING:
    import random

    from pawnqueue.stores.port import StoredObject
    from tests.sim.processes import Process
    from tests.sim.stage import Stage
    from tests.sim.world import World

#: How long after the marker has landed a claim may be handed out: its settings were read before. Clocks drift a little.
BOUND = RECENT_RECORD_SECONDS + 0.5
#: How long the topic stays paused, or goes on, before that changes.
PHASES = (2.0, 15.0, 40.0)
MARKER = layout.topic_marker(TOPIC)


def flow(world: World) -> list[str]:
    """Run one such schedule to its end, and return every promise that it broke."""
    return world.run(_flow)


@dataclass
class _Seen:
    """What the bucket showed: when the topic was paused, and which sessions began claims."""

    stage: Stage
    pauses: list[tuple[float, float]] = field(default_factory=list)
    began: set[tuple[str, str]] = field(default_factory=set)
    """The claims, with the sessions that made their records."""

    def see(self, _who: str, key: str, before: StoredObject | None, after: StoredObject | None) -> None:
        """See :attr:`tests.sim.bucket.SimBucket.observers`."""
        now = self.stage.world.loop.now
        parsed = layout.parse_claim(key)
        if parsed is not None and before is None and after is not None:
            self.began.add((layout.claim_stem(*parsed), json_in(after.body).get("session", "")))
        if key != MARKER or after is None:
            return
        is_paused = json_in(after.body).get("settings", {}).get("paused", False)
        was_paused = bool(self.pauses) and self.pauses[-1][1] == math.inf
        if is_paused and not was_paused:
            self.pauses.append((now, math.inf))
        elif was_paused and not is_paused:
            self.pauses[-1] = (self.pauses[-1][0], now)

    def violations(self) -> list[str]:
        """Return which claims were handed out while the topic was paused."""
        broken = set()
        for hold in self.stage.history.holds:
            if (hold.holder.claim, hold.holder.session) not in self.began:
                continue  # a claim that has a record is answered: a retry goes on with it, and so does its heir
            process = self.stage.world.processes[hold.holder.process]
            for since, until in self.pauses:
                # One that was stopped meanwhile may have been about to return.
                if since + BOUND < hold.start < until and process.running(since + BOUND, hold.start) > 0.01:
                    broken.add(f"given while paused: {hold.holder.claim}, {hold.start - since:.1f} s after the pause")
        return sorted(broken)


async def _flow(world: World) -> list[str]:
    stage = any_stage(world, "flow")
    establish(world.bucket)
    most = stage.chance.choice((None, 3, 10))
    stage.create_topic(most, packs=stage.has_packs)
    seen = _Seen(stage)
    world.bucket.observers.append(seen.see)
    for name in ("P1", "P2", "P3"):
        start(stage, name, publisher)
    for name in ("A", "B", "C"):
        start(stage, name, consumer)
    for name in ("Z1", "Z2"):
        start(stage, name, forked)
    start(stage, "R1", redriver)
    start(stage, "J1", janitor)
    start(stage, "W1", _warden)
    await world.until_idle(at_most=600.0)
    await quiet(stage)
    broken = seen.violations()
    stage.create_topic(most, packs=stage.has_packs)  # somebody resumes it
    return broken + await afterwards(stage, UNTIL_ALL_IS_TAKEN if stage.has_packs else POLL)


async def _warden(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Pause the topic, and resume it, a few times."""
    del stage
    for _ in range(3):
        await process.clock.sleep(chance.choice(PHASES))
        with suppress(StoreError):
            await queue.pause(TOPIC)
        await process.clock.sleep(chance.choice(PHASES))
        with suppress(StoreError):
            await queue.resume(TOPIC)
