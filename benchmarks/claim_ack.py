"""Claim and ack, by the size of the batch and by how many work on one store, near and far away.

Beside the queue, the bare requests that it makes are made through the same store adapter: of the same kinds and sizes,
in the same order, with as many under way at once. What is left between the two is the queue's own work.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from benchmarks.far_away import far_away
from pawnqueue import PawnQueue, Settings
from pawnqueue.catalog import units
from pawnqueue.domain import lease as leases_
from pawnqueue.domain.claim_record import ClaimRecord, Decision, Member
from pawnqueue.runtime.concurrency import for_each
from pawnqueue.stores.connect import connect
from pawnqueue.stores.port import Done, Expect
from tools.kit import servers
from tools.kit.stores import ALL, CountingStore

if TYPE_CHECKING:
    from multiprocessing.pool import Pool

    from pawnqueue.stores.port import Store
    from tools.kit.servers import S3Server

TOPIC = "orders"
LATENCY = 0.02
ROUNDS, ROUNDS_TOGETHER = 3, 2
#: By the size of the batch: how many messages, near and far away; few where each of them takes a while.
NEAR: Mapping[int, int] = MappingProxyType({1: 100, 10: 500, 100: 1500, 250: 1500})
FAR: Mapping[int, int] = MappingProxyType({1: 15, 10: 100, 100: 1000, 250: 1500})
TOGETHER = (1, 4, 20)
MESSAGES = 3000
BATCH = 100
PROCESSES = 4
#: Of an envelope, as it is published.
ENVELOPE = 500
#: How many keys a LIST shows: one poll is enough for that many messages.
PAGE = 1000


@dataclass(frozen=True)
class Rate:
    """Messages a second, and what was spent on each: requests, and the client's time."""

    messages: float
    requests: float
    cpu_ms: float


@dataclass(frozen=True)
class Crowd:
    """What consumers did together."""

    messages: float
    requests: float
    refused: float
    empty_handed: int
    busy: float
    bare: float = 0.0


def run() -> None:
    """Measure, and print two tables."""
    context = multiprocessing.get_context("spawn")
    print(f"   Messages of {ENVELOPE} bytes; the best of {ROUNDS} rounds", flush=True)
    with context.Pool(PROCESSES, initializer=_begin) as pool, servers.seaweedfs() as server:
        with far_away(server, LATENCY) as distant:
            rows = [
                (name, batch, *_against_bare(pool, server, at, name=name, batch=batch, count=count))
                for name, at, counts in (("near", server, NEAR), (f"{LATENCY * 1000:.0f} ms", distant, FAR))
                for batch, count in counts.items()
            ]
        crowds = _crowds(pool, server)
    print(
        f"\n   {'':6} {'batch':>5} {'queue':>13} {'requests':>13} {'a batch':>9} {'bare':>13} {'requests':>13} "
        f"{'of it':>6} {'queue CPU':>14} {'bare CPU':>14}"
    )
    for name, batch, queue, bare in rows:
        print(
            f"   {name:6} {batch:5} {queue.messages:7,.0f} msg/s {queue.requests:9.2f}/msg "
            f"{batch / queue.messages * 1000:6,.0f} ms {bare.messages:7,.0f} msg/s {bare.requests:9.2f}/msg "
            f"{queue.messages / bare.messages:6.0%} {queue.cpu_ms:7.2f} ms/msg {bare.cpu_ms:7.2f} ms/msg"
        )
    print(
        f"\n   {'consumers':>9} {'in sum':>13} {'of one':>7} {'requests':>13} {'refused':>13} {'empty-handed':>13} "
        f"{'bare, in sum':>13} {'of one':>7}"
    )
    for count, crowd in crowds.items():
        print(
            f"   {count:9} {crowd.messages:7,.0f} msg/s {crowd.messages / crowds[1].messages:7.2f} "
            f"{crowd.requests:9.2f}/msg {crowd.refused:9.2f}/msg {crowd.empty_handed:13} "
            f"{crowd.bare:7,.0f} msg/s {crowd.bare / crowds[1].bare:7.2f}"
        )
    print(
        f"\n   {MESSAGES:,} messages in batches of {BATCH}, claimed and acked by all at once. Empty-handed: claims of "
        f"nothing while\n   {BATCH} or more could be claimed. The store and its clients share the machine's cores, "
        f"{max(crowd.busy for crowd in crowds.values()):.0%} busy.\n"
    )


def _begin() -> None:
    """Begin a process: what it needs is imported before anything is measured, as this is where it is imported from."""


# --- against the bare requests ---


