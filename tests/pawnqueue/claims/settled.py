"""What tests of settlements share: a claim of new messages, and each way to settle it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.pawnqueue.virtual import TOPIC, Process, numbered
from tools.kit.settlements import settlement_of

if TYPE_CHECKING:
    from pawnqueue import Claim, Settlement


async def claimed(process: Process, count: int = 3, **options: object) -> Claim:
    """Publish messages and claim them."""
    await process.queue.publish(TOPIC, numbered(count))
    claim = await process.queue.claim(TOPIC, "c", max_messages=count, **options)
    assert len(claim) == count
    return claim


async def settled_as(how: str, process: Process, claim: Claim, ids: list[str] | None = None) -> Settlement:
    """Settle it in one of the three ways."""
    if how == "ack":
        return await settlement_of(process.queue.ack(claim, ids))
    return await settlement_of(process.queue.nack(claim, ids, requeue=how == "release"))
