"""Finish the move of a dead letter back into the queue (§5, Redrive): by its redriver, or later by another process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawnqueue.catalog import letters, units
from pawnqueue.domain import layout
from pawnqueue.domain import lease as leases
from pawnqueue.stores.port import Unknown

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.domain.lease import Lease
    from pawnqueue.registers.register import Versioned


async def finish_move(context: Context, topic: str, uuid: str, found: Versioned[Lease]) -> bool:
    """Copy the message into the queue and open it to consumers; return whether this call has opened it.

    :raises StoreError: it could not be confirmed. The next process that finds the move overdue goes on.

    ⚑ §5: the source is looked for only after the lock was taken. It is moved by a COPY, never by a GET and a PUT, as a
    late COPY finds no source.
    """
    context = context.with_budget()
    name, source = found.value.key, found.value.source
    letter = letters.key_of(topic, source)
    if await context.store.head(letter) is not None:
        outcome = await context.store.copy(letter, units.key_of(topic, name))
        if isinstance(outcome, Unknown):
            raise outcome.fault
        for error in (await context.store.delete([letter])).values():
            raise error
        # Behind the letter, so that none is left without its reason; a reason alone is swept up in time.
        await context.store.delete([letters.reason_key_of(topic, source)])
    return await _unlock(context, topic, uuid, found)


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
