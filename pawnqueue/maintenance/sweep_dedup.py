"""Sweep a deduplication log: resolve the keys of dead publishers, and remove segments that are long over (§7)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from pawnqueue.domain import layout
from pawnqueue.domain.dedup_segment import SHARDS
from pawnqueue.publish.dedup_log import DedupLog
from pawnqueue.publish.deduplication import find_traces
from pawnqueue.registers.dedup_segments import is_possible

if TYPE_CHECKING:
    from pawnqueue.domain.dedup_segment import ReservedKey
    from pawnqueue.domain.records import TopicRecord
    from pawnqueue.maintenance.sweep_scope import SweepScope
    from pawnqueue.stores.port import ObjectInfo

#: How long a segment is kept after the window of all its keys, in case that the window is made longer.
KEPT_AFTER_WINDOW_SECONDS: Final = 86_400.0
#: How long a sweep keeps claim records for a segment that cannot be read: it may be garbage.
MAX_WAIT_FOR_SEGMENT_SECONDS: Final = 7 * 86_400.0


class DedupSweep:
    """The deduplication log of one topic, in one sweep."""

    def __init__(self, scope: SweepScope, record: TopicRecord) -> None:
        self._scope = scope
        self._record = record
        self._tag = layout.dedup_tag(record.created_at)
        self._log = DedupLog(scope.context, record.name, self._tag)
        self.has_keys = record.settings.dedup_window_seconds is not None
        """Whether somebody may have published into the topic with keys."""
        self.unresolved_since = math.inf
        """When the first of the keys that may not be resolved was reserved; infinity if there is none."""

    async def sweep(self) -> None:
        """Resolve what is reserved, and remove what is over."""
        context = self._scope.context
        # ⚑ §7: what is reserved while the sweep is at work is none of what it sees.
        self.unresolved_since = await context.now() - 2 * context.margin - 1
        segments: dict[tuple[str, int, int], ObjectInfo] = {}
        async for page in context.registers.pages(layout.dedup(self._record.name)):
            segments.update(self._scope.sorted_out(page, layout.parse_dedup_segment))
        now = await context.now()
        newest = {
            number: max(which for which in segments if which[:2] == number and is_possible(which[2], now))
            for number in {which[:2] for which in segments if is_possible(which[2], now)}
        }
        for shard in range(SHARDS):
            which = newest.get((self._tag, shard))
            if which is not None:
                info = segments[which]
                await self._scope.isolate(info.key, self._resolve(shard, info, now), None)
        window = self._record.settings.dedup_window_seconds or 0.0
        # The newest segment stays, as the next one is begun behind it. Those of an earlier topic of this name go.
        over = [
            info.key
            for which, info in segments.items()
            if (which[0] != self._tag or which != newest.get(which[:2]))
            and now - info.last_modified.timestamp() > window + KEPT_AFTER_WINDOW_SECONDS
        ]
        self._scope.report.removed_records += await self._scope.delete(over)

    async def _resolve(self, shard: int, info: ObjectInfo, now: float) -> None:
        """Note which of a shard's reserved keys were published, and free the others, whose publishers are dead."""
        context = self._scope.context
        before = self.unresolved_since
        if now - info.last_modified.timestamp() < MAX_WAIT_FOR_SEGMENT_SECONDS:
            self.unresolved_since = -math.inf  # ⚑ §7: if it cannot be read, nobody knows what is reserved
        reserved = await self._log.shards[shard].unresolved(now)
        reserved = [key for key in reserved if not key.is_unsent]
        over = [key for key in reserved if context.is_over(key.until, now)]
        left = [key for key in reserved if not context.is_over(key.until, now)]
        attempts = {key.attempt: key for key in over}  # the messages of a pack share one
        found = await find_traces(context, self._record.name, list(attempts.values()))
        traces = dict(zip(attempts, found, strict=True))
        if self._scope.report.dry_run:
            left = reserved
        else:
            for key in over:
                trace = traces[key.attempt]
                if trace is None:
                    left.append(key)
                else:
                    self._log.note(key.key_hash, key.attempt, "published" if trace else "unsent")
            await self._log.flush()
        self.unresolved_since = min([before, *map(self._since, left)])

    def _since(self, key: ReservedKey) -> float:
        return key.at - self._scope.context.margin - 1
