"""Finish the move of a dead letter back into the queue (§5, Redrive): by its redriver, or later by another process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawnqueue.catalog import letters, units
from pawnqueue.domain import layout
from pawnqueue.domain import lease as leases
from pawnqueue.stores.port import Unknown

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.domain.identifiers import Version
    from pawnqueue.domain.lease import Lease
    from pawnqueue.registers.register import Versioned


async def finish_move(context: Context, topic: str, uuid: str, found: Versioned[Lease]) -> bool:
    """Copy the message into the queue and open it to consumers; return whether this call has opened it.

    :raises StoreError: it could not be confirmed. The next process that finds the move overdue goes on.

    ⚑ §5: the source is looked for only after the lock was taken. It is moved by a COPY, never by a GET and a PUT, as a
    late COPY finds no source.
    """
    context = context.with_budget()
    copied = await _copy_letter(context, topic, found.value)
    if copied is not None:
        await _delete_letter(context, topic, found.value.source, copied)
    return await _unlock(context, topic, uuid, found)


async def _copy_letter(context: Context, topic: str, lock: Lease) -> Version | None:
    """Copy the dead letter to its new place; return its version, or None where that letter does not exist any more."""
    letter, single_attempt = letters.key_of(topic, lock.source), context.with_budget(0.0).store
    backoff = context.store.backoff()
    while True:
        # Each attempt looks again: a burial may have come between, and a second COPY would overwrite the first.
        present = await context.store.head(letter)
        if present is None or not _is_made_for(lock, present.version):
            return None
        outcome = await single_attempt.copy(letter, units.key_of(topic, lock.key))
        if not isinstance(outcome, Unknown):
            return present.version
        if not await backoff.pause(outcome.fault):
            raise outcome.fault


def _is_made_for(lock: Lease, version: Version) -> bool:
    """Say whether the new place was made for this version of the letter.

    ⚑ §5: another message under the letter's uuid may be buried over it at any moment. Its letter has a new place of its
    own. At this one it would overwrite the message that was moved here.
    """
    place = units.parse(lock.key)
    return place is not None and place.id == units.redriven_id(lock.source, version)


async def _delete_letter(context: Context, topic: str, source: str, version: Version) -> None:
    """Delete the letter that was moved, and its reason; keep another letter that was buried over it meanwhile.

    ⚑ §5: it is the redriver that looks, and not the burial: each burial would pay for a look, and its COPY can land
    after that. A store without conditional DELETEs deletes a letter that is buried between this HEAD and the DELETE.
    """
    letter, single_attempt = letters.key_of(topic, source), context.with_budget(0.0).registers
    backoff, is_sent = context.store.backoff(), False
    while (present := await context.store.head(letter)) is not None:
        if present.version != version:
            return
        outcome = (await single_attempt.delete_versions({letter: version})).get(letter)
        is_sent = True
        if outcome is None:
            break
        if not isinstance(outcome, Unknown):
            return
        await backoff.pause_or_raise(outcome.fault)
    if is_sent:
        # Behind the letter, so that none is left without its reason; a reason alone is swept up in time.
        await context.store.delete([letters.reason_key_of(topic, source)])


async def _unlock(context: Context, topic: str, uuid: str, found: Versioned[Lease]) -> bool:
    name = found.value.key
    if await context.store.head(units.key_of(topic, name)) is None:
        # There is nothing to release: another redriver was here first, and the message has gone its way.
        present = await context.lease(topic, uuid).read()
        if present is not None and present.version == found.version:
            await context.registers.delete([layout.lease(topic, uuid)])
        return False
    now = await context.now()
    freed = leases.released(uuid, name, consumer="redrive", claim="", deliveries=0, until=0.0, now=now)
    return await context.lease(topic, uuid).replace(found, freed) is not None
