"""Find the units of a topic that could be claimed now: by LISTs, and by reading once what they do not tell."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from pawnqueue.catalog import units
from pawnqueue.catalog.unit_listing import UnitListing
from pawnqueue.claims import effects, finish_redrive, packs, splitting, takeover
from pawnqueue.claims.background import BackgroundWork
from pawnqueue.claims.candidate import Candidate, enough, messages_of
from pawnqueue.claims.register_cache import MIN_RETRY_SECONDS, RegisterCache
from pawnqueue.claims.set_aside import BadBatches, SetAside
from pawnqueue.context import PER_OBJECT_RETRY_SECONDS
from pawnqueue.domain import lanes, layout, size_hint
from pawnqueue.domain.object_sizes import max_message_bytes
from pawnqueue.domain.pack import MAX_STORED_PACK_BYTES
from pawnqueue.domain.records import TopicSettings
from pawnqueue.errors import PawnQueueError
from pawnqueue.events import logger_of
from pawnqueue.runtime.concurrency import all_of, wait_at_most

if TYPE_CHECKING:
    from pawnqueue.catalog.units import UnitPage
    from pawnqueue.context import Context
    from pawnqueue.domain.claim_record import ClaimRecord
    from pawnqueue.domain.lease import Lease
    from pawnqueue.domain.unit import Unit
    from pawnqueue.registers.register import Versioned
    from pawnqueue.stores.port import ObjectInfo

logger = logger_of("claims")

#: ⚑ §4.1: what others give back shows in a full listing only. While nothing is found, a full listing is made after this
#: time. A listing of many requests is repeated less often: after this long for each request, up to the maximum.
FULL_LISTING_SECONDS = 10.0
FULL_LISTING_SECONDS_PER_REQUEST = 1.0
MAX_FULL_LISTING_SECONDS = 60.0
#: How long units that were listed as free are tried for without another LIST, while no other consumer is met.
LISTING_CACHE_SECONDS = 3.0
#: Where a unit may become claimable at any moment, the topic is listed again no sooner than this.
MIN_RELIST_SECONDS = 1.0
#: Every look may read at least this many leases.
MAX_LEASE_READS = 64
#: How often a claim waits for units that other claims of its process are trying for.
MAX_WAITS_FOR_OTHER_CLAIMS = 5
#: Where nothing was found, units that may be due are read in at most this many more rounds.
MAX_DOUBTFUL_ROUNDS = 5
#: ⚑ §5.6: units that were set aside before are tried after the others. Where the others never end, a batch of them is
#: tried alone after this time, and the next batch at once if that one turned out well.
SET_ASIDE_RETRY_SECONDS = 10.0
#: Of how many packs it is remembered which of their messages this process cannot read.
MAX_UNREAD_PACKS = 1000
#: How many keys one LIST returns.
KEYS_PER_LIST = 1000
#: ⚑ §5.7: of a topic with priorities, about this share of all looks gives out what waits for longest.
OLDEST_FIRST_SHARE = 1 / 8
#: How long a consumer that found nothing waits for the background work that it began for other claims.
BACKGROUND_WAIT_SECONDS = 1.0


@dataclass(slots=True)
class _Lane:
    """How far a full listing came in one lane; or in the topic, if its lanes are not listed one by one."""

    # All units up to this name were listed. ⚑ §1: it is never a stranger's, nor that of a unit that is not due. Units
    # that are published before such a name would stay hidden.
    cursor: str = ""
    seen: set[str] = field(default_factory=set)  # their names, while one page shows them all
    found: int = 0  # how many messages this look has found in it

    @property
    def after(self) -> str:
        """Behind which name to go on; "" for its head.

        While one LIST shows the whole lane, it begins at the head. A unit that comes in before the cursor (it was
        redriven, or its producer's clock is slow) shows as soon as one behind it.
        """
        return "" if len(self.seen) < KEYS_PER_LIST else self.cursor


@dataclass(slots=True)
class _View:
    """What a full listing has shown so far."""

    began: float  # elapsed
    has_lanes: bool  # which are listed one by one
    lanes: dict[int, _Lane] = field(default_factory=dict)
    leases: dict[str, ObjectInfo] | None = None  # listed once a unit was listed
    covered: dict[str, float] | None = None  # the units of live claims, listed once a lease may be due
    unclaimed: list[Candidate] = field(default_factory=list)  # free, and not tried for yet
    doubtful: dict[str, Candidate] = field(default_factory=dict)  # they may be due: their leases have to be read
    set_aside: dict[str, Candidate] = field(default_factory=dict)  # they may be due, and were set aside before
    due: float = math.inf  # before this server time none of the others becomes claimable
    requests: int = 0
    cost: int = 0  # how many requests the first look of the listing took
    is_stale: bool = False  # other consumers are at work, so the listing is out of date

    @property
    def is_small(self) -> bool:
        """Whether one LIST may show all units of the topic."""
        return sum(len(lane.seen) for lane in self.lanes.values()) < KEYS_PER_LIST

    def lane_of(self, name: str) -> _Lane:
        """Return the lane that a name is in."""
        number = lanes.lane_of(name) if self.has_lanes else 0
        if number not in self.lanes:
            self.lanes[number] = _Lane()
        return self.lanes[number]

    def count(self, found: Sequence[Candidate]) -> None:
        """Note how many messages of each lane were found."""
        for candidate in found:
            self.lane_of(candidate.unit.name).found += candidate.count


class Finder:
    """Finds candidates in one topic, for all claims of one open queue.

    A full listing goes through the units from their head, beside all leases. It remembers how far it came, and when
    the first unit in flight may become claimable. Until then a look goes on from there: one LIST of what was published
    since, however many units are in flight.
    """

    def __init__(self, context: Context, topic: str) -> None:
        self._context = context
        self._topic = topic
        self.set_aside = SetAside(context.clock, topic)
        self.bad_batches = BadBatches()
        self.background = BackgroundWork(context.clock)
        #: Of the topic, as they were read last. They tell whether packs are listed too, and which lanes are.
        self.settings = TopicSettings()
        self._cache = RegisterCache(context, topic, self.set_aside)
        self._view: _View | None = None
        self._warned_of_strangers = False
        self._lock = asyncio.Lock()
        self._lent: set[str] = set()  # the units that claims of this process are trying for
        self._unread: dict[str, int] = {}  # of packs, the numbers of messages that this process could not read
        self._units_returned = asyncio.Event()
        self._retry_seconds = PER_OBJECT_RETRY_SECONDS  # left in this look, for leases that cannot be read
        self._retried = -math.inf  # elapsed, when units that were set aside were given out last
        self._listing = UnitListing(context, topic)
        self._had_units = False  # the last look listed units: this one lists the leases at the same time

    async def candidates(self, wanted: int, *, most: int, most_reads: int) -> list[Candidate]:
        """Return units that may be claimed, in order: ``wanted`` of them if the topic has as many, at most ``most``.

        No other claim of this process is given them until :meth:`take_back`.

        :param most_reads: how many leases may be read for it. A topic full of garbage is looked through bit by bit.
        """
        for _ in range(MAX_WAITS_FOR_OTHER_CLAIMS):
            async with self._lock:
                were_lent = bool(self._lent)
                found = await self._look(wanted, most, most_reads)
                self._lent.update(candidate.id for candidate in found)
                if found or not (self._lent or were_lent):
                    return found
                if not self._lent:
                    continue  # they were taken back during the look, which has not shown what is left of them
                self._units_returned.clear()
            # Other claims of this process are trying for all units. They may leave some.
            await wait_at_most(self._units_returned.wait(), self._context.clock, BACKGROUND_WAIT_SECONDS)
        return []

    def is_well(self, uuid: str, name: str) -> None:
        """Note that a unit was handed out. If it was set aside before, others may be readable again too."""
        if self._was_set_aside(uuid, name):
            self.set_aside.clear(uuid)
            self.set_aside.clear(name)
            self._retried = -math.inf

    def unread_of(self, name: str) -> int:
        """Return the numbers of those messages of a pack that this process could not read."""
        return self._unread.get(name, 0)

    def note_unread(self, name: str, of: int) -> None:
        """Note that this process could not read these messages of a pack.

        ⚑ §5.7: they stay as they are for other consumers, and are tried here after the other messages of their pack.
        """
        if of:
            self._unread[name] = self._unread.pop(name, 0) | of
        if len(self._unread) > MAX_UNREAD_PACKS:
            del self._unread[next(iter(self._unread))]

    def take_back(self, lent: Sequence[Candidate], left: Sequence[Candidate]) -> None:
        """Note that a claim has tried for the units that were ``lent`` to it, and which of them are ``left``."""
        self._lent.difference_update(candidate.id for candidate in lent)
        if self._view is not None:
            self._view.unclaimed = [*left, *self._view.unclaimed]
        self._units_returned.set()

    async def _look(self, wanted: int, most: int, most_reads: int) -> list[Candidate]:
        self._retry_seconds = PER_OBJECT_RETRY_SECONDS
        try:
            view = self._view
            if view is None or await self._is_to_begin_anew(view):
                view = self._begin()
            # ⚑ §5.7: now and then those come first that wait for longest: a higher priority starves nobody.
            oldest_first = view.has_lanes and self._context.clock.uniform(0, 1) < OLDEST_FIRST_SHARE
            shelf, view.unclaimed = view.unclaimed, []
            found = self._never_tried(view, shelf)
            if messages_of(found) < wanted:
                found = [*found, *await self._further(view, wanted - messages_of(found), most_reads)]
            view.cost = view.cost or view.requests
            if not found and self.background.busy and await self.background.settled(BACKGROUND_WAIT_SECONDS):
                # What other claims had decided is carried out now. They may have given units back.
                view = self._begin()
                found = await self._further(view, wanted, most_reads)
            since = self._context.clock.elapsed() - self._retried
            if view.set_aside and (not found or since >= SET_ASIDE_RETRY_SECONDS):
                again = await self._retry(view, max(wanted, most_reads, MAX_LEASE_READS))
                if again:
                    found, view.unclaimed = again, [*found, *view.unclaimed]
        except BaseException:
            self._view = None  # the look was cut off: the next one lists again what this one passed by
            raise
        # A lease covers one unit. Another unit under its id, as only a stranger would publish, comes after it.
        first = {candidate.id: candidate for candidate in reversed(found)}
        if len(first) < len(found):
            found = [candidate for candidate in found if first[candidate.id] is candidate]
            view.is_stale = True
        if view.has_lanes:
            order = lanes.by_age if oldest_first else lanes.by_priority
            found.sort(key=lambda candidate: order(candidate.unit.name))
        lent = enough(found, most)
        view.unclaimed = [*found[lent:], *view.unclaimed]  # units may have been taken back meanwhile
        return found[:lent]

    def mark_stale(self) -> None:
        """Make the next look a full listing: another consumer is at work, or has given units back."""
        if self._view is not None:
            self._view.is_stale = True

    async def covered(self) -> dict[str, float]:
        """Return the units of all live claims, and until when they hold them. Their leases need not be read."""
        view = self._view or self._begin()
        if view.covered is None:
            view.covered = await self._cache.covered(await self._list(layout.claims(self._topic), _stem_of, view))
        return view.covered

    async def named_by_others(self, stem: str, members: Collection[str]) -> dict[str, float]:
        """Return which of a claim's members other claims have by their records, and until when (⚑ §6).

        ⚑ §5.6: a record that cannot be read stops no claim. It is set aside, and the units that it names are unknown.
        """
        claims = await self._list(layout.claims(self._topic), _stem_of)
        claims.pop(stem, None)
        others = await self._cache.not_closed(claims)
        return await takeover.named_by_others(self._context.with_budget(cut=True), self._topic, others, members)

    async def leases_of(self, stem: str, *, most_reads: int) -> dict[str, Versioned[Lease]]:
        """Return the leases that name this claim and that no live claim covers, by a fresh listing.

        ⚑ §4.1: each version of a lease is read once, and a bounded number of leases a look. The newest are read first,
        as the claim wrote its own last before it died. The next looks read the others.
        """
        listed = await self._list_leases(self._begin())
        free = {"released", *size_hint.TIMELESS_STATES}
        held = {uuid: info for uuid, info in listed.items() if self._cache.state_of(uuid, info) not in free}
        covered = await self.covered() if held else {}
        unsure = {uuid: info for uuid, info in held.items() if uuid not in covered}
        unread = [
            uuid for uuid in unsure if self._cache.lease(uuid, unsure[uuid]) is None and uuid not in self.set_aside
        ]
        unread.sort(key=lambda uuid: unsure[uuid].last_modified, reverse=True)
        await self._cache.read_leases(
            {uuid: unsure[uuid] for uuid in unread[: max(most_reads, MAX_LEASE_READS)]}, PER_OBJECT_RETRY_SECONDS
        )
        known = {uuid: self._cache.lease(uuid, info) for uuid, info in unsure.items()}
        return {uuid: lease for uuid, lease in known.items() if lease is not None and lease.value.claim == stem}

    async def _is_to_begin_anew(self, view: _View) -> bool:
        age = self._context.clock.elapsed() - view.began
        if view.is_stale or age >= min(
            max(FULL_LISTING_SECONDS, view.cost * FULL_LISTING_SECONDS_PER_REQUEST), MAX_FULL_LISTING_SECONDS
        ):
            return True
        if view.has_lanes != lanes.are_listed_apart(self.settings):
            return True
        if view.unclaimed:
            return age >= LISTING_CACHE_SECONDS
        return age >= MIN_RELIST_SECONDS and await self._context.now() >= view.due

    def _begin(self) -> _View:
        self._view = _View(self._context.clock.elapsed(), lanes.are_listed_apart(self.settings))
        self.set_aside.trim()
        return self._view

    async def _list_leases(self, view: _View) -> dict[str, ObjectInfo]:
        view.leases = await self._list(layout.leases(self._topic), layout.parse_lease, view)
        self._cache.trim(view.leases)
        return view.leases

    async def _further(self, view: _View, wanted: int, most_reads: int) -> list[Candidate]:
        """List the units behind the cursor, a page at a time, until enough of them are claimable."""
        found: list[Candidate] = []
        at_first = bound = max(wanted, most_reads, MAX_LEASE_READS)
        if view.doubtful:
            bound -= min(bound, len(view.doubtful))
            found = await self._resolve_some(view, at_first)
        async with aclosing(self._pages(view, wanted)) as pages:
            if self._had_units and view.leases is None:
                page, _ = await all_of(_next(pages), self._list_leases(view))
            else:
                page = await _next(pages)
            view.requests += 1
            self._had_units = page is not None
            while page is not None:
                if view.leases is None:
                    await self._list_leases(view)
                free = await self._sift(view, page)
                resolved: list[Candidate] = []
                if view.doubtful and bound:
                    # Units that other claims had are the oldest, so they come first.
                    some, bound = bound, bound - min(bound, len(view.doubtful))
                    resolved = await self._resolve_some(view, some)
                found = [*resolved, *found, *free]
                view.count([*resolved, *free])
                if messages_of(found) >= wanted and not view.has_lanes:
                    break
                page = await _next(pages)
                view.requests += 1
        for _ in range(MAX_DOUBTFUL_ROUNDS):
            if found or not view.doubtful:
                break
            found = await self._resolve_some(view, at_first)
        return found

    async def _pages(self, view: _View, wanted: int) -> AsyncGenerator[UnitPage]:
        """List the units behind the cursors, without those that must not be claimed yet.

        :param wanted: how many messages are enough of each lane.
        """
        packs, stamp = self.settings.packs is not None, ""
        if view.has_lanes:
            for lane in view.lanes.values():
                lane.found = 0
            listing = self._listing.by_lanes(
                lambda end: _goes_on(view, wanted, stamp, end), packs=packs, is_small=view.is_small
            )
        else:
            listing = self._listing.pages(after=view.lane_of("").after, packs=packs)
        async with aclosing(listing) as pages:
            async for page in pages:
                if any(lanes.may_be_early(unit.name) for unit in page.units):
                    # ⚑ §1: what was published with a delay is given to nobody before its time.
                    stamp = layout.timestamp(await self._context.earliest_now())
                    page.units = [unit for unit in page.units if not lanes.is_early(unit.name, stamp)]
                if page.units or page.strangers:
                    yield page

    async def _retry(self, view: _View, most: int) -> list[Candidate]:
        """Return some units that were set aside before and may be tried again now."""
        self._retried = self._context.clock.elapsed()
        found: list[Candidate] = []
        for _ in range(MAX_DOUBTFUL_ROUNDS):
            if found or not view.set_aside:
                break
            some = dict(list(view.set_aside.items())[:most])
            view.set_aside = {uuid: candidate for uuid, candidate in view.set_aside.items() if uuid not in some}
            leases = view.leases or {}
            doubtful = {uuid: one for uuid, one in some.items() if uuid in leases and one.lease is None}
            found = [one for uuid, one in some.items() if uuid not in doubtful]
            found += await self._resolve(view, doubtful)
        return found

    async def _sift(self, view: _View, page: UnitPage) -> list[Candidate]:
        """Return the units of one page that no claim has, in order. Note which others may be due, and when they are."""
        now = await self._context.now()
        leases = view.leases or {}
        free: list[Candidate] = []
        doubtful: dict[str, Candidate] = {}
        self._leave_alone(page.strangers)
        roots: dict[str, Versioned[Lease]] = {}
        for unit in await self._split_units(page, leases, roots):
            if unit.name in view.lane_of(unit.name).seen:
                continue
            if unit.id in self._lent:
                view.due = min(view.due, now + MIN_RELIST_SECONDS)
            elif not self._is_for_us(unit):
                view.due = min(view.due, now + self._seconds_aside(unit.id, unit.name))
            else:
                lease = leases.get(unit.id)
                if lease is not None and self._cache.claim_of(unit.id, lease) in self.set_aside:
                    view.due = min(view.due, now + self.set_aside.seconds_left(self._cache.claim_of(unit.id, lease)))
                    continue
                candidate = Candidate(unit, root=roots.get(unit.name))
                due = candidate.due_at if lease is None else self._due_at(unit, lease)
                if due > now:
                    view.due = min(view.due, due)
                elif lease is None:
                    free.append(candidate)
                else:
                    self._choose(doubtful, candidate)
        self._note_progress(view, page)
        for uuid, one in (await self._uncovered(view, doubtful)).items():
            was_put = self._was_set_aside(uuid, one.unit.name) or self.set_aside.was_set_aside(
                self._cache.claim_of(uuid, leases[uuid])
            )
            self._choose(view.set_aside if was_put else view.doubtful, one)
        return self._never_tried(view, free)

    def _note_progress(self, view: _View, page: UnitPage) -> None:
        lent = {unit_id.partition(".")[0] for unit_id in self._lent}
        for unit in page.units:
            lane = view.lane_of(unit.name)
            lane.cursor = max(lane.cursor, unit.name)
            if len(lane.seen) < 2 * KEYS_PER_LIST and layout.uuid_of(unit.id) not in lent:
                lane.seen.add(unit.name)

    async def _split_units(
        self, page: UnitPage, leases: Mapping[str, ObjectInfo], roots: dict[str, Versioned[Lease]]
    ) -> list[Unit]:
        """Return the units of a page, with the slices of each pack that is split in its place.

        :param roots: is given the leases by which packs are split, by their names: packs may share a uuid (⚑ §5.6).
        """
        split = {
            unit.id: leases[unit.id]
            for unit in page.units
            if unit.is_pack and unit.id in leases and self._cache.state_of(unit.id, leases[unit.id]) == "split"
        }
        if not split:
            return page.units
        # ⚑ §5.6: a lease that cannot be read is set aside. It is not read again by every look.
        unread: dict[str, ObjectInfo] = {
            unit_id: info
            for unit_id, info in split.items()
            if self._cache.lease(unit_id, info) is None and unit_id not in self.set_aside
        }
        await self._cache.read_leases(unread, self._retry_seconds)
        found: list[Unit] = []
        for unit in page.units:
            root = self._cache.lease(unit.id, split[unit.id]) if unit.id in split else None
            if root is None or root.value.state != "split" or root.value.key != unit.name:
                found.append(unit)
                continue
            slices = unit.slices(root.value.length)
            roots[unit.name] = root
            if all(
                each.id in leases and self._cache.state_of(each.id, leases[each.id]) == "done"
                for each in slices
                if packs.shares_of(each, root.value)
            ):
                # ⚑ §5.5: the claim that finished the last one died before it had deleted the pack.
                if unit.id in self.set_aside:
                    continue
                infos: dict[str, ObjectInfo] = {each.id: leases[each.id] for each in slices if each.id in leases}
                self.background.run(f"the end of {unit.id} of {self._topic}", partial(self._finish_pack, unit, infos))
            else:
                # A slice without any share was finished when its pack was split, and never has a lease.
                found += [each for each in slices if packs.shares_of(each, root.value)]
        return found

    async def _finish_pack(self, unit: Unit, infos: Mapping[str, ObjectInfo]) -> None:
        try:
            brief = self._context.with_budget()
            if await splitting.finish_if_done(brief, self._topic, unit.name):
                return
            if await brief.store.head(units.key_of(self._topic, unit.name)) is not None:
                # ⚑ §5.7: garbage may have the size of a lease in the state ``done``. Its body tells.
                await self._cache.read_leases(infos, PER_OBJECT_RETRY_SECONDS)
        except PawnQueueError as error:
            self.set_aside.put(unit.id, error)

    def _due_at(self, unit: Unit, lease: ObjectInfo) -> float:
        """Return the server time from which a unit is claimable, judged by its lease alone.

        ⚑ §5.7: garbage may have the size of a lease that is done. Of a whole pack none ever is, so its body is read.
        """
        due = self._cache.due_at(unit.id, lease)
        is_doubtful = unit.is_whole and math.isinf(due) and self._cache.lease(unit.id, lease) is None
        return 0.0 if is_doubtful else due

    def _was_set_aside(self, uuid: str, name: str) -> bool:
        return self.set_aside.was_set_aside(uuid) or self.set_aside.was_set_aside(name)

    def _seconds_aside(self, uuid: str, name: str) -> float:
        return max(self.set_aside.seconds_left(uuid), self.set_aside.seconds_left(name))

    def _choose(self, some: dict[str, Candidate], candidate: Candidate) -> None:
        """Add a candidate. Of units that share an id, the first stays, or the first that was never set aside.

        ⚑ §5.6: a unit that is tried in vain is set aside by its name, and leaves its place to the others.
        """
        other = some.get(candidate.id)
        if other is None or (
            self.set_aside.was_set_aside(other.unit.name) and not self.set_aside.was_set_aside(candidate.unit.name)
        ):
            some[candidate.id] = candidate

    def _never_tried(self, view: _View, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates that were never set aside. The others come after them (⚑ §5.7)."""
        never = []
        for candidate in candidates:
            if self._was_set_aside(candidate.id, candidate.unit.name):
                self._choose(view.set_aside, candidate)
            else:
                never.append(candidate)
        return never

    def _is_for_us(self, unit: Unit) -> bool:
        """Say whether this process may try for the unit: not while it is set aside, and not if it is too large.

        ⚑ §5.6: a unit that only this consumer cannot take is left to the others. A fault of its object is noted under
        its name, as a publisher may have sent another message under its id, which is good.
        """
        if unit.id in self.set_aside or unit.name in self.set_aside:
            return False
        limits = self._context.settings.limits
        if unit.is_pack and unit.size > MAX_STORED_PACK_BYTES:
            self.set_aside.put(unit.name, f"its {unit.size:,} bytes are more than any pack of ours has")
            return False
        if not unit.is_pack and unit.size > max_message_bytes(limits):
            most = limits.max_payload_bytes
            why = f"its {unit.size:,} bytes are more than limits.max_payload_bytes={most:,} allows here"
            self.set_aside.put(unit.name, why)
            return False
        return True

    async def _uncovered(self, view: _View, doubtful: Mapping[str, Candidate]) -> dict[str, Candidate]:
        """Return the units whose leases may be due and that no live claim holds."""
        leases = view.leases or {}
        released = {uuid for uuid in doubtful if self._cache.is_released(uuid, leases[uuid])}
        covered = await self.covered() if len(released) < len(doubtful) else {}
        open_ = {}
        for uuid, candidate in doubtful.items():
            if uuid in covered and uuid not in released:
                view.due = min(view.due, covered[uuid] + self._context.margin)
            else:
                open_[uuid] = candidate
        return open_

    async def _resolve_some(self, view: _View, most: int) -> list[Candidate]:
        some = dict(list(view.doubtful.items())[:most])
        view.doubtful = {uuid: candidate for uuid, candidate in view.doubtful.items() if uuid not in some}
        return await self._resolve(view, some)

    async def _resolve(self, view: _View, some: Mapping[str, Candidate]) -> list[Candidate]:
        """Read the leases of some units that may be due, and take over those whose claims have ended.

        ⚑ §5.7: a unit whose claim cannot be finished is set aside, so that it takes no place from claimable ones.
        """
        now = await self._context.now()
        leases = view.leases or {}
        known = self._cache
        unread = {uuid: leases[uuid] for uuid in some if known.lease(uuid, leases[uuid]) is None}
        began = self._context.clock.elapsed()
        ghosts = await known.read_leases(unread, self._retry_seconds)
        if any(uuid in self.set_aside for uuid in unread):
            # ⚑ §5.6: leases that cannot be read share one retry time, on however many pages of a topic they are.
            self._retry_seconds = max(MIN_RETRY_SECONDS, self._retry_seconds - (self._context.clock.elapsed() - began))
        ready = {}
        for uuid in some:
            lease = known.lease(uuid, leases[uuid])
            if lease is None or uuid in self.set_aside:
                view.due = min(view.due, now + self.set_aside.seconds_left(uuid))
            elif not self._context.is_due(lease.value, now):
                view.due = min(view.due, known.due_at(uuid, leases[uuid]))
            elif lease.value.state == "moving":
                view.due = min(view.due, now + MIN_RELIST_SECONDS)
                self.background.run(f"the redrive of {uuid} of {self._topic}", partial(self._finish_move, uuid, lease))
            else:
                ready[uuid] = lease
        free = await self._judge(view, ready, now)
        return [
            replace(candidate, lease=free.get(uuid))
            for uuid, candidate in some.items()
            if uuid in free or uuid in ghosts
        ]

    async def _judge(
        self, view: _View, ready: Mapping[str, Versioned[Lease]], now: float
    ) -> Mapping[str, Versioned[Lease]]:
        if not ready:
            return {}
        judged = await takeover.judge(self._context.with_budget(cut=True), self._topic, ready)
        for uuid, fault in judged.faults.items():
            # ⚑ §5.6: once for all units of the claim whose record it is.
            name = ready[uuid].value.claim or uuid
            if name not in self.set_aside:
                self.set_aside.put(name, fault)
            view.due = min(view.due, now + self.set_aside.seconds_left(name))
        for record, versions in judged.decided:
            self._finish(record, versions)
        if len(judged.free) < len(ready):
            view.due = min(
                view.due, now + MIN_RELIST_SECONDS
            )  # settled, or another consumer was faster: a listing soon shows the outcome
        return judged.free

    def _finish(self, record: ClaimRecord, versions: Mapping[str, str]) -> None:
        """Carry out what another claim has decided, in the background: it may take long, or never succeed."""

        async def finish() -> None:
            failed: Mapping[str, PawnQueueError]
            try:
                failed = await effects.carry_out(
                    self._context.with_budget(), self._topic, record, list(versions), versions
                )
            except PawnQueueError as error:
                failed = dict.fromkeys(versions, error)
            for uuid in versions:
                if uuid in failed:
                    self.set_aside.put(uuid, failed[uuid])
                else:
                    self.set_aside.clear(uuid)
            self.mark_stale()

        self.background.run(f"what claim {record.stem} of {self._topic} has decided", finish)

    async def _finish_move(self, uuid: str, found: Versioned[Lease]) -> None:
        try:
            await finish_redrive.finish_move(self._context, self._topic, uuid, found)
        except PawnQueueError as error:
            self.set_aside.put(uuid, error)
        else:
            self.set_aside.clear(uuid)
        self.mark_stale()

    async def _list(
        self, folder: str, name_of: Callable[[str], str | None], view: _View | None = None
    ) -> dict[str, ObjectInfo]:
        found: dict[str, ObjectInfo] = {}
        async for page in self._context.registers.pages(folder):
            strangers = []
            for info in page:
                name = name_of(info.key)
                if name is None:
                    strangers.append(info.key)
                else:
                    found[name] = info
            self._leave_alone(strangers)
        if view is not None:
            view.requests += 1 + len(found) // 1000
        return found

    def _leave_alone(self, keys: Sequence[str]) -> None:
        """Warn of strangers' objects once a topic: every publisher can make any number of them (⚑ §1)."""
        if keys and not self._warned_of_strangers:
            self._warned_of_strangers = True
            logger.warning(
                "Topic %r has objects that do not belong to the queue, and they are left alone: %s%s. "
                "airflow pawnqueue stats counts them.",
                self._topic,
                keys[0],
                f" and at least {len(keys) - 1:,} more" if len(keys) > 1 else "",
            )


def _stem_of(key: str) -> str | None:
    parsed = layout.parse_claim(key)
    return layout.claim_stem(*parsed) if parsed else None


def _goes_on(view: _View, wanted: int, now: str, end: str) -> str:
    """Return the place behind which a listing goes on; "" to end it.

    It passes over the rest of a lane if enough was found there, or if that is not due, and over what was seen before.
    ⚑ §5.7: it never passes over a lane as a whole. So the oldest that can be claimed of each is found.

    :param end: the place at which a page has ended.
    """
    lane = view.lane_of(end)
    if lane.found >= wanted or lanes.is_early(end, now):
        return lanes.end_of(lanes.lane_of(end))
    return max(end, lane.after)


async def _next(pages: AsyncGenerator[UnitPage]) -> UnitPage | None:
    return await anext(pages, None)
