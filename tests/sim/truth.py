"""What the bucket itself shows: since when each message could be claimed, and which claims had to hand it out.

The promise that no message waits for ever is judged by a bound for each *lane*, which is the way in which a message
became claimable. A message waits from the moment at which the protocol lets the next claim take it until a claim has
its lease, or it is gone.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pawnqueue.catalog import units
from pawnqueue.claims.bodies import OUT_OF_DELIVERIES
from pawnqueue.domain import lanes, layout, numbers
from pawnqueue.stores.port import Done, StoredObject
from tests.sim.bucket import EPOCH
from tests.sim.prepared import TOPIC, WITHIN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tests.sim.world import World
    from tools.kit.history import History, Hold

#: ``claims.margin_seconds``: a taker waits this long after a claim's time. It is in the moment from which one waits.
MARGIN = 2.0
#: The taker's idea of the store's time is wrong by the margin at most, or it would refuse to take anything.
ERROR = MARGIN
#: A look in full, not only behind the last message that is known. The engine is to take one every ten seconds or so.
FULL_LOOK = 15.0
#: A claim and what follows it, before its consumer looks again: some twenty requests of 0.1 s one after another, and
#: one that is tried again.
CALL = 8.0
#: A record that was renewed is read again after this long (``known.RECHECK``): its claim may have given messages back.
RECHECK = 20.0
#: Garbage in a lease's place counts as held for ``polling.visibility_timeout_seconds``.
GARBAGE = 20.0
#: What a claim needs to hand out what it has won: this many requests, one after another, and one retry.
STEPS, AGAIN = 20, 6.0
#: A lease may be won and its claim end without a hand-out, if its process dies, is cancelled or hears no answer.
IN_VAIN = 3
#: In bad weather that happens again and again by chance: all requests of a hand-out have to succeed; that none of
#: several claims in a row succeeds may be no more likely than this.
LUCK, RARE = 3, 1e-7
#: Why nobody buries what only this consumer cannot take, or what nobody can read at the moment.
NOT_MALFORMED = frozenset({"malformed", "newer_format"})
#: How long after a claim's record has landed its call may still be interrupted: its answer is lost, and asked for
#: again for as long as the retry settings allow (15 s), and a request's time-out (5 s).
INTERRUPTED_WITHIN = 25.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a message may wait, in seconds, while consumers poll.

    :param poll: how long a consumer pauses at most between two looks.
    :param late: how much later than it was sent a write may have landed: its size then tells LIST a later time.
    """

    poll: float
    late: float = 0.0

    def of(self, lane: str) -> float:
        """Return the bound of a lane."""
        # The next look, which may have to be one in full, by a consumer that has just begun with something else.
        look = self.poll + CALL + FULL_LOOK
        match lane:
            case "published" | "given back" | "due":  # the taker waits until a delay is surely over
                return look + 2 * ERROR * (lane == "due")
            case "released":  # until T, by the server's time as the taker knows it
                return look + ERROR + self.late
            case "abandoned":  # the margin is waited for before; fencing and taking are one look
                return look + 2 * MARGIN + ERROR + self.late
            case (
                "passed on"
            ):  # it looks as if a claim that lives on had it still, until that one's record is read again
                return look + 2 * MARGIN + ERROR + RECHECK + self.late
            case "decided":  # what was decided is carried out by one look, and released by it: the next one takes it
                return 2 * look + 2 * MARGIN + ERROR + self.late
            case _:  # redriven: an overdue move is finished by one look, and taken by the next one
                return 2 * look + 2 * MARGIN + ERROR + self.late


@dataclass(frozen=True, slots=True)
class Wait:
    """Since when a message can be claimed, for which reason, and by which state of its lease."""

    lane: str
    since: float
    turn: str


@dataclass(slots=True)
class Counted:
    """A claim whose record listed a message: it was, or was about to be, handed out."""

    consumer: str
    landed: float
    end: float
    """When its session's time was over, as its record said at first: to hand it out later would be wrong."""

    known: float = math.inf
    """When its consumer first heard that it has a record."""

    gone: float = math.inf
    """When its record was deleted: another claim may come to the same name."""

    unseen: bool = False
    decided: bool = False
    """Its lease was given back, with the count that it had then: learning later that it was unseen is too late."""


