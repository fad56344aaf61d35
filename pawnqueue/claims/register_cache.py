"""The leases and claim records of a topic that one process has read: each version of each of them once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from pawnqueue.context import PER_OBJECT_RETRY_SECONDS
from pawnqueue.domain import layout, size_hint
from pawnqueue.errors import PawnQueueError
from pawnqueue.runtime.concurrency import ByteBudget, for_each
from pawnqueue.stores.port import NO_VERSION

if TYPE_CHECKING:
    from pawnqueue.claims.set_aside import SetAside
    from pawnqueue.context import Context
    from pawnqueue.domain.claim_record import ClaimRecord
    from pawnqueue.domain.lease import Lease
    from pawnqueue.registers.register import Versioned
    from pawnqueue.stores.port import ObjectInfo

#: A record that was renewed since it was read is read again after this time, as its claim may have given messages back.
RENEWED_RECORD_RECHECK_SECONDS = 20.0
#: How long an object is retried once others have used up the retry time of a look.
MIN_RETRY_SECONDS = 0.3


#: At most this many bytes of records larger than ``LARGE_RECORD_BYTES`` are read at once, or one record that is larger.
MAX_LARGE_BYTES_AT_ONCE = 64 * 1024**2
LARGE_RECORD_BYTES = 1024**2
#: At most this many uuids of members are remembered between looks; the other records are read again.
MAX_KNOWN_MEMBERS = 1_000_000


@dataclass(frozen=True, slots=True)
class CachedRecord:
    """What is remembered of a claim record: neither its texts nor what others have written into it."""

    stem: str
    version: str
    state: str
    free_at: float
    unsettled: tuple[str, ...]
    read_at: float

    @classmethod
    def of(cls, stem: str, found: Versioned[ClaimRecord], read_at: float) -> Self:
        """Return what is remembered of a record that was read under this stem."""
        record = found.value
        return cls(stem, found.version, record.state, record.free_at, tuple(record.unsettled), read_at)


class RegisterCache:
    """Leases and claim records of one topic, by the versions under which they were read."""

    def __init__(self, context: Context, topic: str, aside: SetAside) -> None:
        self._context = context
        self._topic = topic
        self._aside = aside
        self._leases: dict[str, Versioned[Lease]] = {}
        self._records: dict[str, CachedRecord] = {}
        self._large = ByteBudget(MAX_LARGE_BYTES_AT_ONCE)

    def lease(self, uuid: str, info: ObjectInfo) -> Versioned[Lease] | None:
        """Return the lease if this version of it was read."""
        known = self._leases.get(uuid)
        return known if known is not None and known.version == info.version else None

    def claim_of(self, uuid: str, info: ObjectInfo) -> str:
        """Return the claim whose record tells about the lease, or "" if this version of the lease was not read."""
        known = self.lease(uuid, info)
        return "" if known is None or known.value.state != "held" else known.value.claim

    def state_of(self, uuid: str, info: ObjectInfo) -> str:
        """Return the state of a lease, as far as its size tells without reading it; "" where it does not."""
        known = self.lease(uuid, info)
        if known is not None:
            return known.value.state
        hint = size_hint.hint_of_lease(info.size, info.last_modified, is_of_pack=layout.is_of_pack(uuid))
        return "" if hint is None else hint.state

    def is_released(self, uuid: str, info: ObjectInfo) -> bool:
        """Say whether the lease is released, as far as its size tells without reading it."""
        return self.state_of(uuid, info) == "released"

    def due_at(self, uuid: str, info: ObjectInfo) -> float:
        """Return the server time from which the unit is claimable, judged by its lease alone."""
        known = self.lease(uuid, info)
        if known is not None:
            return self._context.due_at(known.value)
        hint = size_hint.hint_of_lease(info.size, info.last_modified, is_of_pack=layout.is_of_pack(uuid))
        return 0.0 if hint is None else hint.earliest

    async def read_leases(self, infos: Mapping[str, ObjectInfo], patience: float) -> set[str]:
        """Read these leases. Return the ghosts: leases that the store lists and does not have.

        :param patience: for how many seconds each one is retried.

        ⚑ §5.6: a lease that cannot be read is set aside, and concerns its own unit only.
        """
        context = self._context.with_budget(patience, cut=True)

        async def read(uuid: str) -> Versioned[Lease] | PawnQueueError | None:
            try:
                return await context.lease(self._topic, uuid).read()
            except PawnQueueError as error:
                return error

        ghosts = set()
        for uuid, found in zip(infos, await for_each(read, infos, at_once=context.at_once), strict=True):
            if isinstance(found, PawnQueueError):
                self._aside.put(uuid, found)
            elif found is not None:
                self._leases[uuid] = found
            else:
                self._leases.pop(uuid, None)
                # It was deleted meanwhile, with its unit. Or it is a ghost of rclone's listing, which has no version.
                if infos[uuid].version == NO_VERSION:
                    ghosts.add(uuid)
        return ghosts

    async def covered(self, claims: Mapping[str, ObjectInfo]) -> dict[str, float]:
        """Return the units that live claims hold, and until which server time. Their leases need not be read.

        ⚑ §4.1: a claim does not hold what it has settled, and a claim that has ended holds nothing. A fenced one holds
        its units as long as its session is trusted.
        """
        now = await self._context.now()
        self._records = {stem: known for stem, known in self._records.items() if stem in claims}
        unread = [stem for stem, info in claims.items() if self._is_to_be_read(stem, info, now)]
        await self._read_records({stem: claims[stem] for stem in unread})
        live: dict[str, float] = {}
        for stem, info in claims.items():
            until = self._live_until(stem, info, now)
            if until is not None:
                live.update(dict.fromkeys(self._records[stem].unsettled, until))
        self._remember_few()
        return live

    async def not_closed(self, claims: Mapping[str, ObjectInfo]) -> list[CachedRecord]:
        """Return the records of these claims that are not closed, as they were listed. Each version is read once.

        ⚑ §5.6: a record that cannot be read is set aside, and left out.
        """
        wanted = {
            stem: info
            for stem, info in claims.items()
            if (hint := size_hint.hint_of_record(info.size, info.last_modified)) is None or hint.state != "closed"
        }
        unread = [
            stem
            for stem, info in wanted.items()
            if stem not in self._aside and ((known := self._records.get(stem)) is None or known.version != info.version)
        ]
        await self._read_records({stem: wanted[stem] for stem in unread})
        found = [self._records[stem] for stem in wanted if stem in self._records]
        return [known for known in found if known.state != "closed"]

    def trim(self, leases: Collection[str]) -> None:
        """Forget the leases that are no longer listed."""
        self._leases = {uuid: known for uuid, known in self._leases.items() if uuid in leases}

    def _is_to_be_read(self, stem: str, info: ObjectInfo, now: float) -> bool:
        if stem in self._aside:
            return False
        known = self._records.get(stem)
        hint = size_hint.hint_of_record(info.size, info.last_modified)
        if known is not None and known.version == info.version:
            return False
        if hint is None:
            return True
        if hint.state == "closed" or self._context.is_over(hint.latest, now):
            return False
        if known is None or hint.state != "open" or hint.earliest <= now:
            return True
        # It was renewed, or has settled something. Its members never change.
        return self._context.clock.elapsed() - known.read_at > RENEWED_RECORD_RECHECK_SECONDS

    def _live_until(self, stem: str, info: ObjectInfo, now: float) -> float | None:
        known = self._records.get(stem)
        if known is None or known.state == "closed":
            return None
        if known.version == info.version:
            until = known.free_at
        else:
            hint = size_hint.hint_of_record(info.size, info.last_modified)
            if hint is None or hint.state != "open":
                return None
            until = hint.earliest
        return None if self._context.is_over(until, now) else until

    def _remember_few(self) -> None:
        count = 0
        few = {}
        for stem, known in self._records.items():
            count += len(known.unsettled)
            if count <= MAX_KNOWN_MEMBERS:
                few[stem] = known
        self._records = few

    async def _read_records(self, infos: Mapping[str, ObjectInfo]) -> None:
        """Read these records. Those that cannot be read are set aside, and share one retry time."""
        began = self._context.clock.elapsed()
        context = self._context.with_budget(cut=True)

        async def read(stem: str) -> CachedRecord | PawnQueueError | None:
            nonlocal context
            size = infos[stem].size
            try:
                async with self._large.reserve(size if size > LARGE_RECORD_BYTES else 0):
                    found = await context.claim_record(self._topic, stem).read()
                    return None if found is None else CachedRecord.of(stem, found, self._context.clock.elapsed())
            except PawnQueueError as error:
                left = PER_OBJECT_RETRY_SECONDS - (self._context.clock.elapsed() - began)
                context = self._context.with_budget(max(MIN_RETRY_SECONDS, left), cut=True)
                return error

        for stem, found in zip(infos, await for_each(read, infos, at_once=self._context.at_once), strict=True):
            if isinstance(found, PawnQueueError):
                self._aside.put(stem, found)
            elif found is not None:
                self._aside.clear(stem)
                self._records[stem] = found
            else:
                self._records.pop(stem, None)
