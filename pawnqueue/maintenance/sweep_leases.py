"""Sweep the leases: finish moves, and remove leases without a message."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pawnqueue.catalog import units
from pawnqueue.claims import finish_redrive, splitting
from pawnqueue.claims.takeover import free_to_take
from pawnqueue.domain import layout, size_hint
from pawnqueue.runtime.concurrency import for_each

if TYPE_CHECKING:
    from pawnqueue.domain.lease import Lease
    from pawnqueue.maintenance.sweep_scope import SweepScope
    from pawnqueue.registers.register import Versioned
    from pawnqueue.stores.port import ObjectInfo


#: A lease that has no message, or that moves one, ends at most this long after its date. Neither a consumer that has
#: yet to record its claim nor a redriver takes that long.
MAX_SECONDS_WITHOUT_MESSAGE = 86_400.0


def _bounded(found: Versioned[Lease], listed: ObjectInfo) -> Versioned[Lease]:
    """Return the lease with an end that a forger cannot choose.

    ⚑ §5.7: its end is at most a day after the store's own date of it.
    """
    latest = listed.last_modified.timestamp() + MAX_SECONDS_WITHOUT_MESSAGE
    return replace(found, value=found.value.model_copy(update={"until": min(found.value.until, latest)}))


class LeaseSweep:
    """The leases of one topic, in one sweep."""

    def __init__(self, scope: SweepScope) -> None:
        self._scope = scope
        self._report = scope.report

    async def sweep(self, listed: Sequence[ObjectInfo], here: Collection[str]) -> None:
        """Check every lease that moves a message, or whose message was not listed after it.

        :param here: the ids of the messages that were listed after the leases.
        """
        suspects: dict[str, ObjectInfo] = {}
        split: list[str] = []
        packs_here = {layout.uuid_of(unit_id) for unit_id in here if layout.is_of_pack(unit_id)}
        for uuid, info in self._scope.sorted_out(listed, layout.parse_lease):
            hint = size_hint.hint_of_lease(info.size, info.last_modified, is_of_pack=layout.is_of_pack(uuid))
            is_here = uuid in here or (layout.is_of_pack(uuid) and layout.uuid_of(uuid) in packs_here)
            if not is_here or (hint is not None and hint.state == "moving"):
                suspects[uuid] = info
            elif hint is not None and hint.state == "split":
                split.append(uuid)

        async def orphan(uuid: str) -> Versioned[Lease] | None:
            is_here = uuid in here or (layout.is_of_pack(uuid) and layout.uuid_of(uuid) in packs_here)
            work = self._find_orphan(uuid, suspects[uuid], is_here=is_here)
            return await self._scope.isolate(self._key(uuid), work, None)

        found = zip(suspects, await for_each(orphan, suspects, at_once=self._scope.context.at_once), strict=True)
        await self._remove({uuid: lease for uuid, lease in found if lease is not None})

        async def finish(unit_id: str) -> None:
            await self._scope.isolate(self._key(unit_id), self._finish_pack(unit_id), None)

        await for_each(finish, split, at_once=self._scope.context.at_once)

    async def _finish_pack(self, unit_id: str) -> None:
        """Delete a pack of which all slices are finished: the claim that finished the last one may have died."""
        found = await self._scope.context.lease(self._scope.topic, unit_id).read()
        if found is not None and found.value.state == "split" and not self._report.dry_run:
            await splitting.finish_if_done(self._scope.context, self._scope.topic, found.value.key)

    async def _find_orphan(self, uuid: str, listed: ObjectInfo, *, is_here: bool) -> Versioned[Lease] | None:
        """Finish a move; or return a lease without a message, which was settled."""
        context, topic = self._scope.context, self._scope.topic
        found = await context.lease(topic, uuid).read()
        if found is not None and found.version == listed.version:
            found = _bounded(found, listed)
        if found is not None and found.value.state == "moving":
            await self._move(uuid, found)
            return None
        if found is None or is_here:
            return None
        # A lease that does not name its message was written by a stranger: only the listing can tell.
        name = found.value.key
        if name and await context.store.head(units.key_of(topic, name)) is not None:
            return None
        # ⚑ §5: then GET the lease again: only a lease that is unchanged after the look for its message is removed.
        again = await context.lease(topic, uuid).read()
        return found if again is not None and again.version == found.version else None

    async def _move(self, uuid: str, found: Versioned[Lease]) -> None:
        context = self._scope.context
        if context.is_due(found.value, await context.now()):
            if not self._report.dry_run:
                await finish_redrive.finish_move(context, self._scope.topic, uuid, found)
            self._report.finished_moves += 1

    async def _remove(self, orphans: Mapping[str, Versioned[Lease]]) -> None:
        # ⚑ §5: overdue, and free by the rules of take-over: its claim can never settle it again.
        by_claim: dict[str, dict[str, Versioned[Lease]]] = defaultdict(dict)
        for uuid, found in orphans.items():
            by_claim[found.value.claim if found.value.state == "held" else ""][uuid] = found

        async def free_isolated(stem: str) -> Iterable[str]:
            # If it fails, the claim record cannot be read: so it would for the other leases of the claim.
            key = layout.claim(self._scope.topic, stem) if stem else self._key(next(iter(by_claim[stem])))
            return await self._scope.isolate(key, self._free(stem, by_claim[stem]), ())

        parts = await for_each(free_isolated, by_claim, at_once=self._scope.context.at_once)
        self._report.removed_leases += await self._scope.delete([self._key(uuid) for part in parts for uuid in part])

    async def _free(self, stem: str, orphans: Mapping[str, Versioned[Lease]]) -> Iterable[str]:
        context, topic = self._scope.context, self._scope.topic
        dry_run = self._report.dry_run
        timeless = [uuid for uuid, found in orphans.items() if found.value.state in size_hint.TIMELESS_STATES]
        if timeless:
            # Their pack is gone, so nobody can take what they say.
            others = {uuid: found for uuid, found in orphans.items() if uuid not in timeless}
            return [*timeless, *(await self._free(stem, others) if others else ())]
        if not dry_run and layout.parse_stem(stem) and await context.claim_record(topic, stem).read() is None:
            # A taker writes a fenced record first, so that the claimer cannot record its claim any more. Here there is
            # no message to take.
            now = await context.now()
            return [uuid for uuid, found in orphans.items() if context.is_due(found.value, now)]
        return await free_to_take(context, topic, orphans, dry_run=dry_run)

    def _key(self, uuid: str) -> str:
        return layout.lease(self._scope.topic, uuid)
