"""How it grows: what it takes to publish, claim, plan, read and ack more and more messages on Spark.

The messages are in packs, and a claim has up to a million. With ``--single`` each has an object of its own: the record
of a claim then names each of its messages, and each renewal and settlement rewrites it, so several claims share a large
number of messages, and Spark reads all of them at once. ``--claim`` says how many a claim has.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from benchmarks.counted import counted
from benchmarks.installed import machine
from benchmarks.spark_read import A_PUBLISH, CORES, SCHEMA, TOPIC, added_up, jvm, options, payload, wanted
from pawnqueue import Settings, SyncPawnQueue
from pawnqueue.stores.connect import connect
from tools.kit import servers
from tools.kit.process_lookup import memory_bytes
from tools.kit.spark import session
from tools.kit.stores import CountingStore

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from multiprocessing.pool import Pool

    from pyspark.sql import SparkSession

    from tools.kit.servers import S3Server

SIZES = (10_000, 100_000, 1_000_000)
SINGLE_SIZES = (1_000, 10_000)
A_CLAIM, A_SINGLE_CLAIM = 1_000_000, 20_000
#: Up to so many are read once more through a store that counts, which is slower than the store.
COUNTED = 10_000
EVERY = 0.5


@dataclass(frozen=True)
class Planned:
    """What planning takes, in a process of its own."""

    seconds: float
    partitions: int
    memory: int
    """How many bytes the process had at its peak."""


@dataclass(frozen=True)
class Row:
    """One size."""

    messages: int
    claims: int
    record: int
    """Bytes of the largest claim's record."""
    publish: float
    claim: float
    requests: tuple[float, float, float | None]
    """A message: to publish, to claim, and to read."""
    planned: Planned
    read: float
    ack: float
    memory: tuple[int, int]
    """At the peak of the reading: of the driver's JVM, and of all Python workers together."""


def run(arguments: Sequence[str] = ()) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks spark-growth", description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, help=f"how many messages; else {SIZES}, or {SINGLE_SIZES}")
    parser.add_argument("--single", action="store_true", help="an object each, rather than packs")
    parser.add_argument("--claim", type=int, help=f"how many messages a claim has; else {A_CLAIM}, or {A_SINGLE_CLAIM}")
    asked = parser.parse_args(arguments)
    sizes = asked.sizes or (SINGLE_SIZES if asked.single else SIZES)
    most = asked.claim or (A_SINGLE_CLAIM if asked.single else A_CLAIM)
    print(f"   {machine()}", flush=True)
    rows = []
    with servers.seaweedfs() as server, session(f"local[{CORES}]", measured=True) as spark:
        _warm(server, spark)
        for messages in sizes:
            rows.append(_measured(server, spark, messages, most, packs=not asked.single))
            _print(rows[-1:], head=messages == sizes[0])
    print("\n   All of it:\n")
    _print(rows, head=True)
    print(
        f"\n   At most {most:,} messages a claim; Spark reads all claims at once, on {CORES} cores. Requests "
        "are a message's:\n   to publish, to claim (leases, bodies, record), to plan and read (by another read, up to "
        f"{COUNTED:,} messages). Memory is\n   at its peak: the planner's, that of the driver's JVM, and that of all "
        "Python workers.\n"
    )


def _print(rows: Sequence[Row], *, head: bool) -> None:
    if head:
        print(
            f"   {'messages':>9} {'claims':>6} {'record':>8} {'publish':>8} {'claim':>8} {'plan':>7} {'parts':>5} "
            f"{'read':>8} {'rows/s':>7} {'ack':>6} {'requests':>16} {'planner':>8} {'JVM':>8} {'workers':>8}"
        )
    for row in rows:
        rate = row.messages / row.read
        told = " ".join("    -" if each is None else f"{each:5.3g}" for each in row.requests)
        sizes = " ".join(f"{size / 2**20:5,.0f} MB" for size in (row.planned.memory, *row.memory))
        print(
            f"   {row.messages:9,} {row.claims:6} {row.record / 2**20:5.1f} MB {row.publish:6.1f} s {row.claim:6.1f} s "
            f"{row.planned.seconds:5.2f} s {row.planned.partitions:5} {row.read:6.1f} s {rate:7,.0f} "
            f"{row.ack:4.1f} s {told:>16} {sizes}",
            flush=True,
        )


def _warm(server: S3Server, spark: SparkSession) -> None:
    """Have Spark start its Python workers, and these import what they need."""
    place = server.address(server.make_bucket())
    with SyncPawnQueue.open(s3=place) as queue:
        queue.publish(TOPIC, [payload(number) for number in range(CORES)], create=True)
    given = {f"s3.{name}": str(value) for name, value in place.items()}
    looked = spark.read.format("pawnqueue").options(topic=TOPIC, mode="peek", partitions=CORES, payloadSchema=SCHEMA)
    added_up(looked.options(**given).load())


