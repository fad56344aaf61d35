"""Store a dead letter: by a copy of the object, or from one line of a pack; and the reason beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawnqueue.catalog import letters, units
from pawnqueue.domain.records import DeadReason
from pawnqueue.domain.times import iso
from pawnqueue.errors import StoreError
from pawnqueue.events import MessageBuried
from pawnqueue.stores.port import Done, Expect, Refused, Unknown

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.domain.claim_record import ClaimRecord, Decision, Member
    from pawnqueue.domain.share import Share


def reason_of(record: ClaimRecord, unit_id: str, history: Member | Share, decision: Decision) -> DeadReason:
    """Return the reason of a letter.

    :param history: the deliveries and the last reason of the message, as its claim knows them.
    """
    member = record.members[unit_id]
    return DeadReason(
        reason=decision.reason,
        error=decision.error,
        deliveries=decision.counted(history.deliveries),
        consumer=record.consumer,
        claim=record.stem,
        at=iso(decision.until or record.created_at),
        name=member.name,
        unit=unit_id if member.is_pack else "",
        max_deliveries=decision.max_deliveries,
        given_reason=history.reason,
        given_error=history.error,
    )


async def bury_object(context: Context, topic: str, letter_id: str, reason: DeadReason) -> None:
    """Copy the object that the reason names beside the reason.

    :raises StoreError: it is not known whether it was copied.
    """
    letter = letters.key_of(topic, letter_id)
    await _write_reason(context, topic, letter_id, reason)
    outcome = await context.store.copy(units.key_of(topic, reason.name), letter)
    # If the source does not exist, another process has buried it before. If its dead letter has been redriven since,
    # the reason that was written just now belongs to none.
    if isinstance(outcome, Refused) and await context.store.head(letter) is None:
        await context.store.delete([letters.reason_key_of(topic, letter_id)])
    if isinstance(outcome, Unknown):
        raise outcome.fault
    if isinstance(outcome, Done):
        _tell(context, topic, letter_id, reason)


async def bury_line(context: Context, topic: str, letter_id: str, line: bytes, reason: DeadReason) -> None:
    """Create the letter of one message of a pack.

    :raises StoreError: it is not known whether it exists.
    """
    await _write_reason(context, topic, letter_id, reason)
    await _create(context, letters.key_of(topic, letter_id), line)
    _tell(context, topic, letter_id, reason)


async def _write_reason(context: Context, topic: str, letter_id: str, reason: DeadReason) -> None:
    # The reason goes first: a dead letter without one would have lost the key that it had, and a redriver learns from
    # it whether the burial is finished.
    await context.store.overwrite(letters.reason_key_of(topic, letter_id), reason.encode())


def _tell(context: Context, topic: str, letter_id: str, reason: DeadReason) -> None:
    context.events.tell(
        MessageBuried(
            topic=topic,
            message=letter_id,
            reason=reason.reason,
            deliveries=reason.deliveries,
            max_deliveries=reason.max_deliveries,
            claim=reason.claim,
        )
    )


async def _create(context: Context, key: str, line: bytes) -> None:
    """Store a letter, unless it exists.

    ⚑ §5.6: there is no object to copy. A PUT that lands late must not replace a letter.
    ⚑ §5.1: an object in its place with another body is not this letter. A publisher that knows the pack's uuid can have
    such a one buried, and it is replaced, as by the COPY of a single message.
    """
    backoff = context.store.backoff()
    while True:
        present = await context.store.head(key)
        if present is not None and await _has_body(context, key, present.size, line):
            return
        other = Expect.NOTHING if present is None else present.version
        outcome = await context.store.put(key, line, expect=other if context.registers.is_certain else Expect.ANYTHING)
        if isinstance(outcome, Done):
            return
        fault = outcome.fault if isinstance(outcome, Unknown) else None
        await backoff.pause_or_raise(fault or StoreError(f"The store refuses to create {key}.", transient=True))


async def _has_body(context: Context, key: str, size: int, body: bytes) -> bool:
    if size != len(body):
        return False
    found = await context.store.get(key, size)
    return found is not None and found.body == body
