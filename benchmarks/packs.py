"""From publish to ack, in packs and without: beside the store alone, bare requests, pawn-queue 0.1.3 and SQS."""

from __future__ import annotations

import asyncio
import cProfile
import multiprocessing
import pstats
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from benchmarks.far_away import far_away
from benchmarks.pack_bounds import PEER, bare, published_library, store_alone
from benchmarks.pack_crowds import MILLION, Crowd, claim_a_million, work_on
from benchmarks.pack_runs import CLAIM, TOPIC, Run, payloads_from, settings_for
from pawnqueue import PawnQueue, Settings
from pawnqueue.stores.connect import connect
from tools.kit import servers
from tools.kit.stores import CountingStore

if TYPE_CHECKING:
    from multiprocessing.pool import Pool

    from tools.kit.servers import S3Server

LATENCY = 0.02
ROUNDS = 3
PROCESSES = 4
PROFILED = 50_000
LARGE_CLAIM = 50_000
CROWD = Crowd(consumers=20, batch=10)
CROWD_COUNTS = {1: 2_000, 1000: 8_000}
#: Without conditional writes: each claim is verified, however many messages it has.
CSPRNG_CROWDS = {1: (Crowd(consumers=4, batch=50), 400), 1000: (Crowd(consumers=4, batch=5_000), 40_000)}
#: Dollars a million messages on SQS: three calls each, alone and in tens.
SQS = "$1.20 alone, $0.12 in tens"

#: Settings, how many messages, how many an object, how many a claim.
Work: TypeAlias = Callable[[Settings, int, int, int], Run]


def through_the_queue(settings: Settings, count: int, size: int, claim: int) -> Run:
    """Pass on ``count`` messages in packs of ``size`` (1: single messages), ``claim`` of them at a time."""
    return asyncio.run(_through_the_queue(settings, count, size, claim))


async def _through_the_queue(settings: Settings, count: int, size: int, most: int) -> Run:
    payloads = payloads_from(0, count)
    settings = settings.model_copy(update={"packs": settings.packs.model_copy(update={"messages": size})})
    store = CountingStore(connect(settings.s3))
    async with PawnQueue.open(settings, store=store) as queue:
        await queue.create_topic(TOPIC, packs=size > 1)
        await queue.stats(TOPIC)  # the first requests open connections and ask for the time
        store.forget()
        cpu, began = time.process_time(), time.perf_counter()
        for first in range(0, count, most):
            await queue.publish(TOPIC, payloads[first : first + most], pack=size > 1)
        published = time.perf_counter()
        acked = 0
        while acked < count:
            claim = await queue.claim(TOPIC, "bench", max_messages=most, ttl=120)
            acked += await work_on(queue, claim)
        consumed = time.perf_counter()
        return Run(count, published - began, consumed - published, store.requests.copy(), time.process_time() - cpu)


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured near and far away: a row of the table."""

    title: str
    work: Work
    count: int
    size: int
    claim: int = CLAIM


SINGLE = Subject("single messages", through_the_queue, 1_000, 1)
PACKS = Subject("packs of 1,000", through_the_queue, 100_000, 1000)
BARE = Subject("bare, packs of 1,000", bare, 100_000, 1000)
SUBJECTS = (
    Subject("store alone, by 1", store_alone, 1_000, 1),
    SINGLE,
    Subject("packs of 100", through_the_queue, 40_000, 100),
    Subject("store alone, by 1,000", store_alone, 500_000, 1000),
    BARE,
    PACKS,
    Subject("bare, claims of 50,000", bare, 100_000, 1000, LARGE_CLAIM),
    Subject("packs, claims of 50,000", through_the_queue, 100_000, 1000, LARGE_CLAIM),
)


def run() -> None:
    """Measure, and print the tables."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(PROCESSES) as pool, servers.seaweedfs() as server:
        print(f"   messages a second from publish to ack, in {ROUNDS} rounds of each:", flush=True)
        with far_away(server, LATENCY) as distant:
            places = {"near": server, f"{LATENCY * 1000:.0f} ms": distant}
            tables = {where: _measure(pool, server, at, where) for where, at in places.items()}
        _print_table(tables)
        for size, count in CROWD_COUNTS.items():
            _print_crowd(CROWD, size, CROWD.measure(pool, server, count, size))
        with servers.rclone() as without_conditions:
            for size, (crowd, count) in CSPRNG_CROWDS.items():
                _print_crowd(crowd, size, crowd.measure(pool, without_conditions, count, size), "csprng_verify, ")
        with context.Pool(1) as alone:
            print(f"\n   A claim of {MILLION:,} messages, on a store in memory:", flush=True)
            for line in alone.apply(claim_a_million):
                print(f"   {line}", flush=True)
        seconds, lines = pool.apply(_profiled, (settings_for(server, server.make_bucket()),))
    print(f"\n   Where the time of packs of 1,000 goes, in one process (seconds of {seconds:.2f}):")
    for line in lines:
        print(f"   {line}")


