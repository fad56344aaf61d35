"""Sweep the staged writes: finish decided ones, remove abandoned ones, and records after their retention."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from pawnqueue.domain import layout, size_hint
from pawnqueue.errors import WriteBusyError
from pawnqueue.maintenance.sweep_scope import MAX_READ_TO_DELETE_SECONDS
from pawnqueue.publish import decided_writes, staging, writes
from pawnqueue.runtime.concurrency import for_each

if TYPE_CHECKING:
    from pawnqueue.maintenance.sweep_scope import SweepScope
    from pawnqueue.runtime.clock import Clock
    from pawnqueue.stores.port import ObjectInfo

#: A write for which nothing was staged for this time will not be committed any more. A younger one may belong to a slow
#: job.
MIN_ABANDONED_AGE_SECONDS: Final = 86_400.0
#: Rows staged for a write that is done come from a late attempt. Younger ones may belong to one that still works.
MIN_LATE_AGE_SECONDS: Final = 3600.0
#: One sweep spends at most this on one write, so that it gets to the other writes and topics. The next sweep continues.
MAX_STEPS_PER_SWEEP: Final = 100
MAX_SECONDS_PER_SWEEP: Final = 60.0


class WriteSweep:
    """The staged writes of one topic, in one sweep."""

    def __init__(self, scope: SweepScope) -> None:
        self._scope = scope
        self._report = scope.report
        self.unfinished_since = math.inf
        """When the first of the unfinished writes was decided; infinity if there is none."""

    async def sweep(self) -> None:
        """Check every write that may need something."""
        context, topic = self._scope.context, self._scope.topic
        staged: dict[str, list[ObjectInfo]] = defaultdict(list)
        async for page in context.store.pages(layout.staging(topic)):
            for (write_id, _), info in self._scope.sorted_out(page, layout.parse_staged):
                staged[write_id].append(info)
        records: dict[str, ObjectInfo] = {}
        async for page in context.registers.pages(layout.writes(topic)):
            records.update(self._scope.sorted_out(page, layout.parse_write))
        now = await context.now()

        async def sweep_recorded(write_id: str) -> None:
            key = layout.write(topic, write_id)
            work = self._sweep_recorded(write_id, records[write_id], staged.get(write_id, ()), now)
            await self._scope.isolate(key, work, None)

        async def drop_abandoned(write_id: str) -> None:
            work = self._drop_abandoned(write_id, staged[write_id], now)
            await self._scope.isolate(layout.staged(topic, write_id), work, None)

        begun = {write_id: info for write_id, info in records.items() if _listed_state(info) == "begun"}
        # One write after the other: each of them sends as many requests at once as allowed.
        await for_each(sweep_recorded, begun, at_once=1)
        await for_each(sweep_recorded, records.keys() - begun.keys(), at_once=context.at_once)
        await for_each(drop_abandoned, [each for each in staged if each not in records], at_once=context.at_once)

    async def _sweep_recorded(self, write_id: str, info: ObjectInfo, staged: Sequence[ObjectInfo], now: float) -> None:
        """Do what the state of a write's record calls for: finish the write, or remove staged rows, or the record."""
        state = _listed_state(info)
        if state == "begun":
            await self._finish(write_id, info, now)
        elif state == "dropped" and staged:
            await self._drop_abandoned(write_id, staged, now)
        elif staged:
            await self._remove_late(write_id, staged, now)
        elif now - info.last_modified.timestamp() > self._scope.context.settings.claims.record_retention_seconds:
            await self._remove_record(write_id, info)

    async def _finish(self, write_id: str, info: ObjectInfo, now: float) -> None:
        """⚑ §7: a decided write is published, even if the process that decided it is dead."""
        context, topic = self._scope.context, self._scope.topic
        before = self.unfinished_since
        if now - info.last_modified.timestamp() < staging.MAX_WAIT_FOR_ROWS_SECONDS:
            self.unfinished_since = -math.inf  # ⚑ §7: if the record cannot be read, nobody knows when it was decided
        found = await context.write_record(topic, write_id).read()
        self.unfinished_since = before
        if found is None or found.value.state != "begun":
            return
        self.unfinished_since = min(before, decided_writes.decided_at(context, found.value))
        if self._report.dry_run:
            self._report.finished_writes += context.is_over(found.value.until, await context.now())
            return
        try:
            held = await decided_writes.take_over(context, topic, found, self._topic_exists, set())
        except WriteBusyError:
            return  # its committer still works
        finished = await held.finish(_limit_steps(context.clock)) if held is not None else None
        if finished is None:
            return
        self.unfinished_since = before
        if finished.state == "dropped":
            self._report.dropped_writes += 1
            return
        self._report.finished_writes += 1
        await staging.remove_all(context, topic, write_id)

    async def _drop_abandoned(self, write_id: str, staged: Sequence[ObjectInfo], now: float) -> None:
        """Give up a write that was not committed, and remove its staged rows, if the last were staged long ago.

        A record in the state "dropped" only lists rows that were removed: its write can still be committed with others.
        """
        if now - max(info.last_modified.timestamp() for info in staged) <= MIN_ABANDONED_AGE_SECONDS:
            return
        names = [parsed[1] for info in staged if (parsed := layout.parse_staged(info.key)) is not None]
        if self._report.dry_run or await writes.drop(self._scope.context, self._scope.topic, write_id, names):
            self._report.dropped_writes += 1
            self._report.removed_leftovers += await self._scope.delete([info.key for info in staged])

    async def _remove_late(self, write_id: str, staged: Sequence[ObjectInfo], now: float) -> None:
        """Remove rows that were staged for a write that is done.

        Its record is read after the listing: the listed rows were staged before that, for this write and no later one
        with its id. (A record is removed only when nothing is staged, and young rows are left alone.)
        """
        found = await self._scope.context.write_record(self._scope.topic, write_id).read()
        if found is None or found.value.state != "done":
            return
        old = [info.key for info in staged if now - info.last_modified.timestamp() > MIN_LATE_AGE_SECONDS]
        self._report.removed_leftovers += await self._scope.delete(old)

    async def _remove_record(self, write_id: str, info: ObjectInfo) -> None:
        """Delete the record of a write after its retention, unless its id is being used again."""
        context, topic = self._scope.context, self._scope.topic
        looked = context.clock.elapsed()
        found = await context.write_record(topic, write_id).read()
        if found is None or found.version != info.version or found.value.state == "begun":
            return
        if await staging.list_staged(context, topic, write_id):
            return
        if context.clock.elapsed() - looked > MAX_READ_TO_DELETE_SECONDS:
            self._scope.report_failure(
                info.key, f"it could not be read and deleted within {MAX_READ_TO_DELETE_SECONDS:g} seconds"
            )
            return
        self._report.removed_records += await self._scope.delete([info.key], context=self._scope.without_retries)

    async def _topic_exists(self, topic: str, *, with_packs: bool = False) -> bool:
        context = self._scope.context
        if not with_packs:
            return await context.registers.head(layout.topic_marker(topic)) is not None
        found = await context.topic_marker(topic).look()
        return found is not None and found.value.may_have_packs


def _limit_steps(clock: Clock) -> Callable[[], bool]:
    """Return a function that says, before each step of a write, whether the sweep's share for it is used up."""
    ends, steps = clock.elapsed() + MAX_SECONDS_PER_SWEEP, itertools.count()

    def is_enough() -> bool:
        done = next(steps)
        return done >= MAX_STEPS_PER_SWEEP or (done > 0 and clock.elapsed() >= ends)

    return is_enough


def _listed_state(info: ObjectInfo) -> str:
    """Return the state of a write according to a LIST; "begun" if its record has to be read."""
    hint = size_hint.hint_of_write(info.size, info.last_modified)
    return hint.state if hint is not None else "begun"
