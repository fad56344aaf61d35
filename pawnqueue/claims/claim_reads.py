"""Reading claims without working on them: nothing is written, and their holders go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pawnqueue.claims.bodies import read_each
from pawnqueue.claims.claim import ClaimReference
from pawnqueue.domain import layout, size_hint
from pawnqueue.errors import LeaseLostError

if TYPE_CHECKING:
    from collections.abc import Collection

    from pawnqueue.claims.claim import Message
    from pawnqueue.context import Context
    from pawnqueue.domain.claim_record import ClaimRecord


@dataclass(frozen=True, slots=True)
class LastClaim:
    """The newest claim under an id, as its record shows it."""

    reference: ClaimReference
    """The reference to attach to it, once no other process works on it."""

    owner: str
    """The owner that it is, or was, held for."""
    is_open: bool
    """Whether it has not been ended, and has unsettled messages."""

    reasons: frozenset[str]
    """The reasons with which its messages were given back or buried."""

    is_over: bool = False
    """Whether its time is over, so that no process can still believe that it holds it."""


async def last_claim(context: Context, topic: str, claim_id: str) -> LastClaim | None:
    """Return the newest generation of a claim, or None where none has a record: one LIST and one GET."""
    generation = (await latest_generations(context, topic, [claim_id])).get(claim_id)
    if generation is None:
        return None
    found = await context.claim_record(topic, layout.claim_stem(claim_id, generation)).read()
    if found is None:
        return None
    record = found.value
    return LastClaim(
        # Without the session of the record: naming it would tell the next process that it has ended, and it may live.
        ClaimReference(topic, claim_id, generation, session=""),
        owner=record.owner,
        is_open=record.state == "open" and bool(record.unsettled),
        reasons=frozenset(decision.reason for decision in record.all_decisions() if decision.reason),
        is_over=context.is_over(record.until, await context.now()),
    )


async def messages(context: Context, reference: ClaimReference) -> list[Message]:
    """Read what a claim has not settled, in publish order: its record, and a body a unit.

    Malformed or missing messages are left out.

    :raises LeaseLostError: it has no record, or has ended, or its time is over: others have the messages, or may.
    """
    record = await looked_at(context, reference, "messages")
    members = {unit_id: record.unsettled_part(unit_id) for unit_id in record.unsettled}
    found = await read_each(context, reference.topic, members)
    return [message for of_unit, _ in found for message in of_unit]


async def looked_at(context: Context, reference: ClaimReference, operation: str) -> ClaimRecord:
    """Return the record of a claim that has its messages, or that has settled them all: one request.

    :raises LeaseLostError: it has no record, or has ended, or its time is over: others have the messages, or may.
    """
    stem = layout.claim_stem(reference.claim_id, reference.generation)
    found = await context.claim_record(reference.topic, stem).read()
    if found is None:
        raise _over_error(reference, "it has no record any more, as it is settled or long over", operation)
    record = found.value
    if record.state != "closed" and record.unsettled:
        if record.state == "expired":
            raise _over_error(reference, "it was taken over", operation)
        if context.is_over(record.until, await context.now()):
            raise _over_error(reference, "its time is over", operation)
    return record


def _over_error(reference: ClaimReference, why: str, operation: str) -> LeaseLostError:
    return LeaseLostError(
        f"Claim {reference.claim_id} of topic {reference.topic!r} cannot be looked at: {why}. Others have what was "
        "left of it, or may have it: claim anew.",
        topic=reference.topic,
        operation=operation,
    )


async def latest_generations(context: Context, topic: str, claim_ids: Collection[str]) -> dict[str, int]:
    """Return of each of these claims that has a record its newest generation.

    One LIST, and another for each further thousand records whose ids are between the first and the last of these.
    """
    if not claim_ids:
        return {}
    # Keys go on with a dot behind the id: "run.0.json" comes after "run-1.0.json".
    beginnings = sorted(layout.claim_beginning(topic, claim_id) for claim_id in claim_ids)
    last = beginnings[-1]
    found: dict[str, int] = {}
    async for page in context.registers.pages(layout.claims(topic), start_after=beginnings[0]):
        for info in page:
            parsed = layout.parse_claim(info.key)
            if parsed is not None and parsed[0] in claim_ids:
                found[parsed[0]] = max(parsed[1], found.get(parsed[0], 0))
        if page[-1].key > last and not page[-1].key.startswith(last):
            break
    return found


async def listed_claims(context: Context, topic: str) -> dict[str, bool]:
    """Return the name of each claim record of a topic, and whether the claim holds messages, as far as a LIST tells.

    One LIST for each thousand records. Whether a claim is open, and for about how long, is in the size of its record,
    which each renewal writes anew. A record whose size tells nothing counts as one that holds messages.
    """
    now = await context.now()
    found: dict[str, bool] = {}
    async for page in context.registers.pages(layout.claims(topic)):
        for info in page:
            parsed = layout.parse_claim(info.key)
            if parsed is None:
                continue
            hint = size_hint.hint_of_record(info.size, info.last_modified)
            is_open = hint is None or (hint.state == "open" and not context.is_over(hint.latest, now))
            found[layout.claim_stem(*parsed)] = is_open
    return found
