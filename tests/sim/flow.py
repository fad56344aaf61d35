"""A topic that is paused and resumed under its users, whose messages expire, and that may have only a few of them.

Nobody is given anything of it while it is paused, or anything that is too old. Nothing expires early, and nothing is
lost. A publisher that is alone never makes it more than it may have.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pawnqueue import PawnQueue, QueueFullError, StoreError
from pawnqueue.bucket.topics import RECENT_RECORD_SECONDS
from pawnqueue.catalog import units
from pawnqueue.claims.expiry import EXPIRED
from pawnqueue.domain import layout
from pawnqueue.domain.records import TopicRecord, TopicSettings
from tests.sim.actors import consumer, forked, janitor, publish_some, publisher, redriver, start
from tests.sim.afterwards import POLL, UNTIL_ALL_IS_TAKEN, afterwards, quiet
from tests.sim.bucket import EPOCH
from tests.sim.pack_truth import any_stage
from tests.sim.prepared import TOPIC, establish
from tests.sim.truth import json_in, object_of

if TYPE_CHECKING:
    import random

    from pawnqueue.catalog.units import Unit
    from pawnqueue.stores.port import StoredObject
    from tests.sim.processes import Process
    from tests.sim.stage import Stage
    from tests.sim.world import World

#: How long after the marker has landed a claim may be handed out: its settings were read before. Clocks drift a little.
BOUND = RECENT_RECORD_SECONDS + 0.5
#: How long the topic stays paused, or goes on, before that changes.
PHASES = (2.0, 15.0, 40.0)
MARKER = layout.topic_marker(TOPIC)
#: How long a message may live, in the schedules in which messages expire.
AGES = (None, 15.0, 40.0)
#: How long a claim may take from its last look at the settings and the time to its hand-out: requests that are tried
#: again, and the margins.
SLACK = 45.0


def flow(world: World) -> list[str]:
    """Run one such schedule to its end, and return every promise that it broke."""
    return world.run(_flow)


@dataclass
class Seen:
    """What the bucket showed: when the topic was paused, and which sessions began claims."""

    stage: Stage
    pauses: list[tuple[float, float]] = field(default_factory=list)
    began: set[tuple[str, str]] = field(default_factory=set)
    """The claims, with the sessions that made their records."""

    ages: list[tuple[float, float]] = field(default_factory=lambda: [(-math.inf, math.inf)])
    """Since when messages may be how old."""

    since: dict[str, float] = field(default_factory=dict)
    """From when on the age of each object counts, by its uuid."""

    limit: int | None = None
    """How many messages the topic may have."""

    calling_since: float = math.inf
    """When the publisher began the call that is under way."""

    let_in: dict[str, int] = field(default_factory=dict)
    """How many messages each unit has that a call which was under way has brought."""

    broken: list[str] = field(default_factory=list)

    def see(self, _who: str, key: str, before: StoredObject | None, after: StoredObject | None) -> None:
        """See :attr:`tests.sim.bucket.SimBucket.observers`."""
        now = self.stage.world.loop.now
        parsed = layout.parse_claim(key)
        if parsed is not None and before is None and after is not None:
            self.began.add((layout.claim_stem(*parsed), json_in(after.body).get("session", "")))
        unit = units.parse(key) if key.startswith((units.folder(TOPIC), units.packs_folder(TOPIC))) else None
        if unit is not None and after is not None:
            # A redriven message has another id than its key.
            is_redriven = not unit.is_pack and json_in(after.body).get("id") != unit.id
            self._note_age(unit, is_redriven=is_redriven, is_new=before is None)
            # What lands after its call has failed was counted by nobody.
            request = self.stage.world.landing
            if before is None and not is_redriven and request is not None and request.sent >= self.calling_since:
                self._let_in(unit.name, unit.count)
        if unit is not None and after is None:
            self.let_in.pop(unit.name, None)
        if key.startswith(f"{TOPIC}/dead-letter/") and key.endswith(".reason.json") and after is not None:
            self._judge_letter(json_in(after.body))
        if key != MARKER or after is None:
            return
        settings = json_in(after.body).get("settings", {})
        self.ages.append((now, settings.get("max_age_seconds") or math.inf))
        is_paused = settings.get("paused", False)
        was_paused = bool(self.pauses) and self.pauses[-1][1] == math.inf
        if is_paused and not was_paused:
            self.pauses.append((now, math.inf))
        elif was_paused and not is_paused:
            self.pauses[-1] = (self.pauses[-1][0], now)

    def _note_age(self, unit: Unit, *, is_redriven: bool, is_new: bool) -> None:
        """Note from when on the age of a unit counts whose object has just landed."""
        uuid = layout.uuid_of(unit.id)
        if not is_redriven:
            self.since[uuid] = (units.published_at(unit.name) or 0.0) - EPOCH
            return
        # §4, Age: a redriven message counts from when it was moved, which its object's date tells. §5, Redrive: where a
        # redrive was cut off after its COPY, the process that finishes it copies anew. Nobody can be given the message
        # before that process has released its lease, so the last COPY before the release counts. Step 5 removes the
        # letter before the release, so no later COPY finds it: one that lands all the same makes no message younger.
        lease = self.stage.world.bucket.body(layout.lease(TOPIC, uuid))
        if is_new or (lease is not None and json_in(lease).get("state") == "moving"):
            self.since[uuid] = self.stage.world.loop.now

    def _let_in(self, name: str, count: int) -> None:
        self.let_in[name] = count
        if self.limit is not None and sum(self.let_in.values()) > self.limit:
            self.broken.append(f"too many: {sum(self.let_in.values())} of at most {self.limit}, with {name}")

    def _judge_letter(self, told: dict[str, Any]) -> None:
        unit = units.parse(told.get("name", ""))
        if told.get("reason") != EXPIRED or unit is None:
            return
        # The store's dates are whole seconds, and it may have put the object's at the beginning of this one.
        least, now = min(age for _, age in self.ages), self.stage.world.loop.now
        if now < math.floor(self.since[layout.uuid_of(unit.id)]) + least:
            self.broken.append(f"expired early: {unit.name} at {now:.1f}")

    def _most(self, when: float) -> float:
        """Return how old messages were allowed to be, at most, in the last while before this moment."""
        until = [*(since for since, _ in self.ages[1:]), math.inf]
        ages = zip(self.ages, until, strict=True)
        return max(age for (since, age), end in ages if since <= when and end > when - SLACK)

    def violations(self) -> list[str]:
        """Return which claims were handed out while the topic was paused, or with messages that were too old."""
        broken = {*self.broken}
        for hold in self.stage.history.holds:
            if (hold.holder.claim, hold.holder.session) not in self.began:
                continue  # a claim that has a record is answered: a retry goes on with it, and so does its heir
            process = self.stage.world.processes[hold.holder.process]
            over = self.since.get(object_of(hold.unit), math.inf) + self._most(hold.start) + SLACK
            if over < hold.start and process.running(over, hold.start) > 0.01:
                broken.add(f"given though too old: {hold.unit} to {hold.holder.claim}, {hold.start - over:.1f} s late")
            for since, until in self.pauses:
                # One that was stopped meanwhile may have been about to return.
                if since + BOUND < hold.start < until and process.running(since + BOUND, hold.start) > 0.01:
                    broken.add(f"given while paused: {hold.holder.claim}, {hold.start - since:.1f} s after the pause")
        return sorted(broken)


async def _flow(world: World) -> list[str]:
    stage = any_stage(world, "flow")
    establish(world.bucket)
    seen = Seen(stage)
    world.bucket.observers.append(seen.see)
    stage.truth.most = stage.chance.choice((None, 3, 10))
    stage.expires = stage.chance.random() < 0.6
    seen.limit = stage.chance.choice((None, None, 4, 8))
    _plant(stage, seen.limit)
    if seen.limit is None:
        for name in ("P1", "P2", "P3"):
            start(stage, name, publisher)
    else:
        start(stage, "P1", partial(_publisher, seen))
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
    _plant(stage, seen.limit)  # somebody resumes it
    return broken + await afterwards(stage, UNTIL_ALL_IS_TAKEN if stage.has_packs else POLL)


def _plant(stage: Stage, limit: int | None) -> None:
    """Store the topic's marker as a topic that is not paused."""
    age = stage.chance.choice(AGES) if stage.expires else None
    settings = TopicSettings(
        max_deliveries=stage.truth.most, packs=stage.has_packs, max_age_seconds=age, max_pending=limit
    )
    stage.world.bucket.plant(MARKER, TopicRecord(topic=TOPIC, settings=settings).encode())


async def _publisher(seen: Seen, stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Publish more than the topic may have, alone, and wait for room now and then."""
    for _ in range(12):
        await process.clock.sleep(chance.uniform(0, 8))
        packed = bool(stage.has_packs) and chance.random() < 0.6
        seen.calling_since = stage.world.loop.now
        try:
            with suppress(QueueFullError):
                count = chance.choice((1, 2, 3))
                await publish_some(stage, queue, count, packed=packed, wait=chance.choice((None, None, 10.0)))
        finally:
            seen.calling_since = math.inf


async def _warden(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Pause the topic, and resume it, a few times. Change the age of its messages now and then."""
    for _ in range(3):
        await process.clock.sleep(chance.choice(PHASES))
        with suppress(StoreError):
            await queue.pause(TOPIC)
        await process.clock.sleep(chance.choice(PHASES))
        with suppress(StoreError):
            if stage.expires and chance.random() < 0.5:
                await queue.update_topic(TOPIC, paused=False, max_age_seconds=chance.choice(AGES))
            else:
                await queue.resume(TOPIC)
