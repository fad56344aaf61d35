"""What a claim or a topic has, cut into portions that others read: Spark's executors, a pool of processes.

A portion names the objects that it is made of, so that reading it twice gives the same, whoever reads it; nothing is
claimed by that, and nothing is written.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import ceil
from typing import TYPE_CHECKING, Final

from pawnqueue.catalog import letters, units
from pawnqueue.catalog.letters import ListedLetter
from pawnqueue.claims.bodies import read_each
from pawnqueue.claims.claim_reads import looked_at
from pawnqueue.domain import layout
from pawnqueue.domain.identifiers import UnitId
from pawnqueue.domain.records import Decision, Member
from pawnqueue.domain.size_hint import hint_of_record
from pawnqueue.errors import CompatibilityError, LeaseLostError, ObjectTooLargeError
from pawnqueue.reads.dead_letters import read_letters
from pawnqueue.reads.inspect_topic import read_messages

if TYPE_CHECKING:
    from pawnqueue.claims.claim import ClaimReference, Message
    from pawnqueue.context import Context
    from pawnqueue.reads.dead_letters import DeadLetter

#: What a request costs, in bytes that could have been read in its time: single messages are bound by requests.
REQUEST_COST_BYTES: Final = 8192
#: What a portion costs by default, at most: two and a half thousand small messages, or twenty megabytes. Reading it
#: takes long enough for what a task costs to be little beside it, and is over soon enough for no core to wait long for
#: the last.
MAX_PORTION_COST_BYTES: Final = 20 * 1024 * 1024
#: Nobody here knows how many cores there will be; so many portions, or a multiple, leave none of 2 or 4 without work.
PORTION_COUNT_STEP: Final = 4

_REMEDY: Final = (
    "Start the query again if it is a stream's: that settles the message and reads the others. Of another claim, "
    "settle it where the claim is held (bury it by its id, or call settle_overwritten), or claim anew."
)


@dataclass(frozen=True, slots=True)
class PlannedUnit:
    """An object that is read as a whole."""

    name: str
    """What its object is called in the topic."""
    size: int
    """Its size in bytes."""
    deliveries: int = 0
    """How often it was handed out."""
    count: int = 1
    """How many messages are in it."""
    written_at: datetime | None = None
    """Of a dead letter: when it was buried, as a LIST tells."""

    @property
    def cost(self) -> int:
        """What it costs to read it."""
        return self.size + REQUEST_COST_BYTES


@dataclass(frozen=True, slots=True)
class Portion:
    """Some units of a claim, of a topic, or of a topic's dead letters. It can be pickled."""

    topic: str
    """The topic whose messages they are."""
    units: tuple[PlannedUnit, ...]
    """The objects, in order."""
    claim: str = ""
    """The claim that has them; without one they are looked at, whoever has them."""
    is_dead: bool = False
    """Whether they are dead letters."""
    after: str = ""
    """Of what is looked at: the part of the listing that is this portion's begins behind this key, or at its head."""
    last: str = ""
    """And ends with this key, or at the end of the listing."""
    most: int | None = None
    """The most objects that it has, counted from its beginning."""

    def split(self, most: int, most_cost: int = MAX_PORTION_COST_BYTES) -> Iterator[Portion]:
        """Cut it into smaller ones, of at most so many units, that cost no more than this; one unit may."""
        start = cost = 0
        for position, unit in enumerate(self.units):
            if position > start and (position - start == most or cost + unit.cost > most_cost):
                yield replace(self, units=self.units[start:position])
                start, cost = position, 0
            cost += unit.cost
        if self.units:
            yield replace(self, units=self.units[start:])

    def __len__(self) -> int:
        """Count the messages."""
        return sum(unit.count for unit in self.units)


async def portions_of_claim(context: Context, reference: ClaimReference, parts: int | None) -> list[Portion]:
    """Cut what a claim has not settled into portions, in publish order: one request, whatever its size.

    :raises LeaseLostError: it has no record, or has ended, or its time is over, or all of it is settled.
    """
    record = await looked_at(context, reference, "portions")
    if record.members and not record.unsettled:
        # ⚑ No rows would be an answer that a job writes over what it made of the claim before.
        raise LeaseLostError(
            f"Claim {record.stem} of topic {reference.topic!r} is settled: nothing of it is left to be read, and what "
            "was made of it is to stay as it is. Claim anew.",
            topic=reference.topic,
            operation="portions",
        )
    if record.unsettled and await context.now() >= record.until - context.margin:
        # ⚑ §2: who is told that it stands acts on that, so it is told as a holder is, who stops a margin before the
        # end: who comes next does not wait for what is under way then.
        raise LeaseLostError(
            f"Claim {record.stem} of topic {reference.topic!r} was not renewed, and its time is as good as over: "
            "others may have its messages soon. Claim anew; who works for long gives it a longer ttl, or renews it.",
            topic=reference.topic,
            operation="portions",
        )
    units = [
        PlannedUnit(member.name, member.size, member.deliveries)
        for member in (record.members[u] for u in record.unsettled)
    ]
    return _cut(Portion(reference.topic, tuple(units), claim=record.stem), parts)


async def portions_of_topic(
    context: Context, topic: str, parts: int | None, most: int | None, *, dead: bool
) -> list[Portion]:
    """Cut what is in a topic, claimed or not, or its dead letters, into portions, by a LIST."""
    whole = await refresh_portion(context, Portion(topic, (), is_dead=dead, most=most))
    return _set_bounds(_cut(whole, parts))


