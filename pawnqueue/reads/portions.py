"""The messages of a claim or a topic, cut into portions that other processes read, such as Spark's executors.

A portion names its objects, so every read of it returns the same messages, in any process. Reading claims nothing and
writes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from pawnqueue.catalog import letters, units
from pawnqueue.catalog.letters import ListedLetter
from pawnqueue.claims.bodies import fetch_members
from pawnqueue.claims.claim import as_message
from pawnqueue.claims.claim_reads import looked_at
from pawnqueue.claims.packs import FetchedPack, PackPart, ReadPack
from pawnqueue.domain import layout
from pawnqueue.domain.claim_record import Decision, Member
from pawnqueue.domain.identifiers import UnitId
from pawnqueue.domain.share import Share
from pawnqueue.domain.size_hint import hint_of_record
from pawnqueue.errors import CompatibilityError, LeaseLostError, ObjectTooLargeError, PawnQueueError
from pawnqueue.reads.columns import MessageColumns
from pawnqueue.reads.dead_letters import read_letters
from pawnqueue.reads.inspect_topic import fetch_each
from pawnqueue.reads.selection import EVERYTHING, Selection

if TYPE_CHECKING:
    from pawnqueue.claims.claim import ClaimReference, Message
    from pawnqueue.context import Context
    from pawnqueue.domain.claim_record import ClaimRecord
    from pawnqueue.reads.dead_letters import DeadLetter

#: The cost of a request, as the bytes that could be read in its time: small messages cost mostly requests.
REQUEST_COST_BYTES: Final = 8192
#: The cost of a message of a pack, beside its share of the pack: how well a pack is compressed says nothing of how
#: long its messages take.
PACKED_MESSAGE_COST_BYTES: Final = 64
#: The cost of a portion by default, at most: two and a half thousand small messages, two hundred thousand of packs, or
#: twenty megabytes. Each takes about a second to read, which is much longer than starting a task for it, and no core
#: waits long for the last portion.
MAX_PORTION_COST_BYTES: Final = 20 * 1024 * 1024
#: How many bytes of JSON are read as columns at once. A message may have more.
MAX_COLUMNS_BYTES: Final = 4 * 1024 * 1024
#: The first portion of a large topic is small: a query for a few messages often reads no other.
FIRST_UNITS_OF_TOPIC: Final = 24
MIN_UNITS_FOR_A_HEAD: Final = 500
#: The number of cores is not known here: a multiple of this many portions leaves none of 2 or 4 cores without work.
PORTION_COUNT_STEP: Final = 4

_REMEDY: Final = (
    "If a stream's query reads it, start the query again: that settles the message and reads the others. Otherwise "
    "settle it where the claim is held (bury it by its id, or call settle_overwritten), or claim again."
)


@dataclass(frozen=True, slots=True)
class PlannedUnit:
    """An object that is read as a whole."""

    name: str
    """The name of the object in the topic."""
    size: int
    """Its size in bytes."""
    deliveries: int = 0
    """How often it was delivered."""
    count: int = 1
    """How many messages of it are read at most."""
    written_at: datetime | None = None
    """Of a dead letter: when it was buried, according to a LIST."""
    id: str = ""
    """What a claim names it by."""
    parts: tuple[tuple[int, int], ...] = ()
    """Of a pack of a claim: the messages to be read, as sets of numbers, each with its deliveries."""

    @property
    def cost(self) -> int:
        """The cost of reading it."""
        of_messages = self.count * PACKED_MESSAGE_COST_BYTES if layout.is_pack_name(self.name) else 0
        return self.size + of_messages + REQUEST_COST_BYTES

    @property
    def of(self) -> int:
        """Of a pack of a claim: the numbers of the messages to be read."""
        return sum(of for of, _ in self.parts)

    @property
    def member(self) -> Member:
        """What a claim has of it."""
        if not self.parts:
            return Member(name=self.name, size=self.size, deliveries=self.deliveries)
        shares = [Share(of=of, deliveries=deliveries) for of, deliveries in self.parts]
        return Member(name=self.name, size=self.size, shares=shares)


@dataclass(frozen=True, slots=True)
class Portion:
    """Some units of a claim, of a topic, or of a topic's dead letters. It can be pickled."""

    topic: str
    """The topic whose messages they are."""
    units: tuple[PlannedUnit, ...]
    """The objects, in order."""
    claim: str = ""
    """The claim that holds them; without one they are read whether they are claimed or not."""
    is_dead: bool = False
    """Whether they are dead letters."""
    after: str = ""
    """Without a claim: the portion's part of the listing begins after this place; "" is the start of the listing."""
    last: str = ""
    """And ends with this place; "" is the end of the listing."""
    most: int | None = None
    """It has at most this many messages, from its beginning. See :attr:`is_cut_by_reading`."""
    packs: bool = False
    """Without a claim: whether the topic may have packs."""
    only: Selection = EVERYTHING
    """Without a claim: which messages or dead letters of its units are read."""

    def split_off(self, most: int, most_cost: int = MAX_PORTION_COST_BYTES) -> tuple[Portion, Portion]:
        """Cut off its first units: at most this many messages, and this cost. One unit may have or cost more.

        :return: the first units, and the rest, which may be empty.
        """
        count = cost = 0
        for position, unit in enumerate(self.units):
            count += unit.count
            cost += unit.cost
            if position and (count > most or cost > most_cost):
                return replace(self, units=self.units[:position]), replace(self, units=self.units[position:])
        return self, replace(self, units=())

    @property
    def is_cut_by_reading(self) -> bool:
        """Whether its objects are more than it has messages: only reading tells which of them are selected."""
        return self.most is not None and self.only.is_by_content

    def __len__(self) -> int:
        """Count the messages. Packs of a topic may have fewer that are not finished, and fewer may be selected."""
        return sum(unit.count for unit in self.units)


