"""Read the messages of a claim, and find those that must not be handed out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from pawnqueue.catalog import units
from pawnqueue.claims.claim import Message
from pawnqueue.domain.object_sizes import max_message_bytes
from pawnqueue.domain.records import Decision, Envelope, UnreadableRecordError
from pawnqueue.domain.times import instant
from pawnqueue.errors import CompatibilityError, PawnQueueError, StoreError
from pawnqueue.runtime.concurrency import for_each, for_each_within

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.domain.records import Member, TopicRecord

#: The reason of a message that was delivered too often, if no consumer gave one.
OUT_OF_DELIVERIES = "max_deliveries"


@dataclass(slots=True)
class Bodies:
    """The messages of a claim by the uuid in their keys, and what is to be decided of the others."""

    messages: dict[str, Message] = field(default_factory=dict)
    decisions: dict[str, Decision] = field(default_factory=dict)
    aside: dict[str, PawnQueueError] = field(default_factory=dict)
    """Not for this process, or not now: given back, whatever else is decided. Never buried."""

    sizes: dict[str, int] = field(default_factory=dict)
    """Of the objects that were read."""

    unread: list[str] = field(default_factory=list)
    """Not to be read: their uuids stand for them."""

    @classmethod
    async def fetch(cls, context: Context, topic: TopicRecord, members: Mapping[str, Member], seconds: float) -> Self:
        """Read the members' messages, for no longer than this.

        ⚑ §5.6: bad messages do not block good ones. What does not parse and what was delivered too often is to be
        buried; it was claimed like any other, so nobody else can be working on it. What only this process cannot read,
        as the store refuses it or its format is newer, is given back: others may be able to.
        """
        bodies = cls()
        too_often = _delivered_too_often(topic, members)
        if too_often:
            # ⚑ §4: as the topic is set now. What this process has read of it may be a minute old.
            try:
                found_topic = await context.with_budget(seconds).topic_marker(topic.name).look()
            except (StoreError, CompatibilityError) as error:
                for uuid in too_often:
                    bodies.aside[uuid] = error
                    bodies.decisions[uuid] = Decision(how="released", by="claim")
            else:
                topic = found_topic.value if found_topic is not None else topic
                for uuid in _delivered_too_often(topic, members):
                    bodies.decisions[uuid] = _out_of_deliveries(topic, members[uuid])
        wanted = [uuid for uuid in members if uuid not in bodies.decisions]

        found = await _fetch_all(
            context, topic.name, {uuid: members[uuid] for uuid in wanted}, seconds, sizes=bodies.sizes
        )
        for uuid, body in found.items():
            if isinstance(body, Message):
                bodies.messages[uuid] = body
            elif isinstance(body, Decision):
                bodies.decisions[uuid] = body
            else:
                bodies.aside[uuid] = body
                bodies.decisions[uuid] = Decision(how="released", by="claim")
        return bodies

    def give_back_surplus(self, members: Mapping[str, Member], max_messages: int, max_bytes: float) -> bool:
        """Decide that the good messages beyond these limits are given back unseen; return whether there are any.

        ⚑ §5.7: after bad messages, a batch that is won is larger than what the claim wants.
        """
        used = 0
        surplus = []
        for number, uuid in enumerate(self.messages):
            used += members[uuid].size
            if number and (number >= max_messages or used > max_bytes):
                surplus.append(uuid)
        for uuid in surplus:
            del self.messages[uuid]
            self.decisions[uuid] = Decision(how="released", by="claim")
        return bool(surplus)


def _delivered_too_often(topic: TopicRecord, members: Mapping[str, Member]) -> list[str]:
    most = topic.settings.max_deliveries
    return [uuid for uuid, member in members.items() if most is not None and member.deliveries > most]


async def read_members(context: Context, topic: str, members: Mapping[str, Member]) -> dict[str, Message]:
    """Read the members' messages, in their order, and decide nothing. What is malformed or gone is left out.

    :raises PawnQueueError: one cannot be read by this process, or now: those that were read are not all that there are.
    """
    found = await read_each(context, topic, members.values())
    return {key: body for key, body in zip(members, found, strict=True) if isinstance(body, Message)}


async def read_each(context: Context, topic: str, members: Iterable[Member]) -> list[Message | Decision]:
    """Read the members' messages, in their order; of what is malformed or gone, tell what is to be decided of it.

    :raises PawnQueueError: one cannot be read by this process, or now.
    """
    most = max_message_bytes(context.settings.limits)

    async def fetch(member: Member) -> Message | Decision:
        body = await context.store.body(units.key_of(topic, member.name), member.size, most)
        return _understood(body, topic, member)

    return await for_each(fetch, members, at_once=context.at_once)


async def read_ids(context: Context, topic: str, members: Mapping[str, Member], seconds: float) -> dict[str, str]:
    """Return the messages' ids, by the uuids under which they are kept; of what has no message, that uuid itself.

    What could not be read is left out.
    """
    found = await _fetch_all(context, topic, members, seconds)
    return {
        uuid: body.id if isinstance(body, Message) else uuid
        for uuid, body in found.items()
        if not isinstance(body, PawnQueueError)
    }


async def _fetch_all(
    context: Context, topic: str, members: Mapping[str, Member], seconds: float, *, sizes: dict[str, int] | None = None
) -> dict[str, Message | Decision | PawnQueueError]:
    patient = context.with_budget(seconds)

    async def fetch(uuid: str) -> Message | Decision | PawnQueueError:
        try:
            body, size = await _fetch(patient, topic, members[uuid])
        except (StoreError, CompatibilityError) as error:
            return error
        if sizes is not None:
            sizes[uuid] = size
        return body

    # One that hangs is left out as well.
    found = await for_each_within(
        fetch, members, at_once=context.at_once, clock=context.clock, seconds=seconds, late=lambda _: _late(seconds)
    )
    return dict(zip(members, found, strict=True))


async def _fetch(context: Context, topic: str, member: Member) -> tuple[Message | Decision, int]:
    """Read a message; return it, or what is to be decided of it, and the size of its object."""
    # ⚑ §2: as an object with its date, which may tell that this process's clock stood still before it claims.
    # ⚑ §5.6: what was overwritten by something larger since it was listed is given back, like what was listed so.
    most = max_message_bytes(context.settings.limits)
    found = await context.store.get(units.key_of(topic, member.name), most)
    body = None if found is None else found.body
    return _understood(body, topic, member), len(body or b"")


def _understood(body: bytes | None, topic: str, member: Member) -> Message | Decision:
    """Read what is in a message's object, or tell what is to be decided of it."""
    if body is None:
        return Decision(how="gone", by="claim")
    try:
        envelope = Envelope.decode(body, units.key_of(topic, member.name))
    except UnreadableRecordError as problem:
        return _dead("malformed", str(problem))
    return as_message(envelope, topic, member.name, deliveries=member.deliveries)


