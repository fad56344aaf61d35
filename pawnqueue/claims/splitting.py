"""Packs that are split into slices, so that several claims have messages of one pack; and their end.

A slice of which all messages are finished keeps its lease, in the state ``done``, until the pack is deleted.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from pawnqueue.catalog import units
from pawnqueue.domain import layout, size_hint
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
    """Delete a pack if all its slices are finished, and then the leases; return whether nothing of it is left to do.

    ⚑ §5.1: a lease's body says that a slice is finished. What a LIST shows only saves reading the bodies.
    ⚑ §5.5: each claim that finishes a slice looks here after it has written that. Of the last two, at least one sees
    that all are finished. If it dies, a poll or a sweep looks.

    :raises StoreError: it is not known whether all of it is deleted.
    """
    whole = units.parse(name)
    if whole is None:
        return False
    listed = await _done_slices(context, topic, f"{layout.leases(topic)}{layout.uuid_of(whole.id)}.")
    root = await _lease_of(context, topic, whole)
    if root is None:
        return True  # another process was faster
    if root.value.state != "split":
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


async def _done_slices(context: Context, topic: str, beginning: str) -> set[str | None]:
    """Return the units whose leases begin with this text, and look as if nothing is left of them."""
    found: set[str | None] = set()
    # Stores list folders. Not every client lists what begins with a part of a name.
    async with aclosing(context.registers.pages(layout.leases(topic), start_after=beginning)) as pages:
        async for page in pages:
            for info in page:
                hint = size_hint.hint_of_lease(info.size, info.last_modified, is_of_pack=True)
                if info.key.startswith(beginning) and hint is not None and hint.state == "done":
                    found.add(layout.parse_lease(info.key))
            if not page[-1].key.startswith(beginning):
                break
    return found


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
