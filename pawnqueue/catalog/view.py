"""A topic as its listings show it: its units, their leases, and the state of each unit."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from pawnqueue.catalog import units
from pawnqueue.domain import lanes, layout, share, size_hint
from pawnqueue.domain.judgement import UnitState, judge, needs_record
from pawnqueue.domain.lease import is_over
from pawnqueue.errors import PawnQueueError
from pawnqueue.events import logger_of
from pawnqueue.runtime.concurrency import for_each

if TYPE_CHECKING:
    from pawnqueue.catalog.units import UnitPage
    from pawnqueue.context import Context
    from pawnqueue.domain.claim_record import ClaimRecord
    from pawnqueue.domain.lease import Lease
    from pawnqueue.domain.size_hint import SizeHint
    from pawnqueue.domain.unit import Unit
    from pawnqueue.stores.port import ObjectInfo

logger = logger_of("queue")

T = TypeVar("T")
#: What users see of a unit's state.
State: TypeAlias = Literal["pending", "in_flight", "delayed"]
#: How many messages of a unit are in each state.
Counts: TypeAlias = Mapping[State, int]

#: At most this many claim records, and this many leases, are read to count the messages of a topic.
MAX_COUNTING_READS = 1000


async def state_of(context: Context, topic: str, unit_id: str, lease: Lease) -> tuple[State, float | None]:
    """Return the exact state of a unit that has a lease, and until when it lasts: None where nothing tells it.

    A pack is pending if any message of it can be claimed.
    """
    now = await context.now()
    record = None
    if needs_record(lease, now, context.margin):
        found = await context.claim_record(topic, lease.claim).read()
        record = None if found is None else found.value
    judged = judge(lease, unit_id, record, now=now, margin=context.margin)
    if judged.state is UnitState.DELAYED:
        return "delayed", judged.until
    if judged.state is UnitState.HELD:
        return "in_flight", judged.until
    if judged.state is UnitState.DECIDED and record is not None and unit_id in _acked_or_buried(record):
        return ("pending", judged.until) if _after(record, unit_id).get("pending") else ("in_flight", None)
    return "pending", judged.until


def counts_of(unit_id: str, lease: Lease, state: State, now: float) -> Counts:
    """Return how many messages of a unit are in each state.

    Of a pack, only the messages that its lease names are not finished. The state is that of the first ones that are
    due.
    """
    if not lease.shares:
        return _all_of(unit_id, state)
    left, due = share.union(lease.shares), share.due(lease.shares, now)
    if state != "pending":
        return {state: left.bit_count()}
    return {"pending": due.bit_count(), "delayed": (left & ~due).bit_count()}


def _all_of(unit_id: str, state: State) -> Counts:
    """Count all messages of a unit in one state. Of a pack, these are at most as many: some may be finished."""
    begin, end = layout.range_of(unit_id) or (0, 1)
    return {state: end - begin}


class TopicView:
    """The messages of a topic, counted by their states. Those of a unit without a lease are pending.

    The other units are judged.
    """

    def __init__(
        self, leases: Iterable[ObjectInfo], now: float, is_left_out: Callable[[str], bool] = lambda _: False
    ) -> None:
        """Begin with the leases of the topic, which have to be listed before its units, and with the store's time.

        :param is_left_out: whether the unit with this name or id is not counted.
        """
        self._now = layout.timestamp(now)
        self._is_left_out = is_left_out
        self.counts: dict[State, int] = {"pending": 0, "in_flight": 0, "delayed": 0}
        self.oldest = math.inf
        """When the oldest unit was published, or was due if it was delayed; infinity where there is none."""
        self.oldest_pending = math.inf
        """The same of the oldest pending unit."""
        self.strangers: list[str] = []
        """The keys of objects that are not ours."""
        self._leases: dict[str, ObjectInfo] = {}
        self._slices: dict[str, list[str]] = defaultdict(list)  # of each pack that is split, by its uuid
        self._split: set[str] = set()  # the ids of packs that are split
        # When each unit with a lease was published or due, by its id. ⚑ §5.6: any publisher may send several units
        # under one id. Only the lease's body names the one that it is for, so each of them counts in the state that
        # it tells.
        self._published: dict[str, list[float]] = defaultdict(list)
        for info in leases:
            unit_id = layout.parse_lease(info.key)
            if unit_id is None:
                self.strangers.append(info.key)
            else:
                self._leases[unit_id] = info
                if layout.is_of_pack(unit_id):
                    self._slices[layout.uuid_of(unit_id)].append(unit_id)

    @property
    def leases_alone(self) -> int:
        """How many leases have no unit among those that were added."""
        return len(self._leases) - len(self._published) - len(self._split)

    def add(self, page: UnitPage) -> None:
        """Count what the keys of some units tell."""
        self.strangers += page.strangers
        for unit in page.units:
            if self._is_left_out(unit.name) or self._is_left_out(unit.id):
                continue
            stamp = units.claimable_since(unit.name)
            published = math.inf if stamp is None else stamp
            lease = self._leases.get(unit.id)
            if lease is None and lanes.is_early(unit.name, self._now):
                self._count({"delayed": unit.count}, published)
                continue
            self.oldest = min(self.oldest, published)
            if lease is not None and unit.is_pack and _is_split(lease):
                self._add_slices(unit, published)
            elif lease is not None:
                self._published[unit.id].append(published)
            else:
                self._count({"pending": unit.count}, published)

    def _add_slices(self, pack: Unit, published: float) -> None:
        """Count a pack that is split. Slices without leases are pending: some of their messages may be finished."""
        self._split.add(pack.id)
        begun = [each for each in self._slices[layout.uuid_of(pack.id)] if each != pack.id]
        for unit_id in itertools.filterfalse(self._is_left_out, begun):
            self._published[unit_id].append(published)
        without_lease = pack.count - sum(sum(_all_of(unit_id, "pending").values()) for unit_id in begun)
        self._count({"pending": max(without_lease, 0)}, published)

    async def judge(self, context: Context, topic: str, now: float) -> None:
        """Count the units that have a lease. What a LIST does not tell is read, a bounded number of objects."""
        self._count_all(await _counts_by_unit(context, topic, self._leases_of_units(), now))

    def judge_by_listing(self, context: Context, now: float) -> None:
        """Count the units that have a lease, by what the LIST tells alone."""
        hints = {unit_id: _hint(context, unit_id, info) for unit_id, info in self._leases_of_units().items()}
        self._count_all(
            {unit_id: _counts_by_hint(unit_id, hint, now, context.margin) for unit_id, hint in hints.items()}
        )

    def _leases_of_units(self) -> dict[str, ObjectInfo]:
        return {unit_id: self._leases[unit_id] for unit_id in self._published}

    def _count_all(self, counts: Mapping[str, Counts]) -> None:
        for unit_id, of_unit in counts.items():
            for published in self._published[unit_id]:
                self._count(of_unit, published)

    def _count(self, counts: Counts, published: float) -> None:
        for state, messages in counts.items():
            self.counts[state] += messages
        if counts.get("pending"):
            self.oldest_pending = min(self.oldest_pending, published)


async def _counts_by_unit(
    context: Context, topic: str, leases: Mapping[str, ObjectInfo], now: float
) -> dict[str, Counts]:
    """Count the messages of units by their leases in a LIST. Only what the LIST leaves open is read.

    ⚑ §5.7: whatever cannot be read, a message counts as in flight no longer than its lease's hint says, unless the
    record of its claim says so. A program that waits for pending messages sees them then.
    """
    hints = {unit_id: _hint(context, unit_id, info) for unit_id, info in leases.items()}
    counts = {unit_id: _counts_by_hint(unit_id, hint, now, context.margin) for unit_id, hint in hints.items()}
    overdue = {each for each, hint in hints.items() if hint.state != "released" and context.is_over(hint.earliest, now)}
    members = await _members(context, topic, now) if overdue else _Members()
    known: dict[str, Counts] = {**members.ended, **members.live}
    counts.update({unit_id: of_unit for unit_id, of_unit in known.items() if unit_id in overdue})
    # Read are the leases that may be over by now: those whose hint has no upper bound, and delays. The ones that may
    # have been over for longest come first.
    doubtful = sorted(
        (unit_id for unit_id, hint in hints.items() if _is_doubtful(hint, now, has_record=unit_id in known)),
        key=lambda unit_id: hints[unit_id].earliest,
    )
    # Most messages of a pack that was given back may be finished: only its lease tells.
    left_of_packs = [
        unit_id for unit_id, hint in hints.items() if hint.state == "released" and layout.is_of_pack(unit_id)
    ]
    brief = context.with_budget()

    async def read(unit_id: str) -> Counts | None:
        found = await brief.lease(topic, unit_id).read()
        if found is None:
            return None
        state, _ = await state_of(brief, topic, unit_id, found.value)
        return counts_of(unit_id, found.value, state, now)

    exact = await _read_each(context, list(dict.fromkeys([*doubtful, *left_of_packs])), read)
    counts.update({unit_id: of_unit for unit_id, of_unit in exact.items() if of_unit is not None})
    return counts


def _hint(context: Context, unit_id: str, info: ObjectInfo) -> SizeHint:
    """Return what a LIST tells of a lease. One that has no hint, pawn-queue's or garbage, is judged by its age."""
    over = info.last_modified.timestamp() + context.settings.polling.visibility_timeout_seconds
    hint = size_hint.hint_of_lease(info.size, info.last_modified, is_of_pack=layout.is_of_pack(unit_id))
    return hint or size_hint.SizeHint("held", over, over)


