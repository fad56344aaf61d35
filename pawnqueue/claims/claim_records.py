"""Reading and changing claim records."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pawnqueue.domain import layout
from pawnqueue.domain.object_sizes import MAX_CLAIM_RECORD_BYTES
from pawnqueue.domain.records import ClaimRecord, Decision, Member, UnreadableRecordError
from pawnqueue.errors import StoreError
from pawnqueue.registers.register import Versioned
from pawnqueue.registers.strategy import Step
from pawnqueue.stores.port import Done, Unknown

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.stores.port import Outcome


TOLD = TypeVar("TOLD", Member, Decision)

#: What a settled message takes of a record, without the texts: twice what one of our publishers' takes.
MEMBER_BYTES = 640
#: A control character, in JSON.
LONGEST_CHARACTER_BYTES = 6


async def read(context: Context, topic: str, stem: str) -> Versioned[ClaimRecord] | None:
    """Read the record with this stem, or return None where there is none."""
    key = layout.claim(topic, stem)
    found = await context.registers.read(key)
    if found is None:
        return None
    try:
        return Versioned(ClaimRecord.decode(found.body, key), found.info.version)
    except UnreadableRecordError:
        # Garbage under a record's key: nobody can settle by it, so it stands for a claim that never was, long over.
        claim_id, generation = layout.parse_stem(stem) or (stem, 0)
        record = ClaimRecord(v=0, claim_id=claim_id, generation=generation, state="expired")
        return Versioned(record, found.info.version)


async def create(context: Context, topic: str, record: ClaimRecord) -> Outcome:
    """⚑ §4: the record of a claim comes to be once, whoever creates it: its claimer, or a taker that fences it."""
    timed = await _timed(context, _fitting(record))
    [outcome] = await context.registers.write([Step(layout.claim(topic, record.stem), timed)])
    return outcome


async def change(context: Context, topic: str, record: ClaimRecord, version: str) -> Outcome:
    """Renew, settle, fence and close are this: one compare-and-set, whatever the size of the batch."""
    step = Step(layout.claim(topic, record.stem), await _timed(context, _fitting(record)), version)
    [outcome] = await context.registers.write([step])
    return outcome


async def close(context: Context, topic: str, standing: Versioned[ClaimRecord]) -> Versioned[ClaimRecord] | None:
    """Close a record of which all is decided and carried out. None: somebody else has changed it meanwhile.

    :raises StoreError: nobody can tell whether it is closed.
    """
    closed = standing.value.model_copy(update={"state": "closed"})
    outcome = await change(context, topic, closed, standing.version)
    if isinstance(outcome, Unknown):
        raise outcome.fault
    return Versioned(closed, outcome.version) if isinstance(outcome, Done) else None


def _fitting(record: ClaimRecord) -> ClaimRecord:
    """Cut reasons and errors so that nobody finds the record too large to be read, however many messages have some.

    ⚑ §1: nothing is written that is not read. The decisions themselves are never cut.
    """
    told: list[Member | Decision] = [*record.members.values(), *record.settled.values()]
    room = MAX_CLAIM_RECORD_BYTES - MEMBER_BYTES * len(record.members)
    if sum(len(each.reason) + len(each.error) for each in told) * LONGEST_CHARACTER_BYTES <= room:
        return record
    most = max(0, room) // (2 * LONGEST_CHARACTER_BYTES * len(told))

    def cut(each: TOLD) -> TOLD:
        return each.model_copy(update={"reason": each.reason[:most], "error": each.error[:most]})

    return record.model_copy(
        update={
            "members": {uuid: cut(member) for uuid, member in record.members.items()},
            "settled": {uuid: cut(decision) for uuid, decision in record.settled.items()},
        }
    )


async def _timed(context: Context, record: ClaimRecord) -> ClaimRecord:
    """Have the record's size tell what is left of its time now: whoever lists it counts from this write on."""
    if record.state == "closed":
        return record.model_copy(update={"ttl": 0.0})
    try:
        now = await context.now()
    except StoreError:
        return record  # a settlement does not fail for want of a hint: it says too much then
    return record.model_copy(update={"ttl": max(0.0, record.free_at - now)})
