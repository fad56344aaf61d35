"""Claim and ack against what the store gives: the same requests, without a queue around them.

Three measurements on one SeaweedFS: one consumer; the same with 20 ms of latency in front of the store; four consumers.
The bare requests are made through the same store adapter, with as many under way at once, in the same order and of
the same sizes: what is left between the two is the queue's own work.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_pawnqueue.engine import PawnQueue, Settings
from airflow_provider_pawnqueue.engine.gather import each
from airflow_provider_pawnqueue.engine.store.connect import connect
from airflow_provider_pawnqueue.engine.store.port import Done, Expect
from tests.support import servers
from tests.support.faults import FaultServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_provider_pawnqueue.engine.store.port import Store
    from tests.support.servers import S3Server

TOPIC = "orders"
BATCH = 100
#: Far away the round trips of a batch count, and a larger batch has no more of them.
FAR_BATCH = 250
MESSAGES = 3000
#: Far fewer at 20 ms, as each batch takes a while.
MESSAGES_FAR = 1500
LATENCY = 0.02
CONSUMERS = 4
ROUNDS = 3
#: Of what the queue writes: an envelope, a lease, and of a batch's record each message.
ENVELOPE, LEASE, MEMBER = 500, 640, 130


@dataclass(frozen=True)
class Rate:
    """Messages a second, and what the client spent on each."""

    messages: float
    cpu_ms: float


def run() -> None:
    """Measure, and print a table."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as far, context.Pool(CONSUMERS) as near, servers.seaweedfs() as server:
        print(
            f"   {MESSAGES:,} messages of {ENVELOPE} bytes in batches of {BATCH}; the best of {ROUNDS} rounds",
            flush=True,
        )
        rows = [("one consumer", *_against_bare(near, server, MESSAGES, BATCH))]
        with _latency(far, server) as slow:
            for batch in (BATCH, FAR_BATCH):
                name = f"{LATENCY * 1000:.0f} ms away, by {batch}"
                rows.append((name, *_against_bare(near, slow, MESSAGES_FAR, batch)))
        together, busy = max(_together(near, server) for _ in range(ROUNDS))
    print(f"\n   {'':20} {'queue':>14} {'bare requests':>15} {'of it':>7} {'queue CPU':>12} {'bare CPU':>11}")
    for name, queue, bare in rows:
        share = queue.messages / bare.messages
        print(
            f"   {name:20} {queue.messages:8,.0f} msg/s {bare.messages:9,.0f} msg/s {share:6.0%} "
            f"{queue.cpu_ms:6.2f} ms/msg {bare.cpu_ms:5.2f} ms/msg"
        )
    share = together / rows[0][1].messages
    print(f"   {'four consumers':20} {together:8,.0f} msg/s in sum, {share:.2f} of one; the machine is {busy:.0%} busy")
    print(
        "\n   The store and its clients share the machine's cores: where it is busy, nothing more can be had of it.\n"
    )


def _against_bare(pool: Any, server: S3Server, count: int, batch: int) -> tuple[Rate, Rate]:  # noqa: ANN401 - multiprocessing's
    """Measure both in turn, so that what else the machine does meets both; take the best of each."""
    queue, bare = [], []
    for number in range(ROUNDS):
        settings = _settings(server, server.make_bucket())
        pool.apply(_publish, (settings, count))
        done: _Consumed = pool.apply(_consume, (settings, 0.0, batch))
        queue.append(Rate(done.count / done.seconds, done.cpu / done.count * 1000))
        bare.append(pool.apply(_bare, (_settings(server, server.make_bucket()), count, batch)))
        print(
            f"   round {number + 1}: queue {queue[-1].messages:,.0f} msg/s, bare {bare[-1].messages:,.0f} msg/s",
            flush=True,
        )
    return max(queue, key=lambda rate: rate.messages), max(bare, key=lambda rate: rate.messages)


def _together(pool: Any, server: S3Server) -> tuple[float, float]:  # noqa: ANN401 - multiprocessing's
    settings = _settings(server, server.make_bucket())
    pool.apply(_publish, (settings, MESSAGES))
    begin = time.time() + 2.0  # all of them have imported and opened by then
    started = pool.starmap_async(_consume, [(settings, begin, BATCH)] * CONSUMERS, chunksize=1)
    time.sleep(max(0.0, begin - time.time()))
    before = _cpu_times()
    done: list[_Consumed] = started.get()
    after = _cpu_times()
    assert sum(one.count for one in done) == MESSAGES  # noqa: S101 - a benchmark of a queue that loses is none
    idle = (after[1] - before[1]) / (after[0] - before[0])
    return MESSAGES / (max(one.end for one in done) - begin), 1 - idle


