"""A stream over a topic: each micro-batch is one claim, and the claim is the offset.

    offset        {"stream": id, "batch": n, "claim": reference, or null before the first one}
    claim's id    stream id and n: after a crash it finds the claim, whether or not Spark had logged the offset
    acked         when Spark asks for the batch after it, or commits it: the sink has it by then

⚑ A claim is acked only after the sink has its batch. Spark calls ``commit`` for a batch when the next one has data, and
so never for the last batch before a pause. But it asks for the latest offset again and again, and passes the offset
that it has reached. What PySpark 4.2 was seen to call, in a process of its own for each run of a query:

    the beginning     initialOffset twice, latestOffset; a first batch, also if the topic is empty
    a batch           latestOffset(start), partitions(start, end), then the sink, then Spark notes that it is done
    the next          latestOffset(end): here the batch is acked; commit(end) only if there is more
    availableNow      prepareForTriggerAvailableNow first, and a last latestOffset(end) when nothing is left
    processingTime    latestOffset(end) when the interval is over; until then a batch is renewed and not acked, unless
                      the driver announces that the sink has it (:mod:`.done_pipe`)
    once              one batch, with no limit, and nothing after it
    a restart         partitions(start, end) of the last batch, if the sink may lack it; then latestOffset(end)
    query.stop()      SIGTERM, at any moment; the same if the sink fails, and at the end of a query
    a JVM is killed   the pipe to it ends: stop(), which is called at no other time

So a query whose last batch was not followed by latestOffset has left that batch un-acked: this process cannot know
whether the sink has it. The query's restart acks it, or the driver, which can know (:func:`.jobs.ack_finished`). If
neither does so before the claim expires, others receive the messages.

A restart waits until its former process has left its claim, or is no longer trusted
(``SESSION_TTL_SECONDS``). Nobody finds a claim that was made before Spark had noted the very first
offset: its messages are delivered again once it expires.
"""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Iterator
from typing import Any, Final, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pawnqueue import SyncPawnQueue
from pawnqueue.domain.claim_terms import HANDED_OVER_TTL_SECONDS
from pyspark_pawnqueue.batch_reader import PortionPartition, read_partition
from pyspark_pawnqueue.messages_to_rows import RowBuilder
from pyspark_pawnqueue.query_columns import checked_columns
from pyspark_pawnqueue.spark_errors import invalid_argument, raise_spark_errors
from pyspark_pawnqueue.spark_options import SparkOptions
from pyspark_pawnqueue.stream_claims import (
    DEFAULT_LIMITS,
    BatchLimits,
    Offset,
    StreamClaims,
    checked_offset,
    first_offset,
)

#: How long the process may take to leave its claims after Spark's SIGTERM.
SHUTDOWN_SECONDS: Final = 10.0


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Claims micro-batches in the one process in which Spark plans a stream. Executors read them."""

    @raise_spark_errors()
    def __init__(self, options: SparkOptions, schema: StructType) -> None:
        options.check_use("stream")
        self._rows = RowBuilder(checked_columns(options, schema))
        self._settings = options.settings()
        self._topic = options.topic
        self._consumer = options.text("consumer") or "spark"
        self._ttl = options.seconds("ttl") or HANDED_OVER_TTL_SECONDS
        self._limits = batch_limits(options)
        self._parts = options.count("partitions")
        self._first = first_offset(uuid.uuid4().hex)  # Spark asks for it twice
        self._claims: StreamClaims | None = None  # opened on first use: Spark copies this object to the executors

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the claims, which only the planning process can hold."""
        return self.__dict__ | {"_claims": None}

    @property
    def _opened_claims(self) -> StreamClaims:
        if self._claims is None:
            _exit_cleanly_on_sigterm()
            queue = SyncPawnQueue.open(self._settings)
            self._claims = StreamClaims(queue, self._topic, self._consumer, ttl=self._ttl, limits=self._limits)
        return self._claims

    # --- where Spark plans ---

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Begin a new stream: two queries of one consumer never share a claim."""
        return dict(self._first)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the most messages of a micro-batch."""
        return ReadMaxRows(self._limits.max_messages)

    @raise_spark_errors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Count the messages of the topic: this run takes as many, and no later ones."""
        self._opened_claims.limit_to_backlog()

    @raise_spark_errors()
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Ack the batch that Spark has finished, and claim the next one. Return the start if there is no message.

        Where Spark sets no limit (``once``), the claim has its own, and waits for no further messages. Those come with
        the next run.
        """
        start = checked_offset(start)
        self._opened_claims.finish(start)
        if isinstance(limit, ReadMaxRows):
            return self._opened_claims.claim_next(start, limit.max_rows)
        return self._opened_claims.claim_next(start, self._limits.max_messages, may_wait=False)

    @raise_spark_errors()
    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return what waits in the topic, for the query's progress. Spark makes no other use of it."""
        return self._opened_claims.waiting()

    @raise_spark_errors()
    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Plan the batch that ends at this offset: the messages of its claim, which may be older than a restart."""
        del start
        end = checked_offset(end)
        return [PortionPartition(portion) for portion in self._opened_claims.plan(end, self._parts)]

    @raise_spark_errors()
    def commit(self, end: Offset) -> None:
        """Ack the batch, which the sink has."""
        end = checked_offset(end)
        self._opened_claims.finish(end)

    def stop(self) -> None:
        """Leave a batch that is not acked to the restart of this query, which then need not wait."""
        claims, self._claims = self._claims, None
        if claims is not None:
            claims.close()

    # --- on the executors ---

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part of a batch."""
        return read_partition(self._settings, self._rows, partition)


def batch_limits(options: SparkOptions) -> BatchLimits:
    """Return how large a batch may be, and what it waits for.

    :raises InvalidArgumentError: a value is not a number, or two of them contradict each other.
    """
    most = options.count("maxMessagesPerBatch") or DEFAULT_LIMITS.max_messages
    least = options.count("minMessagesPerBatch")
    delay = options.seconds("maxDelay")
    if least is None and delay is not None:
        raise invalid_argument(
            "The option maxDelay needs the option minMessagesPerBatch, which is missing: say how many messages a batch "
            'waits for by .option("minMessagesPerBatch", 1000), or leave maxDelay out.'
        )
    if least is not None and least > most:
        raise invalid_argument(
            f"minMessagesPerBatch={least} is more than maxMessagesPerBatch={most}: no batch has that many messages. "
            "Lower the first, or raise the second."
        )
    return BatchLimits(most, options.count("maxBytesPerBatch"), least or 1, delay or DEFAULT_LIMITS.max_delay_seconds)


def _exit_cleanly_on_sigterm() -> None:
    """Have ``stop`` called after a SIGTERM too, by which Spark ends this process. It plans, and does nothing else."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def _exit(number: int, _frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # a second SIGTERM must not interrupt the shutdown
    # Whatever the store does meanwhile, this process must end: Spark does not wait for it.
    deadline = threading.Timer(SHUTDOWN_SECONDS, os._exit, (1,))
    deadline.daemon = True
    deadline.start()
    raise SystemExit
