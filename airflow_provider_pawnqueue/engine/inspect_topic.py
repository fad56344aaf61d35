"""Look without taking: peek, find and stats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from airflow_provider_pawnqueue.engine import hint, layout
from airflow_provider_pawnqueue.engine.claims.claim import Message
from airflow_provider_pawnqueue.engine.errors import CompatibilityError
from airflow_provider_pawnqueue.engine.gather import each
from airflow_provider_pawnqueue.engine.records import DeadReason, Envelope, UnreadableRecordError

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.context import Context
    from airflow_provider_pawnqueue.engine.store.port import ObjectInfo


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
class Found:
    """Where a message is, and what is known of it."""

    id: str
    state: Literal["pending", "in_flight", "delayed", "dead"]
    key: str
    deliveries: int = 0
    consumer: str = ""
    until: float | None = None
    reason: str = ""
    error: str = ""


async def stats(context: Context, topic: str) -> Stats:
    """Count, by one LIST for each folder and page."""
    now = await context.now()
    keys = (layout.messages(topic), layout.leases(topic), layout.dead_letters(topic))
    messages, leases, dead = await each(lambda folder: _all(context, folder), keys, at_once=len(keys))
    by_uuid = {uuid: info for info in leases if (uuid := layout.parse_lease(info.key))}
    strangers = len(leases) - len(by_uuid)
    counts = {"pending": 0, "in_flight": 0, "delayed": 0}
    oldest: float | None = None
    for info in messages:
        parsed = layout.parse_message(info.key)
        if parsed is None:
            strangers += 1
            continue
        counts[_state(by_uuid.get(parsed.uuid), now)] += 1
        stamp = layout.time_of(parsed.name)
        if stamp is not None:
            oldest = stamp if oldest is None else min(oldest, stamp)
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

    async def read(info: ObjectInfo) -> Message | None:
        return await _read(context, topic, info)

    async for page in context.store.pages(layout.messages(topic)):
        infos = [info for info in page if layout.parse_message(info.key)]
        while infos and (wanted := most - len(found)) > 0:
            head, infos = infos[:wanted], infos[wanted:]
            found += [one for one in await each(read, head, at_once=context.at_once) if one]
        if len(found) >= most:
            break
    return found


async def find(context: Context, topic: str, message_id: str) -> Found | None:
    """Say where a message is: a LIST through the topic, and what its lease or its dead letter tells."""
    lease = await context.read_lease(topic, message_id)
    async for page in context.store.pages(layout.messages(topic)):
        for info in page:
            parsed = layout.parse_message(info.key)
            if parsed is None or parsed.uuid != message_id:
                continue
            if lease is None:
                return Found(message_id, "pending", info.key)
            now = await context.now()
            state: Literal["pending", "in_flight", "delayed"] = "in_flight"
            if lease.lease.state == "released":
                state = "delayed" if lease.lease.until > now else "pending"
            told = lease.lease
            return Found(message_id, state, info.key, told.deliveries, told.consumer_id, told.until)
    letter = layout.dead_letter(topic, message_id)
    if await context.store.head(letter) is None:
        return None
    why = await context.store.get(layout.dead_reason(topic, message_id))
    try:
        reason = DeadReason.decode(why.body, why.info.key) if why else DeadReason(reason="")
    except UnreadableRecordError:
        reason = DeadReason(reason="")
    return Found(
        message_id, "dead", letter, reason.deliveries, reason.consumer, reason=reason.reason, error=reason.error
    )


def _state(info: ObjectInfo | None, now: float) -> str:
    if info is None:
        return "pending"
    glance = hint.glance_at_lease(info.size, info.last_modified)
    if glance is None or glance.state != "released":
        return "in_flight"
    return "delayed" if glance.latest > now and glance.latest > info.last_modified.timestamp() else "pending"


async def _all(context: Context, folder: str) -> list[ObjectInfo]:
    return [info async for page in context.store.pages(folder) for info in page]


async def _read(context: Context, topic: str, info: ObjectInfo) -> Message | None:
    found = await context.store.get(info.key)
    if found is None:
        return None
    try:
        envelope = Envelope.decode(found.body, info.key)
    except (UnreadableRecordError, CompatibilityError):
        return None
    return Message(
        envelope.id, topic, envelope.producer_id, envelope.created_at, envelope.payload, envelope.headers, deliveries=0
    )
