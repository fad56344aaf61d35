"""Keep what tells a publisher that a message was published: the record of the claim that consumed it (§7)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pawnqueue.claims.expiry import EXPIRED
from pawnqueue.domain import layout, size_hint
from pawnqueue.errors import StoreError
from pawnqueue.runtime.concurrency import for_each

if TYPE_CHECKING:
    from pawnqueue.claims.held import HeldClaim
    from pawnqueue.context import Context

#: The dates of objects are whole seconds.
_DATE_RESOLUTION = timedelta(seconds=1)


async def keep_if_needed(context: Context, claim: HeldClaim) -> None:
    """Keep the record of a claim with a made-up id where a publisher may still look for its messages in it.

    ⚑ §7: A committer that takes over looks for each message of the chunk in doubt. Of a message that was acked, only
    the claim's record is left. So the record may be deleted only where every write that it had messages of is done.
    The look may come at any time before the deletion, as a write goes from begun to done and never back.
    """
    if not claim.is_fleeting or not claim.record.is_settled:
        return
    if _has_buried_unread(claim):
        claim.keep_record()  # the envelopes, which name their writes, were never read
        return

    async def is_done(write_id: str) -> bool:
        return await _is_done(context, claim.topic, write_id, claim.writes[write_id])

    try:
        done = await for_each(is_done, claim.writes, at_once=context.at_once)
    except StoreError:
        done = [False]
    if not all(done):
        claim.keep_record()
    elif claim.has_keys:
        # ⚑ §7: if a message's publisher died before it noted that the key is published, only this record tells. A sweep
        # resolves the key before it removes the record.
        claim.keep_trace()


def _has_buried_unread(claim: HeldClaim) -> bool:
    record = claim.record
    decisions = [*record.settled.values(), *(part for member in record.members.values() for part in member.decided)]
    return any(
        each.how == "dead" and each.by == "claim" and (each.max_deliveries is not None or each.reason == EXPIRED)
        for each in decisions
    )


async def _is_done(context: Context, topic: str, write_id: str, latest: datetime) -> bool:
    """Say whether the write that published a message at this time is known to be done.

    A write whose messages were seen, and that has no record any more, was done: only then its record is removed.

    ⚑ §7: Which write a message names, and which time, is its publisher's choice. What this look tells is remembered
    for messages up to now, and no longer: those of a later write under the same id have later times.
    """
    if context.done_writes.has(topic, write_id, latest):
        return True
    # Who decides the later write may be wrong about the store's time by a margin, and so may we.
    now = datetime.fromtimestamp(await context.now() - 2 * context.margin, UTC)
    info = await context.registers.head(layout.write(topic, write_id))
    if info is None:
        context.done_writes.add(topic, write_id, min(latest, now))
        return True
    hint = size_hint.hint_of_write(info.size, info.last_modified)
    if hint is None or hint.state != "done":
        return False
    context.done_writes.add(topic, write_id, max(min(latest, now), info.last_modified + _DATE_RESOLUTION))
    return True
