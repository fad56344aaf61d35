"""From publish to ack, in packs and without: beside bare requests, the published pawn-queue library, and SQS's price.

The bare requests write, lease, read, record, settle and delete packs of the same format, with no protocol: nobody
loses a race, no answer is lost, and nothing is checked. What is left between the two is the queue's own work.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import multiprocessing
import pstats
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.far_away import far_away
from pawnqueue import PawnQueue, Settings
from pawnqueue.domain import pack
from pawnqueue.runtime.concurrency import for_each
from pawnqueue.stores.connect import connect
from pawnqueue.stores.port import Done, Expect
from tools.kit import servers
from tools.kit.stores import ALL, CountingStore

if TYPE_CHECKING:
    from multiprocessing.pool import Pool

    from pawnqueue import Claim
    from tools.kit.servers import S3Server

TOPIC = "orders"
LATENCY = 0.02
ROUNDS = 3
CLAIM = 10_000
#: How many messages, near and far away, in packs of this many; 1: single messages.
NEAR: Mapping[int, int] = {1: 1_000, 100: 40_000, 1000: 100_000}
FAR: Mapping[int, int] = {1: 1_000, 100: 40_000, 1000: 100_000}
CROWD, CROWD_BATCH, CROWD_PROCESSES = 20, 10, 4
CROWD_MESSAGES: Mapping[int, int] = {1: 2_000, 1000: 8_000}
PEER_MESSAGES = 100
PEER = Path(__file__).parent.parent / ".venv-peer/bin/python"
#: Dollars a thousand requests on S3 Standard: PUT, COPY, POST and LIST; GET and HEAD. DELETE is free.
WRITES, READS = 0.005, 0.0004
#: Dollars a million messages on SQS: three calls each, alone and in tens.
SQS = "$1.20 alone, $0.12 in tens"


@dataclass(frozen=True)
class Run:
    """What one run took: from publish to ack, and how long either part of it."""

    count: int
    published: float
    consumed: float
    requests: Counter[str] = field(default_factory=Counter)
    cpu: float = 0.0

    @property
    def rate(self) -> float:
        """Messages a second from publish to ack."""
        return self.count / (self.published + self.consumed)

    @property
    def dollars(self) -> float:
        """What a million messages cost on S3."""
        kinds: Counter[str] = Counter()
        for name, count in self.requests.items():
            kinds[name.partition(" ")[0]] += count
        reads = kinds["GET"] + kinds["HEAD"]
        writes = kinds.total() - reads - kinds["DELETE"]
        return (reads * READS + writes * WRITES) / 1000 * 1e6 / self.count


def run() -> None:
    """Measure, and print the tables."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(CROWD_PROCESSES) as pool, servers.seaweedfs() as server:
        rows: list[tuple[str, str, Run]] = []
        with far_away(server, LATENCY) as distant:
            for where, at, counts in (("near", server, NEAR), (f"{LATENCY * 1000:.0f} ms", distant, FAR)):
                for size, count in counts.items():
                    what = "single messages" if size == 1 else f"packs of {size:,}"
                    rows.append((where, what, _best(pool, _queue, server, at, count, size)))
                rows.append((where, "bare, packs of 1,000", _best(pool, _bare, server, at, counts[1000], 1000)))
                if PEER.exists():
                    rows.append((where, "pawn-queue 0.1.3", pool.apply(_peer, (server.make_bucket(), at))))
        crowds = {size: _crowd(pool, server, size, count) for size, count in CROWD_MESSAGES.items()}
        profile = pool.apply(_profiled, (_settings(server, server.make_bucket()),))
    if not PEER.exists():
        print("   (`make peer` installs pawn-queue 0.1.3, which is measured beside ours then.)")
    _print_rows(rows)
    for size, rate in crowds.items():
        what = "single messages" if size == 1 else f"packs of {size:,}"
        print(f"   {CROWD} consumers that ask for {CROWD_BATCH} each, {what}: {rate:,.0f} messages a second")
    print(f"\n   Where the time of packs of 1,000 goes, in one process (seconds of {profile[0]:.2f}):")
    for line in profile[1]:
        print(f"   {line}")


