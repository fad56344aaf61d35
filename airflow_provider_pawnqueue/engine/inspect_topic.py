"""Look without taking: peek, find and stats."""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from airflow_provider_pawnqueue.engine import layout, size_hint
from airflow_provider_pawnqueue.engine.claims import records
from airflow_provider_pawnqueue.engine.claims.bodies import as_message
from airflow_provider_pawnqueue.engine.concurrency import all_of, for_each
from airflow_provider_pawnqueue.engine.errors import CompatibilityError, PawnQueueError
from airflow_provider_pawnqueue.engine.events import logger_of
from airflow_provider_pawnqueue.engine.records import DeadReason, Envelope, UnreadableRecordError

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.claims.claim import Message
    from airflow_provider_pawnqueue.engine.context import Context
    from airflow_provider_pawnqueue.engine.leases.lease import FoundLease
    from airflow_provider_pawnqueue.engine.records import ClaimRecord
    from airflow_provider_pawnqueue.engine.store.port import ObjectInfo

logger = logger_of("queue")

T = TypeVar("T")
#: What may be made of a message that is in the topic.
State: TypeAlias = Literal["pending", "in_flight", "delayed"]

#: So many claim records, and so many leases, are read for :func:`stats` at most.
MOST_READS = 1000
#: For so long each of them, and each message, is tried.
PATIENCE = 3.0
#: After so many messages that cannot be read, each other one is tried once.
ENOUGH = 3


@dataclass(frozen=True, slots=True)
class Stats:
    """A topic in numbers, from LISTs alone."""

    pending: int
    in_flight: int
    delayed: int
    dead: int
    oldest_age_seconds: float | None
    """How long ago the oldest message that is in the topic was published; None where there is none."""

    strangers: int = 0
    """Objects that are none of ours; they are left alone."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where a message is, and what is known of it."""

    id: str
    state: Literal["pending", "in_flight", "delayed", "dead"]
    key: str
    deliveries: int = 0
    consumer: str = ""
    until: datetime | None = None
    """Until when it is in flight, or is held back; None: nobody can tell, or it is neither."""
    reason: str = ""
    error: str = ""


async def stats(context: Context, topic: str) -> Stats:
    """Count, by one LIST for each folder and page.

    What a LIST cannot tell is read, a bounded number of objects: once leases look overdue, the records of claims that
    may have been renewed, or may have settled what could not be carried out; and leases whose delay may be over.
    """
    now = await context.now()
    store = context.store
    messages, leases, dead = await all_of(
        _all(store.pages(layout.messages(topic))),
        _all(context.registers.pages(layout.leases(topic))),
        _all(store.pages(layout.dead_letters(topic))),
    )
    by_uuid = {uuid: info for info in leases if (uuid := layout.parse_lease(info.key))}
    strangers = len(leases) - len(by_uuid)
    leased: dict[str, ObjectInfo] = {}
    counts: dict[State, int] = {"pending": 0, "in_flight": 0, "delayed": 0}
    oldest: float | None = None
    for info in messages:
        parsed = layout.parse_message(info.key)
        if parsed is None:
            strangers += 1
            continue
        if parsed.uuid in by_uuid:
            leased[parsed.uuid] = by_uuid[parsed.uuid]
        else:
            counts["pending"] += 1
        stamp = layout.time_of(parsed.name)
        if stamp is not None:
            oldest = stamp if oldest is None else min(oldest, stamp)
    for state in (await _states(context, topic, leased, now)).values():
        counts[state] += 1
    letters = [layout.parse_dead_letter(info.key) for info in dead]
    return Stats(
        pending=counts["pending"],
        in_flight=counts["in_flight"],
        delayed=counts["delayed"],
        dead=sum(1 for letter in letters if letter is not None and not letter[1]),
        oldest_age_seconds=None if oldest is None else max(0.0, now - oldest),
        strangers=strangers + letters.count(None),
    )


