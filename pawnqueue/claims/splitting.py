"""Packs that are split into slices, so that several claims have messages of one pack; and their end.

A slice of which all messages are finished keeps its lease, in the state ``done``, until the pack is deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawnqueue.catalog import units
from pawnqueue.domain import layout
from pawnqueue.errors import CompatibilityError, StoreError
from pawnqueue.runtime.concurrency import for_each
from pawnqueue.stores.port import Unknown

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.domain.identifiers import Version
    from pawnqueue.domain.lease import Lease
    from pawnqueue.domain.unit import Unit
    from pawnqueue.registers.register import Versioned

#: A pack is split into at most about this many slices: each has a lease until the pack is deleted.
MAX_SLICES = 100


def slice_length(count: int, wanted: int) -> int:
    """Return how many messages each slice of a pack has, for a consumer that wants so many."""
    return max(wanted, -(-count // MAX_SLICES))


async def finish_if_done(context: Context, topic: str, name: str) -> bool:
    """Delete a pack if all its slices are finished, and then the leases; return whether it is deleted.

    ⚑ §5.1: a lease's body says that a slice is finished. Of what a LIST shows, only its name counts.
    ⚑ §5.5: each claim that finishes a slice looks here after it has written that. Of the last two, at least one sees
    that all are finished. If it dies, a poll or a sweep looks.

    :raises StoreError: it is not known whether all of it is deleted.
    """
    whole = units.parse(name)
    if whole is None:
        return False
    beginning = f"{layout.leases(topic)}{layout.uuid_of(whole.id)}."
    listed = {
        unit_id
        async for page in context.registers.pages(beginning)
        for info in page
        if (unit_id := layout.parse_lease(info.key)) is not None
    }
    root = await _lease_of(context, topic, whole)
    if root is None or root.value.state != "split":
        return False
    slices = whole.slices(root.value.length)
    begun = [each for each in slices if root.value.shares and _is_begun(each, root.value)]
    if any(each.id not in listed for each in begun):
        return False
    found = await for_each(lambda each: _lease_of(context, topic, each), begun, at_once=context.at_once)
    if not all(lease is not None and lease.value.state == "done" for lease in found):
        return False
    # ⚑ §4: the pack before its leases.
    for error in (await context.store.delete([units.key_of(topic, name)])).values():
        raise error
    versions: dict[str, Version] = {
        layout.lease(topic, each.id): lease.version
        for each, lease in [*zip(begun, found, strict=True), (whole, root)]
        if lease is not None
    }
    for outcome in (await context.registers.delete_versions(versions)).values():
        if isinstance(outcome, Unknown):
            raise outcome.fault
    return True


def _is_begun(each: Unit, root: Lease) -> bool:
    """Say whether a slice had messages when its pack was split. One that had none was finished by then."""
    return any(share.of & each.numbers for share in root.shares)


async def _lease_of(context: Context, topic: str, unit: Unit) -> Versioned[Lease] | None:
    """Return the lease of a unit, if it names this very pack."""
    try:
        found = await context.lease(topic, unit.id).read()
    except CompatibilityError as error:
        raise StoreError(str(error), transient=False, topic=topic) from None
    return found if found is not None and found.value.key == unit.name else None
