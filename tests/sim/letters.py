"""Schedules around dead letters: redrives by filter, beside burials, sweeps and each other."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pawnqueue import PawnQueue, StoreError
from pawnqueue.catalog import letters, units
from pawnqueue.domain import layout
from pawnqueue.maintenance.letter_filter import is_reason
from tests.sim.actors import claimed, consumer, dag_janitor, janitor, note, publisher, redriver, shaken, start
from tests.sim.afterwards import POLL, UNTIL_ALL_IS_TAKEN, afterwards, quiet
from tests.sim.pack_truth import any_stage
from tests.sim.prepared import TOPIC, establish
from tests.sim.stage import RETENTION, SHORT_RETENTION, TROUBLE
from tools.kit.settlements import settlement_of

if TYPE_CHECKING:
    import random

    from pawnqueue.stores.port import StoredObject
    from tests.sim.processes import Process
    from tests.sim.stage import Stage
    from tests.sim.world import World

REASONS = ("expired", "ValueError: no amount", "ValueErrors", "bad")
FILTERS: tuple[dict[str, Any], ...] = (
    {"reason": "expired"},
    {"reason": "ValueError"},
    {"reason": "ValueError*"},
    {"older_than": 20.0},
    {"younger_than": 30.0},
    {"reason": "bad", "older_than": 10.0},
    {"reason": "expired", "max_messages": 1},
    {"reason": "bad", "per_second": 0.3},
)
#: By how much the ages of letters may be wrong: dates are whole seconds, and each process's time may be wrong by the
#: margin.
AGE_ERROR = 1.0 + 2.0


def schedule_of_letters(world: World) -> list[str]:
    """Run one such schedule to its end, and return every promise that it broke."""
    return world.run(_letters)


async def _letters(world: World) -> list[str]:
    stage = any_stage(world, "letters")
    chance = stage.chance
    establish(world.bucket)
    stage.retention = chance.choice((RETENTION, SHORT_RETENTION))
    stage.create_topic(chance.choice((None, 1, 3)), packs=stage.has_packs)
    watch = LetterWatch(stage)
    for name in ("P1", "P2"):
        start(stage, name, publisher)
    for name in ("B1", "B2"):
        start(stage, name, burier)
    start(stage, "A", consumer)
    for name in ("F1", "F2", "F3"):
        start(stage, name, watch.filtering_redriver)
    for name, actor in (("R1", redriver), ("J1", janitor), ("J2", dag_janitor)):
        if chance.random() < 0.5:
            start(stage, name, actor)
    await world.until_idle(at_most=600.0)
    await quiet(stage)
    return watch.broken + await afterwards(stage, UNTIL_ALL_IS_TAKEN if stage.has_packs else POLL)


async def burier(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Claim, and bury most of it for one reason or another."""
    for _ in range(6):
        await process.clock.sleep(chance.uniform(0, 12))
        try:
            claim = await claimed(stage, process, queue, max_messages=chance.choice((1, 2, 5)), ttl=20.0)
            if not claim:
                continue
            holder = stage.believe(process, claim)
            await process.clock.sleep(chance.uniform(0, 3))
            stage.history.drop(holder, stage.world.loop.now)
            for message in list(claim.ids):
                note(stage, claim, await settlement_of(queue.bury(claim, message, reason=chance.choice(REASONS))))
        except TROUBLE as error:
            await shaken(stage, process, error)


@dataclass
class LetterWatch:
    """Watches each redrive that begins: whether its letter is one that the redriver was asked for."""

    stage: Stage
    broken: list[str] = field(default_factory=list)
    filters: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What each redriver is asked for, all its life: its requests may land late."""

    def __post_init__(self) -> None:
        """Begin to watch the bucket."""
        self.stage.world.bucket.observers.append(self.see)

    async def filtering_redriver(self, stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
        """Give some dead letters back."""
        wanted = self.filters[process.name] = chance.choice(FILTERS)
        for _ in range(5):
            await process.clock.sleep(chance.uniform(2, 25))
            with suppress(StoreError):
                await queue.redrive(TOPIC, **wanted)

    def see(self, who: str, key: str, before: StoredObject | None, after: StoredObject | None) -> None:
        """Look at each lock of a letter."""
        unit = layout.parse_lease(key) if key.startswith(layout.leases(TOPIC)) else None
        if unit is None or before is not None or after is None or who not in self.filters:
            return
        lock = json.loads(after.body)
        if lock.get("state") == "moving":
            self._judge(who, unit, lock["source"])

    def _judge(self, who: str, unit: str, source: str) -> None:
        bucket = self.stage.world.bucket
        letter = bucket.objects.get(letters.key_of(TOPIC, source))
        if letter is None or units.redriven_id(source, letter.info.version) != unit:
            return  # it is gone, or another one by now: nothing is moved
        wanted, age = self.filters[who], bucket.server_time() - letter.info.last_modified.timestamp()
        if age < wanted.get("older_than", 0.0) - AGE_ERROR:
            self.broken.append(f"{who} redrives {source}, which is {age:.1f} seconds old, by {wanted}")
        reason = bucket.body(letters.reason_key_of(TOPIC, source))
        if reason is not None and "reason" in wanted and not is_reason(json.loads(reason)["reason"], wanted["reason"]):
            self.broken.append(f"{who} redrives {source}, buried for {json.loads(reason)['reason']!r}, by {wanted}")