async def refresh_portion(context: Context, portion: Portion) -> Portion:
    """Return a portion with what is in its part of the listing now; one of a claim is fixed, and stays as it is."""
    if portion.claim:
        return portion
    found: list[PlannedUnit] = []
    async for page, end in _letters(context, portion) if portion.is_dead else _units(context, portion):
        found += [unit for unit in page if not portion.last or _key(portion, unit) <= portion.last]
        is_past_its_part = bool(portion.last) and end > portion.last
        if is_past_its_part or (portion.most is not None and len(found) >= portion.most):
            break
    return replace(portion, units=tuple(found[: portion.most]))


def _set_bounds(portions: Sequence[Portion]) -> list[Portion]:
    """Say of each portion of a look where in the listing it begins and ends: together they are all of it.

    Of a look at the first so many, the last portion ends where it ended at first; one portion alone is counted anew.
    """
    if len(portions) <= 1:
        return list(portions)
    ends = [_key(portion, portion.units[-1]) for portion in portions]
    if portions[0].most is None:
        ends[-1] = ""
    begins = ["", *ends[:-1]]
    return [
        replace(portion, after=begin, last=end, most=None)
        for portion, begin, end in zip(portions, begins, ends, strict=True)
    ]


def _key(portion: Portion, unit: PlannedUnit) -> str:
    name = letters.key_of if portion.is_dead else units.key_of
    return name(portion.topic, unit.name)


async def read_portion(context: Context, portion: Portion) -> list[Message] | list[DeadLetter]:
    """Read a portion. Of a claim, it is all or nothing; of what is only looked at, what is gone is left out.

    :raises LeaseLostError: a message of the claim is not there any more, or the claim has ended.
    """
    if portion.is_dead:
        planned = [
            ListedLetter(UnitId(unit.name), unit.size, unit.written_at) for unit in portion.units if unit.written_at
        ]
        return await read_letters(context, portion.topic, planned)
    names = [unit.name for unit in portion.units]
    if not portion.claim:
        return await read_messages(context, portion.topic, names)
    members = [Member(name=unit.name, size=unit.size, deliveries=unit.deliveries) for unit in portion.units]
    found: list[Message] = []
    try:
        bodies = await read_each(context, portion.topic, members)
    except (CompatibilityError, ObjectTooLargeError) as error:
        raise type(error)(
            f"{error} It is of claim {portion.claim}. If others have overwritten it: {_REMEDY} Else let a process read "
            "the claim that can: with a larger limits.max_payload_bytes, or of a newer version.",
            topic=portion.topic,
            operation="read",
        ) from None
    for name, body in zip(names, bodies, strict=True):
        if isinstance(body, Decision):
            raise _lost_message_error(portion, name, body)
        found.append(body)
    await _check_held(context, portion)
    return found


async def _check_held(context: Context, portion: Portion) -> None:
    """Make sure that a claim stood when its messages had been read: a plan may be older than the claim's end.

    ⚑ §4: nobody takes its messages over before its record is fenced, so a record that is open after the read says that
    none of them were another claim's by then. (What its own holder gives back singly is the holder's to know.) The size
    of the record tells whether it is open: one of 20,000 messages has three megabytes, and is read if it is not.

    :raises LeaseLostError: it was taken over, or some of the messages are settled.
    """
    key = layout.claim(portion.topic, portion.claim)
    info = await context.registers.head(key)
    hint = None if info is None else hint_of_record(info.size, info.last_modified)
    if hint is not None and hint.state == "open":
        return
    found = await context.claim_record(portion.topic, portion.claim).read()
    unsettled = set() if found is None or found.value.state == "expired" else set(found.value.unsettled)
    for unit in portion.units:
        parsed = units.parse(unit.name)
        if parsed is None or parsed.id not in unsettled:
            raise LeaseLostError(
                f"Claim {portion.claim} of topic {portion.topic!r} has ended since its messages were planned to be "
                "read: others may have them. Claim anew.",
                topic=portion.topic,
                message=parsed.id if parsed else unit.name,
                operation="read",
            )


def _lost_message_error(portion: Portion, name: str, why: Decision) -> LeaseLostError:
    parsed = units.parse(name)
    message = parsed.id if parsed else name
    what = (
        "is not there any more: it was settled while it was to be read, the claim was lost, or others have removed it. "
        f"Settle after the last read. {_REMEDY}"
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
    async for page in units.pages(context.store, portion.topic, start_after=portion.after):
        yield [PlannedUnit(unit.name, unit.size, count=unit.count) for unit in page.units], page.end


async def _letters(context: Context, portion: Portion) -> AsyncIterator[tuple[list[PlannedUnit], str]]:
    async for page in letters.pages(context.store, portion.topic, start_after=portion.after):
        yield [PlannedUnit(each.id, each.size, written_at=each.written_at) for each in page.letters], page.end


def _cut(whole: Portion, parts: int | None) -> list[Portion]:
    """Cut evenly by cost, in order; an object is never cut, and no portion is empty.

    ⚑ Each portion has its share of what is still left, so that a large object costs those behind it nothing.
    """
    left = sum(unit.cost for unit in whole.units)
    wanted = parts if parts is not None else _default_parts(left)
    found: list[Portion] = []
    units: list[PlannedUnit] = []
    cost = 0
    for unit in whole.units:
        more = wanted - len(found)
        # With this one it would be further above its share than it is below it now.
        if units and more > 1 and (2 * cost + unit.cost) * more > 2 * left:
            found.append(replace(whole, units=tuple(units)))
            left -= cost
            units, cost = [], 0
        units.append(unit)
        cost += unit.cost
    return [*found, replace(whole, units=tuple(units))] if units else found


def _default_parts(cost: int) -> int:
    """Return into how many portions it is cut where nobody says it."""
    parts = ceil(cost / MAX_PORTION_COST_BYTES)
    return max(1, parts) if parts <= PORTION_COUNT_STEP // 2 else ceil(parts / PORTION_COUNT_STEP) * PORTION_COUNT_STEP