async def portions_of_claim(context: Context, reference: ClaimReference, parts: int | None) -> list[Portion]:
    """Cut the unsettled messages of a claim into portions, in publish order, with one request.

    :raises LeaseLostError: the claim has no record, or has ended, or its time is over, or all of it is settled.
    """
    record = await looked_at(context, reference, "portions")
    if record.members and not record.unsettled:
        # ⚑ A job would overwrite its earlier results of this claim with an answer without rows.
        raise LeaseLostError(
            f"Claim {record.stem} of topic {reference.topic!r} is settled: none of its messages is left to be "
            "read. Keep the results made of it, and claim again.",
            topic=reference.topic,
            operation="portions",
        )
    if record.unsettled and await context.now() >= record.until - context.margin:
        # ⚑ §2: the caller works as long as a holder does, and a holder stops a margin before the end: the next
        # claimer does not wait for longer.
        raise LeaseLostError(
            f"Claim {record.stem} of topic {reference.topic!r} was not renewed, and its time is almost over: other "
            "consumers may have its messages soon. Claim again, with a longer ttl for long work, or renew the claim.",
            topic=reference.topic,
            operation="portions",
        )
    units = [_planned(record, unit_id) for unit_id in record.unsettled]
    return _cut(Portion(reference.topic, tuple(units), claim=record.stem), parts)


def _planned(record: ClaimRecord, unit_id: str) -> PlannedUnit:
    member = record.unsettled_part(unit_id)
    if not member.is_pack:
        return PlannedUnit(member.name, member.size, member.deliveries, id=unit_id)
    parts = tuple((share.of, share.deliveries) for share in member.shares)
    return PlannedUnit(member.name, member.size, count=member.given.bit_count(), id=unit_id, parts=parts)


async def portions_of_topic(  # noqa: PLR0913 - what is cut, and how
    context: Context,
    topic: str,
    parts: int | None,
    most: int | None,
    *,
    dead: bool,
    packs: bool,
    only: Selection,
) -> list[Portion]:
    """Cut the messages of a topic, claimed or not, or its dead letters, into portions, by a LIST.

    A limited number of messages is one portion if only reading tells which of them are selected.

    :param packs: whether the topic may have packs. They take one more LIST.
    """
    whole = await refresh_portion(context, Portion(topic, (), is_dead=dead, most=most, packs=packs, only=only))
    if whole.is_cut_by_reading:
        return [whole] if whole.units else []
    head, rest = whole.split_off(FIRST_UNITS_OF_TOPIC)
    if parts is not None or len(whole.units) < MIN_UNITS_FOR_A_HEAD:
        return _set_bounds(_cut(whole, parts))
    return _set_bounds([head, *_cut(rest, parts)])


