"""Write the completed log: what a claim has acked, once it has settled all of its messages (§4, Completed log)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pawnqueue.context import PER_OBJECT_RETRY_SECONDS
from pawnqueue.domain import completed, layout, numbers
from pawnqueue.errors import PawnQueueError
from pawnqueue.events import CompletedUnlogged
from pawnqueue.runtime.concurrency import wait_at_most
from pawnqueue.stores.port import Expect, Unknown

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.domain.claim_record import ClaimRecord


async def log_completed(
    context: Context,
    topic: str,
    record: ClaimRecord,
    *,
    ids_in: Callable[[str, int], list[str]] | None = None,
    payloads: Callable[[], Mapping[str, Mapping[str, Any]]] = dict,
) -> None:
    """Log what the claim has acked, if its topic had a log when it was claimed: one PUT.

    ⚑ §4: it is called once all of the claim is decided, so what it says is final; and before the record is closed or
    deleted, so a process that finishes the claim of a dead one logs it. Whatever becomes of it, the claim goes on.

    :param ids_in: returns the ids of messages of a unit, where the caller knows them.
    :param payloads: returns payloads by the names under which the messages are kept. It is called if they are logged.
    """
    count = completed.completed_count(record) if record.completed and record.is_settled else 0
    if not count:
        return

    async def write() -> None:
        brief = context.with_budget()
        body = completed.log_body(
            record,
            await brief.now(),
            ids_in=_unknown if ids_in is None else ids_in,
            payloads=payloads() if record.completed == completed.WITH_PAYLOADS else {},
        )
        await _create(brief, layout.completed_object(topic, completed.log_name(record, count)), body)

    why = f"the store did not answer within {PER_OBJECT_RETRY_SECONDS:g} seconds. It may still appear there."
    try:
        # ⚑ §4: a request that is cancelled may land late, and then writes what it would have written, under this name.
        work = asyncio.ensure_future(write())
        if await wait_at_most(work, context.clock, PER_OBJECT_RETRY_SECONDS):
            work.result()
            return
    except PawnQueueError as error:
        why = str(error)
    context.events.tell(CompletedUnlogged(topic=topic, claim=record.stem, messages=count, why=why))


async def _create(context: Context, key: str, body: bytes) -> None:
    """Store the object, unless another process has logged the claim: that one may have known more."""
    backoff = context.store.backoff()
    while True:
        expect = Expect.NOTHING if context.registers.is_certain else Expect.ANYTHING
        outcome = await context.store.put(key, body, expect=expect)
        if not isinstance(outcome, Unknown):
            return
        await backoff.pause_or_raise(outcome.fault)


def _unknown(unit_id: str, of: int) -> list[str]:
    """Return no id for the messages of a pack, which nobody has read; a single message has its uuid, or an id."""
    return [unit_id if not layout.is_of_pack(unit_id) else "" for _ in numbers.each(of)]
