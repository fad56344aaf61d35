"""Read without claiming: peek and find."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from pawnqueue.catalog import letters, units
from pawnqueue.catalog.view import state_of
from pawnqueue.claims.claim import as_message
from pawnqueue.domain import layout
from pawnqueue.domain.envelope import Envelope
from pawnqueue.domain.object_sizes import MAX_SMALL_RECORD_BYTES, max_message_bytes
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.domain.records import DeadReason
from pawnqueue.errors import CompatibilityError, ObjectTooLargeError, PawnQueueError
from pawnqueue.events import logger_of
from pawnqueue.runtime.concurrency import for_each

if TYPE_CHECKING:
    from pawnqueue.claims.claim import Message
    from pawnqueue.context import Context

logger = logger_of("queue")

#: After this many messages that cannot be read, nothing is retried.
MAX_RETRIED_READS = 3


@dataclass(frozen=True, slots=True)
class Location:
    """Where a message is, and its state."""

    id: str
    """The id under which it is kept."""
    state: Literal["pending", "in_flight", "delayed", "dead"]
    """Claimable, held by a claim, delayed, or a dead letter."""
    key: str
    """Its object in the bucket."""
    deliveries: int = 0
    """How often it was delivered."""
    consumer: str = ""
    """The consumer that has it, or had it last."""
    until: datetime | None = None
    """The end of the claim or the delay; None: unknown, or neither."""
    reason: str = ""
    """Of a dead letter: why it was buried."""
    error: str = ""
    """Of a dead letter: details, if the consumer gave some."""
    max_deliveries: int | None = None
    """Of a dead letter: the topic's limit, if it was buried because of its deliveries."""


async def peek(context: Context, topic: str, most: int) -> list[Message]:
    """Return the oldest messages, claimed or not, without changing anything. Unreadable ones are left out."""
    found: list[Message] = []
    reader = _MessageReader(context, topic)
    async for page in units.pages(context.store, topic):
        names = [unit.name for unit in page.units]
        while names and (wanted := most - len(found)) > 0:
            head, names = names[:wanted], names[wanted:]
            found += await reader.read(head)
        if len(found) >= most:
            break
    await reader.check(found)
    return found


async def read_messages(context: Context, topic: str, names: Sequence[str]) -> list[Message]:
    """Return messages by their names, claimed or not. Missing and unreadable ones are left out."""
    reader = _MessageReader(context, topic)
    found = await reader.read(names)
    await reader.check(found)
    return found


class _MessageReader:
    """⚑ §5.6: a message that cannot be read delays the others by no more than a few seconds."""

    def __init__(self, context: Context, topic: str) -> None:
        self._context = context
        self._topic = topic
        self._with_retries, self._without = context.with_budget(), context.with_budget(0.0)
        self._faults = 0

    async def read(self, names: Sequence[str]) -> list[Message]:
        """Return the messages that can be read."""
        return [each for each in await for_each(self._read, names, at_once=self._context.at_once) if each]

    async def check(self, found: Sequence[Message]) -> None:
        """⚑ §5.6: a store that answers no read at all is an error, not an empty topic."""
        if self._faults and not found:
            await self._with_retries.registers.look(layout.topic_marker(self._topic))

    async def _read(self, name: str) -> Message | None:
        try:
            return await _read(
                self._with_retries if self._faults < MAX_RETRIED_READS else self._without, self._topic, name
            )
        except PawnQueueError as error:
            self._faults += 1
            logger.warning("%s is left out, as it cannot be read: %s", units.key_of(self._topic, name), error)
            return None


async def find(context: Context, topic: str, message_id: str) -> Location | None:
    """Return where a message is, by a LIST of the topic and its lease or dead letter; None if it does not exist."""
    lease = await context.lease(topic, message_id).read()
    async for page in units.pages(context.store, topic):
        for unit in page.units:
            if unit.id != message_id:
                continue
            key = units.key_of(topic, unit.name)
            if lease is None:
                return Location(message_id, "pending", key)
            state, until = await state_of(context, topic, message_id, lease.value)
            end = datetime.fromtimestamp(until, UTC) if until else None
            return Location(message_id, state, key, lease.value.deliveries, lease.value.consumer_id, end)
    letter = letters.key_of(topic, message_id)
    if await context.store.head(letter) is None:
        return None
    try:
        why = await context.store.get(letters.reason_key_of(topic, message_id), MAX_SMALL_RECORD_BYTES)
        reason = DeadReason.decode(why.body, why.info.key) if why else DeadReason(reason="")
    except (UnreadableRecordError, ObjectTooLargeError):
        reason = DeadReason(reason="")
    return Location(
        message_id,
        "dead",
        letter,
        reason.deliveries,
        reason.consumer,
        reason=reason.reason,
        error=reason.error,
        max_deliveries=reason.max_deliveries,
    )


async def _read(context: Context, topic: str, name: str) -> Message | None:
    key = units.key_of(topic, name)
    found = await context.store.get(key, max_message_bytes(context.settings.limits))
    if found is None:
        return None
    try:
        envelope = Envelope.decode(found.body, key)
    except (UnreadableRecordError, CompatibilityError):
        return None
    return as_message(envelope, topic, name, deliveries=0)