def _against_bare(  # noqa: PLR0913 - where, what and how much
    pool: Pool, near: S3Server, at: S3Server, *, name: str, batch: int, count: int
) -> tuple[Rate, Rate]:
    """Measure both in turn, so that what else the machine does meets both; take the best of each."""
    queue, bare = [], []
    for _ in range(ROUNDS):
        bucket = near.make_bucket()
        pool.apply(_publish, (_settings(near, bucket), count))
        done: _Consumed = pool.apply(_consume, (_settings(at, bucket), 0.0, batch, 1))
        queue.append(Rate(count / done.seconds, done.requests / count, done.cpu / count * 1000))
        bucket = near.make_bucket()
        done = pool.apply(_bare, (_settings(near, bucket), _settings(at, bucket), 0.0, (count, batch), 1))
        bare.append(Rate(count / done.seconds, done.requests / count, done.cpu / count * 1000))
    told = ", ".join(f"{one.messages:,.0f}/{other.messages:,.0f}" for one, other in zip(queue, bare, strict=True))
    print(f"   {name}, by {batch}: queue/bare {told} msg/s", flush=True)
    return max(queue, key=lambda rate: rate.messages), max(bare, key=lambda rate: rate.messages)


def _settings(server: S3Server, bucket: str) -> Settings:
    return Settings(s3=server.address(bucket))


def _publish(settings: Settings, count: int) -> None:
    async def publish() -> None:
        async with PawnQueue.open(settings) as queue:
            pad = "x" * (ENVELOPE - len(json.dumps({"n": 0})) - 200)
            await queue.create_topic(TOPIC, packs=False)
            await queue.publish(TOPIC, [{"n": number, "pad": pad} for number in range(count)])

    asyncio.run(publish())


def _bare(near: Settings, settings: Settings, begin: float, counts: tuple[int, int], consumers: int) -> _Consumed:
    """Make the requests of several consumers from a moment on; ``counts``: messages for each, and messages a batch."""
    one = partial(_bare_requests, near, settings, begin, *counts)
    return asyncio.run(_in_sum(one, consumers))


async def _bare_requests(near: Settings, settings: Settings, begin: float, count: int, batch: int) -> _Consumed:
    at_once = settings.concurrency.max_in_flight
    messages = [f"{TOPIC}/messages/{number:06d}-{uuid.uuid4()}" for number in range(count)]
    nearby, store = connect(near.s3), CountingStore(connect(settings.s3))
    await for_each(lambda key: nearby.put(key, b"m" * ENVELOPE), messages, at_once=at_once)
    await store.get(TOPIC, ALL)  # the first request opens a connection
    await asyncio.sleep(max(0.0, begin - time.time()))
    store.forget()
    bodies = _Bodies(batch)
    began, cpu, started = time.time(), time.process_time(), time.perf_counter()
    for first in range(0, count, batch):
        if first % PAGE < batch:
            await asyncio.gather(*(_page(store, f"{TOPIC}/{folder}/") for folder in ("messages", "leases")))
        await _bare_batch(store, messages[first : first + batch], bodies, at_once)
    seconds, used = time.perf_counter() - started, time.process_time() - cpu
    await nearby.aclose()
    await store.aclose()
    return _Consumed(count, seconds, used, began, time.time(), store.total, store.refused, 0)


class _Bodies:
    """What the queue writes for a batch: bodies of the same sizes."""

    def __init__(self, batch: int) -> None:
        ids = [str(uuid.uuid4()) for _ in range(batch)]
        names = [units.name_at(time.time(), one) for one in ids]
        lease = leases_.held(
            ids[0], names[0], consumer="bench", claim=f"{ids[0]}.0", deliveries=1, until=time.time(), ttl=60
        )
        record = ClaimRecord(
            claim_id=ids[0],
            owner="bench",
            consumer="bench",
            session=ids[0],
            members={one: Member(name=name) for one, name in zip(ids, names, strict=True)},
            ttl=60,
        )
        self.lease = lease.encode()
        self.record = record.encode()
        self.settled = record.model_copy(update={"settled": dict.fromkeys(ids, Decision(how="acked"))}).encode()


async def _page(store: Store, folder: str) -> None:
    async for _ in store.pages(folder):
        return


async def _bare_batch(store: Store, messages: Sequence[str], bodies: _Bodies, at_once: int) -> None:
    """Make the requests of one claim and its ack: leases, bodies, record; the settlement, messages, leases."""
    leases = [f"{TOPIC}/leases/{uuid.uuid4()}.lease" for _ in messages]
    record = f"{TOPIC}/claims/{uuid.uuid4()}.json"
    won = await for_each(lambda key: store.put(key, bodies.lease, expect=Expect.NOTHING), leases, at_once=at_once)
    assert all(isinstance(one, Done) for one in won)  # noqa: S101 - nobody else writes here
    await for_each(store.get, messages, at_once=at_once)
    created = await store.put(record, bodies.record, expect=Expect.NOTHING)
    assert isinstance(created, Done)  # noqa: S101
    settled = await store.put(record, bodies.settled, expect=created.version)
    assert isinstance(settled, Done)  # noqa: S101
    await store.delete(messages)
    await store.delete([*leases, record])


