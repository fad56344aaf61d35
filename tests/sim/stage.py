"""What all actors of one schedule share: what is set, what they believe, and what the bucket shows of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from pawnqueue import ClaimBusyError, LeaseLostError, PawnQueue, Settings, StoreError
from pawnqueue.catalog import units as listed_units
from pawnqueue.domain import layout
from pawnqueue.domain.lanes import MAX_PRIORITY
from pawnqueue.domain.records import TopicRecord, TopicSettings
from tests.sim.prepared import TOPIC
from tests.sim.truth import Truth
from tests.sim.unseen import Unseen
from tests.support.claims import trusted_until, uuids_of
from tools.kit.history import History, Holder

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from pawnqueue import Claim, ClaimReference
    from pawnqueue.stores.port import StoredObject
    from tests.sim.processes import Process
    from tests.sim.world import World

    Actor: TypeAlias = Callable[["Stage", Process, PawnQueue, random.Random], Awaitable[None]]

RETENTION = 900.0
#: Some topics forget closed claims as soon as they may.
SHORT_RETENTION = 20.0
BAD_UUID = "00000000-0000-4000-8000-000000000bad"
BAD_NAME = f"20260101T000000_000000-{BAD_UUID}.json"
STRANGER = f"{TOPIC}/messages/notes.txt"
#: How long everything of a schedule may be troubled, in virtual seconds.
TROUBLED = 150.0

#: A claim's time may be hardly longer than the margin: what is safe at the edge is safe everywhere.
TTLS = (4.5, 8.0, 20.0)

#: How the names of publishers begin.
PUBLISHERS = ("P", "H", "F")

#: What an actor lives through: the store failed, the claim was lost, somebody else works for it.
TROUBLE = (StoreError, LeaseLostError, ClaimBusyError)


def settings_for(patience: float, retention: float, *, oldest: float = 240.0, largest: int = 5 * 1024**2) -> Settings:
    """Return settings of a process: how long it tries again, and what it forgets when."""
    return Settings(
        s3={"bucket_name": "simulated"},
        registry={"register_consumers": False},
        claims={"margin_seconds": 2.0, "max_claim_age_seconds": oldest, "record_retention_seconds": retention},
        polling={"visibility_timeout_seconds": 20.0, "lease_refresh_interval_seconds": 5.0},
        retry={"budget_seconds": patience, "initial_delay_seconds": 0.1},
        limits={"max_payload_bytes": largest},
    )


#: Patient processes try failed requests again; those without patience meet every failure themselves.
SETTINGS = settings_for(15.0, RETENTION)
ALL_SETTINGS = {
    retention: [settings_for(patience, retention) for patience in (15.0, 3.0, 0.0)]
    for retention in (RETENTION, SHORT_RETENTION)
}


@dataclass
class Stage:
    """What the actors of one schedule share."""

    world: World
    chance: random.Random
    history: History = field(default_factory=History)
    references: list[ClaimReference] = field(default_factory=list)
    reborn: set[str] = field(default_factory=set)
    retention: float = RETENTION
    exempt: set[str] = field(default_factory=set)
    """Units that a fault which stays concerns: they may wait, and be left over."""

    removed: set[str] = field(default_factory=set)
    """The ids of dead letters that the topic's limits removed."""

    has_packs: bool | None = None
    """Whether the topic allows packs. None: no, and it never had any."""

    lanes: random.Random | None = None
    """Where the topic has priorities and delays: what they are drawn from."""
    expires: bool = False
    """Whether the topic may bury messages that are too old."""

    truth: Truth = field(init=False)
    unseen: Unseen = field(init=False)
    _names: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin to watch the bucket."""
        self.truth = Truth(self.world, self.history)
        self.world.bucket.observers += [self.watch, self.truth.see]
        self.unseen = Unseen(self.world)
        self.world.listeners += [self.truth.hear, self.unseen.hear]

    def create_topic(self, most: int | None, *, packs: bool | None = None) -> None:
        """Make the topic, and remember how often its messages may be delivered."""
        lanes = True if self.lanes is not None else None
        settings = TopicSettings(max_deliveries=most, packs=packs, priorities=lanes, delays=lanes)
        record = TopicRecord(topic=TOPIC, settings=settings)
        self.world.bucket.plant(layout.topic_marker(TOPIC), record.encode())
        self.truth.most = most

    def schedule(self) -> dict[str, Any]:
        """Draw the priority and the delay with which a call publishes: most have neither."""
        how: dict[str, Any] = {}
        if self.lanes is not None and self.lanes.random() < 0.6:
            if self.lanes.random() < 0.7:
                how["priority"] = self.lanes.randint(-MAX_PRIORITY, MAX_PRIORITY)
            if self.lanes.random() < 0.7:
                how["delay"] = self.lanes.choice((0.5, 3.0, 12.0, 30.0))
        return how

    def virtual(self, process: Process, deadline: float) -> float:
        """Return the world's time at which a process's clock shows its deadline."""
        return self.world.loop.now + (deadline - process.clock.elapsed()) / process.clock.rate

    def believe(self, process: Process, claim: Claim) -> Holder:
        """Write down that a process was given a claim's messages, and trusts that until its deadline.

        What it cannot know of its clock is taken off (:mod:`tests.sim.unseen`).
        """
        holder = holder_of(process, claim)
        deadline = self.virtual(process, trusted_until(claim))
        now = self.world.loop.now
        returned = process.returned.get(id(claim), now)
        if now >= deadline and (returned < deadline or process.running(deadline, now) < 0.01):
            return holder  # it slept over all of its time, between the claim's return and its first look at it
        for unit, one in self.given(claim).items():
            self.history.hold(holder, unit, one, now, deadline - self.unseen.of(process))
        return holder

    def given(self, claim: Claim) -> dict[str, str]:
        """Return the ids of a claim's messages, by their units."""
        return {unit: one for one, unit in units(claim).items()}

    def unit_of(self, claim: Claim, shown: str) -> str:
        """Return the unit of a message that a settlement of the claim names."""
        return units(claim)[shown]

    def renewed(self, process: Process, claim: Claim) -> None:
        """Write down until when the claim is trusted now."""
        deadline = self.virtual(process, trusted_until(claim)) - self.unseen.of(process)
        self.history.extend(holder_of(process, claim), deadline)

    def stops(self, process: Process, claim: Claim) -> None:
        """Write down that the process works on the claim no more."""
        self.history.drop(holder_of(process, claim), self.world.loop.now)

    def violations(self, *, left: set[str]) -> list[str]:
        """Return every promise that was broken, by what was believed and by what the bucket showed."""
        self.truth.fill(self.history)
        return [
            *self.history.violations(left=left, reborn=self.reborn),
            *self.truth.waited_too_long(self.exempt),
        ]

    def watch(self, who: str, key: str, before: StoredObject | None, after: StoredObject | None) -> None:
        """Notice a publisher that sends a message again after it was settled: the duplicate that section 7 names."""
        parsed = listed_units.parse(key) if key.startswith(listed_units.folder(TOPIC)) else None
        if parsed is None or before is not None or after is None:
            return
        of_publisher = who.startswith(PUBLISHERS) and f'"id":"{parsed.id}"'.encode() in after.body
        if parsed.id in self._names and of_publisher:
            self.reborn.add(parsed.id)  # a publisher's key has the message's id in it
        self._names[parsed.id] = key


def holder_of(process: Process, claim: Claim) -> Holder:
    """Return the claim's holder, as the history knows it."""
    return Holder(process.name, f"{claim.claim_id}.{claim.generation}", claim.session)


def units(claim: Claim) -> dict[str, str]:
    """Return under which unit each of the claim's messages is kept."""
    return {one: uuid for uuid, one in uuids_of(claim).items()}
