"""Carry out what a claim has decided of a pack's messages: bury some, and give others back by the pack's lease.

A pack of which all messages are acked is deleted like a single message. That needs none of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from pawnqueue.catalog import units
from pawnqueue.claims import burying, packs, splitting
from pawnqueue.domain import layout, numbers, pack, share
from pawnqueue.domain import lease as leases
from pawnqueue.domain.identifiers import Version
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.domain.records import DeadReason
from pawnqueue.domain.times import iso
from pawnqueue.errors import CompatibilityError, StoreError
from pawnqueue.registers.strategy import Step
from pawnqueue.runtime.concurrency import for_each
from pawnqueue.stores.port import Done

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.domain.claim_record import ClaimRecord, Decision, Member, PartDecision
    from pawnqueue.domain.lease import Lease
    from pawnqueue.domain.share import Share
    from pawnqueue.registers.register import Versioned

#: How many letters of one pack are written at a time: several packs may be buried at once.
LETTERS_AT_ONCE = 8
#: Fewer bytes of lines do not wait for room to be buried.
MAX_UNCOUNTED_BYTES = 256 * 1024
#: After this many letters a burial looks whether its claim still holds the pack.
LETTERS_BETWEEN_LOOKS = 64


def is_needed(record: ClaimRecord, unit_id: str) -> bool:
    """Say whether a member is a pack of which messages are buried or given back, or stay where they are.

    ⚑ §5.4: of a pack that its claim has not settled as a whole, what was decided is carried out when the claim ends.
    """
    member = record.members[unit_id]
    if not member.is_pack:
        return False
    if unit_id not in record.settled:
        return record.state != "open" and bool(member.decided)
    if record.settled[unit_id].how == "gone":
        return False
    if not layout.is_whole_pack(member.name, unit_id):
        return True
    return bool(member.rest) or any(part.how not in {"acked", "gone"} for part in record.parts_of(unit_id))


class _End(Enum):
    """What is left to do for a pack or a slice."""

    NOTHING = "nothing"
    DELETE = "delete"  # it and its lease: nothing of it is left
    SLICE = "slice"  # it is finished, and its pack may be: somebody has to look


async def carry_out(
    context: Context, topic: str, record: ClaimRecord, unit_ids: Sequence[str], versions: Mapping[str, str]
) -> dict[str, bool | StoreError]:
    """Carry out what was decided of packs' messages.

    Returned is of each pack whether it and its lease are to be deleted then, as nothing of it is left; or why it is not
    known to be carried out.

    :param versions: of the leases as the claim wrote them, where they are known.
    """
    finished = await _finish_acked(context, topic, record, unit_ids, versions)

    async def end(unit_id: str) -> _End | StoreError:
        if unit_id in finished:
            return _End.SLICE
        try:
            return await _carry_out(context, topic, record, unit_id)
        except StoreError as error:
            return error
        except CompatibilityError:
            return _End.NOTHING  # its lease has a newer format: somebody else has the pack by now

    ended = dict(zip(unit_ids, await for_each(end, unit_ids, at_once=context.at_once), strict=True))
    # A claim may have many slices of one pack: one look is enough for them, after the last of them is written.
    names = sorted({record.members[unit_id].name for unit_id, how in ended.items() if how is _End.SLICE})
    looks = await for_each(lambda name: _finish_pack(context, topic, name), names, at_once=context.at_once)
    faults = dict(zip(names, looks, strict=True))
    outcomes: dict[str, bool | StoreError] = {}
    for unit_id, how in ended.items():
        fault = faults.get(record.members[unit_id].name) if how is _End.SLICE else None
        outcomes[unit_id] = how if isinstance(how, StoreError) else fault or how is _End.DELETE
    return outcomes


async def _finish_pack(context: Context, topic: str, name: str) -> StoreError | None:
    try:
        await splitting.finish_if_done(context, topic, name)
    except StoreError as error:
        return error
    return None


async def _carry_out(context: Context, topic: str, record: ClaimRecord, unit_id: str) -> _End:
    # ⚑ §5.4: what the claim does not hold any more was carried out before. Its letters may have been redriven since.
    held = await _held(context, topic, record, unit_id)
    if held is None:
        return _End.NOTHING
    parts = record.parts_of(unit_id)
    dead = [part for part in parts if part.how == "dead"]
    if dead:
        is_buried = await _bury(context, topic, record, unit_id, dead)
        if is_buried is None:
            return _End.NOTHING  # another process has carried it out
        if not is_buried:
            return _End.DELETE
    left = _shares_left(record, unit_id, held.value)
    now = await context.now()
    name = record.members[unit_id].name
    if left:
        freed = leases.released_pack(unit_id, name, left, consumer=record.consumer, claim=record.stem, now=now)
    elif layout.is_whole_pack(name, unit_id):
        return _End.DELETE
    else:
        freed = leases.done(unit_id, name, consumer=record.consumer, claim=record.stem, now=now)
    is_freed = await context.lease(topic, unit_id).replace(held, freed) is not None
    if not is_freed and await _held(context, topic, record, unit_id) is not None:
        raise StoreError(f"The lease of {unit_id} is being written.", transient=True, topic=topic)
    return _End.NOTHING if left else _End.SLICE


async def _finish_acked(
    context: Context, topic: str, record: ClaimRecord, unit_ids: Iterable[str], versions: Mapping[str, str]
) -> set[str]:
    """Note that nothing is left of slices, where that needs no look; return those of which it is noted."""
    acked = [unit_id for unit_id in unit_ids if versions.get(unit_id) and _is_acked_slice(record, unit_id)]
    if not acked:
        return set()
    try:
        now = await context.now()
    except StoreError:
        return set()
    steps = []
    for unit_id in acked:
        name = record.members[unit_id].name
        finished = leases.done(unit_id, name, consumer=record.consumer, claim=record.stem, now=now)
        steps.append(Step(layout.lease(topic, unit_id), finished, Version(versions[unit_id])))
    outcomes = await context.registers.write(steps)
    return {unit_id for unit_id, outcome in zip(acked, outcomes, strict=True) if isinstance(outcome, Done)}


def _is_acked_slice(record: ClaimRecord, unit_id: str) -> bool:
    member, decision = record.members[unit_id], record.settled.get(unit_id)
    is_acked = decision is not None and decision.how == "acked" and not member.rest
    return is_acked and not layout.is_whole_pack(member.name, unit_id)


async def _held(context: Context, topic: str, record: ClaimRecord, unit_id: str) -> Versioned[Lease] | None:
    """Return the lease of a pack if this very claim holds it, since it was given what its record lists."""
    found = await context.lease(topic, unit_id).read()
    if found is None or not leases.is_held_by(found.value, record.stem):
        return None
    if not packs.is_of(found.value, record.members[unit_id]):
        return None
    # A claim's id may be used again when its record is gone, and then a lease that names it is another claim's. The
    # record is read after the lease: if it is still this claim's, so was the lease.
    stored = await context.claim_record(topic, record.stem).read()
    return found if stored is not None and stored.value.created_at == record.created_at else None


def _shares_left(record: ClaimRecord, unit_id: str, lease: Lease) -> list[Share]:
    """Return the shares of those messages that are neither acked nor buried, as the next claim finds them."""
    member = record.members[unit_id]
    left = share.only(lease.shares, ~member.given)
    left += share.lapsed(share.only(member.shares, record.undecided(unit_id)))
    for part in record.parts_of(unit_id):
        if part.how == "released":
            given_back = [_given_back(one, part) for one in share.only(member.shares, part.of)]
            # A claim that was released by its id, with its record open, has not died of its messages.
            has_lapsed = part.by == "other" and record.state != "open"
            left += share.lapsed(given_back) if has_lapsed else given_back
    return share.merged(left)


def _given_back(one: Share, decision: Decision) -> Share:
    given = decision if decision.reason or decision.error else one
    return one.model_copy(
        update={
            "deliveries": decision.counted(one.deliveries),
            "until": decision.until,
            "reason": given.reason,
            "error": given.error,
        }
    )


async def _bury(
    context: Context, topic: str, record: ClaimRecord, unit_id: str, dead: Sequence[PartDecision]
) -> bool | None:
    """Store the dead messages as letters of their own.

    False: the pack is gone, or is a letter as a whole. None: the claim does not hold the pack any more.
    """
    member = record.members[unit_id]
    uuid = layout.uuid_of(unit_id)
    try:
        lines = await _lines(context, topic, member, dead)
        size = sum(map(len, lines.values()))
        if size <= MAX_UNCOUNTED_BYTES:
            return await _bury_lines(context, topic, record, unit_id, dead, lines=lines)
        # ⚑ §1: any number of small objects may expand to 64 MiB each. They wait for room, and not in memory.
        lines = {}
        async with context.buried_bytes.reserve(size):
            lines = await _lines(context, topic, member, dead)
            return await _bury_lines(context, topic, record, unit_id, dead, lines=lines)
    except UnreadableRecordError:
        reason = burying.reason_of(record, unit_id, member.shares[0], dead[0])
        await burying.bury_object(context, topic, uuid, reason)
        return False


async def _lines(context: Context, topic: str, member: Member, dead: Sequence[PartDecision]) -> dict[int, bytes]:
    """Return the lines that are to be buried, by their numbers; none if the pack is gone."""
    found = await packs.read_lines(context, topic, member)
    return {} if found is None else {number: found[number] for part in dead for number in numbers.each(part.of)}


async def _bury_lines(  # noqa: PLR0913 - what is buried, and on whose behalf
    context: Context,
    topic: str,
    record: ClaimRecord,
    unit_id: str,
    dead: Sequence[PartDecision],
    *,
    lines: Mapping[int, bytes],
) -> bool | None:
    if not lines:
        return False
    member, uuid = record.members[unit_id], layout.uuid_of(unit_id)
    published_at = iso(units.published_at(member.name) or 0.0)

    async def bury(number: int, reason: DeadReason) -> None:
        line = pack.dated(lines[number], published_at)
        await burying.bury_line(context, topic, pack.letter_id(uuid, number), line, reason)

    todo = [
        (number, reason)
        for part in dead
        for history in share.only(member.shares, part.of)
        for reason in [burying.reason_of(record, unit_id, history, part)]
        for number in numbers.each(history.of)
    ]
    for start in range(0, len(todo), LETTERS_BETWEEN_LOOKS):
        # ⚑ §5.4: it may take minutes. If another process is faster, its letters may be redriven meanwhile.
        if start and await _held(context, topic, record, unit_id) is None:
            return None
        some = todo[start : start + LETTERS_BETWEEN_LOOKS]
        await for_each(lambda each: bury(*each), some, at_once=min(LETTERS_AT_ONCE, context.at_once))
    return True
