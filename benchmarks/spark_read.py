"""How fast a claim of single messages is read, parsed and added up on Spark, compared with reading without the queue.

In one run, in turn: Spark through the format ``pawnqueue``; one process without Spark and without the engine, which
makes as many GETs at once as it may and parses the same; and Spark on the same lines in local files. The first round
is cold: workers are started, and import what they need, in it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
from obstore.store import S3Store

from benchmarks.installed import machine
from pawnqueue import SyncPawnQueue
from tools.kit import servers
from tools.kit.process_lookup import descendants
from tools.kit.spark import session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

TOPIC = "orders"
MESSAGES = 20_000
ROUNDS = 7
CORES = 2
AT_ONCE = 32
ITEMS = 100
A_PUBLISH = 2_000
SCHEMA = "order_id long, item string, quantity long, price double, note string"
#: Spark's reader, the bare process, and Spark on files, in the order of the report.
SPARK, BARE, FILES = "format pawnqueue", "bare process", "local files"
GOAL = 1.0


@dataclass
class Way:
    """One way to read all of it: what it does, and how many seconds each round took."""

    name: str
    told: str
    read: Callable[[], dict[str, int]]
    processes: Callable[[], list[int]]
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    """Of its processes, the store's not among them; what others do on the machine is not in it."""

    @property
    def warm(self) -> list[float]:
        """All rounds but the first."""
        return self.seconds[1:]