def _print_rows(rows: Sequence[tuple[str, str, Run]]) -> None:
    print(
        f"\n   {'':6} {'':22} {'to ack':>14} {'publish':>12} {'claim, ack':>12} {'requests':>13} {'CPU':>12} "
        f"{'a million':>10}"
    )
    for where, what, each in rows:
        requests = f"{each.requests.total() / each.count:8.4f}/msg" if each.requests else ""
        dollars = f"${each.dollars:,.3f}" if each.requests else ""
        cpu = f"{each.cpu / each.count * 1e6:6.1f} µs/msg" if each.cpu else ""
        print(
            f"   {where:6} {what:22} {each.rate:8,.0f} msg/s {each.count / each.published:9,.0f}/s "
            f"{each.count / each.consumed:10,.0f}/s {requests:>13} {cpu:>13} {dollars:>9}"
        )
    print(f"   SQS, a million messages: {SQS}\n")


def _best(pool: Pool, work: Any, near: S3Server, at: S3Server, count: int, size: int) -> Run:  # noqa: ANN401, PLR0913, PLR0917
    runs: list[Run] = [pool.apply(work, (_settings(at, near.make_bucket()), count, size)) for _ in range(ROUNDS)]
    best = max(runs, key=lambda run: run.rate)
    told = ", ".join(f"{each.rate:,.0f}" for each in runs)
    print(f"   {work.__name__.strip('_')}, {size:,} an object: {told} msg/s from publish to ack", flush=True)
    return best


def _settings(server: S3Server, bucket: str) -> Settings:
    return Settings(s3=server.address(bucket))


def _payloads(count: int) -> list[dict[str, Any]]:
    pad = "x" * 60
    return [
        {
            "n": n,
            "item": f"item {n % 97}",
            "price": n / 7,
            "at": "2026-11-20T04:22:14Z",
            "who": str(uuid.UUID(int=n)),
            "pad": pad,
        }
        for n in range(count)
    ]


# --- the queue ---


def _queue(settings: Settings, count: int, size: int) -> Run:
    return asyncio.run(_through_the_queue(settings, count, size))


async def _through_the_queue(settings: Settings, count: int, size: int) -> Run:
    payloads = _payloads(count)
    settings = settings.model_copy(update={"packs": settings.packs.model_copy(update={"messages": size})})
    store = CountingStore(connect(settings.s3))
    async with PawnQueue.open(settings, store=store) as queue:
        await queue.create_topic(TOPIC, packs=size > 1)
        await queue.stats(TOPIC)  # the first requests open connections and ask for the time
        store.forget()
        cpu, began = time.process_time(), time.perf_counter()
        for first in range(0, count, CLAIM):
            await queue.publish(TOPIC, payloads[first : first + CLAIM], pack=size > 1)
        published = time.perf_counter()
        acked = 0
        while acked < count:
            claim = await queue.claim(TOPIC, "bench", max_messages=CLAIM, ttl=120)
            acked += await _work(queue, claim)
        consumed = time.perf_counter()
        return Run(count, published - began, consumed - published, store.requests.copy(), time.process_time() - cpu)


async def _work(queue: PawnQueue, claim: Claim) -> int:
    """Look at each message of a claim, and ack all of them."""
    seen = 0
    for message in claim:
        seen += "n" in message.payload
    assert seen == len(claim)  # noqa: S101 - a benchmark of a queue that loses is none
    return len((await queue.ack(claim)).acked)


def _profiled(settings: Settings) -> tuple[float, list[str]]:
    profile = cProfile.Profile()
    profile.enable()
    _queue(settings, 50_000, 1000)
    profile.disable()
    stats = pstats.Stats(profile).sort_stats("tottime")
    top = sorted(stats.stats.items(), key=lambda item: -item[1][2])[:12]  # type: ignore[attr-defined]
    lines = [f"{spent:6.2f}  {Path(file).name}:{line} {name}" for (file, line, name), (_, _, spent, _, _) in top]
    return stats.total_tt, lines  # type: ignore[attr-defined]


# --- bare requests ---


def _bare(settings: Settings, count: int, size: int) -> Run:
    return asyncio.run(_bare_requests(settings, count, size))


