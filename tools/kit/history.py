"""What happened to every message, and whether it keeps the promises of docs/protocol.md, section 5.

The simulation and the tests on real processes record the same events here, with times of one clock, and are judged by
the same rules. A *unit* is one message under one key. Several units can have the same id in their envelopes (after a
redrive).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Holder:
    """A session of a claim, in one process, which believes that it holds a message."""

    process: str
    claim: str
    session: str


@dataclass(slots=True)
class Hold:
    """The time in which a holder believes that it holds a unit."""

    holder: Holder
    unit: str
    start: float
    end: float


@dataclass(slots=True)
class History:
    """Events of all processes."""

    published: set[str] = field(default_factory=set)
    """Ids that a publisher got back as published."""

    holds: list[Hold] = field(default_factory=list)
    open_holds: dict[tuple[Holder, str], Hold] = field(default_factory=dict)
    id_of: dict[str, str] = field(default_factory=dict)
    """The message's id, for every unit that was held."""

    delivered: list[tuple[float, str, str]] = field(default_factory=list)
    """When, which id, to which claim."""

    acked: list[tuple[float, str, str]] = field(default_factory=list)
    """When a settlement said so, which id, by which claim."""

    asked_to_ack: set[str] = field(default_factory=set)
    """Ids for which ack was called. Whatever the answer was, they may be gone."""

    settled: list[tuple[float, str, str, str]] = field(default_factory=list)
    """When a settlement said so, which unit, by which claim, and how."""

    too_often: dict[str, tuple[int, set[str], set[str], set[str]]] = field(default_factory=dict)
    """Units that were buried as delivered too often: the limit of deliveries, the claims whose records listed them, the
    claims that handed them out, and those that were interrupted before they could."""

    broken: list[str] = field(default_factory=list)
    """What a process saw that must not happen."""

    def hold(self, holder: Holder, unit: str, message_id: str, now: float, deadline: float) -> None:
        """Record that the holder received the message, and trusts its claim until the deadline."""
        hold = Hold(holder, unit, now, deadline)
        self.holds.append(hold)
        self.open_holds[holder, unit] = hold
        self.id_of[unit] = message_id
        self.delivered.append((now, message_id, holder.claim))

    def extend(self, holder: Holder, deadline: float) -> None:
        """Record that a renewal succeeded: the holder trusts its claim for longer."""
        for (owner, _), hold in self.open_holds.items():
            if owner == holder:
                hold.end = deadline

    def drop(self, holder: Holder, now: float, units: Collection[str] | None = None) -> None:
        """Record that the holder has stopped working: on these, or on all that it has."""
        for owner, unit in [*self.open_holds]:
            if owner == holder and (units is None or unit in units):
                hold = self.open_holds.pop((owner, unit))
                hold.end = min(hold.end, now)

    def leave(self, process: str, now: float) -> None:
        """Record that a process has closed its queue, and stopped all work."""
        for holder in {holder for holder, _ in self.open_holds if holder.process == process}:
            self.drop(holder, now)

    def hold_again(self, holder: Holder, unit: str, now: float, deadline: float) -> None:
        """Record that the holder trusts its claim still, or again. This is not a delivery."""
        self.drop(holder, now, {unit})
        hold = Hold(holder, unit, now, deadline)
        self.holds.append(hold)
        self.open_holds[holder, unit] = hold

    def buried_too_often(
        self, unit: str, most: int, *, listed: set[str], handed: set[str], interrupted: set[str]
    ) -> None:
        """Record that a unit was buried, as delivered ``most`` times without a settlement.

        :param listed: the claims whose records in the bucket list it.
        :param handed: the claims that handed it out.
        :param interrupted: the claims whose process was killed, cancelled or left without an answer before that.
        """
        self.too_often[unit] = (most, listed, handed, interrupted)

    def violations(self, *, left: Collection[str] = (), reborn: Collection[str] = ()) -> list[str]:
        """Return every promise that was broken.

        :param left: ids that are in the bucket at the end, as messages or dead letters.
        :param reborn: ids of messages that their publisher sent again after they had been settled: the one duplicate
            that a publisher can make, which section 7 names. No unit with such an id is judged.
        """
        return [
            *self.broken,
            *self._lost(left),
            *self._held_twice(reborn),
            *self._settled_twice(reborn),
            *self._delivered_after_ack(reborn),
            *self._buried_undelivered(),
        ]

    def _lost(self, left: Collection[str]) -> Iterable[str]:
        """Promise 1: a published message is acked, or is still in the bucket."""
        gone = self.published.difference(left, self.asked_to_ack)
        return [f"lost: {one}" for one in sorted(gone)]

    def _held_twice(self, reborn: Collection[str]) -> Iterable[str]:
        """Promise 2: no two claims, and no two sessions of one, hold a message at the same time."""
        by_unit: dict[str, list[Hold]] = defaultdict(list)
        for hold in self.holds:
            if hold.end >= hold.start and self.id_of[hold.unit] not in reborn:
                by_unit[hold.unit].append(hold)
        for unit, holds in sorted(by_unit.items()):
            holds.sort(key=lambda hold: hold.start)
            latest = holds[0]
            for hold in holds[1:]:
                if hold.start < latest.end and hold.holder != latest.holder:
                    yield (
                        f"held twice: {unit} by {latest.holder} until {latest.end:.3f} "
                        f"and by {hold.holder} from {hold.start:.3f}"
                    )
                if hold.end > latest.end:
                    latest = hold

    def _settled_twice(self, reborn: Collection[str]) -> Iterable[str]:
        """Promise 3: one claim finally settles a unit, in one way."""
        final: dict[str, tuple[str, str]] = {}
        for _, unit, claim, how in self.settled:
            if how == "released" or self.id_of.get(unit, unit) in reborn:
                continue
            before = final.setdefault(unit, (claim, how))
            if before != (claim, how):
                yield f"settled twice: {unit} {before[1]} by {before[0]} and {how} by {claim}"

    def _delivered_after_ack(self, reborn: Collection[str]) -> Iterable[str]:
        """Promise 4: a settled message stays settled."""
        acked: dict[str, float] = {}
        for at, message_id, _ in self.acked:
            acked[message_id] = min(at, acked.get(message_id, at))
        for at, message_id, claim in self.delivered:
            if message_id in acked and at > acked[message_id] and message_id not in reborn:
                yield f"delivered after ack: {message_id} to {claim} at {at:.3f}, acked at {acked[message_id]:.3f}"

    def _buried_undelivered(self) -> Iterable[str]:
        """Promise 6: only a unit that was delivered too often is buried for it. Winning a lease is not a delivery."""
        for unit, (most, listed, handed, interrupted) in sorted(self.too_often.items()):
            if len(listed | handed) < most or len(handed | interrupted) < most:
                yield f"buried though never delivered so often: {unit}, {len(handed)} times, and not {most}"


