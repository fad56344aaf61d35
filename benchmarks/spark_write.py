"""How fast Spark writes rows into a topic, compared with ``df.write.json`` into local files.

In one run, in turn: rows into a topic with packs, into files, and, as each takes a request of its own, fewer rows into
a topic without packs. A write is all or nothing: its commit begins with a record in the bucket, and ends when all rows
are messages. Each way has a round with few rows before, in which Spark starts its workers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.installed import machine
from benchmarks.spark_growth import Peak, Watch
from benchmarks.spark_read import CORES, ITEMS, TOPIC, cpu_seconds, jvm
from pawnqueue import SyncPawnQueue
from pyspark_pawnqueue.datasource import register
from tools.kit import servers
from tools.kit.spark import session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from tools.kit.servers import S3Server

ROWS = 1_000_000
#: Of single messages, each of which takes a request.
SINGLE_ROWS = 5_000
WARM_ROWS = 1_000
ROUNDS = 3
PARTITIONS = 4
#: How often the write's record is looked at.
EVERY_SECONDS = 0.05
PACKS, SINGLE, FILES = "packs", "single messages", "local files"
#: Orders as ``spark-read`` publishes them.
COLUMNS = (
    "id AS order_id",
    f"concat('item-', id % {ITEMS}) AS item",
    "id % 7 + 1 AS quantity",
    "id / 100 AS price",
    "repeat('as it was said on the phone, at length ', 3) AS note",
)


@dataclass
class Way:
    """One way to write: what it took in each round."""

    name: str
    rows: int
    packs: bool | None
    """Whether its topic has packs; None: it writes files."""
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """Of the JVM and its Python workers."""
    commits: list[float] = field(default_factory=list)
    """How many seconds of them went by from the decision of the write to its end."""
    record: int = 0
    """Bytes of the write's record, at its largest."""
    memory: tuple[int, int] = (0, 0)
    """At its peak: of the driver's JVM, and of all Python workers together."""


def run(arguments: Sequence[str] = ()) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks spark-write", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="how many rows (%(default)s)")
    parser.add_argument("--single", type=int, default=SINGLE_ROWS, help="how many as single messages (%(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each way is measured (%(default)s)")
    asked = parser.parse_args(arguments)
    print(f"   {machine()}", flush=True)
    ways = [Way(PACKS, asked.rows, packs=True), Way(FILES, asked.rows, None), Way(SINGLE, asked.single, packs=False)]
    with (
        servers.seaweedfs() as server,
        tempfile.TemporaryDirectory() as folder,
        session(f"local[{CORES}]", measured=True) as spark,
    ):
        register(spark)
        for way in ways:
            _round(Way(way.name, WARM_ROWS, way.packs), spark, server, folder)
        for number in range(asked.rounds):
            for way in ways:
                _round(way, spark, server, folder)
            told = ", ".join(f"{way.name} {way.seconds[-1]:.1f} s" for way in ways)
            print(f"   round {number + 1}: {told} (load average {os.getloadavg()[0]:.1f})", flush=True)
    _print(ways)


def _round(way: Way, spark: SparkSession, server: S3Server, folder: str) -> None:
    """Write once, into a bucket of its own or into files."""
    frame = spark.range(0, way.rows, 1, PARTITIONS).selectExpr(*COLUMNS)
    place = server.address(server.make_bucket())
    options = {f"s3.{name}": str(value) for name, value in place.items()}
    with SyncPawnQueue.open(s3=place) as queue:
        queue.create_topic(TOPIC, packs=bool(way.packs))
        with Peak() as peak, _RecordWatch(server, place["bucket_name"]) as watch:
            started, used = time.perf_counter(), cpu_seconds(jvm())
            if way.packs is None:
                frame.write.mode("overwrite").json(folder)
            else:
                frame.write.format("pawnqueue").options(**options, topic=TOPIC).mode("append").save()
            ended = time.perf_counter()
            way.cpu.append(cpu_seconds(jvm()) - used)
        assert queue.stats(TOPIC).pending == (0 if way.packs is None else way.rows)  # noqa: S101 - less is not quicker
    way.seconds.append(ended - started)
    way.commits.append(ended - (watch.decided or ended))
    way.record = max(way.record, watch.record)
    way.memory = max(way.memory[0], peak.jvm), max(way.memory[1], peak.workers)


def _print(ways: Sequence[Way]) -> None:
    [files] = [way for way in ways if way.packs is None]
    rate_of_files = files.rows / statistics.median(files.seconds)
    print(
        f"\n   The median of {len(files.seconds)} rounds, {PARTITIONS} partitions on {CORES} cores. The commit is "
        "a part of the seconds, and\n   the record the write's. Memory is at its peak: of the driver's JVM, and of all "
        "workers.\n   CPU is theirs, a row, in the best round; the store's is not in it.\n\n"
        f"   {'':16} {'rows':>9} {'seconds':>8} {'rows/s':>8} {'of files':>8} {'CPU':>8} {'commit':>8} {'record':>8} "
        f"{'JVM':>8} {'workers':>8}"
    )
    for way in ways:
        seconds = statistics.median(way.seconds)
        rate = way.rows / seconds
        of_jvm, of_workers = (f"{size / 2**20:5,.0f} MB" for size in way.memory)
        commit = f"{statistics.median(way.commits):6.1f} s {way.record / 1024:5,.0f} KB {of_jvm} {of_workers}"
        nothing = f"{'-':>8} {'-':>8} {of_jvm}"  # no commit, and no Python
        print(
            f"   {way.name:16} {way.rows:9,} {seconds:6.1f} s {rate:8,.0f} {rate / rate_of_files:7.3f}x "
            f"{min(way.cpu) / way.rows * 1e6:5.1f} us "
            f"{nothing if way.packs is None else commit}"
        )
    print()


class _RecordWatch(Watch):
    """Looks at the record of the only write of a bucket, for the length of a block."""

    def __init__(self, server: S3Server, bucket: str) -> None:
        super().__init__(EVERY_SECONDS)
        self.decided: float | None = None
        self.record = 0
        self._client = server.client()
        self._bucket = bucket

    def look(self) -> None:
        """Look at the size of the record."""
        found = self._client.list_objects_v2(Bucket=self._bucket, Prefix=f"{TOPIC}/writes/").get("Contents", ())
        for record in found:
            self.decided = self.decided or time.perf_counter()
            self.record = max(self.record, record["Size"])
