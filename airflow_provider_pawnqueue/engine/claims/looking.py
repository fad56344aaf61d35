"""Look at a topic: which messages could be claimed now? By LISTs; what they cannot tell is read once and remembered."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pawnqueue.engine import hint, layout
from airflow_provider_pawnqueue.engine.claims import records
from airflow_provider_pawnqueue.engine.claims.moves import finish_move
from airflow_provider_pawnqueue.engine.claims.takeover import free_to_take, is_over
from airflow_provider_pawnqueue.engine.errors import StoreError
from airflow_provider_pawnqueue.engine.gather import each, together
from airflow_provider_pawnqueue.engine.store.port import NO_VERSION

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.claims.records import FoundRecord
    from airflow_provider_pawnqueue.engine.context import Context
    from airflow_provider_pawnqueue.engine.leases.lease import FoundLease
    from airflow_provider_pawnqueue.engine.store.port import ObjectInfo

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A message that may be claimed, by creating its lease or by replacing the one that is there."""

    uuid: str
    name: str
    size: int
    lease: FoundLease | None = None


@dataclass(slots=True)
class _Listing:
    leases: dict[str, ObjectInfo] = field(default_factory=dict)
    claims: dict[str, ObjectInfo] = field(default_factory=dict)


class Lookout:
    """Looks at one topic, again and again. What was read is remembered by its version, and forgotten with it."""

    def __init__(self, context: Context, topic: str) -> None:
        self._context = context
        self._topic = topic
        self._leases: dict[str, FoundLease] = {}
        self._records: dict[str, FoundRecord] = {}
        self._strangers: set[str] = set()
        self._busy = False  # there was something last time: list leases and claims at once, not after the messages

    async def candidates(self, wanted: int, *, most_reads: int) -> list[Candidate]:
        """Return up to ``wanted`` messages that may be claimed, in order. A topic without messages costs one LIST.

        :param most_reads: how many leases may be read for it: a topic full of garbage is looked through bit by bit.
        """
        async with aclosing(self._context.store.pages(layout.messages(self._topic))) as pages:
            listing: _Listing | None = None
            if self._busy:
                page, listing = await together(_next(pages), self._list_the_rest())
            else:
                page = await _next(pages)
            self._busy = bool(page)
            found: list[Candidate] = []
            while page and len(found) < wanted:
                if listing is None:
                    listing = await self._list_the_rest()
                more, read = await self._sift(page, listing, wanted - len(found), most_reads)
                found += more
                most_reads -= read
                page = await _next(pages) if len(found) < wanted else ()
            return found

    async def covered(self, claims: dict[str, ObjectInfo]) -> set[str]:
        """Return the members of all claims whose time is not over: their leases need not be looked at."""
        now = await self._context.now()
        unread = []
        live: set[str] = set()
        for stem, info in claims.items():
            known = self._records.get(stem)
            glance = hint.glance_at_record(info.size, info.last_modified)
            if known is not None and known.version == info.version:
                if not is_over(self._context, known.record.until, now):
                    live.update(known.record.members)
            elif known is not None and glance is not None and glance.state == "open" and glance.earliest > now:
                live.update(known.record.members)  # renewed since it was read; who its members are never changes
            elif glance is None or glance.latest + self._context.margin > now:
                unread.append(stem)
        for stem, standing in zip(
            unread, await each(self._read_record, unread, at_once=self._context.at_once), strict=True
        ):
            if standing is not None:
                self._records[stem] = standing
                if not is_over(self._context, standing.record.until, now):
                    live.update(standing.record.members)
        return live

    async def list_leases(self) -> dict[str, ObjectInfo]:
        """Return all leases of the topic, by uuid."""
        return await self._list(layout.leases(self._topic), layout.parse_lease)

    async def list_claims(self) -> dict[str, ObjectInfo]:
        """Return all claim records of the topic, by stem."""

        def stem_of(key: str) -> str | None:
            parsed = layout.parse_claim(key)
            return layout.claim_stem(*parsed) if parsed else None

        return await self._list(layout.claims(self._topic), stem_of)

    async def _list_the_rest(self) -> _Listing:
        leases, claims = await together(self.list_leases(), self.list_claims())
        self._leases = {uuid: known for uuid, known in self._leases.items() if uuid in leases}
        self._records = {stem: known for stem, known in self._records.items() if stem in claims}
        return _Listing(leases, claims)

    async def _sift(
        self, page: Sequence[ObjectInfo], listing: _Listing, wanted: int, most_reads: int
    ) -> tuple[list[Candidate], int]:
        """Return the candidates of one page, and how many leases were read for them."""
        now = await self._context.now()
        messages: dict[str, Candidate] = {}
        doubtful: list[str] = []
        for info in page:
            parsed = layout.parse_message(info.key)
            if parsed is None:
                self._leave_alone(info.key)
                continue
            lease = listing.leases.get(parsed.uuid)
            if lease is None:
                messages[parsed.uuid] = Candidate(parsed.uuid, parsed.name, info.size)
                if len(messages) - len(doubtful) >= wanted:
                    break
            elif self._may_be_due(parsed.uuid, lease, now):
                messages[parsed.uuid] = Candidate(parsed.uuid, parsed.name, info.size)
                doubtful.append(parsed.uuid)
        if not doubtful:
            return list(messages.values())[:wanted], 0
        free, read = await self._resolve(doubtful, listing, wanted, most_reads, now)
        sure = set(messages).difference(doubtful)
        chosen = [
            Candidate(one.uuid, one.name, one.size, free.get(one.uuid))
            for one in messages.values()
            if one.uuid in sure or one.uuid in free
        ]
        return chosen[:wanted], read

    def _may_be_due(self, uuid: str, info: ObjectInfo, now: float) -> bool:
        known = self._leases.get(uuid)
        if known is not None and known.version == info.version:
            if known.lease.state == "released":
                return now >= known.lease.until
            return is_over(self._context, known.lease.until, now)
        glance = hint.glance_at_lease(info.size, info.last_modified)
        return glance is None or glance.earliest <= now

    async def _resolve(
        self, doubtful: Sequence[str], listing: _Listing, wanted: int, most_reads: int, now: float
    ) -> tuple[dict[str, FoundLease | None], int]:
        """Read what LIST did not tell, and take away from other claims what is theirs no more."""
        held = [uuid for uuid in doubtful if not self._is_released(uuid, listing.leases[uuid])]
        covered = await self.covered(listing.claims) if held else set()
        open_ = [uuid for uuid in doubtful if uuid not in covered or self._is_released(uuid, listing.leases[uuid])]
        free: dict[str, FoundLease | None] = {}
        unread = [uuid for uuid in open_ if not self._knows(uuid, listing.leases[uuid])][:most_reads]
        for uuid, found in zip(
            unread, await each(self._read_lease, unread, at_once=self._context.at_once), strict=True
        ):
            if found is None:
                self._leases.pop(uuid, None)
                # Deleted meanwhile, with its message; or it is but a ghost in the listing (rclone's), of no version.
                if listing.leases[uuid].version == NO_VERSION:
                    free[uuid] = None
            else:
                self._leases[uuid] = found
        known = {uuid: self._leases[uuid] for uuid in open_ if uuid in self._leases}
        await self._finish_moves(known, now)
        ready = {uuid: found for uuid, found in known.items() if self._looks_due(found, now)}
        first = dict(list(ready.items())[: 2 * wanted])
        free.update(await free_to_take(self._context, self._topic, first))
        return free, len(unread)

    async def _finish_moves(self, known: dict[str, FoundLease], now: float) -> None:
        for uuid, found in known.items():
            if found.lease.state == "moving" and is_over(self._context, found.lease.until, now):
                try:
                    await finish_move(self._context, self._topic, uuid, found)
                except StoreError as error:
                    # No other delivery waits for it; whoever meets it next goes on.
                    logger.warning("The redrive of %s could not be finished: %s", uuid, error)

    def _looks_due(self, found: FoundLease, now: float) -> bool:
        if found.lease.state == "released":
            return now >= found.lease.until
        return found.lease.state == "held" and is_over(self._context, found.lease.until, now)

    def _is_released(self, uuid: str, info: ObjectInfo) -> bool:
        known = self._leases.get(uuid)
        if known is not None and known.version == info.version:
            return known.lease.state == "released"
        glance = hint.glance_at_lease(info.size, info.last_modified)
        return glance is not None and glance.state == "released"

    def _knows(self, uuid: str, info: ObjectInfo) -> bool:
        known = self._leases.get(uuid)
        return known is not None and known.version == info.version

    async def _read_lease(self, uuid: str) -> FoundLease | None:
        return await self._context.read_lease(self._topic, uuid)

    async def _read_record(self, stem: str) -> FoundRecord | None:
        return await records.read(self._context, self._topic, stem)

    async def _list(self, folder: str, name_of: Callable[[str], str | None]) -> dict[str, ObjectInfo]:
        found: dict[str, ObjectInfo] = {}
        async for page in self._context.store.pages(folder):
            for info in page:
                name = name_of(info.key)
                if name is None:
                    self._leave_alone(info.key)
                else:
                    found[name] = info
        return found

    def _leave_alone(self, key: str) -> None:
        if key not in self._strangers:
            self._strangers.add(key)
            logger.warning("%s is no object of this queue: it is left alone.", key)


async def _next(pages: AsyncGenerator[Sequence[ObjectInfo]]) -> Sequence[ObjectInfo]:
    # Not anext(pages, ()): CPython 3.11 mistakes a tuple for an exception's arguments there.
    try:
        return await anext(pages)
    except StopAsyncIteration:
        return ()
