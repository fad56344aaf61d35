"""Look at a topic: which messages could be claimed now? By LISTs; what they cannot tell is read once and remembered."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pawnqueue.catalog import units
from pawnqueue.claims import effects, finish_redrive, takeover
from pawnqueue.claims.aside import Aside, BadBatches
from pawnqueue.claims.errands import Errands
from pawnqueue.claims.known import BRIEFLY, Known
from pawnqueue.context import PER_OBJECT_RETRY_SECONDS
from pawnqueue.domain import layout
from pawnqueue.domain.object_sizes import max_message_bytes
from pawnqueue.errors import PawnQueueError
from pawnqueue.events import logger_of
from pawnqueue.runtime.concurrency import all_of, wait_at_most

if TYPE_CHECKING:
    from pawnqueue.catalog.units import UnitPage
    from pawnqueue.context import Context
    from pawnqueue.domain.records import ClaimRecord, Lease
    from pawnqueue.domain.unit import Unit
    from pawnqueue.registers.register import Versioned
    from pawnqueue.stores.port import ObjectInfo

logger = logger_of("claims")

#: ⚑ §4.1: what others give back shows in a full look only. There is one at least so often, in seconds, while nothing
#: is found; where a look takes many requests, so many seconds for each of them, and never less often than the last.
FULL_LOOK = 10.0
A_REQUEST = 1.0
SELDOMEST = 60.0
#: What was seen free is tried for without another look for so long, while nobody else is met.
SHELF_LIFE = 3.0
#: A look that may find something at once, as something is due, is not repeated faster than this.
RUSH = 1.0
#: So many leases may be read in any look, at once.
FEW = 64
#: So often a claim waits for what others of its process are trying for.
WAITS = 5
#: Where nothing was found, so many more times some of what may be due is looked into.
MORE = 5
#: ⚑ §5.6: what was put aside before is tried after what never was; but where that never ends, a batch of it alone is
#: tried once in this many seconds, and more of it as long as it turns out well.
RETRY_SECONDS = 10.0
#: So many keys a LIST shows.
A_PAGE = 1000
#: How long a consumer that found nothing waits for what it has begun to finish for others.
COURTESY = 1.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A unit that may be claimed, by creating its lease or by replacing the one that it has."""

    unit: Unit
    lease: Versioned[Lease] | None = None

    @property
    def id(self) -> str:
        """The id under which the lease is kept."""
        return self.unit.id


@dataclass(slots=True)
class _View:
    """What a full look has seen so far, and where it stands."""

    began: float  # elapsed
    leases: dict[str, ObjectInfo] | None = None  # listed when there is a message
    covered: dict[str, float] | None = None  # what live claims have: asked for when a lease may be due
    cursor: str = ""  # all messages up to this key were listed
    seen: set[str] = field(default_factory=set)  # their names, while one page shows them all
    shelf: list[Candidate] = field(default_factory=list)  # free, and not tried for yet
    doubtful: dict[str, Candidate] = field(default_factory=dict)  # may be due: their leases are to be read
    again: dict[str, Candidate] = field(default_factory=dict)  # may be due, and were put aside before
    due: float = math.inf  # server time before which none of the others can be had
    requests: int = 0
    cost: int = 0  # how many of them it took at first
    is_stale: bool = False  # others are at work here: what was seen holds no more