def _is_doubtful(hint: SizeHint, now: float, *, has_record: bool) -> bool:
    """Say whether a lease has to be read. No record tells of a released one."""
    if not hint.earliest <= now < hint.latest:
        return False
    return hint.state == "released" or (hint.latest == math.inf and not has_record)


def _is_split(info: ObjectInfo) -> bool:
    hint = size_hint.hint_of_lease(info.size, info.last_modified, is_of_pack=True)
    return hint is not None and hint.state == "split"


def _counts_by_hint(unit_id: str, hint: SizeHint, now: float, margin: float) -> Counts:
    return {} if hint.state == "done" else _all_of(unit_id, _state_by_hint(hint, now, margin))


def _state_by_hint(hint: SizeHint, now: float, margin: float) -> State:
    if hint.state == "released":
        return "delayed" if hint.latest > hint.earliest and hint.latest > now else "pending"
    return "pending" if is_over(hint.latest, now, margin) else "in_flight"


@dataclass(slots=True)
class _Members:
    """What claim records tell of their units."""

    live: dict[str, Counts] = field(default_factory=dict)
    """Nobody else may have them: their claims live, or have acked or buried them."""

    ended: dict[str, Counts] = field(default_factory=dict)
    """Their claims have ended without settling them."""


async def _members(context: Context, topic: str, now: float) -> _Members:
    """Read the records of claims that may live, and then of those that are over, which may have left something."""
    unsure: list[str] = []
    over: list[str] = []
    claims = [info async for page in context.registers.pages(layout.claims(topic)) for info in page]
    for info in sorted(claims, key=lambda info: info.last_modified, reverse=True):
        parsed = layout.parse_claim(info.key)
        hint = size_hint.hint_of_record(info.size, info.last_modified)
        if parsed is None or (hint is not None and hint.state == "closed"):
            continue
        is_past = hint is not None and context.is_over(hint.latest, now)
        (over if is_past else unsure).append(layout.claim_stem(*parsed))
    brief = context.with_budget()
    read = await _read_each(brief, [*unsure, *over], lambda stem: brief.claim_record(topic, stem).read())
    members = _Members()
    for stem, found in read.items():
        if found is None:
            continue
        record = found.value
        members.live.update({unit_id: _after(record, unit_id) for unit_id in _acked_or_buried(record)})
        if record.state != "closed" and not context.is_over(record.free_at, now):
            members.live.update({unit_id: _all_of(unit_id, "in_flight") for unit_id in record.unsettled})
        elif stem in unsure:  # other claims may have the units of one that has long been over
            members.ended.update({unit_id: _after(record, unit_id) for unit_id in record.unsettled})
    return members