@dataclass(slots=True)
class Truth:
    """Watches the messages, leases and claim records of the topic."""

    world: World
    history: History
    most: int | None = None
    """How often the topic lets a message be delivered."""

    never: dict[str, frozenset[str]] = field(default_factory=dict)
    """Units that must not be buried for these reasons: they are valid, and some, or all, cannot read them."""

    letters: dict[str, str] = field(default_factory=dict)
    """Of the dead letters of messages of packs, by their ids: which messages they are."""

    interruptions: list[tuple[str, float]] = field(default_factory=list)
    """Which process's claim ended without an answer, and when: it was killed, cancelled, or the store failed."""

    _bounds: Bounds | None = None
    _from: float = 0.0
    _to: float = math.inf
    _messages: set[str] = field(default_factory=set)
    """The units that exist: single messages, packs, and the slices of packs that are split."""

    _due: dict[str, float] = field(default_factory=dict)
    """Of what was published with a delay: when it may be claimed, by the uuid of its object."""

    _slices: dict[str, list[str]] = field(default_factory=dict)
    _leases: dict[str, dict[str, Any]] = field(default_factory=dict)
    _landed: dict[str, float] = field(default_factory=dict)
    _records: dict[str, dict[str, Any]] = field(default_factory=dict)
    _waits: dict[str, Wait] = field(default_factory=dict)
    _freed: dict[str, tuple[str, float]] = field(default_factory=dict)
    _won: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    _too_short: set[tuple[str, str]] = field(default_factory=set)
    _counted: dict[str, dict[str, Counted]] = field(default_factory=lambda: defaultdict(dict))
    _unheard: dict[tuple[str, str], list[Counted]] = field(default_factory=lambda: defaultdict(list))
    """What a claim's consumer has not heard of yet."""

    _buried: dict[str, str] = field(default_factory=dict)
    _broken: list[tuple[str, str]] = field(default_factory=list)

    # --- what it is given ---

    def judge(self, bounds: Bounds) -> None:
        """From now on consumers poll: what waits longer than these bounds waits too long."""
        for uuid, wait in self._waits.items():
            self._close(uuid, wait)
        self._bounds, self._from, self._to = bounds, self.world.loop.now, math.inf

    def judge_no_more(self) -> None:
        """From now on not all of them poll."""
        self._to = min(self._to, self.world.loop.now)

    def freed(
        self,
        consumer: str,
        *,
        since: float = 0.0,
        stems: Collection[str] | None = None,
        only: Collection[str] | None = None,
    ) -> None:
        """A consumer's claims were given back: those of these stems, or whose leases have landed since, unasked for.

        :param only: of these units alone.
        """
        handed = {(object_of(hold.unit), hold.holder.claim) for hold in self.history.holds}
        for uuid, lease in self._leases.items():
            stem = lease["claim"]
            if lease["state"] != "held" or lease["consumer_id"] != consumer or self._landed[uuid] < since:
                continue
            if only is not None and uuid not in only:
                continue
            if stem in stems if stems is not None else (object_of(uuid), stem) not in handed:
                self._freed[uuid] = (self._turn(uuid), self.world.loop.now)
                self._reconsider(uuid)

    def until_of(self, stem: str) -> float | None:
        """Return the time, in the world's, of a claim that has a record."""
        record = self._records.get(stem)
        return None if record is None else float(record["until"]) - EPOCH

    def open_claims(self) -> list[str]:
        """Return the stems of all open records."""
        return [stem for stem, record in self._records.items() if record["state"] == "open"]

    def members_of(self, stem: str) -> set[str]:
        """Return the units that a claim's record names."""
        return set(self._records[stem]["members"])

    def is_slice(self, unit: str) -> bool:
        """Say whether this is a slice of a pack that is split."""
        return any(unit in slices for slices in self._slices.values())

    def excuse(self, uuid: str, stem: str) -> None:
        """A claim has buried what it won, or a part of it, and handed nothing out: that is not in vain."""
        self._too_short.add((uuid, stem))

    def listed(self, entry: str, *, but: str) -> set[str]:
        """Return the claims, without one, whose records have listed a message, and do not say that nobody saw it."""
        counted = self._counted[entry].items()
        return {name for name, one in counted if not one.unseen and name != but}

    def decision_of(self, entry: str, stem: str) -> dict[str, Any] | None:
        """Return what a claim's record tells of a message."""
        return dict(_given_by(self._records.get(stem, _EMPTY))).get(entry)

    def was_ended(self, stem: str) -> bool:
        """Say whether somebody has ended a claim, or its time is over."""
        record = self._records.get(stem)
        return record is None or record["state"] != "open" or self.world.loop.now >= _end_of(record) - EPOCH

    def is_fenced(self, stem: str) -> bool:
        """Say whether somebody else has ended a claim, and nobody has given back yet what it had."""
        record = self._records.get(stem)
        return record is not None and record["state"] == "expired"

    # --- what it sees ---

    def see(self, who: str, key: str, _before: StoredObject | None, after: StoredObject | None) -> None:
        """Look at a change of the bucket."""
        if not key.startswith(_ROOT):
            return
        folder, _, name = key[len(_ROOT) :].partition("/")
        match folder:
            case "messages" | "packs":
                self._see_message(key, there=after is not None)
            case "leases":
                self._see_lease(key, after)
            case "claims":
                self._see_record(name.removesuffix(".json"), after)
            case "dead-letter":
                if after is not None and name.endswith(".reason.json"):
                    told = json_in(after.body)
                    why = OUT_OF_DELIVERIES if told.get("max_deliveries") else told.get("reason", "")
                    self._buried.setdefault(name.removesuffix(".reason.json"), why)

    def hear(self, who: str, kind: str, key: str, answer: object) -> None:
        """Note when a consumer hears that its claim has a record: of its PUT, or as it reads it."""
        if kind not in {"GET", "PUT"} or not key.startswith(_CLAIMS):
            return
        if isinstance(answer, Done if kind == "PUT" else StoredObject):
            for one in self._unheard.pop((key[len(_CLAIMS) :].removesuffix(".json"), who), ()):
                one.known = self.world.loop.now

    def _see_message(self, key: str, *, there: bool) -> None:
        parsed = units.parse(key)
        if parsed is not None:
            due = lanes.due_at(parsed.name)
            if due is not None:
                self._due[layout.uuid_of(parsed.id)] = due - EPOCH
            (self._messages.add if there else self._messages.discard)(parsed.id)
            self._see_slices(parsed.id)
            self._reconsider(parsed.id)

    def _see_slices(self, pack_id: str) -> None:
        """Learn into which units a pack is split: none, if it is gone, whatever its lease says."""
        slices = _slices_of(self._leases.get(pack_id, _EMPTY_LEASE)) if pack_id in self._messages else []
        before, self._slices[pack_id] = self._slices.get(pack_id, []), slices
        self._messages.difference_update(before)
        self._messages.update(slices)
        for unit_id in {*before, *slices}:
            self._reconsider(unit_id)

    def _see_lease(self, key: str, after: StoredObject | None) -> None:
        uuid = layout.parse_lease(key)
        if uuid is None:
            return
        before = self._leases.get(uuid, _EMPTY_LEASE)
        if after is None:
            self._leases.pop(uuid, None)
        else:
            lease = json_in(after.body)
            if not lease.get("v") or not isinstance(lease.get("until"), int | float):
                until = EPOCH + self.world.loop.now + GARBAGE
                lease = {"state": "held", "until": until, "claim": "", "consumer_id": ""}
            self._leases[uuid] = {**lease, "version": after.info.version}
            landed, self._landed[uuid] = self._landed.get(uuid, -math.inf), self.world.loop.now
            won = self._won[uuid]
            if not self.world.bucket.conditional and won and self.world.loop.now - landed < WITHIN:
                won.pop()  # a write that was overwritten within the shortest verification has not won
            if self._due.get(object_of(uuid), 0.0) > self.world.loop.now and lease["state"] in {"held", "split"}:
                self._broken.append((uuid, f"claimed early: {uuid} by {lease['consumer_id']}"))
            if lease["state"] == "held" and lease["claim"] and lease["claim"] not in won[-1:]:
                won.append(lease["claim"])
                if lease["until"] - EPOCH - self.world.loop.now < self._needed:
                    self._too_short.add((uuid, lease["claim"]))
        now = self._leases.get(uuid, _EMPTY_LEASE)
        if "split" in {now["state"], before["state"]}:
            self._see_slices(uuid)
        if (now["state"], now["claim"]) != (before["state"], before["claim"]):
            self._note_passed_on(uuid, before["claim"])
        self._reconsider(uuid)

    def _note_passed_on(self, uuid: str, stem: str) -> None:
        for entry, _ in _given_by(self._records.get(stem, _EMPTY), uuid):
            if stem in self._counted[entry]:
                self._counted[entry][stem].decided = True

    def _see_record(self, stem: str, after: StoredObject | None) -> None:
        members: set[str] = set()
        if after is None:
            record = self._records.pop(stem, None)
            members.update(record["members"] if record else ())
            for entry, _ in _given_by(record or _EMPTY):
                one = self._counted[entry].pop(stem, None)
                if one is not None:
                    one.gone = self.world.loop.now
                    self._unheard.pop((stem, one.consumer), None)
                    self._counted[entry][f"{stem}, deleted at {one.gone}"] = one
        else:
            record = self._records[stem] = {**_EMPTY, **json_in(after.body)}
            members.update(record["members"])
            for entry, decision in _given_by(record):
                counted = self._counted[entry].get(stem)
                if counted is None:
                    counted = Counted(record["consumer"], self.world.loop.now, _end_of(record) - EPOCH)
                    self._counted[entry][stem] = counted
                    self._unheard[stem, counted.consumer].append(counted)
                if not counted.decided:  # without conditions, what was written may be overwritten before it counts
                    counted.unseen = decision is not None and decision.get("unseen", False)
        members.update(uuid for uuid, lease in self._leases.items() if lease["claim"] == stem)
        for uuid in sorted(members):
            self._reconsider(uuid)

    # --- how long each message waits ---

    def _reconsider(self, uuid: str) -> None:
        now, before = self.world.loop.now, self._waits.pop(uuid, None)
        found = self._available(uuid)
        if found is None:
            self._close(uuid, before)
            return
        lane, since, turn = found
        same = before is not None and before.turn == turn
        if before is not None and same and before.lane == "passed on":
            lane = before.lane  # also where the claim that had it ends meanwhile
        if before is not None and (not same or since > now):
            self._close(uuid, before)  # a claim has it, or its own was renewed
        if since <= now:
            # It could have been had before, if nobody knew it then: a claim that is fenced early is over from now on.
            since = min(before.since, now) if same and before is not None else now
        self._waits[uuid] = Wait(lane, since, turn)

    def _available(self, uuid: str) -> tuple[str, float, str] | None:
        """Return the lane, the moment and the turn in which a message can be claimed, or None if it cannot."""
        if uuid not in self._messages:
            return None
        turn = self._turn(uuid)
        lease = self._leases.get(uuid)
        if lease is None:
            due = self._due.get(object_of(uuid))
            return ("published", 0.0, turn) if due is None else ("due", due, turn)
        if lease["state"] in {"split", "done"}:
            return None
        lane, until = self._held_until(uuid, lease)
        turn_freed, freed = self._freed.get(uuid, ("", math.inf))
        if turn_freed == turn and freed < until:
            return "given back", freed, turn
        return lane, until, turn

    def _held_until(self, uuid: str, lease: dict[str, Any]) -> tuple[str, float]:
        if lease["state"] == "released":
            # A pack can be claimed as soon as one of its messages is due.
            untils = [share.get("until", 0.0) for share in lease.get("shares", ())]
            return "released", min(untils, default=lease["until"]) - EPOCH
        over = lease["until"] + MARGIN - EPOCH
        if lease["state"] == "moving":
            return "redriven", over
        record = self._records.get(lease["claim"])
        if record is None or uuid not in record["members"]:
            return self._abandoned(uuid, lease), over  # its claim is not recorded, or without it
        decision = record["settled"].get(uuid)
        if decision is not None:
            return "decided", max(over, decision.get("until", 0.0) - EPOCH if decision["how"] == "released" else over)
        end = record["until"] if record["state"] == "open" else _end_of(record)
        if record["members"][uuid].get("decided"):  # of some of a pack's messages: that is carried out before
            return "decided", end + MARGIN - EPOCH
        return self._abandoned(uuid, lease), end + MARGIN - EPOCH

    def _abandoned(self, uuid: str, lease: dict[str, Any]) -> str:
        others = (record for stem, record in self._records.items() if stem != lease["claim"])
        had = any(record["state"] == "open" and uuid in record["members"] for record in others)
        return "passed on" if had else "abandoned"

    def _turn(self, uuid: str) -> str:
        lease = self._leases.get(uuid)
        return "" if lease is None else str(lease["version"])

    def _close(self, uuid: str, wait: Wait | None) -> None:
        if wait is None or self._bounds is None:
            return
        waited = min(self.world.loop.now, self._to) - max(wait.since, self._from)
        if waited > self._bounds.of(wait.lane):
            self._broken.append((uuid, f"waited too long: {uuid} {wait.lane} {waited:.1f}"))

    # --- judgement ---

    def waited_too_long(self, exempt: Collection[str]) -> list[str]:
        """Return which messages waited longer than the bound of their lane, or were won again and again in vain."""
        for uuid, wait in self._waits.items():
            self._close(uuid, wait)
        handed = {(object_of(hold.unit), hold.holder.claim) for hold in self.history.holds}
        allowed = self._allowed_in_vain() + len(self.interruptions)
        for uuid, stems in self._won.items():
            vain = 0
            for stem in stems:
                if (uuid, stem) not in self._too_short:
                    vain = 0 if (object_of(uuid), stem) in handed else vain + 1
                if vain > allowed and self._bounds is not None:
                    self._broken.append((uuid, f"waited too long: {uuid} won {vain} times and never handed out"))
                    break
        return [sentence for uuid, sentence in self._broken if not {uuid, object_of(uuid)} & {*exempt}]

    def _allowed_in_vain(self) -> int:
        trouble = 1.0 - (1.0 - self.world.first_weather.trouble) ** LUCK
        return IN_VAIN if trouble == 0.0 else max(IN_VAIN, math.ceil(math.log(RARE) / math.log(trouble)))

    def fill(self, history: History) -> None:
        """Tell the history what was buried, and how often each message was to be handed out by the bucket's records."""
        dead = [process.name for process in self.world.processes.values() if not process.alive]
        for letter, reason in self._buried.items():
            uuid = self.letters.get(letter, letter)
            if reason in self.never.get(uuid, ()):
                history.broken.append(f"buried though it is valid: {uuid}, {reason}")
            if reason == OUT_OF_DELIVERIES and self.most is not None:
                listed = {name: one for name, one in self._counted[uuid].items() if not one.unseen}
                handed = {self._handed_out(uuid, hold) for hold in history.holds if hold.unit == uuid}
                cut = {name for name, one in listed.items() if one.consumer in dead or self._was_cut(one)}
                history.buried_too_often(uuid, self.most, listed=set(listed), handed=handed, interrupted=cut)

    def _handed_out(self, uuid: str, hold: Hold) -> str:
        """Return which of the claims that listed a message handed it out then."""
        stem = hold.holder.claim
        for name, one in self._counted[uuid].items():
            if name.partition(",")[0] == stem and one.landed <= hold.start <= one.gone:
                return name
        return stem

    def _was_cut(self, one: Counted) -> bool:
        """Say whether a claim had no chance to be handed out: it was interrupted, or it was over too soon.

        Over is a claim whose consumer knew of its record too late, or not at all; a paused one knows nothing.
        """
        process = self.world.processes[one.consumer]
        if one.known > one.end or process.running(one.known, one.end) < self._needed:
            return True
        late = self.world.first_weather.lateness  # its record may land after its call has failed
        return any(
            name == one.consumer and -late <= when - one.landed <= INTERRUPTED_WITHIN
            for name, when in self.interruptions
        )

    @property
    def _needed(self) -> float:
        """For how many seconds a claim that has won a lease is to last at least, to be handed out in this weather."""
        return STEPS * self.world.first_weather.latency + AGAIN