class Finder:
    """Looks at one topic, again and again.

    A full look goes through the messages from their head, with all leases beside them. It remembers how far it came,
    and when the first of what is in flight may be had. Until then a look goes on from there: one LIST of what was
    published since, whatever is in flight.
    """

    def __init__(self, context: Context, topic: str) -> None:
        self._context = context
        self._topic = topic
        self.aside = Aside(context.clock, topic)
        self.bad_batches = BadBatches()
        self.errands = Errands(context.clock)
        self._known = Known(context, topic, self.aside)
        self._view: _View | None = None
        self._has_told_strangers = False
        self._lock = asyncio.Lock()
        self._lent: set[str] = set()  # what claims of this process are trying for
        self._returned = asyncio.Event()
        self._patience = PER_OBJECT_RETRY_SECONDS  # what is left of it, for leases that cannot be read, in this look
        self._retried = -math.inf  # elapsed, when a batch of what was put aside before was given out last
        self._busy = False  # there was something last time: list the leases at once, not after the messages

    async def candidates(self, wanted: int, *, most: int, most_reads: int) -> list[Candidate]:
        """Return messages that may be claimed, in order: ``wanted`` of them if there are so many, and at most ``most``.

        Nobody else of this process is given them until they are taken back.

        :param most_reads: how many leases may be read for it: a topic full of garbage is looked through bit by bit.
        """
        for _ in range(WAITS):
            async with self._lock:
                found = await self._look(wanted, most, most_reads)
                self._lent.update(candidate.id for candidate in found)
                if found or not self._lent:
                    return found
                self._returned.clear()
            # Other claims of this process are trying for what there is: some of it may be left for us.
            await wait_at_most(self._returned.wait(), self._context.clock, COURTESY)
        return []

    def is_well(self, uuid: str, name: str) -> None:
        """Hear that a message is handed out: if it was put aside before, others may be well again, too."""
        if self._was_put(uuid, name):
            self.aside.clear(uuid)
            self.aside.clear(name)
            self._retried = -math.inf

    def take_back(self, lent: Sequence[Candidate], left: Sequence[Candidate]) -> None:
        """Hear that a claim has tried for what it was given, and what of it is left to be had."""
        self._lent.difference_update(candidate.id for candidate in lent)
        if self._view is not None:
            self._view.shelf = [*left, *self._view.shelf]
        self._returned.set()

    async def _look(self, wanted: int, most: int, most_reads: int) -> list[Candidate]:
        self._patience = PER_OBJECT_RETRY_SECONDS
        try:
            view = self._view
            if view is None or await self._is_to_begin_anew(view):
                view = self._begin()
            shelf, view.shelf = view.shelf, []
            found = self._never_tried(view, shelf)
            if len(found) < wanted:
                found = [*found, *await self._further(view, wanted - len(found), most_reads)]
            view.cost = view.cost or view.requests
            if not found and self.errands.busy and await self.errands.settled(COURTESY):
                # What others had decided is carried out now: some of it may have been given back.
                view = self._begin()
                found = await self._further(view, wanted, most_reads)
            since = self._context.clock.elapsed() - self._retried
            if view.again and (not found or since >= RETRY_SECONDS):
                again = await self._retry(view, max(wanted, most_reads, FEW))
                if again:
                    found, view.shelf = again, [*found, *view.shelf]
        except BaseException:
            self._view = None  # it broke off in the middle: what it has passed by is looked at again
            raise
        # One lease is for one message: another one under its uuid, as only a stranger would publish, comes after it.
        first = {candidate.id: candidate for candidate in reversed(found)}
        if len(first) < len(found):
            found = [candidate for candidate in found if first[candidate.id] is candidate]
            view.is_stale = True
        view.shelf = [*found[most:], *view.shelf]  # something may have been taken back meanwhile
        return found[:most]

    def is_stale(self) -> None:
        """Look anew the next time: somebody else is at work here, or has given something back."""
        if self._view is not None:
            self._view.is_stale = True

    async def covered(self) -> dict[str, float]:
        """Return the members of all live claims, and until when: their leases need not be looked at."""
        view = self._view or self._begin()
        if view.covered is None:
            view.covered = await self._known.covered(await self._list(layout.claims(self._topic), _stem_of, view))
        return view.covered

    async def named_by_others(self, stem: str, members: Collection[str]) -> dict[str, float]:
        """Return which of a claim's members other claims have by their records, and until when (⚑ §6).

        ⚑ §5.6: a record that cannot be read stops nobody. It is put aside, and what it names is not known then.
        """
        claims = await self._list(layout.claims(self._topic), _stem_of)
        claims.pop(stem, None)
        others = await self._known.not_closed(claims)
        return await takeover.named_by_others(self._context.with_budget(cut=True), self._topic, others, members)

    async def leases_of(self, stem: str, *, most_reads: int) -> dict[str, Versioned[Lease]]:
        """Return the leases that name this claim and that no live claim covers, in a fresh look.

        ⚑ §4.1: each version of a lease is read once, and a bounded number a look: the newest first, as the claim's own
        are the last that were written before it died. The other ones are read by the next looks.
        """
        listed = await self._list_leases(self._begin())
        held = {uuid: info for uuid, info in listed.items() if not self._known.is_released(uuid, info)}
        covered = await self.covered() if held else {}
        unsure = {uuid: info for uuid, info in held.items() if uuid not in covered}
        unread = [uuid for uuid in unsure if self._known.lease(uuid, unsure[uuid]) is None and uuid not in self.aside]
        unread.sort(key=lambda uuid: unsure[uuid].last_modified, reverse=True)
        await self._known.read_leases(
            {uuid: unsure[uuid] for uuid in unread[: max(most_reads, FEW)]}, PER_OBJECT_RETRY_SECONDS
        )
        known = {uuid: self._known.lease(uuid, info) for uuid, info in unsure.items()}
        return {uuid: lease for uuid, lease in known.items() if lease is not None and lease.value.claim == stem}

    async def _is_to_begin_anew(self, view: _View) -> bool:
        age = self._context.clock.elapsed() - view.began
        if view.is_stale or age >= min(max(FULL_LOOK, view.cost * A_REQUEST), SELDOMEST):
            return True
        if view.shelf:
            return age >= SHELF_LIFE
        return age >= RUSH and await self._context.now() >= view.due

    def _begin(self) -> _View:
        self._view = _View(self._context.clock.elapsed())
        self.aside.trim()
        return self._view

    async def _list_leases(self, view: _View) -> dict[str, ObjectInfo]:
        view.leases = await self._list(layout.leases(self._topic), layout.parse_lease, view)
        self._known.trim(view.leases)
        return view.leases

    async def _further(self, view: _View, wanted: int, most_reads: int) -> list[Candidate]:
        """Look at the messages behind the cursor, a page at a time, until enough can be had."""
        found: list[Candidate] = []
        at_first = bound = max(wanted, most_reads, FEW)
        if view.doubtful:
            bound -= min(bound, len(view.doubtful))
            found = await self._resolve_some(view, at_first)
        # While one LIST shows the whole topic, it is taken from the head: what comes in before the cursor (a redriven
        # message, one of a producer whose clock is slow) shows as soon as what comes behind it.
        start_after = "" if len(view.seen) < A_PAGE else view.cursor
        async with aclosing(units.pages(self._context.store, self._topic, start_after=start_after)) as pages:
            if self._busy and view.leases is None:
                page, _ = await all_of(_next(pages), self._list_leases(view))
            else:
                page = await _next(pages)
            view.requests += 1
            self._busy = page is not None
            while page is not None:
                if view.leases is None:
                    await self._list_leases(view)
                found += await self._sift(view, page)
                if view.doubtful and bound:
                    # Those that others had come first, as they are the oldest.
                    some, bound = bound, bound - min(bound, len(view.doubtful))
                    found = [*await self._resolve_some(view, some), *found]
                if len(found) >= wanted:
                    break
                page = await _next(pages)
                view.requests += 1
        for _ in range(MORE):
            if found or not view.doubtful:
                break
            found = await self._resolve_some(view, at_first)
        return found

    async def _retry(self, view: _View, most: int) -> list[Candidate]:
        """Return some of what was put aside before and may be tried again now."""
        self._retried = self._context.clock.elapsed()
        found: list[Candidate] = []
        for _ in range(MORE):
            if found or not view.again:
                break
            some = dict(list(view.again.items())[:most])
            view.again = {uuid: candidate for uuid, candidate in view.again.items() if uuid not in some}
            leases = view.leases or {}
            doubtful = {uuid: one for uuid, one in some.items() if uuid in leases and one.lease is None}
            found = [one for uuid, one in some.items() if uuid not in doubtful]
            found += await self._resolve(view, doubtful)
        return found

    async def _sift(self, view: _View, page: UnitPage) -> list[Candidate]:
        """Return the messages of one page that nobody has, in order; note which others may be due, and when not."""
        now = await self._context.now()
        leases = view.leases or {}
        free: list[Candidate] = []
        doubtful: dict[str, Candidate] = {}
        self._leave_alone(page.strangers)
        for unit in page.units:
            if unit.name in view.seen:
                continue
            if unit.id in self._lent:
                view.due = min(view.due, now + RUSH)
            elif not self._is_for_us(unit):
                view.due = min(view.due, now + self._back_in(unit.id, unit.name))
            else:
                lease = leases.get(unit.id)
                if lease is not None and self._known.claim_of(unit.id, lease) in self.aside:
                    view.due = min(view.due, now + self.aside.back_in(self._known.claim_of(unit.id, lease)))
                    continue
                candidate = Candidate(unit)
                if lease is None:
                    free.append(candidate)
                elif (due := self._known.due_at(unit.id, lease)) > now:
                    view.due = min(view.due, due)
                else:
                    self._choose(doubtful, candidate)
        view.cursor = max(view.cursor, page.cursor(self._topic))
        if len(view.seen) < A_PAGE:
            view.seen.update(unit.name for unit in page.units if unit.id not in self._lent)
        for uuid, one in (await self._uncovered(view, doubtful)).items():
            was_put = self._was_put(uuid, one.unit.name) or self.aside.was_put(self._known.claim_of(uuid, leases[uuid]))
            self._choose(view.again if was_put else view.doubtful, one)
        return self._never_tried(view, free)

    def _was_put(self, uuid: str, name: str) -> bool:
        return self.aside.was_put(uuid) or self.aside.was_put(name)

    def _back_in(self, uuid: str, name: str) -> float:
        return max(self.aside.back_in(uuid), self.aside.back_in(name))

    def _choose(self, some: dict[str, Candidate], candidate: Candidate) -> None:
        """Add a candidate; of messages that share a uuid only the first stays, or the first that was never put aside.

        ⚑ §5.6: so one that is tried in vain, and put aside for its name, leaves its place to the others.
        """
        other = some.get(candidate.id)
        if other is None or (self.aside.was_put(other.unit.name) and not self.aside.was_put(candidate.unit.name)):
            some[candidate.id] = candidate

    def _never_tried(self, view: _View, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return those that were never put aside; the others come after them (⚑ §5.7)."""
        never = []
        for candidate in candidates:
            if self._was_put(candidate.id, candidate.unit.name):
                self._choose(view.again, candidate)
            else:
                never.append(candidate)
        return never

    def _is_for_us(self, unit: Unit) -> bool:
        """Say whether this process may try for the message: not while it is put aside, and not if it is too large.

        ⚑ §5.6: a message that only this consumer cannot take is left to the others. What is wrong with its object is
        noted under its name: a publisher may have sent another message under its uuid, which is good.
        """
        if unit.id in self.aside or unit.name in self.aside:
            return False
        limits = self._context.settings.limits
        if unit.size > max_message_bytes(limits):
            most = limits.max_payload_bytes
            why = f"its {unit.size:,} bytes are more than limits.max_payload_bytes={most:,} allows here"
            self.aside.put(unit.name, why)
            return False
        return True

    async def _uncovered(self, view: _View, doubtful: Mapping[str, Candidate]) -> dict[str, Candidate]:
        """Return those whose leases may be due and that no live claim has."""
        leases = view.leases or {}
        released = {uuid for uuid in doubtful if self._known.is_released(uuid, leases[uuid])}
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
        """Read what LIST did not tell of some that may be due, and take away from other claims what is theirs no more.

        ⚑ §5.7: what cannot be finished takes no place from what can be had: it is put aside.
        """
        now = await self._context.now()
        leases = view.leases or {}
        known = self._known
        unread = {uuid: leases[uuid] for uuid in some if known.lease(uuid, leases[uuid]) is None}
        began = self._context.clock.elapsed()
        ghosts = await known.read_leases(unread, self._patience)
        if any(uuid in self.aside for uuid in unread):
            # ⚑ §5.6: leases that do not answer well share one patience, on however many pages of a topic they are.
            self._patience = max(BRIEFLY, self._patience - (self._context.clock.elapsed() - began))
        ready = {}
        for uuid in some:
            lease = known.lease(uuid, leases[uuid])
            if lease is None or uuid in self.aside:
                view.due = min(view.due, now + self.aside.back_in(uuid))
            elif not self._context.is_due(lease.value, now):
                view.due = min(view.due, known.due_at(uuid, leases[uuid]))
            elif lease.value.state == "moving":
                view.due = min(view.due, now + RUSH)
                self.errands.run(f"the redrive of {uuid} of {self._topic}", partial(self._finish_move, uuid, lease))
            else:
                ready[uuid] = lease
        free = await self._judge(view, ready, now)
        return [
            Candidate(candidate.unit, free.get(uuid))
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
            # ⚑ §5.6: once for all messages of the claim whose record it is.
            name = ready[uuid].value.claim or uuid
            if name not in self.aside:
                self.aside.put(name, fault)
            view.due = min(view.due, now + self.aside.back_in(name))
        for record, versions in judged.decided:
            self._finish(record, versions)
        if len(judged.free) < len(ready):
            view.due = min(view.due, now + RUSH)  # decided, or another one was faster: how it went shows soon
        return judged.free

    def _finish(self, record: ClaimRecord, versions: Mapping[str, str]) -> None:
        """Carry out what a claim of somebody's has decided, beside deliveries: it may take long, or never succeed."""

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
                    self.aside.put(uuid, failed[uuid])
                else:
                    self.aside.clear(uuid)
            self.is_stale()

        self.errands.run(f"what claim {record.stem} of {self._topic} has decided", finish)

    async def _finish_move(self, uuid: str, found: Versioned[Lease]) -> None:
        try:
            await finish_redrive.finish_move(self._context, self._topic, uuid, found)
        except PawnQueueError as error:
            self.aside.put(uuid, error)
        else:
            self.aside.clear(uuid)
        self.is_stale()

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
        """Warn of strangers' objects once a topic: anybody who may publish can make any number of them (⚑ §1)."""
        if keys and not self._has_told_strangers:
            self._has_told_strangers = True
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


async def _next(pages: AsyncGenerator[UnitPage]) -> UnitPage | None:
    return await anext(pages, None)