def _acked_or_buried(record: ClaimRecord) -> list[str]:
    """Return the units of which a claim has acked or buried something.

    ⚑ §5.4: one that is still in the topic could not be removed yet. It is delivered to nobody, however long its claim
    has been over, so it is not pending.
    """
    return [unit_id for unit_id, decision in record.settled.items() if decision.how in {"acked", "dead", "mixed"}]


def _after(record: ClaimRecord, unit_id: str) -> Counts:
    """Count the messages of a unit after its claim: what that has acked or buried, and what it leaves to others."""
    member = record.members[unit_id]
    if not member.is_pack:
        return _all_of(unit_id, "in_flight" if unit_id in record.settled else "pending")
    ended = sum(part.of for part in record.parts_of(unit_id) if part.how in {"acked", "dead"})
    return {"in_flight": ended.bit_count(), "pending": ((member.given | member.rest) & ~ended).bit_count()}


async def _read_each(context: Context, names: Sequence[str], read: Callable[[str], Awaitable[T]]) -> dict[str, T]:
    """Read some objects. Those that cannot be read are left out."""
    found: dict[str, T] = {}

    async def read_it(name: str) -> None:
        try:
            found[name] = await read(name)
        except PawnQueueError as error:
            logger.warning("%s cannot be read and is counted without it: %s", name, error)

    await for_each(read_it, names[:MAX_COUNTING_READS], at_once=context.at_once)
    return found