async def refresh_portion(context: Context, portion: Portion) -> Portion:
    """Return a portion with the current contents of its part of the listing; a claim's portion never changes."""
    if portion.claim:
        return portion
    found: list[PlannedUnit] = []
    # A limit may have cut a pack at the end. If it is not counted again, the pack stays cut.
    cut = {unit.name: unit.count for unit in portion.units} if portion.most is None else {}
    most = None if portion.is_cut_by_reading else portion.most
    count = 0
    async for page, end in _letters(context, portion) if portion.is_dead else _units(context, portion):
        for unit in page:
            left = min(unit.count, cut.get(unit.name, unit.count))
            if most is not None:
                left = min(left, most - count)
            if left > 0 and (not portion.last or _place(portion, unit) <= portion.last):
                found.append(replace(unit, count=left))
                count += left
        is_past_its_part = bool(portion.last) and end > portion.last
        if is_past_its_part or (most is not None and count >= most):
            break
    return replace(portion, units=tuple(found))


def _set_bounds(portions: Sequence[Portion]) -> list[Portion]:
    """Return the portions of a topic with their bounds in the listing: together they cover all of it.

    If their number is limited, the last portion keeps its end; a single portion is counted again instead.
    """
    if len(portions) <= 1:
        return list(portions)
    ends = [_place(portion, portion.units[-1]) for portion in portions]
    if portions[0].most is None:
        ends[-1] = ""
    begins = ["", *ends[:-1]]
    return [
        replace(portion, after=begin, last=end, most=None)
        for portion, begin, end in zip(portions, begins, ends, strict=True)
    ]


def _place(portion: Portion, unit: PlannedUnit) -> str:
    """Return the place of an object in its listing: a letter's key, or the name of a unit, which may be a pack's."""
    return letters.key_of(portion.topic, unit.name) if portion.is_dead else unit.name


async def read_portion(context: Context, portion: Portion) -> list[Message] | list[DeadLetter]:
    """Return the messages of a portion: of a claim all or none, of a topic those that still exist.

    :raises LeaseLostError: a message of the claim does not exist any more, or the claim has ended.
    """
    if portion.most is not None and portion.is_cut_by_reading:
        return await _read_selected(context, portion, portion.most)
    if portion.is_dead:
        planned = [
            ListedLetter(UnitId(unit.name), unit.size, unit.written_at) for unit in portion.units if unit.written_at
        ]
        return await read_letters(context, portion.topic, planned, only=portion.only)
    return await (await fetch_portion(context, portion)).messages()


async def _read_selected(context: Context, portion: Portion, most: int) -> list[Any]:
    """Return the first messages that are selected. It reads on, in larger and larger parts, until there are enough."""
    left, size = replace(portion, most=None), most
    found: list[Any] = []
    while left.units and len(found) < most:
        part, left = left.split_off(size)
        found += await read_portion(context, part)
        size *= 2
    return found[:most]


async def fetch_portion(context: Context, portion: Portion) -> FetchedPortion:
    """Fetch the messages of a portion: of a claim all or none, of a topic those that still exist.

    :raises LeaseLostError: a message of the claim does not exist any more, or the claim has ended.
    """
    if not portion.claim:
        named = [(planned, units.parse(planned.name)) for planned in portion.units]
        wanted = [(planned, unit) for planned, unit in named if unit is not None]
        found = await fetch_each(context, portion.topic, [unit for _, unit in wanted])
        return FetchedPortion(portion, list(zip([planned for planned, _ in wanted], found, strict=True)))
    try:
        held = await fetch_members(context, portion.topic, {unit.id: unit.member for unit in portion.units})
    except (CompatibilityError, ObjectTooLargeError) as error:
        raise _unreadable_error(portion, error) from None
    fetched: list[tuple[PlannedUnit, Message | FetchedPack | None]] = []
    for unit, each in zip(portion.units, held, strict=True):
        if isinstance(each, Decision):
            raise _lost_message_error(portion, unit, each)
        fetched.append((unit, each))
    await _check_held(context, portion)
    return FetchedPortion(portion, fetched)


