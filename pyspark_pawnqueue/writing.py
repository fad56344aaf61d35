"""Writing: tasks stage their rows, and the driver's commit makes them messages, all together or none.

    batch     the write's id is the option ``writeId``; without one, it is another one for each query
    stream    the query's id and the batch's number, which a restart from the checkpoint has again

⚑ A task that is tried again stages under names of its own, and Spark's driver commits what one attempt has returned. A
write that was decided before its driver died is finished by the next commit under its id, and publishes nothing twice.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, ClassVar, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pawnqueue import InvalidArgumentError, InvalidPayloadError, PawnQueueError, Staged, SyncPawnQueue
from pawnqueue.domain import layout
from pyspark_pawnqueue.options import told
from pyspark_pawnqueue.payloads import Payloads

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyspark_pawnqueue.options import Options, Use

logger = logging.getLogger("pawnqueue.spark")

#: For so long a commit waits for another one of the same write: for a driver that died, less than a minute.
PATIENCE: Final = 120.0
#: What Spark calls the query that a task works for, and its batch.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


class StagedPart(WriterCommitMessage):
    """What a task has staged, as Spark takes it to the driver."""

    def __init__(self, staged: Staged) -> None:
        self.staged = staged


class _Writing:
    """What batches and streams have in common."""

    use: ClassVar[Use]

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        with told():
            if overwrite:
                raise _wrong(
                    f"Topic {options.given.get('topic', '')!r} is not overwritten, messages are added to it: write in "
                    "the mode append."
                )
            options.check_use(self.use)
            self._payloads = Payloads(schema)
            self._payloads.check()
            self._settings = options.settings()
            self._topic = layout.checked_topic(options.topic)
            self._producer = options.producer

    def _staged(self, write_id: str, batches: Iterator[pa.RecordBatch]) -> StagedPart:
        """Stage a task's rows, a batch of Arrow at a time."""
        part = _task().partitionId()
        staged = Staged(self._topic, write_id, part)
        with told(), ExitStack() as stack:
            queue: SyncPawnQueue | None = None
            try:
                for batch in batches:
                    if queue is None:
                        # ⚑ Opened here: Spark's workers are forked, and connections do not survive that.
                        queue = stack.enter_context(SyncPawnQueue.open(self._settings))
                    messages = self._payloads.messages(batch, self._topic, len(staged))
                    staged = queue.stage(self._topic, write_id, part, messages, producer=self._producer, after=staged)
            except BaseException as error:
                if queue is not None and staged.objects:
                    with suppress(PawnQueueError):  # the janitor removes it
                        queue.abort_write(self._topic, write_id, [staged])
                if isinstance(error, InvalidPayloadError):
                    raise InvalidPayloadError(
                        f"In partition {part}, whose rows are its payloads, {error}", topic=self._topic
                    ) from None
                raise
        return StagedPart(staged)

    def _abort(self, write_id: str, parts: Sequence[Staged] | None) -> None:
        """Remove what was staged, these parts or all of it; what cannot be removed now, the janitor removes."""
        try:
            with SyncPawnQueue.open(self._settings) as queue:
                queue.abort_write(self._topic, write_id, parts)
        except PawnQueueError as error:
            logger.warning("What was staged for topic %r stays until the janitor removes it: %s", self._topic, error)


class BatchWriter(_Writing, DataSourceArrowWriter):
    """Writes a DataFrame."""

    use = "batch write"

    def __init__(self, options: Options, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite=overwrite)
        # Made where the query is planned, once: all tasks, and the commit, are given this object.
        with told():
            self._write_id = layout.checked_write_id(options.write_id or uuid.uuid4().hex)
            self._allows_empty = options.allows_empty
        self._is_alone = options.write_id is None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPart:
        """Stage the rows of a task."""
        return self._staged(self._write_id, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the tasks have staged. A query without rows is a write as well: it is done then."""
        with told(), SyncPawnQueue.open(self._settings) as queue:
            queue.commit_write(
                self._topic, self._write_id, _parts(messages), wait=PATIENCE, allow_empty=self._allows_empty
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what the tasks have staged; those that were killed, too, unless another driver may have its id."""
        self._abort(self._write_id, None if self._is_alone else _parts(messages))


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Writes the batches of a stream."""

    use = "stream write"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPart:
        """Stage the rows of a task. The driver's part of this object does not know the query, so tasks tell it."""
        task = _task()
        return self._staged(f"{task.getLocalProperty(_QUERY)}-{task.getLocalProperty(_BATCH)}", iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish a batch, unless it was, before a restart."""
        del batchId  # it is in the write's id
        parts = _parts(messages)
        if not any(len(part) for part in parts):
            return  # as Spark has batches without rows, now and then
        with told(), SyncPawnQueue.open(self._settings) as queue:
            queue.commit_write(self._topic, parts[0].write_id, parts, wait=PATIENCE)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Remove what the tasks have staged."""
        del batchId
        parts = _parts(messages)
        if any(part.objects for part in parts):
            self._abort(parts[0].write_id, parts)


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise RuntimeError("Rows are staged by tasks of Spark, and this is none.")
    return task


def _parts(messages: Iterable[WriterCommitMessage | None]) -> list[Staged]:
    """Return what tasks have staged; those that have failed have no message."""
    return [message.staged for message in messages if isinstance(message, StagedPart)]


def _wrong(sentence: str) -> InvalidArgumentError:
    return InvalidArgumentError(sentence, operation="spark")
