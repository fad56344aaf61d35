"""The register of one claim: renewing, settling, fencing and closing it are one compare-and-set each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from pawnqueue.domain import layout
from pawnqueue.domain.bounds import LONGEST_MESSAGE_ID_BYTES
from pawnqueue.domain.claim_record import ClaimRecord, Decision, Member, PartDecision
from pawnqueue.domain.numbers import to_text
from pawnqueue.domain.object_sizes import (
    CLAIM_OTHER_BYTES,
    CLAIM_PART_BYTES,
    MAX_CLAIM_PARTS,
    MAX_CLAIM_RECORD_BYTES,
)
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.domain.share import Share
from pawnqueue.domain.size_hint import TRACE_TTL_SECONDS
from pawnqueue.errors import StoreError
from pawnqueue.registers.register import Register, Versioned

if TYPE_CHECKING:
    from pawnqueue.registers.strategy import Registers
    from pawnqueue.stores.port import StoredObject

#: Returns the store's time.
Now: TypeAlias = Callable[[], Awaitable[float]]

WithTexts = TypeVar("WithTexts", Member, Decision, PartDecision, Share)

#: What a settled message takes of a record at most, without its texts, its name and its id.
MEMBER_BYTES = 380
#: The length of a control character in JSON.
LONGEST_CHARACTER_BYTES = 6
#: The same in a message's name, which may have quotes and backslashes.
LONGEST_NAME_CHARACTER_BYTES = 2


class ClaimRecordRegister(Register[ClaimRecord]):
    """The record of one generation of a claim.

    ⚑ §4: it is created once: by the claimer, or by a taker that fences it.
    """

    def __init__(self, registers: Registers, topic: str, stem: str, now: Now) -> None:
        super().__init__(registers, layout.claim(topic, stem))
        self._stem = stem
        self._now = now

    async def close(self, found: Versioned[ClaimRecord], *, is_trace: bool = False) -> Versioned[ClaimRecord] | None:
        """Close a record whose decisions are all made and carried out; None: somebody else has changed it.

        :param is_trace: nobody can ask for the claim again: the record is kept as a trace of its messages only.
        :raises StoreError: it is not known whether it is closed.
        """
        ttl = TRACE_TTL_SECONDS if is_trace else 0.0
        return await self.replace(found, found.value.model_copy(update={"state": "closed", "ttl": ttl}))

    def _understand(self, found: StoredObject) -> ClaimRecord:
        try:
            return ClaimRecord.decode(found.body, self._key)
        except UnreadableRecordError:
            # Nobody can settle by garbage, so it counts as a claim without members whose time is long over.
            claim_id, generation = layout.parse_stem(self._stem) or (self._stem, 0)
            return ClaimRecord(v=0, claim_id=claim_id, generation=generation, state="expired")

    async def _prepare(self, record: ClaimRecord) -> ClaimRecord:
        return await _timed(_fitting(record), self._now)


def _fitting(record: ClaimRecord) -> ClaimRecord:
    """Cut reasons and errors so that the record is small enough for all readers, however many messages have some.

    ⚑ §1: nothing is written that is not read. The decisions themselves are never cut: for every member that a record
    can have there is room for one, so each record that can be read can be fenced. Only where the messages of packs
    have more different decisions than there is room for, they are joined: by the longest of their delays.
    """
    if record.needed_parts > MAX_CLAIM_PARTS:
        fewer = {unit_id: member.with_fewer_parts() for unit_id, member in record.members.items()}
        record = record.model_copy(update={"members": fewer})
    parts: list[Member | Decision | Share] = [*record.members.values(), *record.settled.values()]
    of_packs: list[Share | PartDecision] = []
    for member in record.members.values():
        of_packs += member.shares
        of_packs += member.decided
    numbers = sum(len(to_text(each.of)) for each in of_packs)
    numbers += sum(len(to_text(member.rest)) for member in record.members.values() if member.rest)
    parts += of_packs
    names = sum(len(each.name) for each in record.members.values()) * LONGEST_NAME_CHARACTER_BYTES
    ids = sum(min(len(each.id) * LONGEST_CHARACTER_BYTES, LONGEST_MESSAGE_ID_BYTES) for each in record.settled.values())
    room = (
        MAX_CLAIM_RECORD_BYTES
        - CLAIM_OTHER_BYTES
        - MEMBER_BYTES * len(record.members)
        - CLAIM_PART_BYTES * len(of_packs)
        - numbers
        - names
        - ids
    )
    if sum(len(each.reason) + len(each.error) for each in parts) * LONGEST_CHARACTER_BYTES <= room:
        return record
    most = max(0, room) // (2 * LONGEST_CHARACTER_BYTES * len(parts))

    def cut(each: WithTexts) -> WithTexts:
        return each.model_copy(update={"reason": each.reason[:most], "error": each.error[:most]})

    def cut_member(member: Member) -> Member:
        parts = {"shares": [cut(each) for each in member.shares], "decided": [cut(each) for each in member.decided]}
        return cut(member.model_copy(update=parts))

    return record.model_copy(
        update={
            "members": {uuid: cut_member(member) for uuid, member in record.members.items()},
            "settled": {uuid: cut(decision) for uuid, decision in record.settled.items()},
        }
    )


async def _timed(record: ClaimRecord, now: Now) -> ClaimRecord:
    """Let the record's size tell how much of its time is left: a listing counts from the time of this write."""
    if record.state == "closed":
        return record  # its time is over, or tells that it is a trace
    try:
        left = record.free_at - await now()
    except StoreError:
        return record  # a settlement does not fail for a missing hint, which then tells too long a time
    return record.model_copy(update={"ttl": max(0.0, left)})