@dataclass(frozen=True, slots=True)
class FetchedPortion:
    """The messages of a portion, which are fetched. Packs are read whenever somebody looks."""

    portion: Portion
    """Whose messages they are."""
    units: Sequence[tuple[PlannedUnit, Message | FetchedPack | None]]
    """The objects, in order, with what each holds; None: of a topic, what is gone or cannot be read."""

    async def messages(self) -> list[Message]:
        """Return the messages, in order.

        :raises LeaseLostError: a message of the claim was overwritten, and is not a message any more.
        """
        messages: list[Message] = []
        for unit, each in self.units:
            if isinstance(each, FetchedPack):
                found = self._checked(unit, await each.read_in_turns(with_entries=True))
                messages += [] if found is None else found.pack.as_messages(found.entries)[: unit.count]
            elif each is not None:
                messages.append(each)
        return [message for message in messages if self.portion.only.has_message(message)]

    def columns(self, at_least: int = 1000) -> Iterator[MessageColumns]:
        """Return the messages as columns, which are made in the caller's thread when they are asked for.

        :param at_least: how many messages there are in each of them, unless these are large, but for the last.
        :raises LeaseLostError: a message of the claim was overwritten, and is not a message any more.
        """
        columns, size = MessageColumns(self.portion.topic), 0
        for unit, each in self.units:
            if isinstance(each, FetchedPack):
                left = unit.count
                for part in each.parts(MAX_COLUMNS_BYTES, partial(self._checked, unit)):
                    if columns and size + part.size > MAX_COLUMNS_BYTES:
                        yield columns
                        columns, size = MessageColumns(self.portion.topic), 0
                    columns.add_part(self._selected(part, left), each.published_at)
                    left -= len(part.entries)
                    size += part.size
            elif each is not None and self.portion.only.has_message(each):
                columns.add_all([each])
                size += unit.size
            if len(columns) >= at_least:
                yield columns
                columns, size = MessageColumns(self.portion.topic), 0
        if columns:
            yield columns

    def _selected(self, part: PackPart, most: int) -> PackPart:
        """Return those of the first messages of a part that are selected."""
        only, entries = self.portion.only, part.entries[: max(0, most)]
        if only.is_by_message:
            told = [as_message(entry, self.portion.topic, part.name, deliveries=0) for entry in entries]
            wanted = [number for number, message in enumerate(told) if only.has_message(message)]
            return part.only(wanted)
        return part if len(entries) == len(part.entries) else part.only(range(len(entries)))

    def _checked(self, unit: PlannedUnit, found: ReadPack | Decision) -> ReadPack | None:
        """Return what a pack holds. Of a topic, what is malformed or cannot be read is left out."""
        if not self.portion.claim:
            return None if isinstance(found, Decision) else found
        if isinstance(found, Decision):
            raise _lost_message_error(self.portion, unit, found)
        if found.fault is not None:
            raise _unreadable_error(self.portion, found.fault)
        for decision in found.decisions.values():
            raise _lost_message_error(self.portion, unit, decision)
        return found


def _unreadable_error(portion: Portion, error: PawnQueueError) -> PawnQueueError:
    return type(error)(
        f"{error} It belongs to claim {portion.claim}. If it was overwritten: {_REMEDY} Otherwise read the claim "
        "in a process with a larger limits.max_payload_bytes, or with a newer version.",
        topic=portion.topic,
        operation="read",
    )