async def peek(context: Context, topic: str, most: int) -> list[Message]:
    """Read messages from the head, claimed or not, without changing anything. What cannot be read is left out."""
    found: list[Message] = []
    patient, once = context.patient(PATIENCE), context.patient(0.0)
    faults = 0

    async def read(info: ObjectInfo) -> Message | None:
        nonlocal faults
        try:
            return await _read(patient if faults < ENOUGH else once, topic, info)
        except PawnQueueError as error:
            # ⚑ §5.6: it concerns this message only.
            faults += 1
            logger.warning("%s is left out, as it cannot be read: %s", info.key, error)
            return None

    async for page in context.store.pages(layout.messages(topic)):
        infos = [info for info in page if layout.parse_message(info.key)]
        while infos and (wanted := most - len(found)) > 0:
            head, infos = infos[:wanted], infos[wanted:]
            found += [message for message in await for_each(read, head, at_once=context.at_once) if message]
        if len(found) >= most:
            break
    if faults and not found:
        # ⚑ §5.6: a store that gives nothing at all is an error, not an empty topic.
        await patient.registers.look(layout.topic_marker(topic))
    return found


async def find(context: Context, topic: str, message_id: str) -> Location | None:
    """Say where a message is: a LIST through the topic, and what its lease or its dead letter tells."""
    lease = await context.read_lease(topic, message_id)
    async for page in context.store.pages(layout.messages(topic)):
        for info in page:
            parsed = layout.parse_message(info.key)
            if parsed is None or parsed.uuid != message_id:
                continue
            if lease is None:
                return Location(message_id, "pending", info.key)
            state, until = await _judge(context, topic, message_id, lease)
            end = datetime.fromtimestamp(until, UTC) if until else None
            return Location(message_id, state, info.key, lease.lease.deliveries, lease.lease.consumer_id, end)
    letter = layout.dead_letter(topic, message_id)
    if await context.store.head(letter) is None:
        return None
    why = await context.store.get(layout.dead_reason(topic, message_id))
    try:
        reason = DeadReason.decode(why.body, why.info.key) if why else DeadReason(reason="")
    except UnreadableRecordError:
        reason = DeadReason(reason="")
    return Location(
        message_id, "dead", letter, reason.deliveries, reason.consumer, reason=reason.reason, error=reason.error
    )


async def _judge(context: Context, topic: str, uuid: str, found: FoundLease) -> tuple[State, float | None]:
    """Say exactly what may be made of a message that has a lease, and until when: None where nobody can tell."""
    lease, now = found.lease, await context.now()
    if not context.is_due(lease, now):
        return ("delayed" if lease.state == "released" else "in_flight"), lease.until
    if lease.state == "held" and layout.parse_stem(lease.claim) is not None:
        standing = await records.read(context, topic, lease.claim)
        if standing is not None and uuid in _done_with(standing.record):
            return "in_flight", None
        if standing is not None and uuid in standing.record.unsettled and _lives(context, standing.record, now):
            return "in_flight", standing.record.free_at
    return "pending", lease.until


async def _states(context: Context, topic: str, leases: Mapping[str, ObjectInfo], now: float) -> dict[str, State]:
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
    patient = context.patient(PATIENCE)

    async def read(uuid: str) -> State | None:
        found = await patient.read_lease(topic, uuid)
        return None if found is None else (await _judge(patient, topic, uuid, found))[0]

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
    claims = await _all(context.registers.pages(layout.claims(topic)))
    for info in sorted(claims, key=lambda info: info.last_modified, reverse=True):
        parsed = layout.parse_claim(info.key)
        hint = size_hint.hint_of_record(info.size, info.last_modified)
        if parsed is None or (hint is not None and hint.state == "closed"):
            continue
        is_told = hint is not None and context.is_over(hint.latest, now)
        (over if is_told else unsure).append(layout.claim_stem(*parsed))
    patient = context.patient(PATIENCE)
    read = await _read_each(patient, [*unsure, *over], lambda stem: records.read(patient, topic, stem))
    members = _Members()
    for stem, standing in read.items():
        if standing is None:
            continue
        members.live.update(_done_with(standing.record))
        if _lives(context, standing.record, now):
            members.live.update(standing.record.unsettled)
        elif stem in unsure:  # of what is long over, others may have taken the messages since
            members.ended.update(standing.record.unsettled)
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


async def _all(pages: AsyncIterable[Sequence[ObjectInfo]]) -> list[ObjectInfo]:
    return [info async for page in pages for info in page]


async def _read(context: Context, topic: str, info: ObjectInfo) -> Message | None:
    found, parsed = await context.store.get(info.key), layout.parse_message(info.key)
    if found is None or parsed is None:
        return None
    try:
        envelope = Envelope.decode(found.body, info.key)
    except (UnreadableRecordError, CompatibilityError):
        return None
    return as_message(envelope, topic, parsed.name, deliveries=0)
