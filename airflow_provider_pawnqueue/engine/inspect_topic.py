"""Look without taking: peek and find."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from airflow_provider_pawnqueue.engine import layout
from airflow_provider_pawnqueue.engine.claims.bodies import as_message
from airflow_provider_pawnqueue.engine.concurrency import for_each
from airflow_provider_pawnqueue.engine.errors import CompatibilityError, PawnQueueError
from airflow_provider_pawnqueue.engine.events import logger_of
from airflow_provider_pawnqueue.engine.message_states import judge
from airflow_provider_pawnqueue.engine.records import DeadReason, Envelope, UnreadableRecordError

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.claims.claim import Message
    from airflow_provider_pawnqueue.engine.context import Context
    from airflow_provider_pawnqueue.engine.store.port import ObjectInfo

logger = logger_of("queue")

#: For so long each message is tried.
PATIENCE = 3.0
#: After so many messages that cannot be read, each other one is tried once.
ENOUGH = 3


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
            state, until = await judge(context, topic, message_id, lease)
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


async def _read(context: Context, topic: str, info: ObjectInfo) -> Message | None:
    found, parsed = await context.store.get(info.key), layout.parse_message(info.key)
    if found is None or parsed is None:
        return None
    try:
        envelope = Envelope.decode(found.body, info.key)
    except (UnreadableRecordError, CompatibilityError):
        return None
    return as_message(envelope, topic, parsed.name, deliveries=0)