async def _check_held(context: Context, portion: Portion) -> None:
    """Check that a claim was open after its messages had been read: the plan may be older than the claim's end.

    ⚑ §4: no other claim takes its messages before its record is fenced. So if the record is open after the read, none
    of them belonged to another claim. (Messages that its own holder requeues singly are known to that holder.) The size
    of the record tells whether it is open; only otherwise it is read, as a record of 20,000 messages has three
    megabytes. A record of packs is small, and read each time: a pack stays when one of its messages is settled.

    :raises LeaseLostError: the claim was taken over, or some of the messages are settled.
    """
    if not any(unit.parts for unit in portion.units):
        info = await context.registers.head(layout.claim(portion.topic, portion.claim))
        hint = None if info is None else hint_of_record(info.size, info.last_modified)
        if hint is not None and hint.state == "open":
            return
    found = await context.claim_record(portion.topic, portion.claim).read()
    record = None if found is None or found.value.state == "expired" else found.value
    unsettled = set() if record is None else set(record.unsettled)
    what = "has ended" if record is None or record.state != "open" else "was settled in part"
    for unit in portion.units:
        if record is None or unit.id not in unsettled or unit.of & ~record.undecided(unit.id):
            raise LeaseLostError(
                f"Claim {portion.claim} of topic {portion.topic!r} {what} since these portions were made: "
                "other consumers may have its messages. Claim again.",
                topic=portion.topic,
                message=unit.id,
                operation="read",
            )


def _lost_message_error(portion: Portion, unit: PlannedUnit, why: Decision) -> LeaseLostError:
    message = unit.id
    what = (
        "does not exist any more: it was settled before it was read, the claim was lost, or it was removed. Settle "
        f"after the last read. {_REMEDY}"
        if why.how == "gone"
        else f"was overwritten, and is not a message any more ({why.error}). {_REMEDY}"
    )
    return LeaseLostError(
        f"Message {message} of claim {portion.claim} of topic {portion.topic!r} {what}",
        topic=portion.topic,
        message=message,
        operation="read",
    )


async def _units(context: Context, portion: Portion) -> AsyncIterator[tuple[list[PlannedUnit], str]]:
    after: str | None = portion.after
    while after is not None:
        start, after = after, None
        async with aclosing(units.pages(context.store, portion.topic, packs=portion.packs, after=start)) as pages:
            async for page in pages:
                wanted = [unit for unit in page.units if portion.only.may_have(unit)]
                yield [PlannedUnit(unit.name, unit.size, count=unit.count) for unit in wanted], page.end
                after = portion.only.listing_start(page.end) or None
                if after is not None:
                    break


async def _letters(context: Context, portion: Portion) -> AsyncIterator[tuple[list[PlannedUnit], str]]:
    first, last = portion.only.letter_bounds(portion.topic)
    async for page in letters.pages(context.store, portion.topic, start_after=max(portion.after, first)):
        wanted = [letter for letter in page.letters if portion.only.may_have_letter(letter)]
        yield [PlannedUnit(each.id, each.size, written_at=each.written_at) for each in wanted], page.end
        if last and page.end >= last:
            break


def _cut(whole: Portion, parts: int | None) -> list[Portion]:
    """Return portions of even cost, in order; an object is never cut, and no portion is empty.

    ⚑ Each portion gets its share of the cost that is still left, so that a large object does not shrink those after it.
    """
    left = sum(unit.cost for unit in whole.units)
    wanted = parts if parts is not None else _default_parts(left)
    found: list[Portion] = []
    units: list[PlannedUnit] = []
    cost = 0
    for unit in whole.units:
        more = wanted - len(found)
        # With this unit, the portion would exceed its share by more than it falls short of it now.
        if units and more > 1 and (2 * cost + unit.cost) * more > 2 * left:
            found.append(replace(whole, units=tuple(units)))
            left -= cost
            units, cost = [], 0
        units.append(unit)
        cost += unit.cost
    return [*found, replace(whole, units=tuple(units))] if units else found


def _default_parts(cost: int) -> int:
    """Return the default number of portions for this cost."""
    parts = ceil(cost / MAX_PORTION_COST_BYTES)
    return max(1, parts) if parts <= PORTION_COUNT_STEP // 2 else ceil(parts / PORTION_COUNT_STEP) * PORTION_COUNT_STEP
