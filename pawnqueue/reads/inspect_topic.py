"""Read without claiming: peek and find."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from pawnqueue.catalog import letters, units
from pawnqueue.catalog.view import state_of
from pawnqueue.claims.claim import as_message
from pawnqueue.claims.packs import FetchedPack, PackReader, fetch_pack, read_lines, shares_of, told_of
from pawnqueue.domain import lanes, layout, pack, share
from pawnqueue.domain.claim_record import Member
from pawnqueue.domain.envelope import Envelope
from pawnqueue.domain.object_sizes import MAX_SMALL_RECORD_BYTES, max_message_bytes
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.domain.records import DeadReason
from pawnqueue.domain.share import Share
from pawnqueue.errors import CompatibilityError, ObjectTooLargeError, PawnQueueError
from pawnqueue.events import logger_of
from pawnqueue.reads.dead_letters import find_letter_ids
from pawnqueue.runtime.concurrency import for_each

if TYPE_CHECKING:
    from pawnqueue.claims.claim import Message
    from pawnqueue.context import Context
    from pawnqueue.domain.unit import Unit

logger = logger_of("queue")

#: After this many messages that cannot be read, nothing is retried.
MAX_RETRIED_READS = 3
#: How many packs are searched at a time for a message: each may take 128 MiB of memory.
MAX_PACKS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Location:
    """Where a message is, and its state."""

    id: str
    """The id under which it is kept; in a pack, its own."""
    state: Literal["pending", "in_flight", "delayed", "dead"]
    """Claimable, held by a claim, delayed, or a dead letter."""
    key: str
    """Its object in the bucket, or the pack that it is in."""
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


async def peek(context: Context, topic: str, most: int, *, packs: bool) -> list[Message]:
    """Return the oldest messages, claimed or not, without changing anything. Unreadable ones are left out.

    A single message takes a GET. A pack takes one for itself and one for its lease, whatever is wanted of it.

    :param packs: whether the topic may have packs.
    """
    found: list[Message] = []
    reader = _MessageReader(context, topic)
    async for page in units.pages(context.store, topic, packs=packs):
        left = page.units
        while left and (wanted := most - len(found)) > 0:
            head = _first(left, wanted)
            left = left[len(head) :]
            found += await reader.read(head)
        if len(found) >= most:
            break
    await reader.check(found)
    return found[:most]


def _first(units_: Sequence[Unit], messages: int) -> Sequence[Unit]:
    """Return the first units, as many as have this number of messages."""
    for position, unit in enumerate(units_, 1):
        messages -= unit.count
        if messages <= 0:
            return units_[:position]
    return units_


async def fetch_each(context: Context, topic: str, units_: Sequence[Unit]) -> list[Message | FetchedPack | None]:
    """Fetch units, claimed or not. One that is missing, finished or cannot be read is None."""
    reader = _MessageReader(context, topic)
    found = await reader.fetch(units_)
    await reader.check(found)
    return found


class _MessageReader:
    """⚑ §5.6: a message that cannot be read delays the others by no more than a few seconds."""

    def __init__(self, context: Context, topic: str) -> None:
        self._context = context
        self._topic = topic
        self._with_retries, self._without = context.with_budget(), context.with_budget(0.0)
        self._faults = 0

    async def read(self, units_: Iterable[Unit]) -> list[Message]:
        """Return the messages of the units that can be read."""
        found: list[Message] = []
        for each in await self.fetch(units_):
            # ⚑ §1: one pack after the other, as its lines have many times its size.
            found += await each.messages() if isinstance(each, FetchedPack) else [] if each is None else [each]
        return found

    async def fetch(self, units_: Iterable[Unit]) -> list[Message | FetchedPack | None]:
        """Return what each unit holds that can be read."""
        return await for_each(self._fetch, units_, at_once=self._context.at_once)

    async def check(self, found: Iterable[object]) -> None:
        """⚑ §5.6: a store that answers no read at all is an error, not an empty topic."""
        if self._faults and not any(found):
            await self._with_retries.registers.look(layout.topic_marker(self._topic))

    async def _fetch(self, unit: Unit) -> Message | FetchedPack | None:
        context = self._with_retries if self._faults < MAX_RETRIED_READS else self._without
        try:
            if unit.is_pack:
                return await _fetch_pack(context, self._topic, unit)
            return await _read(context, self._topic, unit)
        except PawnQueueError as error:
            self._faults += 1
            logger.warning("%s is left out, as it cannot be read: %s", units.key_of(self._topic, unit.name), error)
            return None


async def find(context: Context, topic: str, message_id: str, *, packs: bool) -> Location | None:
    """Return where a message is, by a LIST of the topic and its lease or dead letter; None if it does not exist.

    :param packs: whether the topic may have packs. They are read until one has the message, and the dead letters after
        them, as a message of a pack is buried under another id.
    """
    lease = await context.lease(topic, message_id).read()
    unread: list[Unit] = []
    async for page in units.pages(context.store, topic, packs=packs):
        for unit in page.units:
            if unit.is_pack:
                unread.append(unit)
            if unit.id != message_id:
                continue
            key = units.key_of(topic, unit.name)
            if lease is None:
                return await _locate_unclaimed(context, message_id, unit.name, key)
            state, until = await state_of(context, topic, message_id, lease.value)
            end = datetime.fromtimestamp(until, UTC) if until else None
            return Location(message_id, state, key, lease.value.deliveries, lease.value.consumer_id, end)
    if await context.store.head(letters.key_of(topic, message_id)) is not None:
        return await _locate_letter(context, topic, message_id)
    if not packs:
        return None
    found = await _find_in_packs(context, topic, unread, message_id)
    return found if found is not None else await _find_letter(context, topic, message_id)


async def _locate_unclaimed(context: Context, message_id: str, name: str, key: str) -> Location:
    """Locate a message that was never claimed: it is pending, or was published with a delay."""
    if not lanes.is_early(name, layout.timestamp(await context.earliest_now())):
        return Location(message_id, "pending", key)
    due = lanes.due_at(name)
    return Location(message_id, "delayed", key, until=None if due is None else datetime.fromtimestamp(due, UTC))


async def _find_letter(context: Context, topic: str, message_id: str) -> Location | None:
    """Find a dead letter whose message has this id, and which is kept under another one."""
    kept, _ = await find_letter_ids(context, topic, [message_id])
    return await _locate_letter(context, topic, min(kept)) if kept else None


async def _locate_letter(context: Context, topic: str, letter_id: str) -> Location:
    try:
        why = await context.store.get(letters.reason_key_of(topic, letter_id), MAX_SMALL_RECORD_BYTES)
        reason = DeadReason.decode(why.body, why.info.key) if why else DeadReason(reason="")
    except (UnreadableRecordError, ObjectTooLargeError):
        reason = DeadReason(reason="")
    return Location(
        letter_id,
        "dead",
        letters.key_of(topic, letter_id),
        reason.deliveries,
        reason.consumer,
        reason=reason.reason,
        error=reason.error,
        max_deliveries=reason.max_deliveries,
    )


async def _find_in_packs(context: Context, topic: str, packs: Sequence[Unit], message_id: str) -> Location | None:
    async def look(unit: Unit) -> Location | None:
        number = await _number_of(context, topic, unit, message_id)
        return None if number is None else await _locate_in_pack(context, topic, unit, number, message_id)

    for start in range(0, len(packs), MAX_PACKS_AT_ONCE):
        some = packs[start : start + MAX_PACKS_AT_ONCE]
        for found in await for_each(look, some, at_once=MAX_PACKS_AT_ONCE):
            if found is not None:
                return found
    return None


async def _number_of(context: Context, topic: str, unit: Unit, message_id: str) -> int | None:
    """Return the number of the message with this id in a pack; None if it has none, or cannot be read."""
    key = units.key_of(topic, unit.name)
    try:
        lines = await read_lines(context, topic, Member(name=unit.name))
    except (UnreadableRecordError, CompatibilityError, ObjectTooLargeError):
        return None
    text = message_id.encode()
    for number, line in enumerate(lines or ()):
        if text in line:
            try:
                is_it = pack.read_entry(line, key).id == message_id
            except (UnreadableRecordError, CompatibilityError):
                continue
            if is_it:
                return number
    return None


async def _locate_in_pack(context: Context, topic: str, unit: Unit, number: int, message_id: str) -> Location | None:
    key = units.key_of(topic, unit.name)
    told = await told_of(context, topic, unit)
    part, lease = next((each, lease) for each, lease in told if each.numbers >> number & 1)
    history = next((one for one in shares_of(part, lease) if one.of >> number & 1), None)
    if history is None:
        return None  # it is finished
    if lease is None:
        return await _locate_unclaimed(context, message_id, unit.name, key)
    state, until = ("pending", None) if lease.state == "split" else await state_of(context, topic, part.id, lease)
    if state != "in_flight":
        is_due = history.until <= await context.now()
        state, until = ("pending", None) if is_due else ("delayed", history.until)
    is_handed_out = lease.state == "held" and lease.taken >> number & 1
    end = datetime.fromtimestamp(until, UTC) if until else None
    return Location(message_id, state, key, history.deliveries + is_handed_out, lease.consumer_id, end)


async def _read(context: Context, topic: str, unit: Unit) -> Message | None:
    key = units.key_of(topic, unit.name)
    found = await context.store.get(key, max_message_bytes(context.settings.limits))
    if found is None:
        return None
    try:
        envelope = Envelope.decode(found.body, key)
    except (UnreadableRecordError, CompatibilityError):
        return None
    return as_message(envelope, topic, unit.name, deliveries=0)


async def _fetch_pack(context: Context, topic: str, unit: Unit) -> FetchedPack | None:
    # The leases first: a pack of which all is finished is deleted before its leases.
    told = await told_of(context, topic, unit)
    left = sum(share.union(shares_of(each, lease)) for each, lease in told)
    member = Member(name=unit.name, shares=[Share(of=left)])
    return await fetch_pack(context, topic, unit.id, member, PackReader(context, topic)) if left else None