def _measured(server: S3Server, spark: SparkSession, messages: int, most: int, *, packs: bool) -> Row:
    place = server.address(server.make_bucket())
    store = CountingStore(connect(Settings(s3=place).s3))
    with SyncPawnQueue.open(s3=place, store=store) as queue:
        queue.create_topic(TOPIC, packs=packs)
        requests, started = store.total, time.perf_counter()
        for first in range(0, messages, A_PUBLISH):
            queue.publish(TOPIC, [payload(number) for number in range(first, min(messages, first + A_PUBLISH))])
        to_publish, published = store.total - requests, time.perf_counter()
        references = []
        requests = store.total
        while claim := queue.claim(TOPIC, "bench", max_messages=most, ttl=24 * 3600):
            references.append(claim.hand_over())
        to_claim, claimed = store.total - requests, time.perf_counter()
    given = {
        **options(place, {}),
        "claim": json.dumps([each.to_dict() for each in references]),
        "payloadSchema": SCHEMA,
    }
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        planned = _planned_by(pool, given)
    expected = wanted(messages)
    with Peak() as peak:
        started_to_read = time.perf_counter()
        found = added_up(spark.read.format("pawnqueue").options(**given).load())
        read = time.perf_counter() - started_to_read
    assert found == expected  # noqa: S101 - a reader of less is not quicker
    record = _largest_record(server, place["bucket_name"])
    to_read = _requests_to_read(server, spark, given, expected) / messages if messages <= COUNTED else None
    with SyncPawnQueue.open(s3=place) as queue:
        started_to_ack = time.perf_counter()
        for each in references:
            queue.ack(queue.attach(each, payloads=False))
        ack = time.perf_counter() - started_to_ack
        assert queue.backlog(TOPIC).pending == 0  # noqa: S101 - as above
    return Row(
        messages=messages,
        claims=len(references),
        record=record,
        publish=published - started,
        claim=claimed - published,
        requests=(
            to_publish / messages,
            to_claim / messages,
            to_read,
        ),
        planned=planned,
        read=read,
        ack=ack,
        memory=(peak.jvm, peak.workers),
    )


def _requests_to_read(
    server: S3Server, spark: SparkSession, given: Mapping[str, str], expected: Mapping[str, int]
) -> int:
    with counted(server) as store:
        through = {**given, "s3.endpoint_url": store.server.endpoint}
        assert added_up(spark.read.format("pawnqueue").options(**through).load()) == expected  # noqa: S101 - as above
        return len(store.requests)


def _largest_record(server: S3Server, bucket: str) -> int:
    pages = server.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{TOPIC}/claims/")
    return max(int(one["Size"]) for page in pages for one in page.get("Contents", ()))


# --- the planner, in a process of its own ---


def _planned_by(pool: Pool, given: Mapping[str, str]) -> Planned:
    planned: Planned = pool.apply(_plan, (dict(given),))
    return planned


def _plan(given: dict[str, str]) -> Planned:
    """Plan as Spark does: by a source that gets the options."""
    from pyspark_pawnqueue.datasource import PawnQueueDataSource  # noqa: PLC0415 - likewise
    from pyspark_pawnqueue.messages_to_rows import schema_of  # noqa: PLC0415 - in the process that is measured

    reader = PawnQueueDataSource(given).reader(schema_of(SCHEMA, dead=False))
    started = time.perf_counter()
    partitions = reader.partitions()
    seconds = time.perf_counter() - started
    return Planned(seconds, len(partitions), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


class Watch(ABC):
    """Looks at something again and again, for the length of a block."""

    def __init__(self, every_seconds: float) -> None:
        self._every_seconds = every_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self._every_seconds):
            self.look()

    @abstractmethod
    def look(self) -> None:
        """Look at it once."""


class Peak(Watch):
    """The most memory that the JVM of this process, and the Python workers below it, have for the length of a block."""

    def __init__(self) -> None:
        super().__init__(EVERY)
        self.jvm = self.workers = 0

    def look(self) -> None:
        """Look at the memory that they have now."""
        pids = jvm()
        java = [pid for pid in pids if _is_java(pid)]
        workers = [pid for pid in pids if pid not in java]
        self.jvm = max(self.jvm, memory_bytes(java))
        self.workers = max(self.workers, memory_bytes(workers))


def _is_java(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/comm", encoding="ascii") as name:  # noqa: PTH123 - a file of the kernel's
            return name.read().strip() == "java"
    except OSError:
        return False