class Diary:
    """A history in a file: one process writes lines as things happen, and another reads all of them afterwards.

    Each line is written before the process goes on, so the file has everything that a killed process did.
    """

    def __init__(self, path: Path, process: str) -> None:
        self._file = path.open("a", buffering=1, encoding="utf-8")
        self._process = process

    def write(self, event: str, **details: Any) -> None:
        """Write one event: the name of a method below, and its arguments."""
        self._file.write(json.dumps({"event": event, "process": self._process, **details}) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_diaries(paths: Iterable[Path]) -> History:
    """Put the diaries of all processes together, in the order of their times."""
    events: list[dict[str, Any]] = []
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                events.append(json.loads(line))
            except ValueError:
                continue  # the last line of a process that was killed while it wrote it
    events.sort(key=lambda event: event.get("at", 0.0))
    history = History()
    for event in events:
        record(history, event)
    return history


def record(history: History, event: dict[str, Any]) -> None:
    """Add one line of a diary to a history."""
    at = event.get("at", 0.0)
    holder = Holder(event["process"], event.get("claim", ""), event.get("session", ""))
    match event["event"]:
        case "published":
            history.published.update(event["ids"])
        case "held":
            for message_id in event["ids"]:
                history.hold(holder, message_id, message_id, at, event["deadline"])
        case "renewed":
            history.extend(holder, event["deadline"])
        case "dropped":
            history.drop(holder, at, event.get("ids"))
        case "acking":
            history.asked_to_ack.update(event["ids"])
        case "settled":
            for message_id in event["ids"]:
                history.settled.append((at, message_id, holder.claim, event["how"]))
                if event["how"] == "acked":
                    history.acked.append((at, message_id, holder.claim))
        case other:
            raise ValueError(f"unknown event {other!r}")
