"""Read the messages of a claim, and find those that must not be handed out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pawnqueue.engine import layout
from airflow_provider_pawnqueue.engine.claims.claim import Message
from airflow_provider_pawnqueue.engine.errors import CompatibilityError
from airflow_provider_pawnqueue.engine.gather import each
from airflow_provider_pawnqueue.engine.records import Decision, Envelope, UnreadableRecordError

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.context import Context
    from airflow_provider_pawnqueue.engine.records import Member, TopicRecord

#: What an envelope may have around its payload.
AROUND = 64 * 1024


@dataclass(slots=True)
class Bodies:
    """The messages of a claim by the uuid in their keys, and what is to be decided of the others."""

    messages: dict[str, Message] = field(default_factory=dict)
    decisions: dict[str, Decision] = field(default_factory=dict)


async def fetch_bodies(
    context: Context, topic: TopicRecord, members: Mapping[str, Member], sizes: Mapping[str, int]
) -> Bodies:
    """Read the members' messages.

    ⚑ §5.6: bad messages do not block good ones. What does not parse, what is larger than a message may be, and what was
    delivered too often is to be buried; it was claimed like any other, so nobody else can be working on it.
    """
    most = topic.settings.max_deliveries
    bodies = Bodies()
    wanted = []
    for uuid, member in members.items():
        if most is not None and member.deliveries > most:
            bodies.decisions[uuid] = _dead("max_deliveries", f"delivered {most} times without a settlement")
        elif sizes.get(uuid, 0) > context.settings.limits.max_payload_bytes + AROUND:
            bodies.decisions[uuid] = _dead("malformed", f"{sizes[uuid]:,} bytes are more than limits.max_payload_bytes")
        else:
            wanted.append(uuid)

    async def fetch(uuid: str) -> Message | Decision:
        return await _fetch(context, topic.topic, members[uuid])

    for uuid, body in zip(wanted, await each(fetch, wanted, at_once=context.at_once), strict=True):
        if isinstance(body, Message):
            bodies.messages[uuid] = body
        else:
            bodies.decisions[uuid] = body
    return bodies


async def _fetch(context: Context, topic: str, member: Member) -> Message | Decision:
    key = layout.message(topic, member.name)
    found = await context.store.get(key)
    if found is None:
        return Decision(how="gone", unseen=True)
    try:
        envelope = Envelope.decode(found.body, key)
    except UnreadableRecordError as problem:
        return _dead("malformed", str(problem))
    except CompatibilityError as problem:
        return _dead("newer_format", str(problem))
    return Message(
        id=envelope.id,
        topic=topic,
        producer_id=envelope.producer_id,
        created_at=envelope.created_at,
        payload=envelope.payload,
        headers=envelope.headers,
        deliveries=member.deliveries,
    )


def _dead(reason: str, error: str) -> Decision:
    return Decision(how="dead", reason=reason, error=error, unseen=True)
