"""Batch reads of a claim, or of a topic that is only looked at. Nothing is claimed here."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pawnqueue import ConfigError, DeadLetter, PawnQueueError, Portion, Selection, Settings, StoreError, SyncPawnQueue
from pyspark_pawnqueue.messages_to_rows import RowBuilder
from pyspark_pawnqueue.query_columns import checked_columns
from pyspark_pawnqueue.spark_errors import raise_spark_errors
from pyspark_pawnqueue.spark_options import SparkOptions
from pyspark_pawnqueue.topic_selection import selection_of

#: How many messages a task fetches first. Often no more are wanted, as by ``take(5)``. Then it fetches four times as
#: many, and so on.
FIRST_BATCH_MESSAGES: Final = 8
#: How many messages are fetched at once, at most. While Spark works on them, the next ones are fetched.
BATCH_MESSAGES: Final = 32_000
#: How much a batch costs to fetch at most, as portions count it: a thousand small messages with an object each.
BATCH_COST_BYTES: Final = 8 * 1024 * 1024
#: How many messages make an Arrow batch, or one pack, if it has more.
ARROW_BATCH_MESSAGES: Final = 4000


class PortionPartition(InputPartition):
    """What one task of Spark reads."""

    def __init__(self, portion: Portion) -> None:
        super().__init__(portion.topic)
        self.portion = portion


class BatchReader(DataSourceReader):
    """Reads portions, in any process and as often as Spark asks."""

    @raise_spark_errors()
    def __init__(self, options: SparkOptions, schema: StructType) -> None:
        self._options = options
        schema = checked_columns(options, schema)
        self._rows = RowBuilder(schema, dead=not options.has_claim and options.reads_dead_letters())
        options.check_use("read" if options.has_claim else "peek")
        self._only = None if options.has_claim else selection_of(options, schema.names)
        self._settings = options.settings()

    @raise_spark_errors()
    def partitions(self) -> list[InputPartition]:
        """Plan the read: one request for a claim of any size, or a LIST of the topic."""
        options = self._options
        with SyncPawnQueue.open(self._settings) as queue:
            if options.has_claim:
                found = [queue.portions(claim, parts=options.count("partitions")) for claim in options.claims()]
                return [PortionPartition(portion) for portions in found for portion in portions]
            topic, is_dead, most = options.topic, options.reads_dead_letters(), options.count("maxMessages")
            only = self._only or Selection()
            parts = options.count("partitions")
            portions = queue.portions(topic, parts=parts, dead=is_dead, max_messages=most, only=only)
            # Spark keeps this plan for all actions. An empty topic may have messages, or packs, by the next action.
            empty = Portion(topic, (), is_dead=is_dead, most=most, packs=True, only=only)
            return [PortionPartition(each) for each in portions or [empty]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one of the partitions."""
        return read_partition(self._settings, self._rows, partition)


def read_partition(settings: Settings, rows: RowBuilder, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read the batches of a partition, one batch ahead of the caller."""
    if not isinstance(partition, PortionPartition):
        return  # Spark plans a partition of its own where there is nothing to read
    # ⚑ Each task opens its own loop and connections: Spark forks its workers, and obstore does not survive a fork.
    # The queue is closed before the thread is joined, which ends a read whose result nobody takes any more.
    executor = ThreadPoolExecutor(1, thread_name_prefix="pawnqueue-ahead")
    with raise_spark_errors(), _explain_missing_keys(settings), executor, SyncPawnQueue.open(settings) as queue:
        left, most = queue.look_again(partition.portion), FIRST_BATCH_MESSAGES
        # Where only reading tells which messages are selected, they are counted here.
        wanted = left.most if left.is_cut_by_reading else None
        left = replace(left, most=None)
        coming: Future[Iterable[pa.RecordBatch]] | None = None
        while left.units or coming is not None:
            fetched = None if coming is None else coming.result()
            coming = None
            if left.units:
                batch, left = left.split_off(most, BATCH_COST_BYTES)
                coming = executor.submit(_fetch, queue, rows, batch)
                most = min(4 * max(most, len(batch)), BATCH_MESSAGES)
            for rows_ in fetched or ():
                yield rows_ if wanted is None else rows_.slice(0, wanted)
                if wanted is not None and (wanted := wanted - rows_.num_rows) <= 0:
                    return


def _fetch(queue: SyncPawnQueue, rows: RowBuilder, portion: Portion) -> Iterable[pa.RecordBatch]:
    """Fetch a part of a partition. Its rows are made when they are asked for, a thousand or a pack at a time."""
    if portion.is_dead:
        return [rows.build_dead(cast("list[DeadLetter]", queue.read(portion)))]
    return map(rows.build, queue.fetch(portion).columns(ARROW_BATCH_MESSAGES))


@contextmanager
def _explain_missing_keys(settings: Settings) -> Iterator[None]:
    """Explain an executor's refused access: it does not have the keys that the driver found in its environment."""
    try:
        yield
    except (ConfigError, StoreError) as error:
        if settings.s3.aws_access_key_id is not None or getattr(error, "transient", False):
            raise
        raise PawnQueueError(
            f"{error} This happened on a Spark executor ({socket.gethostname()}). The job has not given it keys, so it "
            "has only those of its own environment: give the job the keys, by the options aws_access_key_id and "
            "aws_secret_access_key or by the file of the option connection, or give the workers a role or AWS_* "
            "variables, as the driver has.",
            operation="read",
        ) from None