_ROOT = f"{TOPIC}/"
_CLAIMS = f"{_ROOT}claims/"
_EMPTY_LEASE: dict[str, Any] = {"state": "", "claim": ""}
_EMPTY: dict[str, Any] = {
    "members": {}, "settled": {}, "state": "open", "until": 0.0, "session_until": None, "session": "", "consumer": "",
}  # fmt: skip


def _slices_of(lease: dict[str, Any]) -> list[str]:
    """Return the slices that have messages, of a pack that is split by this lease."""
    unit = units.parse(lease.get("key", ""))
    if lease["state"] != "split" or unit is None:
        return []
    left = 0
    for share in lease["shares"]:
        left |= numbers.from_text(share["of"])
    return [each.id for each in unit.slices(lease["length"]) if each.numbers & left]


def entry_of(unit: str, number: int) -> str:
    """Name one message of a pack, in whatever unit it is claimed."""
    return f"{layout.uuid_of(unit)}#{number}"


def object_of(entry: str) -> str:
    """Return the uuid of the object that a message is in, or that a unit is of."""
    return layout.uuid_of(entry.partition("#")[0])


def _given_by(record: dict[str, Any], only: str = "") -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Give each message that a claim's record lists (or those of one unit), and what was decided of it."""
    members = {only: record["members"][only]} if only in record["members"] else {} if only else record["members"]
    for unit, member in members.items():
        whole = record["settled"].get(unit)
        shares = member.get("shares", ())
        if not shares:
            yield unit, whole
        for number in (number for share in shares for number in numbers.each(numbers.from_text(share["of"]))):
            parts = member.get("decided", ())
            part = next((part for part in parts if numbers.from_text(part["of"]) >> number & 1), None)
            yield entry_of(unit, number), part if whole is None or whole["how"] == "mixed" else whole


def _end_of(record: dict[str, Any]) -> float:
    until, session = float(record["until"]), record["session_until"]
    return until if session is None else min(until, float(session))


@lru_cache(16)  # several observers look at the same body, and none of them changes what it is given
def json_in(body: bytes) -> dict[str, Any]:
    """Read a body; {} if it is not a JSON object."""
    try:
        found = json.loads(body)
    except (ValueError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}