def _measure(pool: Pool, near: S3Server, at: S3Server, where: str) -> dict[str, Run]:
    best: dict[str, Run] = {}
    for each in SUBJECTS:
        work = (each.count, each.size, each.claim)
        runs: list[Run] = [pool.apply(each.work, (settings_for(at, near.make_bucket()), *work)) for _ in range(ROUNDS)]
        print(f"   {where:6} {each.title:23} {', '.join(f'{one.rate:,.0f}' for one in runs)}", flush=True)
        best[each.title] = max(runs, key=lambda one: one.rate)
    if PEER.exists():
        best["pawn-queue 0.1.3"] = pool.apply(published_library, (near.make_bucket(), at))
    else:
        print("   (`make peer` installs pawn-queue 0.1.3, which is measured beside ours then.)")
    return best


def _print_table(tables: dict[str, dict[str, Run]]) -> None:
    print(
        f"\n   {'':6} {'':23} {'to ack':>14} {'publish':>12} {'claim, ack':>12} {'requests':>13} {'CPU':>12} "
        f"{'a million':>10}"
    )
    for where, runs in tables.items():
        for what, each in runs.items():
            requests = f"{each.requests.total() / each.count:8.4f}/msg" if each.requests else ""
            dollars = f"${each.dollars:,.3f}" if each.requests else ""
            cpu = f"{each.cpu / each.count * 1e6:6.1f} µs/msg" if each.cpu else ""
            print(
                f"   {where:6} {what:23} {each.rate:8,.0f} msg/s {each.count / each.published:9,.0f}/s "
                f"{each.count / each.consumed:10,.0f}/s {requests:>13} {cpu:>13} {dollars:>9}"
            )
    print(f"   SQS, a million messages: {SQS}")
    for where, runs in tables.items():
        packs, single, least = (runs[each.title].rate for each in (PACKS, SINGLE, BARE))
        times = f"{packs / single:,.0f} times {SINGLE.title}, {packs / least:.0%} of bare ones"
        print(f"   {where}: {PACKS.title} are {times}")
    print(flush=True)


def _print_crowd(crowd: Crowd, size: int, rate: float, where: str = "") -> None:
    who = f"{where}{crowd.consumers} consumers that ask for {crowd.batch:,} each"
    what = SINGLE.title if size == 1 else PACKS.title
    print(f"   {who}, {what}: {rate:,.0f} messages a second", flush=True)


def _profiled(settings: Settings) -> tuple[float, Sequence[str]]:
    profile = cProfile.Profile()
    profile.enable()
    through_the_queue(settings, PROFILED, PACKS.size, CLAIM)
    profile.disable()
    stats = pstats.Stats(profile).sort_stats("tottime")
    top = sorted(stats.stats.items(), key=lambda item: -item[1][2])[:12]  # type: ignore[attr-defined]
    lines = [f"{spent:6.2f}  {Path(file).name}:{line} {name}" for (file, line, name), (_, _, spent, _, _) in top]
    return stats.total_tt, lines  # type: ignore[attr-defined]
