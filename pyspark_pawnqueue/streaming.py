"""A stream over a topic: each micro-batch is one claim, and the claim is the offset.

    offset        {"stream": id, "batch": n, "claim": reference, or null before the first one}
    claim's id    stream id and n: after a crash the claim is found by it, whether or not Spark had logged the offset
    acked         when Spark asks for what follows a batch, or commits it: both come after the sink has it

⚑ A claim is acked only after the sink has its batch. Spark calls ``commit`` for a batch when the next one has data, and
so never for the last one before a pause; but it asks for the latest offset again and again, and names where it stands.
What PySpark 4.2 was seen to call, in a process of its own for each run of a query:

    the beginning     initialOffset twice, latestOffset; a first batch, also where the topic is empty
    a batch           latestOffset(start), partitions(start, end), then the sink, then its own note that it is done
    the next          latestOffset(end): here it is acked; commit(end) only if there is more
    availableNow      prepareForTriggerAvailableNow first, and a last latestOffset(end) when nothing is left
    processingTime    latestOffset(end) when the interval is over, so until then a batch is kept and not acked
    once              one batch, with no limit, and nothing after it
    a restart         partitions(start, end) of the last batch, if the sink may lack that; then latestOffset(end)
    query.stop()      SIGTERM, whatever it is doing; so it is where the sink fails, and where a query is at its end
    a JVM is killed   its pipe ends: stop(), which comes at no other time

So a query of which the last batch was followed by no latestOffset has left it un-acked: nothing here can tell whether
the sink has it. Its restart acks it, or the driver, which can tell (:func:`.stream_end.ack_finished`). Where neither
comes within the claim's time, others are given the messages.

A restart waits until its former self has left its claim, or is no longer trusted (``SESSION_TTL_SECONDS``).
A claim that was made before Spark had noted the very first offset is found by nobody: its messages come when its time
is over.
"""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow

from pawnqueue import SyncPawnQueue
from pawnqueue.domain.claim_terms import HANDED_OVER_TTL_SECONDS
from pyspark_pawnqueue.columns import Rows
from pyspark_pawnqueue.options import told
from pyspark_pawnqueue.reading import PortionPartition, batches
from pyspark_pawnqueue.stream_claims import StreamClaims, checked_offset, first_offset

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from pyspark_pawnqueue.options import Options
    from pyspark_pawnqueue.stream_claims import Offset

#: How many messages a micro-batch has, unless the query says so.
MOST: Final = 10_000
#: So long the process may take to leave its claims, once Spark has told it to end.
LAST_SECONDS: Final = 10.0


class ClaimStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Claims a micro-batch at a time, in the one process in which Spark plans a stream; executors read them."""

    def __init__(self, options: Options, schema: StructType) -> None:
        with told():
            options.check_use("stream")
            self._rows = Rows(schema)
            self._settings = options.settings()
            self._topic = options.topic
            self._consumer = options.consumer
            self._ttl = options.ttl or HANDED_OVER_TTL_SECONDS
            self._most = options.max_messages_per_batch or MOST
            self._parts = options.partitions
        self._first = first_offset(uuid.uuid4().hex)  # Spark asks for it twice
        self._claims: StreamClaims | None = None  # made where it is needed: this object is taken to the executors

    def __getstate__(self) -> dict[str, Any]:
        """Leave at home what cannot travel."""
        return self.__dict__ | {"_claims": None}

    @property
    def _working(self) -> StreamClaims:
        if self._claims is None:
            _end_in_good_order()
            queue = SyncPawnQueue.open(self._settings)
            self._claims = StreamClaims(queue, self._topic, self._consumer, ttl=self._ttl)
        return self._claims

    # --- where Spark plans ---

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Begin a stream of its own: two queries of one consumer never share a claim."""
        return dict(self._first)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return how many messages a micro-batch has, at most."""
        return ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Count what there is: so many messages are taken, and no later ones."""
        with told():
            self._working.take_what_is_there()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802 - Spark's name
        """Ack what Spark has done with, and claim the next batch; where there is none, say where it stands.

        A claim has its bound where Spark knows none (``once``): what is more comes with the next run.
        """
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._most
        with told():
            start = checked_offset(start)
            self._working.finish(start)
            return self._working.following(start, most)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Plan the batch that ends here: the messages of its claim, whether it was made now or before a restart."""
        del start
        with told():
            end = checked_offset(end)
            return [PortionPartition(portion) for portion in self._working.portions(end, self._parts)]

    def commit(self, end: Offset) -> None:
        """Ack what the sink has."""
        with told():
            end = checked_offset(end)
            self._working.finish(end)

    def stop(self) -> None:
        """Leave what is not acked to the restart of this query, which need not wait for it."""
        claims, self._claims = self._claims, None
        if claims is not None:
            claims.close()

    # --- on the executors ---

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part of a batch."""
        return batches(self._settings, self._rows, partition)


def _end_in_good_order() -> None:
    """Have ``stop`` called, too, where Spark ends this process, which it does by SIGTERM: it is the planner's own."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)


def _end(number: int, _frame: object) -> NoReturn:
    signal.signal(number, signal.SIG_IGN)  # once is enough
    # Whatever the store does meanwhile: nobody waits for this process any more, and it is not to stay.
    last = threading.Timer(LAST_SECONDS, os._exit, (1,))
    last.daemon = True
    last.start()
    raise SystemExit
