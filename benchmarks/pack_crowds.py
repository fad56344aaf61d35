"""Consumers that share packs, in several processes at once, and one consumer that claims a million messages."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.pack_runs import CLAIM, TOPIC, payloads_from, settings_for
from pawnqueue import MemoryStore, PawnQueue
from tools.kit.stores import CountingStore

if TYPE_CHECKING:
    from multiprocessing.pool import Pool

    from pawnqueue import Claim, Settings
    from tools.kit.servers import S3Server

MILLION = 1_000_000
SECONDS_TO_OPEN = 3.0


@dataclass(frozen=True, slots=True)
class Crowd:
    """Consumers that work at once, each of which asks for ``batch`` messages at a time."""

    consumers: int
    batch: int
    processes: int = 4

    def measure(self, pool: Pool, server: S3Server, count: int, size: int) -> float:
        """Return how many messages a second they ack together, of ``count`` in packs of ``size``."""
        settings = settings_for(server, server.make_bucket())
        pool.apply(_publish, (settings, count, size))
        begin = time.time() + SECONDS_TO_OPEN
        each = self.consumers // self.processes
        done = pool.starmap(_consume, [(settings, begin, each, self.batch)] * self.processes, chunksize=1)
        assert sum(acked for acked, _ in done) == count  # noqa: S101 - a benchmark of a queue that loses is none
        return count / (max(ended for _, ended in done) - begin)


def _publish(settings: Settings, count: int, size: int) -> None:
    async def publish() -> None:
        async with PawnQueue.open(settings) as queue:
            await queue.create_topic(TOPIC, packs=size > 1)
            await queue.publish(TOPIC, payloads_from(0, count), pack=size > 1)

    asyncio.run(publish())


def _consume(settings: Settings, begin: float, consumers: int, batch: int) -> tuple[int, float]:
    async def consume() -> tuple[int, float]:
        async with PawnQueue.open(settings) as queue:
            await queue.stats(TOPIC)
            await asyncio.sleep(max(0.0, begin - time.time()))
            done = await asyncio.gather(*(_drain(queue, batch) for _ in range(consumers)))
            return sum(acked for acked, _ in done), max(ended for _, ended in done)

    return asyncio.run(consume())


async def _drain(queue: PawnQueue, batch: int) -> tuple[int, float]:
    acked, ended = 0, 0.0
    while True:
        claim = await queue.claim(TOPIC, "bench", max_messages=batch, ttl=60)
        if claim:
            acked += await work_on(queue, claim)
            ended = time.time()
        elif (await queue.stats(TOPIC)).pending == 0:
            return acked, ended


async def work_on(queue: PawnQueue, claim: Claim) -> int:
    """Look at each message of a claim, and ack all of them."""
    seen = 0
    for message in claim:
        seen += "n" in message.payload
    assert seen == len(claim)  # noqa: S101 - a benchmark of a queue that loses is none
    return len((await queue.ack(claim)).acked)


def claim_a_million() -> list[str]:
    """Return what a claim of a million messages takes, on a store in memory. Runs in a process of its own."""
    return asyncio.run(_claim_a_million())


async def _claim_a_million() -> list[str]:
    store = CountingStore(MemoryStore())
    async with PawnQueue.open(store=store) as queue:
        await queue.create_topic(TOPIC, packs=True)
        for first in range(0, MILLION, CLAIM):
            await queue.publish(TOPIC, payloads_from(first, CLAIM), pack=True)
        started_with = _megabytes("VmHWM")
        times = [time.perf_counter()]
        claim = await queue.claim(TOPIC, "bench", max_messages=MILLION, ttl=300)
        times.append(time.perf_counter())
        [record] = [info.size async for page in store.pages(f"{TOPIC}/claims/") for info in page]
        store.forget()
        await queue.renew(claim)
        renewal = store.total
        times.append(time.perf_counter())
        acked = await work_on(queue, claim)
        times.append(time.perf_counter())
        assert acked == MILLION  # noqa: S101
    claimed, renewed, worked = (after - before for before, after in pairwise(times))
    more = _megabytes("VmHWM") - started_with
    return [
        f"{record / 1000:,.0f} KB of record; {more:,.0f} MB more memory at most; renewed by {renewal} request",
        f"claimed in {claimed:.1f} s, renewed in {renewed:.3f} s, each message looked at and acked in {worked:.1f} s",
    ]


def _megabytes(field: str) -> float:
    [line] = [line for line in Path("/proc/self/status").read_text("ascii").splitlines() if line.startswith(field)]
    return int(line.split()[1]) / 1024
