"""Consumers at work at the same time."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from pawnqueue import PawnQueue, StoreError
from tests.e2e.backends import CONDITIONAL, CSPRNG, CSPRNG_FORCED, Deadline, settled

if TYPE_CHECKING:
    from pawnqueue import Settings

pytestmark = pytest.mark.servers

MESSAGES = 20
CONSUMERS = 3


@pytest.mark.parametrize("backend", [CONDITIONAL, CSPRNG, CSPRNG_FORCED], ids=str)
async def test_three_consumers_share_twenty_messages_without_a_duplicate(
    queue: PawnQueue, settings: Settings, topic: str
) -> None:
    """Each message is handed to one of them, once, and acked once."""
    ids = await queue.publish(topic, [{"n": n} for n in range(MESSAGES)])
    delivered: Counter[str] = Counter()
    acked: Counter[str] = Counter()
    deadline = Deadline(60)

    async def consume(mine: PawnQueue, name: str) -> None:
        while acked.total() < MESSAGES:
            deadline.check(f"{MESSAGES} messages acked, of which {acked.total()} are")
            try:
                claim = await mine.claim(topic, name, max_messages=4, ttl=12)
            except StoreError as error:  # a late PUT proves nothing: its messages are free after the claim's time
                if not error.transient:
                    raise
                continue
            delivered.update(claim.ids)
            if claim:
                acked.update((await settled(mine.ack, claim)).acked)
            else:
                await asyncio.sleep(0.05)

    async with AsyncExitStack() as stack:
        queues = [await stack.enter_async_context(PawnQueue.open(settings)) for _ in range(CONSUMERS)]
        await asyncio.gather(*(consume(mine, f"consumer-{number}") for number, mine in enumerate(queues)))
    assert delivered == acked == Counter(ids)
    stats = await queue.stats(topic)
    assert (stats.pending, stats.in_flight, stats.dead) == (0, 0, 0)
