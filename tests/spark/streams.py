"""A topic, queries that stream from it, and what their sinks received."""

from __future__ import annotations

import os
import threading
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pawnqueue import SyncPawnQueue
from tools.kit.process_lookup import descendants
from tools.kit.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pawnqueue import Settings

#: A topic that is empty is looked at five times a second.
QUICK: Mapping[str, Any] = {"polling": {"interval_seconds": 0.2}}


def options_of(settings: Settings) -> dict[str, str]:
    """Return the settings as options of the format."""
    s3 = settings.s3
    assert s3.aws_secret_access_key is not None
    return {
        "s3.endpoint_url": str(s3.endpoint_url),
        "s3.bucket_name": s3.bucket_name,
        "s3.key_prefix": s3.key_prefix,
        "s3.aws_access_key_id": str(s3.aws_access_key_id),
        "s3.aws_secret_access_key": s3.aws_secret_access_key.get_secret_value(),
        "polling.interval_seconds": str(settings.polling.interval_seconds),
    }


@dataclass
class Sink:
    """What a sink received, batch by batch. ``seen`` is called with each batch's number before the batch is done."""

    seen: Callable[[int], None] = lambda _: None
    batches: dict[int, list[Row]] = field(default_factory=dict)

    def __call__(self, frame: DataFrame, number: int) -> None:
        """Take a batch."""
        self.batches[number] = frame.collect()
        self.seen(number)

    @property
    def ids(self) -> list[str]:
        """The ids of all messages, in the order in which they came."""
        return [row["id"] for number in sorted(self.batches) for row in self.batches[number]]


class Stream:
    """A topic, and queries over it with a checkpoint of their own."""

    def __init__(self, spark: SparkSession, settings: Settings, folder: Path, topic: str = "orders") -> None:
        self.spark = spark
        self.settings = settings
        self.queue = SyncPawnQueue.open(settings)
        self.topic = topic
        self.queue.create_topic(topic)
        self.folder = folder
        self.started: list[StreamingQuery] = []

    def publish(self, count: int, first: int = 0) -> list[str]:
        """Publish orders, numbered from the first."""
        return self.queue.publish(self.topic, [{"order_id": first + number} for number in range(count)])

    def frame(self, **options: object) -> DataFrame:
        """Return the topic as a stream."""
        reader = self.spark.readStream.format("pawnqueue").option("topic", self.topic)
        return reader.options(**options_of(self.settings)).options(**{k: str(v) for k, v in options.items()}).load()

    def start(
        self,
        sink: Callable[[DataFrame, int], None],
        checkpoint: str = "",
        *,
        trigger: Mapping[str, Any] | None = None,
        **options: object,
    ) -> StreamingQuery:
        """Start a query. With a known checkpoint, it goes on where the last query ended."""
        place = self.folder / (checkpoint or uuid.uuid4().hex)
        writer = self.frame(**options).writeStream.foreachBatch(sink).option("checkpointLocation", str(place))
        query = writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()
        self.started.append(query)
        return query

    def run(self, sink: Callable[[DataFrame, int], None], checkpoint: str = "", **options: object) -> StreamingQuery:
        """Run a query that takes the backlog, and wait for its end."""
        query = self.start(sink, checkpoint, trigger={"availableNow": True}, **options)
        assert query.awaitTermination(200), f"the query did not end: {query.status}, {query.lastProgress}"
        return query

    def counts(self) -> tuple[int, int]:
        """Return how many messages are pending, and how many are claimed."""
        stats = self.queue.stats(self.topic)
        return stats.pending + stats.delayed, stats.in_flight

    def wait_until_empty(self) -> None:
        """Wait until no message is pending or claimed."""
        wait_until(lambda: self.counts() == (0, 0), "all messages were acked")

    def close(self) -> None:
        """Stop all queries."""
        for query in self.started:
            query.stop()
        self.queue.close()


class Gate:
    """Holds a sink at a batch until it is opened; one that ``fails`` does so then."""

    def __init__(self, at: int = 0, *, fails: bool = False) -> None:
        self.at, self.fails = at, fails
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, number: int) -> None:
        """Wait here, if it is this batch."""
        if number == self.at:
            self.reached.set()
            assert self.opened.wait(90), "the gate was not opened"
            assert not self.fails, "this sink fails"


def numbers(rows: Sequence[Row]) -> list[int]:
    """Return the numbers of the orders in a batch, with a payload's schema."""
    return [row["order_id"] for row in rows]


def planners() -> list[int]:
    """Return the processes in which Spark plans streams, below this one."""
    return [
        pid
        for pid in descendants(os.getpid())
        if b"python_streaming_source_runner" in _command(pid) and b"java" not in _command(pid).split(b"\0")[0]
    ]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
