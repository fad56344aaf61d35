"""What packs are measured against: the store alone, bare requests, and the published pawn-queue library.

The bare requests write, lease, read, record, settle and delete packs of the same format, with no protocol: nobody
loses a race, no answer is lost, and nothing is checked. What is left between the two is the queue's own work. The store
alone gets and gives bodies of the same sizes, with as many requests under way as the queue may have: that is its limit.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.pack_runs import TOPIC, Run, payloads_from
from pawnqueue.domain import pack
from pawnqueue.runtime.concurrency import for_each
from pawnqueue.stores.connect import connect
from pawnqueue.stores.port import Done, Expect
from tools.kit.stores import ALL, CountingStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pawnqueue import Settings
    from tools.kit.servers import S3Server

PEER_MESSAGES = 100
PEER = Path(__file__).parent.parent / ".venv-peer/bin/python"


def store_alone(settings: Settings, count: int, size: int, _: int) -> Run:
    """PUT, GET and DELETE objects of ``size`` messages. Nothing is made or read of them in that time."""
    return asyncio.run(_only_requests(settings, count, size))


async def _only_requests(settings: Settings, count: int, size: int) -> Run:
    at_once = settings.concurrency.max_in_flight
    lines = _lines(payloads_from(0, size))
    body = pack.pack_body(lines) if size > 1 else lines[0]
    keys = [f"{TOPIC}/alone/{uuid.uuid4()}" for _ in range(0, count, size)]
    store = await _counting_store(settings)
    cpu, began = time.process_time(), time.perf_counter()
    await for_each(lambda key: store.put(key, body), keys, at_once=at_once)
    published = time.perf_counter()
    await for_each(partial(store.get, most=ALL), keys, at_once=at_once)
    await store.delete(keys)
    return await _run_of(store, count, (began, published), cpu)


def bare(settings: Settings, count: int, size: int, claim: int) -> Run:
    """Pass on ``count`` messages in packs of ``size``, by ``claim`` at a time, in requests without a protocol."""
    return asyncio.run(_bare_requests(settings, count, size, claim))


async def _bare_requests(settings: Settings, count: int, size: int, claim: int) -> Run:
    payloads, at_once = payloads_from(0, count), settings.concurrency.max_in_flight
    store = await _counting_store(settings)
    cpu, began = time.process_time(), time.perf_counter()
    batches = [payloads[first : first + claim] for first in range(0, count, claim)]
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
    return await _run_of(store, count, (began, published), cpu)


async def _put_pack(store: CountingStore, named: tuple[str, list[dict[str, Any]]]) -> None:
    key, payloads = named
    await store.put(key, pack.pack_body(_lines(payloads)))


def _lines(payloads: Sequence[dict[str, Any]]) -> list[bytes]:
    return [msgspec.json.encode({"id": str(uuid.uuid4()), "topic": TOPIC, "payload": each}) for each in payloads]


async def _counting_store(settings: Settings) -> CountingStore:
    store = CountingStore(connect(settings.s3))
    await store.get(TOPIC, ALL)  # the first request opens a connection
    store.forget()
    return store


async def _run_of(store: CountingStore, count: int, times: tuple[float, float], cpu: float) -> Run:
    (began, published), consumed = times, time.perf_counter()
    run = Run(count, published - began, consumed - published, store.requests.copy(), time.process_time() - cpu)
    await store.aclose()
    return run


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


def published_library(bucket: str, at: S3Server) -> Run:
    """Pass on some single messages with pawn-queue 0.1.3, in batches of ten, as it takes no larger ones at once."""
    config = {"s3": at.address(bucket), "polling": {"max_messages_per_poll": 10}}
    config["concurrency"] = {"strategy": "conditional_write"}
    command = [str(PEER), "-c", _PEER_SCRIPT, json.dumps(config), str(PEER_MESSAGES)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if ended.returncode:
        print(ended.stderr[-500:], file=sys.stderr)
        return Run(PEER_MESSAGES, float("inf"), float("inf"))
    published, consumed = json.loads(ended.stdout)
    return Run(PEER_MESSAGES, published, consumed)
