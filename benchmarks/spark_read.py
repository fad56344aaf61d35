"""How fast a claim is read, parsed and added up on Spark, compared with reading without the queue.

In one run, in turn. Messages in packs: Spark through the format ``pawnqueue``, with a few columns of the payload, and
with all columns that every message has; and Spark on the same lines in local files. Single messages: Spark as before;
one process without Spark and without the engine, which makes as many GETs at once as it may and parses the same; and
the files. The first round is cold: workers are started, and import what they need, in it.
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
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
from obstore.store import S3Store

from benchmarks.installed import machine
from pawnqueue import SyncPawnQueue
from pawnqueue.catalog import units
from pawnqueue.domain.pack import entry_line
from pawnqueue.domain.record import to_json
from tools.kit import servers
from tools.kit.process_lookup import descendants
from tools.kit.spark import session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from multiprocessing.pool import Pool

    from pyspark.sql import DataFrame

    from pawnqueue import Message

TOPIC = "orders"
PACKED_MESSAGES = 300_000
SINGLE_MESSAGES = 20_000
ROUNDS = 7
CORES = 2
AT_ONCE = 32
ITEMS = 100
A_PUBLISH = 20_000
SCHEMA = "order_id long, item string, quantity long, price double"
#: Spark's reader, the bare process, and Spark on files, in the order of the report.
SPARK, FEW, ROWS, BARE, FILES = "payloadSchema", ".schema(…)", "full rows", "bare process", "local files"


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
    parser.add_argument("--packed", type=int, default=PACKED_MESSAGES, help="messages in packs (%(default)s)")
    parser.add_argument("--single", type=int, default=SINGLE_MESSAGES, help="single messages (%(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="the cold one among them (%(default)s)")
    asked = parser.parse_args(arguments)
    print(f"   {machine()}", flush=True)
    with (
        servers.seaweedfs() as server,
        session(f"local[{CORES}]", measured=True) as spark,
        multiprocessing.get_context("spawn").Pool(1) as pool,
    ):
        for messages, packs in ((asked.packed, True), (asked.single, False)):
            if not messages:
                continue
            with tempfile.TemporaryDirectory() as folder:
                place = server.address(server.make_bucket())
                filled = _fill(place, messages, Path(folder), packs=packs)
                given = options(place, filled.reference)
                frame = spark.read.format("pawnqueue").options(**given, payloadSchema=SCHEMA).load()
                ways = [Way(SPARK, _told(frame), partial(added_up, frame), jvm)]
                if packs:
                    few = spark.read.format("pawnqueue").options(**given).schema(f"{SCHEMA}, _corrupt boolean").load()
                    ways.append(Way(FEW, _told(few), partial(added_up, few), jvm))
                    ways.append(_of_rows(spark.read.format("pawnqueue").options(**given).load(), filled.text_bytes))
                else:
                    ways.append(_bare_way(pool, place, filled.keys))
                local = spark.read.schema(f"payload struct<{SCHEMA}>").json(folder).select("payload.*")
                ways.append(Way(FILES, f"{CORES} cores, spark.read.json", partial(added_up, local), jvm))
                _play(ways, asked.rounds, wanted(messages))
                _print(ways, messages, filled, packs=packs)


def _told(frame: DataFrame) -> str:
    return f"{frame.rdd.getNumPartitions()} partitions, {len(frame.columns)} columns"


def _of_rows(frame: DataFrame, text_bytes: int) -> Way:
    """Return the way that has Spark look into each column that every message has."""

    def read() -> dict[str, int]:
        looked = ["count(created_at)", "sum(length(payload))", "sum(size(headers))", "sum(deliveries)"]
        texts = [f"sum(length({name}))" for name in ("id", "topic", "producer_id")]
        [row] = frame.selectExpr(*looked, *texts).collect()
        assert (row[0], row[1]) == (row[3], text_bytes)  # noqa: S101 - a reader of less is not quicker
        return {}

    return Way(ROWS, _told(frame), read, jvm)


def _bare_way(pool: Pool, place: Mapping[str, Any], keys: Sequence[str]) -> Way:
    alone = pool.apply(os.getpid)
    read = partial(pool.apply, bare, (place, keys, AT_ONCE))
    return Way(BARE, f"no Spark, {AT_ONCE} GETs at once", read, lambda: [alone])


def _play(ways: Sequence[Way], rounds: int, expected: Mapping[str, int]) -> None:
    for number in range(rounds):
        for way in ways if number % 2 else reversed(ways):
            used, started = cpu_seconds(way.processes()), time.perf_counter()
            found = way.read()
            way.seconds.append(time.perf_counter() - started)
            way.cpu.append(cpu_seconds(way.processes()) - used)
            assert way.name == ROWS or found == expected, way.name  # noqa: S101 - a reader of less is not quicker
        told = ", ".join(f"{way.name} {way.seconds[-1]:.2f} s (CPU {way.cpu[-1]:.1f} s)" for way in ways)
        print(f"   round {number + 1}{'' if number else ' (cold)'}: {told}", flush=True)


def _print(ways: Sequence[Way], messages: int, filled: Filled, *, packs: bool) -> None:
    base = ways[-1] if packs else next(way for way in ways if way.name == BARE)
    of = "in packs" if packs else "an object each"
    print(
        f"\n   {messages:,} messages of {filled.size:.0f} bytes, {of}, in one claim; {len(base.warm)} warm rounds.\n"
        f"   Rates are messages a second; the ratio is to: {base.name}.\n\n"
        f"   {'':18} {'':28} {'cold':>8} {'median':>8} {'best':>8} {'cold':>7} {'median':>7} {'best':>7} "
        f"{'by pair':>8} {'CPU':>8}"
    )
    for way in ways:
        rates = [messages / seconds for seconds in (way.seconds[0], statistics.median(way.warm), min(way.warm))]
        others = [messages / seconds for seconds in (base.seconds[0], statistics.median(base.warm), min(base.warm))]
        ratios = [rate / of for rate, of in zip(rates, others, strict=True)]
        # The machine's other work meets neighbours alike: each round's own ratio says more than that of two medians.
        paired = statistics.median(other / own for own, other in zip(way.warm, base.warm, strict=True))
        print(
            f"   {way.name:18} {way.told:28} {rates[0]:8,.0f} {rates[1]:8,.0f} {rates[2]:8,.0f} "
            f"{ratios[0]:6.2f}x {ratios[1]:6.2f}x {ratios[2]:6.2f}x {paired:7.2f}x "
            f"{min(way.cpu[1:]) / messages * 1e6:6.1f} µs"
        )
    print(
        "\n   By pair: the median of the rounds' own ratios. CPU is the client's, a message, of the best warm round: of"
        " the\n   JVM and its Python workers, or of the process.\n"
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


@dataclass(frozen=True)
class Filled:
    """A claim, and what its messages have."""

    reference: Mapping[str, Any]
    keys: Sequence[str]
    size: float
    """The bytes of a message, in an object of its own or as a line of a pack."""
    text_bytes: int
    """The length of all payloads as JSON."""


def _fill(place: Mapping[str, Any], messages: int, folder: Path, *, packs: bool) -> Filled:
    """Publish, claim, and write the same lines into files: of each message what its object has, or its pack's line."""
    started = time.perf_counter()
    with SyncPawnQueue.open(s3=place) as queue:
        queue.create_topic(TOPIC, packs=packs)
        for first in range(0, messages, A_PUBLISH):
            queue.publish(TOPIC, [payload(number) for number in range(first, min(messages, first + A_PUBLISH))])
        published = time.perf_counter()
        claim = queue.claim(TOPIC, "bench", max_messages=messages, ttl=24 * 3600)
        claimed = time.perf_counter()
        assert len(claim) == messages  # noqa: S101 - nobody else is there
        text_bytes = 0
        for part in range(CORES):
            begin, end = part * messages // CORES, (part + 1) * messages // CORES
            lines = [_line(each) for each in islice(claim.messages, begin, end)]
            text_bytes += sum(len(text) for _, text in lines)
            (folder / f"{part}.json").write_text("".join(f"{line}\n" for line, _ in lines), encoding="utf-8")
        reference = claim.hand_over()
        planned = [unit for portion in queue.portions(reference) for unit in portion.units]
    print(f"   published in {published - started:.1f} s, claimed in {claimed - published:.1f} s", flush=True)
    keys = [units.key_of(TOPIC, unit.name) for unit in planned]
    size = sum(unit.size for unit in planned) / messages
    return Filled(reference.to_dict(), keys, size, text_bytes)


def _line(message: Message) -> tuple[str, str]:
    """Return the line of a message, and its payload as JSON."""
    text = to_json(message.payload)
    line = entry_line(
        id=message.id,
        topic=message.topic,
        producer_id=message.producer_id,
        created_at=message.created_at.isoformat(timespec="microseconds"),
        payload_json=text.encode(),
        headers=message.headers,
    )
    return line.decode(), text


def jvm() -> list[int]:
    """Return the processes of the session of this process: its JVM, and what that has started."""
    from pyspark import SparkContext  # noqa: PLC0415 - takes a second, and is there by now

    gateway: Any = SparkContext._gateway  # noqa: SLF001 - nothing public tells which process the JVM is
    return [gateway.proc.pid, *descendants(gateway.proc.pid)]


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return how many seconds of CPU they have taken, and those of their children that have ended."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            ticks += sum(int(one) for one in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


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
