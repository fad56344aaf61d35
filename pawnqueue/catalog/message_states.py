"""What may be made of a message that is in the topic, by its lease and by the record of its claim."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from pawnqueue.claims import claim_records
from pawnqueue.domain import layout, size_hint
from pawnqueue.errors import PawnQueueError
from pawnqueue.events import logger_of
from pawnqueue.runtime.concurrency import for_each

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.domain.records import ClaimRecord, Lease
    from pawnqueue.registers.register import Versioned
    from pawnqueue.stores.port import ObjectInfo

logger = logger_of("queue")

T = TypeVar("T")
#: What may be made of a message that is in the topic.
State: TypeAlias = Literal["pending", "in_flight", "delayed"]

#: So many claim records, and so many leases, are read to count messages at most.
MOST_READS = 1000


async def judge(context: Context, topic: str, uuid: str, found: Versioned[Lease]) -> tuple[State, float | None]:
    """Say exactly what may be made of a message that has a lease, and until when: None where nobody can tell."""
    lease, now = found.value, await context.now()
    if not context.is_due(lease, now):
        return ("delayed" if lease.state == "released" else "in_flight"), lease.until
    if lease.state == "held" and layout.parse_stem(lease.claim) is not None:
        standing = await claim_records.read(context, topic, lease.claim)
        if standing is not None and uuid in _done_with(standing.value):
            return "in_flight", None
        if standing is not None and uuid in standing.value.unsettled and _lives(context, standing.value, now):
            return "in_flight", standing.value.free_at
    return "pending", lease.until


async def states_of(context: Context, topic: str, leases: Mapping[str, ObjectInfo], now: float) -> dict[str, State]:
    """Say what may be made of messages, by their leases in a LIST; no more is read than what that leaves open.

    ⚑ §5.7: whatever cannot be read, no message is in flight for longer than its lease's hint says, unless its claim's
    record does: whoever waits for messages to be pending is told of them then.
    """
    hints = {uuid: _hint(context, info) for uuid, info in leases.items()}
    states = {uuid: _at_first_sight(context, hint, now) for uuid, hint in hints.items()}
    overdue = {uuid for uuid, hint in hints.items() if hint.state != "released" and context.is_over(hint.earliest, now)}
    members = await _members(context, topic, now) if overdue else _Members()
    states.update(dict.fromkeys(overdue & members.ended, "pending"))
    states.update(dict.fromkeys(overdue & members.live, "in_flight"))
    told = members.ended | members.live
    # What could be over by now is read, where the hint has no bound for it, and where it is a delay. Those first that
    # may be over for longest.
    doubtful = sorted(
        (uuid for uuid, hint in hints.items() if _is_doubtful(hint, now, is_told=uuid in told)),
        key=lambda uuid: hints[uuid].earliest,
    )
    patient = context.with_budget()

    async def read(uuid: str) -> State | None:
        found = await patient.read_lease(topic, uuid)
        return None if found is None else (await judge(patient, topic, uuid, found))[0]

    exactly = await _read_each(context, doubtful, read)
    states.update({uuid: state for uuid, state in exactly.items() if state is not None})
    return states


def _hint(context: Context, info: ObjectInfo) -> size_hint.SizeHint:
    """Return what a LIST tells of a lease; what tells nothing, pawn-queue's or garbage, is judged by its age."""
    over = info.last_modified.timestamp() + context.settings.polling.visibility_timeout_seconds
    return size_hint.hint_of_lease(info.size, info.last_modified) or size_hint.SizeHint("held", over, over)


def _is_doubtful(hint: size_hint.SizeHint, now: float, *, is_told: bool) -> bool:
    """Say whether a lease is to be read, unless a record has told of its message: of a released one, none does."""
    if not hint.earliest <= now < hint.latest:
        return False
    return hint.state == "released" or (hint.latest == math.inf and not is_told)


def _at_first_sight(context: Context, hint: size_hint.SizeHint, now: float) -> State:
    if hint.state == "released":
        return "delayed" if hint.latest > hint.earliest and hint.latest > now else "pending"
    return "pending" if context.is_over(hint.latest, now) else "in_flight"


@dataclass(slots=True)
class _Members:
    """What claim records tell of their messages."""

    live: set[str] = field(default_factory=set)
    """Nobody else may have them: their claims live, or are done with them."""

    ended: set[str] = field(default_factory=set)
    """Of claims that have ended without settling them."""


async def _members(context: Context, topic: str, now: float) -> _Members:
    """Read the records of claims that may live; and then of those that are over, which may have left something."""
    unsure: list[str] = []
    over: list[str] = []
    claims = [info async for page in context.registers.pages(layout.claims(topic)) for info in page]
    for info in sorted(claims, key=lambda info: info.last_modified, reverse=True):
        parsed = layout.parse_claim(info.key)
        hint = size_hint.hint_of_record(info.size, info.last_modified)
        if parsed is None or (hint is not None and hint.state == "closed"):
            continue
        is_told = hint is not None and context.is_over(hint.latest, now)
        (over if is_told else unsure).append(layout.claim_stem(*parsed))
    patient = context.with_budget()
    read = await _read_each(patient, [*unsure, *over], lambda stem: claim_records.read(patient, topic, stem))
    members = _Members()
    for stem, standing in read.items():
        if standing is None:
            continue
        members.live.update(_done_with(standing.value))
        if _lives(context, standing.value, now):
            members.live.update(standing.value.unsettled)
        elif stem in unsure:  # of what is long over, others may have taken the messages since
            members.ended.update(standing.value.unsettled)
    return members


def _done_with(record: ClaimRecord) -> list[str]:
    """Return what a claim has acked or buried.

    ⚑ §5.4: where it is in the topic still, that could not be carried out yet. It is given to nobody, however long its
    claim is over: it is not pending.
    """
    return [uuid for uuid, decision in record.settled.items() if decision.how in {"acked", "dead"}]


def _lives(context: Context, record: ClaimRecord, now: float) -> bool:
    """Say whether a claim has its messages: one that was fenced has them until its session's time is over."""
    return record.state != "closed" and not context.is_over(record.free_at, now)


async def _read_each(context: Context, names: Sequence[str], read: Callable[[str], Awaitable[T]]) -> dict[str, T]:
    """Read some objects; what cannot be read is left out."""
    found: dict[str, T] = {}

    async def read_it(name: str) -> None:
        try:
            found[name] = await read(name)
        except PawnQueueError as error:
            logger.warning("%s is not counted by what it says, as it cannot be read: %s", name, error)

    await for_each(read_it, names[:MOST_READS], at_once=context.at_once)
    return found
