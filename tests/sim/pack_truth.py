"""What the bucket shows of packs: which messages were in each, and whether any is lost, or buried otherwise than asked.

A message of a pack is judged by the pack's uuid and its number, whatever unit it is claimed in, and by its id.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pawnqueue.catalog import letters as dead_letters
from pawnqueue.catalog import units
from pawnqueue.claims.bodies import OUT_OF_DELIVERIES
from pawnqueue.domain import layout, numbers, pack
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.errors import CompatibilityError
from pawnqueue.stores.port import StoredObject
from tests.sim.prepared import TOPIC
from tests.sim.stage import PUBLISHERS, Stage
from tests.sim.truth import entry_of, json_in
from tools.kit.history import Holder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pawnqueue import Claim
    from tests.sim.processes import Process
    from tests.sim.world import World

#: What the queue itself gives as the reason of a requeue: its process has closed it.
CLOSED = "closed"
MALFORMED = "malformed"
#: In how many schedules messages have priorities and delays.
WITH_LANES = 0.25
#: Before this many seconds are left of a delay nobody is given the message: each process's idea of the store's time may
#: be wrong by the margin, that of the one that delayed it and that of the one that is given it.
EARLY = 2 * 2.0


@dataclass(slots=True)
class Entry:
    """One message of a pack."""

    pack: str
    id: str
    line: bytes
    is_well: bool
    is_finished: bool = False
    """Some record says that it is acked, or it has been a dead letter."""

    dead_by: set[str] = field(default_factory=set)
    """The claims whose records say that it is dead."""

    letter: bool = False
    """It has been a dead letter of its own."""


@dataclass
class PackStage(Stage):
    """The stage of schedules with packs: it knows each message of each pack."""

    entries: dict[str, Entry] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    """The ids of all messages, by their units."""

    knows_reasons: bool = False
    """Whether it is written down for what reasons messages were given back and buried."""

    requeued: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The reasons with which somebody has tried to give messages back, by their ids."""

    to_bury: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The reasons with which somebody has tried to bury messages, by their ids."""

    delayed: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Until when a message was delayed by a settlement, and by which claim."""

    asked: dict[str, int] = field(default_factory=dict)
    """How many messages a claim id was asked for, at most."""

    asked_about: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """What was named to a settlement, by the claim and its session."""

    came_back: set[str] = field(default_factory=set)
    """Claims whose records were created after a record under their name was forgotten, which would have refused them.

    In these worlds that may be sooner than a request lands. Their leases were given back by then, and count nothing.
    """

    _recorded: set[str] = field(default_factory=set)
    _last_given: tuple[Claim | None, int, dict[str, str]] = (None, 0, {})
    """What the claim that was asked about last has, and how many messages it had then: some may be withheld."""

    _letters: dict[str, str] = field(default_factory=dict)
    _pack_letters: set[str] = field(default_factory=set)
    _seen_held: set[tuple[str, str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        """See :class:`Stage`."""
        super().__post_init__()
        self.world.bucket.observers.append(self.see)
        self.world.listeners.append(self.hear)

    @property
    def dead(self) -> list[str]:
        """The messages of packs that have been dead letters."""
        return [name for name, entry in self.entries.items() if entry.letter]

    # --- what consumers are given ---

    def given(self, claim: Claim) -> dict[str, str]:
        """See :class:`Stage`."""
        if claim.has_payloads:
            known, length, given = self._last_given
            if known is not claim or length != len(claim):
                given = {_entry(message.unit): message.id for message in claim}
                self._last_given = claim, len(claim), given
            return given
        return {_entry(unit): self.ids.get(_entry(unit), unit) for unit in claim.ids}

    def unit_of(self, claim: Claim, shown: str) -> str:
        """See :class:`Stage`. What is shown may be a name in the claim, where the message was not read."""
        return next((unit for unit in self._units_of(claim) if self.ids.get(unit) == shown), _entry(shown))

    def _units_of(self, claim: Claim) -> Iterator[str]:
        yield from self.given(claim)
        for hold in self.history.holds:
            if hold.holder.claim == claim.stem:
                yield hold.unit

    def believe(self, process: Process, claim: Claim) -> Holder:
        """See :class:`Stage`. What is handed out is judged: how many, how often before, and whether it was due."""
        now, stem, broken = self.world.loop.now, f"{claim.claim_id}.{claim.generation}", self.history.broken
        most = self.asked.get(claim.claim_id)
        if most is not None and len(claim) > most:
            broken.append(f"given too many: {len(claim)} to claim {stem}, which was to have {most}")
        for unit, one in self.given(claim).items():
            if self.ids.get(unit) != one:
                broken.append(f"given another body: {unit} has {self.ids.get(unit)}, and not {one}")
            until, by = self.delayed.get(unit, (0.0, stem))
            if by != stem and now < until - EARLY and one not in self.reborn:
                broken.append(f"given too early: {unit} to {stem} at {now:.1f}, delayed until {until:.1f} by {by}")
        for message in claim if claim.has_payloads and stem not in self.came_back else ():
            entry = _entry(message.unit)
            if entry in self.entries and message.id not in self.reborn:
                holders = {hold.holder.claim for hold in self.history.holds if hold.unit == entry}
                before = holders - self.came_back - {stem}
                if message.deliveries <= len(before):
                    broken.append(f"deliveries: {entry} to {stem} for the {message.deliveries}th time: {before}")
                listed = self.truth.listed(entry, but=stem)
                if message.deliveries > len(listed) + 1:
                    broken.append(f"deliveries: {entry} to {stem} not {message.deliveries}th: {listed}")
        return super().believe(process, claim)

    def note_delay(self, unit: str, claim: Claim, reason: str, until: float) -> None:
        """Note until when a message is delayed that was given back, with this reason by this very call.

        If another session had given it back before, that one's decision counts.
        """
        decision = self.truth.decision_of(unit, claim.stem)
        if decision is not None and decision.get("reason") == reason:
            self.delayed[unit] = (until, claim.stem)

    # --- what the bucket shows ---

    def see(self, who: str, key: str, before: StoredObject | None, after: StoredObject | None) -> None:
        """Look at a change of the bucket."""
        folder = key.removeprefix(f"{TOPIC}/").partition("/")[0]
        match folder:
            case "messages" if after is not None and (parsed := units.parse(key)) is not None:
                self.ids[parsed.id] = _id_in(after.body)
            case "packs" if before is None and after is not None:
                self._meet_pack(who, key, after.body)
            case "packs" if before is not None and after is None:
                self._judge_deletion(key)
            case "claims" if after is not None:
                if before is None and key in self._recorded:
                    self.came_back.add(key.rpartition("/")[2].removesuffix(".json"))
                self._recorded.add(key)
                self._note_decisions(after.body)
            case "dead-letter" if after is not None and not key.endswith(".reason.json"):
                self._judge_letter(who, key, before, after.body)
            case "dead-letter" if after is not None:
                self._judge_reason(key, after.body)

    def hear(self, who: str, kind: str, key: str, answer: object) -> None:
        """Note which claim a process saw holding a pack, as it read a lease of it."""
        unit = layout.parse_lease(key) if key.startswith(layout.leases(TOPIC)) else None
        if kind == "GET" and unit is not None and isinstance(answer, StoredObject):
            lease = json_in(answer.body)
            if lease.get("state") == "held":
                self._seen_held.add((who, layout.uuid_of(unit), lease["claim"]))

    def _meet_pack(self, who: str, key: str, body: bytes) -> None:
        unit = units.parse(key)
        if unit is None:
            return
        again = [entry for entry in self.entries.values() if entry.pack == layout.uuid_of(unit.id)]
        if again and not who.startswith(PUBLISHERS):
            self.history.broken.append(f"{who} has brought back {key}")
        self.reborn.update(entry.id for entry in again)
        lines: list[bytes] = []
        with suppress(UnreadableRecordError):
            lines = pack.lines_of(body, unit.count, key)
        for number, line in enumerate(lines):
            entry, letter = entry_of(unit.id, number), pack.letter_id(layout.uuid_of(unit.id), number)
            well, found = True, ""
            try:
                found = pack.read_entry(line, key).id
            except CompatibilityError:  # a message of a later version is one
                found = _id_in(line)
            except UnreadableRecordError:
                well = False
            self.entries[entry] = Entry(layout.uuid_of(unit.id), found, line, well)
            self.ids[entry] = found
            self.truth.letters[letter] = self._letters[letter] = entry

    def _judge_deletion(self, key: str) -> None:
        unit = units.parse(key)
        if unit is None or layout.uuid_of(unit.id) in self._pack_letters:
            return
        left = [
            name
            for name, entry in self.entries.items()
            if entry.pack == layout.uuid_of(unit.id) and not entry.is_finished and entry.id not in self.reborn
        ]
        self.history.broken += [f"its pack was deleted: {name}" for name in left]

    def _note_decisions(self, body: bytes) -> None:
        record = json_in(body)
        if not record.get("members"):
            return
        stem = f"{record['claim_id']}.{record['generation']}"
        for unit, member in record["members"].items():
            whole = record["settled"].get(unit)
            if any(one.get("how") == "dead" and one.get("unseen") for one in (whole or {}, *member.get("decided", ()))):
                self.truth.excuse(unit, stem)
            for share in member.get("shares", ()) if whole is not None else ():
                self._note_decision(unit, share["of"], whole["how"], stem)
            for part in member.get("decided", ()):
                self._note_decision(unit, part["of"], part["how"], stem)

    def _note_decision(self, unit: str, of: str, how: str, stem: str) -> None:
        for number in numbers.each(numbers.from_text(of)):
            entry = self.entries.get(entry_of(unit, number))
            if entry is None:
                return  # the object is not a pack
            entry.is_finished = entry.is_finished or how == "acked"
            if how == "dead":
                entry.dead_by.add(stem)

    def _judge_letter(self, who: str, key: str, before: StoredObject | None, body: bytes) -> None:
        parsed = dead_letters.parse(key)
        letter = "" if parsed is None else parsed[0]
        entry = self.entries.get(self._letters.get(letter, ""))
        if entry is None:
            self._pack_letters.add(letter)
            return
        if body != entry.line:
            self.history.broken.append(f"buried otherwise: {letter} is not the line of its message")
        if before is None and entry.letter:
            # ⚑ Its letter was redriven, when its claim had the pack no more. A PUT of a process that has seen the claim
            # hold the pack may land as late as this: the repetition that section 5 names. Nobody else may bury it.
            if not any((who, entry.pack, stem) in self._seen_held for stem in entry.dead_by):
                self.history.broken.append(f"buried again by {who}: {letter} of {entry.pack}")
            self.reborn.add(entry.id)
        entry.letter = entry.is_finished = True

    def _judge_reason(self, key: str, body: bytes) -> None:
        letter = key.rpartition("/")[2].removesuffix(".reason.json")
        name = self._letters.get(letter, "")
        entry = self.entries.get(name)
        if entry is None:
            return
        told = json_in(body)
        if {layout.uuid_of(told["unit"]), unit_uuid(told["name"])} != {entry.pack}:
            self.history.broken.append(f"buried with another place: {letter}, {told}")
        if not self._is_right(entry, told):
            self.history.broken.append(
                f"buried for another reason: {name}, {told['reason']!r} after {told['deliveries']} deliveries; it was "
                f"to be buried for {self.to_bury[entry.id]}, and given back for {self.requeued[entry.id]}"
            )

    def _is_right(self, entry: Entry, told: dict[str, Any]) -> bool:
        reason = told["reason"]
        if not entry.is_well:
            return bool(reason == MALFORMED)
        if told.get("max_deliveries"):
            is_given = (
                reason in {OUT_OF_DELIVERIES, CLOSED} or reason in self.requeued[entry.id] or not self.knows_reasons
            )
            return bool(is_given and told["max_deliveries"] == self.truth.most == told["deliveries"])
        return reason in self.to_bury[entry.id] or not self.knows_reasons


def has_packs(world: World) -> bool:
    """Say whether packs are published in a schedule: in three of ten of most arenas."""
    return world.stream("with packs").random() < 0.3


def any_stage(world: World, name: str) -> Stage:
    """Return the stage of a schedule, with or without packs, and with or without priorities and delays.

    :param name: of the stream of chance that all of it is drawn from.
    """
    lanes = world.stream("lanes") if world.stream("with lanes").random() < WITH_LANES else None
    if has_packs(world):
        return PackStage(world, world.stream(name), has_packs=True, lanes=lanes)
    return Stage(world, world.stream(name), lanes=lanes)


def _entry(unit: str) -> str:
    """Name a message as the judge does, from its name in a claim."""
    unit_id, number = layout.parse_entry(unit)
    return unit_id if number is None else entry_of(unit_id, number)


def unit_uuid(name: str) -> str:
    """Return the uuid in the name of an object."""
    unit = units.parse(name)
    return "" if unit is None else layout.uuid_of(unit.id)


def _id_in(body: bytes) -> str:
    found = json_in(body).get("id", "")
    return found if isinstance(found, str) else ""
