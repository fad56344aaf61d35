"""Sweep the staged writes: finish what was decided; remove what never was, and records that nobody asks for."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from pawnqueue.domain import layout, size_hint
from pawnqueue.errors import WriteBusyError
from pawnqueue.publish import decided_writes, staging, writes
from pawnqueue.runtime.concurrency import for_each

if TYPE_CHECKING:
    from pawnqueue.maintenance.fault_isolation import Care
    from pawnqueue.runtime.clock import Clock
    from pawnqueue.stores.port import ObjectInfo

#: A write for which nothing was staged for so long will not be committed any more: earlier nobody can tell a slow job
#: from a dead one.
STAGED_AGE: Final = 86_400.0
#: What is staged for a write that is done is of an attempt that came too late; it may be at work still.
LATE_AGE: Final = 3600.0
#: A record is deleted only while this time has not passed since it was last looked at.
LATELY: Final = 3.0
#: Of one write a sweep does at most so much, so that it comes to the other writes, and to the other topics. The next
#: sweep goes on with it.
MAX_STEPS_PER_SWEEP: Final = 100
MAX_SECONDS_PER_SWEEP: Final = 60.0


class Writes:
    """The staged writes of one topic, in one sweep."""

    def __init__(self, care: Care) -> None:
        self._care = care
        self._report = care.report
        self.unfinished_since = math.inf
        """When the first of those was decided that are not done; none: infinity."""

    async def sweep(self) -> None:
        """Look at every write about which something may have to be done."""
        context, topic = self._care.context, self._care.topic
        staged: dict[str, list[ObjectInfo]] = defaultdict(list)
        async for page in context.store.pages(layout.staging(topic)):
            for info in page:
                parsed = layout.parse_staged(info.key)
                if parsed is None:
                    self._report.strangers.append(info.key)
                else:
                    staged[parsed[0]].append(info)
        records: dict[str, ObjectInfo] = {}
        async for page in context.registers.pages(layout.writes(topic)):
            for info in page:
                write_id = layout.parse_write(info.key)
                if write_id is None:
                    self._report.strangers.append(info.key)
                else:
                    records[write_id] = info
        now = await context.now()

        async def recorded(write_id: str) -> None:
            key = layout.write(topic, write_id)
            work = self._recorded(write_id, records[write_id], staged.get(write_id, ()), now)
            await self._care.alone(key, work, None)

        async def undecided(write_id: str) -> None:
            work = self._undecided(write_id, staged[write_id], now)
            await self._care.alone(layout.staged(topic, write_id), work, None)

        begun = {write_id: info for write_id, info in records.items() if _state(info) == "begun"}
        # One write after the other: each is as much at once as there may be.
        await for_each(recorded, begun, at_once=1)
        await for_each(recorded, records.keys() - begun.keys(), at_once=context.at_once)
        await for_each(undecided, [each for each in staged if each not in records], at_once=context.at_once)

    async def _recorded(self, write_id: str, info: ObjectInfo, staged: Sequence[ObjectInfo], now: float) -> None:
        state = _state(info)
        if state == "begun":
            await self._finish(write_id)
        elif state == "dropped" and staged:
            await self._undecided(write_id, staged, now)
        elif staged:
            await self._remove_late(write_id, staged, now)
        elif now - info.last_modified.timestamp() > self._care.context.settings.claims.record_retention_seconds:
            await self._remove(write_id, info)

    async def _finish(self, write_id: str) -> None:
        """⚑ §7: a write that was decided is published, whatever has become of who decided it."""
        context, topic = self._care.context, self._care.topic
        found = await context.write_record(topic, write_id).read()
        if found is None or found.value.state != "begun":
            return
        before = self.unfinished_since
        self.unfinished_since = min(before, decided_writes.decided_at(context, found.value))
        if self._report.dry_run:
            self._report.finished_writes += context.is_over(found.value.until, await context.now())
            return
        try:
            held = await decided_writes.take_over(context, topic, found, self._is_there, set())
        except WriteBusyError:
            return  # its committer works
        finished = await held.finish(_share(context.clock)) if held is not None else None
        if finished is None:
            return
        self.unfinished_since = before
        if finished.state == "dropped":
            self._report.dropped_writes += 1
            return
        self._report.finished_writes += 1
        await staging.remove_all(context, topic, write_id)

    async def _undecided(self, write_id: str, staged: Sequence[ObjectInfo], now: float) -> None:
        """Remove what was staged, if the last of it was staged long ago."""
        if now - max(info.last_modified.timestamp() for info in staged) <= STAGED_AGE:
            return
        names = [parsed[1] for info in staged if (parsed := layout.parse_staged(info.key)) is not None]
        if self._report.dry_run or await writes.drop(self._care.context, self._care.topic, write_id, names):
            self._report.dropped_writes += 1
            self._report.removed_leftovers += await self._care.delete([info.key for info in staged])

    async def _remove_late(self, write_id: str, staged: Sequence[ObjectInfo], now: float) -> None:
        """Remove what was staged for a write that is done.

        Its record is read after the listing: what is listed was staged before that, for this write and no later one
        under its id. (A record is removed only when nothing is staged, and what is young is left alone.)
        """
        found = await self._care.context.write_record(self._care.topic, write_id).read()
        if found is None or found.value.state != "done":
            return
        old = [info.key for info in staged if now - info.last_modified.timestamp() > LATE_AGE]
        self._report.removed_leftovers += await self._care.delete(old)

    async def _remove(self, write_id: str, info: ObjectInfo) -> None:
        """Delete the record of a write that nobody asks for any more, unless its id is used again at this moment."""
        context, topic = self._care.context, self._care.topic
        looked = context.clock.elapsed()
        found = await context.write_record(topic, write_id).read()
        if found is None or found.version != info.version or found.value.state == "begun":
            return
        if await staging.list_staged(context, topic, write_id):
            return
        if context.clock.elapsed() - looked > LATELY:
            self._care.tell(info.key, f"no look at it and its deletion fitted into {LATELY:g} seconds")
            return
        self._report.removed_records += await self._care.delete([info.key], context=self._care.once)

    async def _is_there(self, topic: str) -> bool:
        return await self._care.context.registers.head(layout.topic_marker(topic)) is not None


def _share(clock: Clock) -> Callable[[], bool]:
    """Return what says, before each step of a write, whether this sweep has done enough for it: one step at least."""
    ends, steps = clock.elapsed() + MAX_SECONDS_PER_SWEEP, itertools.count()

    def is_enough() -> bool:
        done = next(steps)
        return done >= MAX_STEPS_PER_SWEEP or (done > 0 and clock.elapsed() >= ends)

    return is_enough


def _state(info: ObjectInfo) -> str:
    """Say what a LIST tells of a write; of what tells nothing, the record has to be read."""
    hint = size_hint.hint_of_write(info.size, info.last_modified)
    return hint.state if hint is not None else "begun"