async def _bare_requests(settings: Settings, count: int, size: int) -> Run:
    payloads, at_once = _payloads(count), settings.concurrency.max_in_flight
    store = CountingStore(connect(settings.s3))
    await store.get(TOPIC, ALL)  # the first request opens a connection
    store.forget()
    cpu, began = time.process_time(), time.perf_counter()
    batches = [payloads[first : first + CLAIM] for first in range(0, count, CLAIM)]
    keys = [[f"{TOPIC}/packs/{uuid.uuid4()}" for _ in range(0, len(batch), size)] for batch in batches]
    for batch, names in zip(batches, keys, strict=True):
        parts = [batch[first : first + size] for first in range(0, len(batch), size)]
        await for_each(partial(_put_pack, store), list(zip(names, parts, strict=True)), at_once=at_once)
    published = time.perf_counter()
    seen = 0
    for names in keys:
        async for _ in store.pages(f"{TOPIC}/packs/"):
            break
        leases = [f"{name}.lease" for name in names]
        await for_each(lambda key: store.put(key, b"l" * 700, expect=Expect.NOTHING), leases, at_once=at_once)
        bodies = await for_each(partial(store.get, most=ALL), names, at_once=at_once)
        for body in bodies:
            assert body is not None  # noqa: S101 - nobody else deletes it
            seen += sum("n" in msgspec.json.decode(line)["payload"] for line in pack.lines_of(body.body, size, ""))
        record = f"{TOPIC}/claims/{uuid.uuid4()}"
        created = await store.put(record, b"r" * 300 * len(names), expect=Expect.NOTHING)
        assert isinstance(created, Done)  # noqa: S101
        await store.put(record, b"s" * 300 * len(names), expect=created.version)
        await store.delete(names)
        await store.delete([*leases, record])
    assert seen == count  # noqa: S101
    consumed = time.perf_counter()
    requests, used = store.requests.copy(), time.process_time() - cpu
    await store.aclose()
    return Run(count, published - began, consumed - published, requests, used)


async def _put_pack(store: CountingStore, named: tuple[str, list[dict[str, Any]]]) -> None:
    key, payloads = named
    lines = [msgspec.json.encode({"id": str(uuid.uuid4()), "topic": TOPIC, "payload": each}) for each in payloads]
    await store.put(key, pack.pack_body(lines))


# --- many consumers ---


def _crowd(pool: Pool, server: S3Server, size: int, count: int) -> float:
    settings = _settings(server, server.make_bucket())
    pool.apply(_publish, (settings, count, size))
    begin = time.time() + 3.0  # all of them have opened by then
    each = CROWD // CROWD_PROCESSES
    done = pool.starmap(_consume, [(settings, begin, each)] * CROWD_PROCESSES, chunksize=1)
    assert sum(acked for acked, _ in done) == count  # noqa: S101
    return count / (max(ended for _, ended in done) - begin)


def _publish(settings: Settings, count: int, size: int) -> None:
    async def publish() -> None:
        async with PawnQueue.open(settings) as queue:
            await queue.create_topic(TOPIC, packs=size > 1)
            await queue.publish(TOPIC, _payloads(count), pack=size > 1)

    asyncio.run(publish())


def _consume(settings: Settings, begin: float, consumers: int) -> tuple[int, float]:
    async def consume() -> tuple[int, float]:
        async with PawnQueue.open(settings) as queue:
            await queue.stats(TOPIC)
            await asyncio.sleep(max(0.0, begin - time.time()))
            done = await asyncio.gather(*(_drain(queue) for _ in range(consumers)))
            return sum(acked for acked, _ in done), max(ended for _, ended in done)

    return asyncio.run(consume())


async def _drain(queue: PawnQueue) -> tuple[int, float]:
    acked, ended = 0, 0.0
    while True:
        claim = await queue.claim(TOPIC, "bench", max_messages=CROWD_BATCH, ttl=60)
        if claim:
            acked += await _work(queue, claim)
            ended = time.time()
        elif (await queue.stats(TOPIC)).pending == 0:
            return acked, ended


# --- the published library ---

_PEER_SCRIPT = """
import asyncio, json, sys, time
from pawn_queue import PawnQueue

async def main():
    queue = await PawnQueue.from_config(json.loads(sys.argv[1]))
    await queue.setup()
    await queue.create_topic("orders")
    producer, consumer = await queue.register_producer("p"), await queue.register_consumer("c", topics=["orders"])
    count, began = int(sys.argv[2]), time.perf_counter()
    for number in range(count):
        await producer.publish("orders", {"n": number})
    published, acked = time.perf_counter(), 0
    while acked < count:
        for message in await consumer.poll():
            await message.ack()
            acked += 1
    print(json.dumps([published - began, time.perf_counter() - published]))

asyncio.run(main())
"""


def _peer(bucket: str, at: S3Server) -> Run:
    config = {"s3": at.address(bucket), "polling": {"max_messages_per_poll": 10}}
    config["concurrency"] = {"strategy": "conditional_write"}
    command = [str(PEER), "-c", _PEER_SCRIPT, json.dumps(config), str(PEER_MESSAGES)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if ended.returncode:
        print(ended.stderr[-500:], file=sys.stderr)
        return Run(PEER_MESSAGES, float("inf"), float("inf"))
    published, consumed = json.loads(ended.stdout)
    return Run(PEER_MESSAGES, published, consumed)
