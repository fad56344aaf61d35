"""Sweep the completed log: remove what is beyond its number of messages, or its age."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawnqueue.domain import layout
from pawnqueue.domain.completed import parse_log_name

if TYPE_CHECKING:
    from pawnqueue.domain.topic_limits import CompletedLog
    from pawnqueue.maintenance.sweep_scope import SweepScope


async def sweep_completed(scope: SweepScope, log: CompletedLog | None) -> None:
    """Remove objects of the log that newer ones have made too many, and those that are too old.

    An object goes if the newer ones have as many messages as the log keeps. So it keeps that many, and at most one
    claim's more. A topic that never had a log costs no request.
    """
    if log is None:
        return
    context = scope.context
    oldest = await context.now() - context.margin - log.max_age_seconds
    kept = 0
    async for page in context.store.pages(layout.completed(scope.topic)):  # the latest claims come first
        over: dict[str, int] = {}
        for info in page:
            part = parse_log_name(layout.last_part(info.key))
            if part is None:
                scope.report.strangers.append(info.key)
            elif kept >= log.max_count or info.last_modified.timestamp() < oldest:
                over[info.key] = part.count
            else:
                kept += part.count
        if over and await scope.delete(list(over)) == len(over):
            scope.report.removed_completed += sum(over.values())