def run(arguments: Sequence[str] = ()) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks spark-read", description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES, help="how many (%(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="the cold one among them (%(default)s)")
    asked = parser.parse_args(arguments)
    print(f"   {machine()}", flush=True)
    expected = wanted(asked.messages)
    with (
        servers.seaweedfs() as server,
        tempfile.TemporaryDirectory() as folder,
        multiprocessing.get_context("spawn").Pool(1) as pool,
    ):
        place = server.address(server.make_bucket())
        reference, keys, size = _fill(place, asked.messages, Path(folder))
        with session(f"local[{CORES}]", measured=True) as spark:
            frame = spark.read.format("pawnqueue").options(**options(place, reference), payloadSchema=SCHEMA).load()
            alone = pool.apply(os.getpid)
            ways = [
                Way(SPARK, f"{CORES} cores, {frame.rdd.getNumPartitions()} partitions", partial(added_up, frame), jvm),
                Way(
                    BARE,
                    f"no Spark, {AT_ONCE} GETs at once",
                    partial(pool.apply, bare, (place, keys, AT_ONCE)),
                    lambda: [alone],
                ),
                Way(FILES, f"{CORES} cores, spark.read.json", lambda: added_up(_of_files(spark, folder)), jvm),
            ]
            for number in range(asked.rounds):
                for way in ways if number % 2 else reversed(ways):
                    used, started = _cpu(way.processes()), time.perf_counter()
                    found = way.read()
                    way.seconds.append(time.perf_counter() - started)
                    way.cpu.append(_cpu(way.processes()) - used)
                    assert found == expected, way.name  # noqa: S101 - a reader of less is not quicker
                told = ", ".join(f"{way.name} {way.seconds[-1]:.2f} s (CPU {way.cpu[-1]:.1f} s)" for way in ways)
                print(f"   round {number + 1}{'' if number else ' (cold)'}: {told}", flush=True)
    _print(ways, asked.messages, size)


def _print(ways: Sequence[Way], messages: int, size: float) -> None:
    bare = next(way for way in ways if way.name == BARE)
    print(
        f"\n   {messages:,} messages of {size:.0f} bytes, an object each, in one claim; {len(bare.warm)} warm rounds.\n"
        f"   Rates are messages a second; the ratio is to the {BARE}'s.\n\n"
        f"   {'':18} {'':28} {'cold':>8} {'median':>8} {'best':>8} {'cold':>7} {'median':>7} {'best':>7} "
        f"{'by pair':>8} {'CPU':>8}"
    )
    for way in ways:
        rates = [messages / seconds for seconds in (way.seconds[0], statistics.median(way.warm), min(way.warm))]
        base = [messages / seconds for seconds in (bare.seconds[0], statistics.median(bare.warm), min(bare.warm))]
        ratios = [rate / of for rate, of in zip(rates, base, strict=True)]
        # The machine's other work meets neighbours alike: each round's own ratio says more than that of two medians.
        paired = statistics.median(other / own for own, other in zip(way.warm, bare.warm, strict=True))
        print(
            f"   {way.name:18} {way.told:28} {rates[0]:8,.0f} {rates[1]:8,.0f} {rates[2]:8,.0f} "
            f"{ratios[0]:6.2f}x {ratios[1]:6.2f}x {ratios[2]:6.2f}x {paired:7.2f}x "
            f"{min(way.cpu[1:]) / messages * 1000:5.2f} ms"
        )
    print(
        f"\n   By pair: the median of the rounds' own ratios. The goal of the {SPARK} is {GOAL:.2f}x, warm. CPU is the "
        "client's, a\n   message, of the best warm round: of the JVM and its Python workers, or of the process.\n"
    )


# --- what is read ---


def payload(number: int) -> dict[str, Any]:
    """Return an order."""
    return {
        "order_id": number,
        "item": f"item-{number % ITEMS}",
        "quantity": number % 7 + 1,
        "price": number / 100,
        "note": "as it was said on the phone, at length " * 3,
    }


def wanted(messages: int) -> dict[str, int]:
    """Return what adding up orders comes to: how many of each item."""
    found: Counter[str] = Counter()
    for number in range(messages):
        found[f"item-{number % ITEMS}"] += number % 7 + 1
    return dict(found)


def added_up(frame: DataFrame) -> dict[str, int]:
    """Have Spark read and add up."""
    return {row["item"]: row["sum(quantity)"] for row in frame.groupBy("item").sum("quantity").collect()}


def options(place: Mapping[str, Any], reference: Mapping[str, Any]) -> dict[str, str]:
    """Return the options by which a claim is read."""
    return {"claim": json.dumps(reference), **{f"s3.{name}": str(value) for name, value in place.items()}}


def _fill(place: Mapping[str, Any], messages: int, folder: Path) -> tuple[dict[str, Any], list[str], float]:
    """Publish, claim, and write the same lines into files; return the claim, its keys, and what a message has."""
    started = time.perf_counter()
    with SyncPawnQueue.open(s3=place) as queue:
        queue.create_topic(TOPIC, packs=False)
        for first in range(0, messages, A_PUBLISH):
            queue.publish(TOPIC, [payload(number) for number in range(first, min(messages, first + A_PUBLISH))])
        published = time.perf_counter()
        claim = queue.claim(TOPIC, "bench", max_messages=messages, ttl=24 * 3600)
        claimed = time.perf_counter()
        assert len(claim) == messages  # noqa: S101 - nobody else is there
        for part in range(CORES):
            lines = (json.dumps(each.payload) for each in claim.messages[part::CORES])
            (folder / f"{part}.json").write_text("\n".join(lines), encoding="utf-8")
        reference = claim.hand_over()
        units = [unit for portion in queue.portions(reference) for unit in portion.units]
    print(f"   published in {published - started:.1f} s, claimed in {claimed - published:.1f} s", flush=True)
    keys = [units.key_of(TOPIC, unit.name) for unit in units]
    return reference.to_dict(), keys, statistics.mean(unit.size for unit in units)


def jvm() -> list[int]:
    """Return the processes of the session of this process: its JVM, and what that has started."""
    from pyspark import SparkContext  # noqa: PLC0415 - takes a second, and is there by now

    gateway: Any = SparkContext._gateway  # noqa: SLF001 - nothing public tells which process the JVM is
    return [gateway.proc.pid, *descendants(gateway.proc.pid)]


def _cpu(pids: Sequence[int]) -> float:
    """Return how many seconds of CPU they have taken, and those of their children that have ended."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            ticks += sum(int(one) for one in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _of_files(spark: SparkSession, folder: str) -> DataFrame:
    return spark.read.schema(SCHEMA).json(folder)


# --- without Spark, and without the engine ---


def bare(place: Mapping[str, Any], keys: Sequence[str], at_once: int) -> dict[str, int]:
    """Get and parse all of it in this process, and add up."""
    return dict(asyncio.run(_bare(place, list(keys), at_once)))


async def _bare(place: Mapping[str, Any], left: list[str], at_once: int) -> Counter[str]:
    store = S3Store(
        place["bucket_name"],
        endpoint=place["endpoint_url"],
        region=place["region_name"],
        access_key_id=place["aws_access_key_id"],
        secret_access_key=place["aws_secret_access_key"],
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    found: Counter[str] = Counter()

    async def work() -> None:
        while left:
            body = await (await obstore.get_async(store, left.pop())).bytes_async()
            order = json.loads(bytes(body))["payload"]
            found[order["item"]] += order["quantity"]

    await asyncio.gather(*(work() for _ in range(at_once)))
    return found
