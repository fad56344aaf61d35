"""Writers: tasks stage their rows, and the driver's commit makes all of them messages, or none.

    batch     the write's id is the option ``writeId``, or else a new id for each query
    stream    the write's id is the query's id and the batch's number, which a restart from the checkpoint uses again

⚑ A retried task stages under names of its own, and Spark's driver commits what one attempt has returned. If a driver
dies after it has decided the write, the next commit under the same id finishes it, and publishes nothing twice.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, ClassVar, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pawnqueue import InvalidPayloadError, PawnQueueError, Staged, SyncPawnQueue
from pawnqueue.domain import layout
from pyspark_pawnqueue.rows_to_messages import MessageBuilder
from pyspark_pawnqueue.spark_errors import invalid_argument, raise_spark_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_pawnqueue.spark_options import SparkOptions, Use

logger = logging.getLogger("pawnqueue.spark")

#: How long a commit waits for another commit of the same write. One whose driver died is over within a minute.
COMMIT_WAIT_SECONDS: Final = 120.0
#: The local properties in which Spark tells a task its query and its batch.
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


class StagedPart(WriterCommitMessage):
    """What a task has staged. Spark carries it to the driver."""

    def __init__(self, staged: Staged) -> None:
        self.staged = staged


class _Writer:
    """What the writers of batches and of streams share."""

    use: ClassVar[Use]

    @raise_spark_errors()
    def __init__(self, options: SparkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise invalid_argument(
                f"Topic {options.given.get('topic', '')!r} cannot be overwritten, only added to: write in the mode "
                "append."
            )
        options.check_use(self.use)
        self._messages = MessageBuilder(schema)
        self._messages.check()
        self._settings = options.settings()
        self._topic = layout.checked_topic(options.topic)
        self._producer = options.text("producer")

    def _stage(self, write_id: str, batches: Iterator[pa.RecordBatch]) -> StagedPart:
        """Stage the rows of a task, one Arrow batch at a time."""
        part = _current_task().partitionId()
        staged = Staged(self._topic, write_id, part)
        with raise_spark_errors(), ExitStack() as stack:
            queue: SyncPawnQueue | None = None
            try:
                for batch in batches:
                    if queue is None:
                        # ⚑ Opened in the task: Spark forks its workers, and connections do not survive a fork.
                        queue = stack.enter_context(SyncPawnQueue.open(self._settings))
                    messages = self._messages.build(batch, self._topic, len(staged), self._settings.limits)
                    staged = queue.stage(self._topic, write_id, part, messages, producer=self._producer, after=staged)
            except BaseException as error:
                if queue is not None and staged.objects:
                    with suppress(PawnQueueError):  # the janitor removes it
                        queue.abort_write(self._topic, write_id, [staged])
                if isinstance(error, InvalidPayloadError):
                    raise InvalidPayloadError(
                        f"In partition {part}, where payloads[n] is row n: {error}", topic=self._topic
                    ) from None
                raise
        return StagedPart(staged)

    def _abort(self, write_id: str, parts: Sequence[Staged] | None) -> None:
        """Remove staged rows: those of these parts, or of the whole write. The janitor removes what is left."""
        try:
            with SyncPawnQueue.open(self._settings) as queue:
                queue.abort_write(self._topic, write_id, parts)
        except PawnQueueError as error:
            logger.warning("The janitor will remove what this write staged for topic %r: %s", self._topic, error)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Publishes the rows of a DataFrame."""

    use = "batch write"

    @raise_spark_errors()
    def __init__(self, options: SparkOptions, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        # Spark makes this object once, where it plans the query, and copies it to all tasks and to the commit.
        write_id = options.text("writeId")
        self._write_id = layout.checked_write_id(write_id or uuid.uuid4().hex)
        self._allows_empty = options.allows_empty
        self._has_own_id = write_id is None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPart:
        """Stage the rows of a task."""
        return self._stage(self._write_id, iterator)

    @raise_spark_errors()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the tasks have staged. A query without rows is a write too, which is then done."""
        with SyncPawnQueue.open(self._settings) as queue:
            queue.commit_write(
                self._topic, self._write_id, _parts(messages), wait=COMMIT_WAIT_SECONDS, allow_empty=self._allows_empty
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what the tasks have staged; if no other driver can have this id, what killed tasks staged too."""
        self._abort(self._write_id, None if self._has_own_id else _parts(messages))


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Publishes the batches of a stream."""

    use = "stream write"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPart:
        """Stage the rows of a task. The driver does not know the query's id here, so each task returns it."""
        task = _current_task()
        return self._stage(f"{task.getLocalProperty(_QUERY_ID)}-{task.getLocalProperty(_BATCH_ID)}", iterator)

    @raise_spark_errors()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish a batch, unless it was published before a restart."""
        del batchId  # the write's id has it
        parts = _parts(messages)
        if not any(len(part) for part in parts):
            return  # Spark has batches without rows now and then
        with SyncPawnQueue.open(self._settings) as queue:
            queue.commit_write(self._topic, parts[0].write_id, parts, wait=COMMIT_WAIT_SECONDS)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Remove what the tasks have staged."""
        del batchId
        parts = _parts(messages)
        if any(part.objects for part in parts):
            self._abort(parts[0].write_id, parts)


def _current_task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise RuntimeError("Rows can only be staged in a task of Spark, and this process runs none.")
    return task


def _parts(messages: Iterable[WriterCommitMessage | None]) -> list[Staged]:
    """Return what the tasks have staged. A task that failed has no message."""
    return [message.staged for message in messages if isinstance(message, StagedPart)]