# --- together ---


def _crowds(pool: Pool, server: S3Server) -> dict[int, Crowd]:
    """Measure one consumer and many in turn; take the best of each."""
    rounds = [{count: _together(pool, server, count) for count in TOGETHER} for _ in range(ROUNDS_TOGETHER)]
    for number, crowds in enumerate(rounds):
        told = ", ".join(
            f"{count} consumers {crowd.messages:,.0f} msg/s ({crowd.requests:.2f} requests each)"
            for count, crowd in crowds.items()
        )
        print(f"   round {number + 1}: {told}", flush=True)
    best = {count: max((crowds[count] for crowds in rounds), key=lambda one: one.messages) for count in TOGETHER}
    return {count: replace(one, bare=max(crowds[count].bare for crowds in rounds)) for count, one in best.items()}


def _together(pool: Pool, server: S3Server, consumers: int) -> Crowd:
    settings = _settings(server, server.make_bucket())
    pool.apply(_publish, (settings, MESSAGES))
    processes = min(consumers, PROCESSES)
    begin = time.time() + 3.0  # all of them have opened by then
    started = pool.starmap_async(_consume, [(settings, begin, BATCH, consumers // processes)] * processes, chunksize=1)
    time.sleep(max(0.0, begin - time.time()))
    before = _cpu_times()
    done: list[_Consumed] = started.get()
    after = _cpu_times()
    assert sum(one.count for one in done) == MESSAGES  # noqa: S101 - a benchmark of a queue that loses is none
    begin = time.time() + 7.0  # by then they have published
    share = MESSAGES // consumers, BATCH
    bare: list[_Consumed] = pool.starmap(
        _bare, [(settings, settings, begin, share, consumers // processes)] * processes, chunksize=1
    )
    return Crowd(
        messages=_in_all(done),
        requests=sum(one.requests for one in done) / MESSAGES,
        refused=sum(one.refused for one in done) / MESSAGES,
        empty_handed=sum(one.empty_handed for one in done),
        busy=1 - (after[1] - before[1]) / (after[0] - before[0]),
        bare=_in_all(bare),
    )


def _in_all(done: Sequence[_Consumed]) -> float:
    """Return how many messages a second that were, in sum."""
    return sum(one.count for one in done) / (max(one.end for one in done) - min(one.begin for one in done))


def _cpu_times() -> tuple[int, int]:
    """Return all the ticks of all cores, and those in which they had nothing to do."""
    ticks = [int(part) for part in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:]]
    return sum(ticks), ticks[3] + ticks[4]


# --- a process of consumers ---


@dataclass(frozen=True)
class _Consumed:
    count: int
    seconds: float
    cpu: float
    begin: float
    end: float
    requests: int
    refused: int
    empty_handed: int


def _consume(settings: Settings, begin: float, batch: int, consumers: int) -> _Consumed:
    """Claim and ack with several consumers until nothing is left, from a moment on."""
    return asyncio.run(_in_sum(partial(_drain, settings, begin, batch), consumers))


async def _in_sum(one: Callable[[], Coroutine[None, None, _Consumed]], consumers: int) -> _Consumed:
    cpu = time.process_time()
    drained = await asyncio.gather(*(one() for _ in range(consumers)))
    return _Consumed(
        count=sum(each_.count for each_ in drained),
        seconds=max(each_.seconds for each_ in drained),
        cpu=drained[0].cpu if consumers == 1 else time.process_time() - cpu,
        begin=min(each_.begin for each_ in drained),
        end=max(each_.end for each_ in drained),
        requests=sum(each_.requests for each_ in drained),
        refused=sum(each_.refused for each_ in drained),
        empty_handed=sum(each_.empty_handed for each_ in drained),
    )


async def _drain(settings: Settings, begin: float, batch: int) -> _Consumed:
    count = empty_handed = requests = 0
    store = CountingStore(connect(settings.s3))
    try:
        async with PawnQueue.open(settings, store=store) as queue:
            await queue.stats(TOPIC)  # the first request opens connections and asks for the time
            await asyncio.sleep(max(0.0, begin - time.time()))
            store.forget()
            began, started, cpu = time.time(), time.perf_counter(), time.process_time()
            while True:
                claim = await queue.claim(TOPIC, "bench", max_messages=batch, ttl=60)
                if claim:
                    count += len((await queue.ack(claim)).acked)
                    continue
                requests, ended, used = store.total, time.time(), time.process_time() - cpu
                seconds = time.perf_counter() - started
                # Others hold the rest, if any: a consumer that found nothing has finished.
                asked = store.total
                left = (await queue.stats(TOPIC)).pending
                store.requests["asked by the benchmark"] -= store.total - asked
                empty_handed += left >= batch
                if left == 0:
                    return _Consumed(count, seconds, used, began, ended, requests, store.refused, empty_handed)
    finally:
        await store.aclose()
