"""Batch reads: of a claim, which is fixed, and of a topic, which is only looked at. Nothing is claimed here."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pawnqueue import ConfigError, InvalidArgumentError, PawnQueueError, Portion, StoreError, SyncPawnQueue
from pyspark_pawnqueue.columns import Rows, schema_of
from pyspark_pawnqueue.options import told

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pawnqueue import Settings
    from pyspark_pawnqueue.options import Options

#: So many messages are a batch of Arrow; while Spark works on one, the next is read.
A_BATCH: Final = 1000


class PortionPartition(InputPartition):
    """What one task of Spark reads."""

    def __init__(self, portion: Portion) -> None:
        super().__init__(portion.topic)
        self.portion = portion


class PortionReader(DataSourceReader):
    """Reads portions, in whichever process Spark has them read, as often as it wants."""

    def __init__(self, options: Options, schema: StructType) -> None:
        with told():
            self._options = options
            self._rows = Rows(schema, dead=not options.has_claim and options.is_dead())
            options.check_use("read" if options.has_claim else "peek")
            _check_schema(options, schema)
            self._settings = options.settings()

    def partitions(self) -> list[InputPartition]:
        """Plan: one request for a claim, whatever its size; a LIST of what is in a topic."""
        options = self._options
        with told(), SyncPawnQueue.open(self._settings) as queue:
            if options.has_claim:
                claims = options.claims()
                found = [queue.portions(claim, parts=options.partitions) for claim in claims]
                return [PortionPartition(portion) for portions in found for portion in portions]
            topic, is_dead, most = options.topic, options.is_dead(), options.max_messages
            portions = queue.portions(topic, parts=options.partitions, dead=is_dead, max_messages=most)
            # Spark keeps this plan for all actions, also that of an empty topic: it may have messages by the next one.
            return [PortionPartition(each) for each in portions or [Portion(topic, (), is_dead=is_dead, most=most)]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one of them."""
        return batches(self._settings, self._rows, partition)


@contextmanager
def _where_it_was(settings: Settings) -> Iterator[None]:
    """Say of a store that refuses an executor which was given no keys that the driver's own are not its."""
    try:
        yield
    except (ConfigError, StoreError) as error:
        if settings.s3.aws_access_key_id is not None or getattr(error, "transient", False):
            raise
        raise PawnQueueError(
            f"{error} This was on a Spark executor ({socket.gethostname()}), which was given no keys and has those of "
            "its own surroundings only: give the job the keys, by the options aws_access_key_id and "
            "aws_secret_access_key or by the file of the option connection, or give the workers a role or AWS_* "
            "variables, as the driver has.",
            operation="read",
        ) from None


def _check_schema(options: Options, schema: StructType) -> None:
    if not options.payload_schema:
        return
    asked = schema_of(options.payload_schema, dead=options.shows_dead)
    if [(field.name, field.dataType) for field in asked] != [(field.name, field.dataType) for field in schema]:
        raise InvalidArgumentError(
            "The query has a schema of its own and the option payloadSchema: leave out one of them; payloadSchema adds "
            "columns to those that every message has, .schema(…) names all that there are.",
            operation="spark",
        )


def batches(settings: Settings, rows: Rows, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read a partition, a batch ahead of who takes them."""
    if not isinstance(partition, PortionPartition):
        return  # Spark's own, where there is nothing to be read
    # ⚑ One loop, one set of connections a task: Spark's workers are forked, and obstore does not survive that.
    # The queue is closed before the thread is waited for: what it reads ahead ends then, if nobody wants it any more.
    reading = ThreadPoolExecutor(1, thread_name_prefix="pawnqueue-ahead")
    with told(), _where_it_was(settings), reading as ahead, SyncPawnQueue.open(settings) as queue:
        coming = None
        for portion in queue.look_again(partition.portion).split(A_BATCH):
            following = ahead.submit(queue.read, portion)
            if coming is not None:
                yield rows.batch(coming.result())
            coming = following
        if coming is not None:
            yield rows.batch(coming.result())
