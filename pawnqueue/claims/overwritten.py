"""Find the messages of a claim that others have overwritten or removed since they were claimed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pawnqueue.catalog import units
from pawnqueue.claims.bodies import read_each
from pawnqueue.claims.packs import PackReader, read_pack
from pawnqueue.domain.claim_record import Decision
from pawnqueue.errors import CompatibilityError, ObjectTooLargeError
from pawnqueue.runtime.concurrency import for_each

if TYPE_CHECKING:
    from pawnqueue.claims.held import HeldClaim
    from pawnqueue.context import Context
    from pawnqueue.domain.claim_record import Member

#: The reason of a message that is given back because another object is in its place.
OVERWRITTEN = "overwritten"


async def overwritten(context: Context, claim: HeldClaim) -> dict[str, Decision]:
    """Read the unsettled messages of a claim, and return a decision for each that changed since it was claimed.

    ⚑ §4: a message that is as it was claimed stays in the claim, although this process cannot read it, or cannot read
    it now: a former session may have passed it on.

    :raises PawnQueueError: such a message cannot be read. Nothing is decided of the others either.
    """
    members = {uuid: claim.record.unsettled_part(uuid) for uuid in claim.left}
    reader = PackReader(context, claim.topic)

    async def decide(uuid: str) -> Mapping[str, Decision]:
        member = members[uuid]
        try:
            if member.is_pack:
                found = await read_pack(context, claim.topic, uuid, member, reader)
                decisions = {uuid: found} if isinstance(found, Decision) else found.decisions
                fault = None if isinstance(found, Decision) else found.fault
            else:
                [(_, decision)] = await read_each(context, claim.topic, {uuid: member})
                decisions, fault = {} if decision is None else {uuid: decision}, None
        except (CompatibilityError, ObjectTooLargeError) as error:
            decisions, fault = {uuid: Decision(how="released")}, error
        if fault is not None and await _is_as_claimed(context, claim, member):
            raise fault
        # The former session may have been given it, so this counts as a delivery.
        return {name: _noted(decision) for name, decision in decisions.items()}

    found = await for_each(decide, members, at_once=context.at_once)
    return {name: decision for of_one in found for name, decision in of_one.items()}


def _noted(decision: Decision) -> Decision:
    why = {"reason": OVERWRITTEN} if decision.how == "released" else {}
    return decision.model_copy(update={"by": "consumer", **why})


async def _is_as_claimed(context: Context, claim: HeldClaim, member: Member) -> bool:
    """Say whether a message has the size that it was claimed with, and a date from before the claim."""
    info = await context.store.head(units.key_of(claim.topic, member.name))
    if info is None or info.size != member.size:
        return False
    return info.last_modified.timestamp() <= claim.record.created_at + context.margin
