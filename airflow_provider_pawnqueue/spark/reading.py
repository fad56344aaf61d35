"""Batch reads: of a claim, which is fixed, and of a topic, which is only looked at. Nothing is claimed here."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from airflow_provider_pawnqueue.engine import SyncPawnQueue
from airflow_provider_pawnqueue.spark.columns import Rows
from airflow_provider_pawnqueue.spark.options import told

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from airflow_provider_pawnqueue.engine import Portion, Settings
    from airflow_provider_pawnqueue.spark.options import Options

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
            self._rows = Rows(schema)
            self._settings = options.settings()

    def partitions(self) -> list[InputPartition]:
        """Plan: one request for a claim, whatever its size; a LIST of what is in a topic."""
        options = self._options
        with told(), SyncPawnQueue.open(self._settings) as queue:
            if options.has_claim:
                claims = options.claims()
                found = [queue.portions(claim, parts=options.partitions) for claim in claims]
                return [PortionPartition(portion) for portions in found for portion in portions]
            portions = queue.portions(
                options.topic, parts=options.partitions, dead=options.is_dead(), max_messages=options.max_messages
            )
            return [PortionPartition(portion) for portion in portions]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one of them."""
        return batches(self._settings, self._rows, partition)


def batches(settings: Settings, rows: Rows, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Read a partition, a batch ahead of who takes them."""
    if not isinstance(partition, PortionPartition):
        return  # Spark's own, where there is nothing to be read
    # ⚑ One loop, one set of connections a task: Spark's workers are forked, and obstore does not survive that.
    with told(), SyncPawnQueue.open(settings) as queue, ThreadPoolExecutor(1) as ahead:
        coming = None
        for portion in partition.portion.split(A_BATCH):
            following = ahead.submit(queue.read, portion)
            if coming is not None:
                yield rows.batch(coming.result())
            coming = following
        if coming is not None:
            yield rows.batch(coming.result())
