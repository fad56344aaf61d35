"""The queue on a real store without conditional writes: ``rclone serve s3``."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from pawnqueue import PawnQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from pawnqueue import Settings
    from tools.kit.servers import S3Server

TOPIC = "orders"


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_eight_consumers_share_two_hundred_messages(
    rclone: S3Server, settings_for: Callable[..., Settings]
) -> None:
    """Each of 200 messages is delivered to one of eight consumers that start at once, and to nobody twice."""
    settings = settings_for(rclone)
    async with PawnQueue.open(settings) as queue:
        assert queue.strategy == "csprng_verify"
        await queue.create_topic(TOPIC, packs=False)
        ids = await queue.publish(TOPIC, [{"n": number} for number in range(200)])
    delivered: Counter[str] = Counter()

    async def consume(name: str) -> None:
        async with PawnQueue.open(settings) as queue:
            # A lease whose write took too long is trusted by nobody: its message waits until the lease is over.
            while (stats := await queue.stats(TOPIC)).pending or stats.in_flight:
                claim = await queue.claim(TOPIC, name, max_messages=10, ttl=10, wait=1)
                delivered.update(claim.ids)
                assert (await queue.ack(claim)).complete

    await asyncio.gather(*(consume(f"c{number}") for number in range(8)))
    assert delivered == Counter(ids)
    async with PawnQueue.open(settings) as queue:
        stats = await queue.stats(TOPIC)
        assert (stats.pending, stats.in_flight, stats.dead) == (0, 0, 0)