def _cpu_times() -> tuple[int, int]:
    """Return all the ticks of all cores, and those in which they had nothing to do."""
    ticks = [int(part) for part in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]]
    return sum(ticks), ticks[3] + ticks[4]


def _settings(server: S3Server, bucket: str) -> Settings:
    return Settings(
        s3={
            "endpoint_url": server.endpoint,
            "bucket_name": bucket,
            "aws_access_key_id": server.access_key,
            "aws_secret_access_key": server.secret_key,
        }
    )


@contextmanager
def _latency(pool: Any, server: S3Server) -> Iterator[S3Server]:  # noqa: ANN401 - multiprocessing's
    """Put a proxy in front of the store, in a process of its own."""
    manager = multiprocessing.get_context("spawn").Manager()
    with manager:
        endpoint, stop = manager.Queue(), manager.Event()
        proxy = pool.apply_async(_proxy, (server.endpoint, endpoint, stop))
        try:
            yield type(server)(server.name, endpoint.get(timeout=30), server.access_key, server.secret_key)
        finally:
            stop.set()
            proxy.get(timeout=30)


def _proxy(upstream: str, endpoint: Any, stop: Any) -> None:  # noqa: ANN401 - multiprocessing's
    with FaultServer(upstream=upstream, latency=LATENCY) as server:
        endpoint.put(server.endpoint)
        stop.wait()


def _publish(settings: Settings, count: int) -> None:
    async def publish() -> None:
        async with PawnQueue.open(settings) as queue:
            pad = "x" * (ENVELOPE - len(json.dumps({"n": 0})) - 200)
            await queue.publish(TOPIC, [{"n": number, "pad": pad} for number in range(count)], create=True)

    asyncio.run(publish())


@dataclass(frozen=True)
class _Consumed:
    count: int
    seconds: float
    cpu: float
    end: float


def _consume(settings: Settings, begin: float, batch: int) -> _Consumed:
    """Claim and ack until nothing is left, from a moment on."""

    async def consume() -> _Consumed:
        count = 0
        async with PawnQueue.open(settings) as queue:
            await queue.stats(TOPIC)  # the first request opens connections and asks for the time
            await asyncio.sleep(max(0.0, begin - time.time()))
            started, cpu = time.perf_counter(), time.process_time()
            while True:
                claim = await queue.claim(TOPIC, "bench", max_messages=batch, ttl=60)
                if claim:
                    count += len((await queue.ack(claim)).acked)
                elif (await queue.stats(TOPIC)).pending == 0:
                    # Others hold the rest, if there is any: whoever found nothing has come to the end.
                    return _Consumed(count, time.perf_counter() - started, time.process_time() - cpu, time.time())

    return asyncio.run(consume())


def _bare(settings: Settings, count: int, batch: int) -> Rate:
    return asyncio.run(_bare_requests(connect(settings.s3), count, batch, settings.concurrency.max_in_flight))


async def _bare_requests(store: Store, count: int, batch: int, at_once: int) -> Rate:
    messages = [f"{TOPIC}/messages/{number:06d}-{uuid.uuid4()}" for number in range(count)]
    leases = [f"{TOPIC}/leases/{uuid.uuid4()}" for _ in range(count)]
    await each(lambda key: store.put(key, b"m" * ENVELOPE), messages, at_once=at_once)
    cpu, started = time.process_time(), time.perf_counter()
    for first in range(0, count, batch):
        await _bare_batch(store, first, messages[first : first + batch], leases[first : first + batch], at_once)
    rate = Rate(count / (time.perf_counter() - started), (time.process_time() - cpu) / count * 1000)
    await store.aclose()
    return rate


async def _bare_batch(store: Store, first: int, messages: Sequence[str], leases: Sequence[str], at_once: int) -> None:
    """Make the requests of one claim and its ack."""

    async def page(folder: str) -> None:
        async for _ in store.pages(folder):
            return

    await asyncio.gather(*(page(f"{TOPIC}/{folder}/") for folder in ("messages", "leases", "claims")))
    await each(lambda key: store.put(key, b"l" * LEASE, expect=Expect.NOTHING), leases, at_once=at_once)
    record = f"{TOPIC}/claims/{first}"
    bodies = each(store.get, messages, at_once=at_once)
    size = MEMBER * len(messages)
    created, _ = await asyncio.gather(store.put(record, b"c" * size, expect=Expect.NOTHING), bodies)
    assert isinstance(created, Done)  # noqa: S101 - nobody else writes here
    settled = await store.put(record, b"s" * size, expect=created.version)
    assert isinstance(settled, Done)  # noqa: S101
    await store.delete(messages)
    await store.delete(leases)
    await store.delete([record])