def as_message(envelope: Envelope, topic: str, name: str, *, deliveries: int) -> Message:
    """Make what a consumer is given of a message that is kept under this name.

    A time that cannot be read, or is out of the bounds of §1, costs nobody the message. Then its time is the one in the
    name, which its publisher made too; and 1970 where the name has none.
    """
    created_at = instant(envelope.created_at)
    if created_at is None:
        created_at = datetime.fromtimestamp(units.published_at(name) or 0.0, UTC)
    return Message(
        id=envelope.id,
        topic=topic,
        producer_id=envelope.producer_id,
        created_at=created_at,
        payload=envelope.payload,
        headers=envelope.headers,
        deliveries=deliveries,
        write_id=envelope.write_id,
        unit=parsed.id if (parsed := units.parse(name)) is not None else "",
    )


def _late(seconds: float) -> PawnQueueError:
    return StoreError(
        f"The message was not read within {seconds:g} seconds: try again later.", transient=True, operation="claim"
    )


def _out_of_deliveries(topic: TopicRecord, member: Member) -> Decision:
    """Bury a message for what it was given back for the last time, and beside that for its deliveries."""
    most = topic.settings.max_deliveries
    if member.reason:
        dead = _dead(member.reason, member.error)
    else:
        dead = _dead(OUT_OF_DELIVERIES, member.error or f"delivered {most} times without a settlement")
    return dead.model_copy(update={"max_deliveries": most})


def _dead(reason: str, error: str) -> Decision:
    return Decision(how="dead", reason=reason, error=error, by="claim")
