"""What a claim costs where nothing is conditional: ``csprng_verify`` on ``rclone serve s3``, by its batch's size."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

from pawnqueue import PawnQueue, Settings
from tools.kit import servers

TOPIC = "orders"
SIZES = (1, 10, 100, 500, 1000)


def run() -> None:
    """Measure, and print a table."""
    with servers.rclone() as server:
        settings = Settings(s3=server.address(server.make_bucket()))
        rows = asyncio.run(_measure(settings))
    print(f"   {'batch':>8}{'claim':>10}{'renew':>10}{'ack':>10}{'a message':>13}")
    for size, claimed, renewed, acked in rows:
        each = (claimed + acked) / size * 1000
        print(f"   {size:>8,}{claimed:>9.2f}s{renewed:>9.2f}s{acked:>9.2f}s{each:>11.1f}ms")
    print("\n   Pauses as they are by default: a verification sleeps for 0.5 to 0.8 seconds, whatever the batch.\n")


async def _measure(settings: Settings) -> list[tuple[int, float, float, float]]:
    rows = []
    async with PawnQueue.open(settings) as queue:
        await queue.create_topic(TOPIC, packs=False)
        for size in SIZES:
            await queue.publish(TOPIC, [{"n": number} for number in range(size)])
            times = [time.perf_counter()]
            claim = await queue.claim(TOPIC, "bench", max_messages=size, ttl=120)
            times.append(time.perf_counter())
            await queue.renew(claim)
            times.append(time.perf_counter())
            settled = await queue.ack(claim)
            times.append(time.perf_counter())
            assert len(settled.acked) == size  # noqa: S101 - a benchmark of a queue that loses is none
            rows.append((size, *(after - before for before, after in pairwise(times))))
            print(f"   {size:,} claimed in {times[1] - times[0]:.2f} s", flush=True)
    return rows
