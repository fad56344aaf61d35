"""Schedules around dead letters: redrives by filter, and limits of the topic, beside burials, sweeps and each other."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pawnqueue import PawnQueue, StoreError
from pawnqueue.catalog import letters, units
from pawnqueue.domain import layout
from pawnqueue.domain.claim_record import ClaimRecord
from pawnqueue.domain.completed import read_log
from pawnqueue.domain.reasons import is_reason
from pawnqueue.domain.records import TopicRecord, TopicSettings
from pawnqueue.domain.topic_limits import CompletedLog, DeadLetterLimits
from pawnqueue.events import Event, LettersExpiring
from pawnqueue.maintenance.redrive import REDRIVE_LOCK_SECONDS
from tests.sim.actors import claimed, consumer, dag_janitor, janitor, note, publisher, redriver, shaken, start
from tests.sim.afterwards import POLL, UNTIL_ALL_IS_TAKEN, afterwards, quiet
from tests.sim.bucket import EPOCH
from tests.sim.pack_truth import any_stage
from tests.sim.prepared import TOPIC, establish
from tests.sim.stage import RETENTION, SHORT_RETENTION, TROUBLE
from tests.sim.sweeps import sweep
from tools.kit.settlements import settlement_of

if TYPE_CHECKING:
    import random

    from pawnqueue.stores.port import StoredObject
    from tests.sim.processes import Process
    from tests.sim.stage import Actor, Stage
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
#: By how much a process's idea of the store's time may be wrong, and by how much a second one's beside it.
CLOCK_ERROR = 2.0 + 0.5
LIMITS = (
    None,
    DeadLetterLimits(max_age_seconds=10.0, notice_seconds=60.0),
    DeadLetterLimits(max_age_seconds=80.0, notice_seconds=60.0),
    DeadLetterLimits(max_count=1, notice_seconds=60.0),
    DeadLetterLimits(max_count=3, max_age_seconds=100.0, notice_seconds=70.0),
)
#: For how long a redriver's lock keeps others from its letter, at least.
LOCK_SECONDS = REDRIVE_LOCK_SECONDS
#: A sweep removes what it has listed at most this long ago: processes are paused, and their requests land late.
LISTED_SECONDS = 400.0


def schedule_of_letters(world: World) -> list[str]:
    """Run one such schedule to its end, and return every promise that it broke."""
    return world.run(_letters)


async def _letters(world: World) -> list[str]:
    stage = any_stage(world, "letters")
    chance = stage.chance
    establish(world.bucket)
    stage.retention = chance.choice((RETENTION, SHORT_RETENTION))
    watch = LetterWatch(stage, chance.choice((None, 1, 3)))
    watch.completed = chance.choice((None, CompletedLog(), CompletedLog(payloads=True)))
    watch.limit(chance.choice(LIMITS))
    for name in ("P1", "P2"):
        start(stage, name, publisher)
    for name in ("B1", "B2"):
        start(stage, name, burier)
    start(stage, "A", consumer)
    for name in ("F1", "F2", "F3"):
        start(stage, name, watch.filtering_redriver)
    if chance.random() < 0.5:
        start(stage, "R1", redriver)
    for name, actor in (("J1", janitor), ("J2", dag_janitor), ("J3", steady_janitor), ("J4", steady_janitor)):
        if chance.random() < 0.7:
            start(stage, name, watch.heard(actor))
    for at in (chance.uniform(0, 200), chance.uniform(0, 200)):
        if chance.random() < 0.5:
            world.loop.at(at, watch.change_limit, chance.choice(LIMITS))
    await world.until_idle(at_most=600.0)
    await quiet(stage)
    watch.limit(None)
    calm = world.loop.now
    broken = await afterwards(stage, UNTIL_ALL_IS_TAKEN if stage.has_packs else POLL)
    return watch.broken + broken + watch.judge_log(calm)


async def steady_janitor(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
    """Sweep for long enough that letters are removed."""
    for _ in range(12):
        await process.clock.sleep(chance.uniform(5, 40))
        with suppress(StoreError):
            await sweep(queue, TOPIC, dry_run=chance.random() < 0.1)


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
    """Watches dead letters: each redrive is of one that was asked for, and each removal was warned of."""

    stage: Stage
    max_deliveries: int | None
    completed: CompletedLog | None = None
    """The topic's log of what was acked."""

    broken: list[str] = field(default_factory=list)
    filters: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What each redriver is asked for, all its life: its requests may land late."""

    limits: list[DeadLetterLimits] = field(default_factory=list)
    """What has been the topic's limits."""

    warned: list[tuple[str, float]] = field(default_factory=list)
    """Which process has given a warning when, by the store's time."""

    noted: dict[tuple[float, float, str], float] = field(default_factory=dict)
    """The warnings that are noted, and when they were given."""

    moved: set[str] = field(default_factory=set)
    """The uuids of all that was ever among the messages."""

    gone: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The dates of letters that are gone, and when they went."""

    dates: dict[tuple[str, str], set[float]] = field(default_factory=dict)
    """The dates that each version of a letter has had: a burial that is tried again writes the same version anew."""

    locks: list[tuple[float, str, str]] = field(default_factory=list)
    """When a redriver has locked which unit for which letter."""

    def __post_init__(self) -> None:
        """Begin to watch the bucket."""
        self.stage.world.bucket.observers.append(self.see)

    @property
    def now(self) -> float:
        """The store's time."""
        return self.stage.world.bucket.server_time()

    def limit(self, limits: DeadLetterLimits | None) -> None:
        """Set the topic's limits, as a process does that updates the topic."""
        settings = TopicSettings(
            max_deliveries=self.max_deliveries,
            packs=self.stage.has_packs,
            completed=self.completed,
            dead_letters=limits,
        )
        limits_id = f"{len(self.limits)}-{self.now}"
        record = TopicRecord(topic=TOPIC, settings=settings, limits_id=limits_id)
        self.stage.world.bucket.plant(layout.topic_marker(TOPIC), record.encode())
        self.stage.truth.most = self.max_deliveries
        if limits is not None:
            self.limits.append(limits)

    def change_limit(self, limits: DeadLetterLimits | None) -> None:
        """Set the topic's limits, unless the schedule has come to its end."""
        if not self.stage.world.is_calm:
            self.limit(limits)

    def heard(self, actor: Actor) -> Actor:
        """Return the actor such that its warnings are heard."""

        async def act(stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
            def hear(event: Event) -> None:
                if isinstance(event, LettersExpiring):
                    self.warned.append((process.name, self.now))

            queue._context.events._listener = hear
            await actor(stage, process, queue, chance)

        return act

    async def filtering_redriver(self, stage: Stage, process: Process, queue: PawnQueue, chance: random.Random) -> None:
        """Give some dead letters back."""
        wanted = self.filters[process.name] = chance.choice(FILTERS)
        for _ in range(5):
            await process.clock.sleep(chance.uniform(2, 25))
            with suppress(StoreError):
                await queue.redrive(TOPIC, **wanted)

    # --- what the bucket shows ---

    def see(self, who: str, key: str, before: StoredObject | None, after: StoredObject | None) -> None:
        """Look at each change of the bucket."""
        if key.startswith(layout.completed(TOPIC)) and after is not None:
            self._see_log(who, key, after.body)
        elif key == layout.letter_notices(TOPIC) and after is not None:
            self._see_note(who, after.body)
        elif key.startswith(units.folder(TOPIC)) and after is not None and (unit := units.parse(key)) is not None:
            self.moved.add(unit.id)
        elif key.startswith(letters.folder(TOPIC)):
            letter = letters.parse(key)
            if letter is not None and not letter[1] and after is not None:
                date = after.info.last_modified.timestamp()
                self.dates.setdefault((letter[0], after.info.version), set()).add(date)
            elif letter is not None and not letter[1] and before is not None:
                self._see_removal(who, letter[0], before)
        elif key.startswith(layout.leases(TOPIC)) and before is None and after is not None:
            self._see_lock(who, layout.parse_lease(key) or "", after.body)

    def _see_log(self, who: str, key: str, body: bytes) -> None:
        """What a process logs is what the claim's record says, and that is final."""
        messages = read_log(body, key, TOPIC)
        stem = messages[0].claim
        stored = self.stage.world.bucket.body(layout.claim(TOPIC, stem))
        if stored is None:
            return  # the request has landed late
        record = ClaimRecord.decode(stored, layout.claim(TOPIC, stem))
        for each in messages:
            decision = record.decision_of(each.unit)
            if not record.is_settled or decision is None or decision.how != "acked":
                self.broken.append(f"{who} logs {each.unit} as acked by {stem}, which says {decision}")

    def judge_log(self, calm: float) -> list[str]:
        """Return what is wrong with the log at the end.

        :param calm: since when nothing goes wrong any more: what was acked by then may be missing in it.
        """
        if self.completed is None:
            return []
        bucket, seen = self.stage.world.bucket, Counter[tuple[str, str]]()
        ids: set[str] = set()
        for key in bucket.below(layout.completed(TOPIC)):
            for each in read_log(bucket.body(key) or b"", key, TOPIC):
                seen[each.unit, each.claim] += 1
                ids.add(each.id)
        broken = [f"{unit} is {count} times in the log" for (unit, _), count in seen.items() if count > 1]
        acked = {one for at, one, _ in self.stage.history.acked if at > calm}
        broken += [f"{one} was acked in calm weather, and is not in the log" for one in sorted(acked - ids)]
        return broken + [f"{one} is in the log, and nobody has acked it" for one in self._never_acked(ids)]

    def _never_acked(self, ids: set[str]) -> list[str]:
        return sorted(one for one in ids - self.stage.history.asked_to_ack if one)

    def _see_note(self, who: str, body: bytes) -> None:
        note = json.loads(body)
        for each in note["notices"]:
            notice = (each["at"], each["through"], each["through_id"])
            if notice in self.noted:
                continue
            given = [at for name, at in self.warned if name == who and abs(at - each["at"]) <= CLOCK_ERROR]
            if not given:
                self.broken.append(f"{who} notes a warning of {each['at']:.1f} that nobody has heard")
            self.noted[notice] = min(given, default=self.now)

    def _see_removal(self, who: str, letter_id: str, letter: StoredObject) -> None:
        date = letter.info.last_modified.timestamp()
        self.gone[letter_id] = date, self.now
        unit = units.redriven_id(letter_id, letter.info.version)
        if unit in self.moved:
            return
        with suppress(ValueError, AttributeError):
            self.stage.removed.add(json.loads(letter.body).get("id", ""))
        what = f"{who} removes {letter_id}, which is {self.now - date:.1f} seconds old"
        heard = [at for (_, *last), at in self.noted.items() if tuple(last) >= (date, letter_id)]
        notice = min((limits.notice_seconds for limits in self.limits), default=0.0)
        if not any(self.now - at >= notice for at in heard):
            self.broken.append(f"{what}, without a warning in time")
        if not any(self._is_past(limits, letter_id, date) for limits in self.limits):
            self.broken.append(f"{what}, and is past no limit of {self.limits}")
        request = self.stage.world.landing
        sent = EPOCH + (request.sent if request is not None else self.stage.world.loop.now)
        for at, locked, source in self.locks:
            if locked == unit and source == letter_id and at <= sent <= at + LOCK_SECONDS:
                self.broken.append(f"{what}, while somebody redrives it")
        held = self.stage.world.bucket.body(layout.lease(TOPIC, letter_id))
        if held is not None and json.loads(held).get("state") == "held":
            self.broken.append(f"{what}, while it is being buried")

    def _is_past(self, limits: DeadLetterLimits, letter_id: str, date: float) -> bool:
        age = limits.max_age_seconds
        if age is not None and self.now - date >= age:
            return True
        infos = [found.info for key, found in self.stage.world.bucket.objects.items() if _is_letter(key)]
        newer = {info.key for info in infos if info.last_modified.timestamp() >= date}
        newer |= {one for one, (its, at) in self.gone.items() if its >= date and self.now - at < LISTED_SECONDS}
        return limits.max_count is not None and len(newer - {letter_id}) >= limits.max_count

    def _see_lock(self, who: str, unit: str, body: bytes) -> None:
        with suppress(ValueError):
            lock = json.loads(body)
            if isinstance(lock, dict) and lock.get("state") == "moving" and lock["source"] != unit:
                self.locks.append((self.now, unit, lock["source"]))
                if who in self.filters:
                    self._judge(who, unit, lock["source"], units.published_at(lock["key"]))

    def _judge(self, who: str, unit: str, source: str, listed: float | None) -> None:
        bucket = self.stage.world.bucket
        letter = bucket.objects.get(letters.key_of(TOPIC, source))
        if letter is None or units.redriven_id(source, letter.info.version) != unit:
            return  # it is gone, or another one by now: nothing is moved
        # §5, Redrive: it moves what was listed with the age asked for. By its lock a burial may since have written the
        # same version anew, with a later date. The name of the new place tells the date that was listed, which has to
        # be one that this version has had.
        if listed is None or listed not in self.dates[source, letter.info.version]:
            self.broken.append(f"{who} redrives {source} as of {listed}, a date that it never had")
            return
        wanted, age = self.filters[who], bucket.server_time() - listed
        if age < wanted.get("older_than", 0.0) - AGE_ERROR:
            self.broken.append(f"{who} redrives {source}, which is {age:.1f} seconds old, by {wanted}")
        reason = bucket.body(letters.reason_key_of(TOPIC, source))
        if reason is not None and "reason" in wanted and not is_reason(json.loads(reason)["reason"], wanted["reason"]):
            self.broken.append(f"{who} redrives {source}, buried for {json.loads(reason)['reason']!r}, by {wanted}")


def _is_letter(key: str) -> bool:
    letter = letters.parse(key) if key.startswith(letters.folder(TOPIC)) else None
    return letter is not None and not letter[1]
