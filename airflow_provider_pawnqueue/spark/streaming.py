"""A stream over a topic: each micro-batch is one claim, and the claim is the offset.

    offset        {"stream": id, "batch": n, "claim": reference, or null before the first one}
    claim's id    stream id and n: after a crash the claim is found by it, whether or not Spark had logged the offset
    acked         when Spark asks for what follows a batch, or commits it: both come after the sink has it

⚑ A claim is acked only after the sink has its batch. Spark calls ``commit`` for a batch when the next one has data, and
so never for the last one before a pause; but it asks for the latest offset again and again, and names where it stands.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow

from airflow_provider_pawnqueue.engine import (
    ClaimBusyError,
    ClaimReference,
    InvalidArgumentError,
    LeaseLostError,
    PawnQueueError,
    SyncPawnQueue,
)
from airflow_provider_pawnqueue.spark.columns import Rows
from airflow_provider_pawnqueue.spark.options import told
from airflow_provider_pawnqueue.spark.reading import PortionPartition, batches

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

    from airflow_provider_pawnqueue.engine import Claim, Portion
    from airflow_provider_pawnqueue.spark.options import Options

logger = logging.getLogger("pawnqueue.spark")

#: How many messages a micro-batch has, unless the query says so.
MOST: Final = 10_000
#: For how many seconds a claim is kept by a renewal: so long a query may be down, and find its last batch again.
TTL: Final = 300.0
#: For how many seconds after its last renewal a process is trusted: so long a restart waits for one that was killed.
SESSION_TTL: Final = 30.0
#: For so long a restart waits for the session of its former self.
PATIENCE: Final = 120.0
#: Where there is nothing, Spark asks a hundred times a second: each question waits for so long.
PAUSE: Final = 0.5

_STREAM, _BATCH, _CLAIM = "stream", "batch", "claim"


class ClaimStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Claims a micro-batch at a time, in the one process in which Spark plans a stream; executors read them."""

    def __init__(self, options: Options, schema: StructType) -> None:
        with told():
            if "claim" in options.given or "mode" in options.given:
                raise InvalidArgumentError(
                    "A stream claims from a topic: leave out the options claim and mode, which are for spark.read.",
                    operation="spark",
                )
            self._rows = Rows(schema)
            self._settings = options.settings()
            self._topic = options.topic
            self._consumer = options.consumer
            self._ttl = options.ttl or TTL
            self._most = options.max_messages_per_batch or MOST
            self._parts = options.partitions
        self._work: _Work | None = None  # made where it is needed: this object is taken to the executors

    def __getstate__(self) -> dict[str, Any]:
        """Leave at home what cannot travel."""
        return self.__dict__ | {"_work": None}

    @property
    def _working(self) -> _Work:
        if self._work is None:
            self._work = _Work(SyncPawnQueue.open(self._settings), self._topic, self._consumer, ttl=self._ttl)
        return self._work

    # --- where Spark plans ---

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Begin a stream of its own: two queries of one consumer never share a claim."""
        return {_STREAM: uuid.uuid4().hex, _BATCH: 0, _CLAIM: None}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return how many messages a micro-batch has, at most."""
        return ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Count what there is: so many messages are taken, and no later ones."""
        with told():
            self._working.take_what_is_there()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Ack what Spark has done with, and claim the next batch; where there is none, say where it stands."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._most
        with told():
            self._working.finish(start)
            return self._working.following(start, most)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Plan the batch that ends here: the messages of its claim, whether it was made now or before a restart."""
        del start
        with told():
            return [PortionPartition(portion) for portion in self._working.portions(end, self._parts)]

    def commit(self, end: dict[str, Any]) -> None:
        """Ack what the sink has."""
        with told():
            self._working.finish(end)

    def stop(self) -> None:
        """Leave what is not acked to the restart of this query, which need not wait for it."""
        if self._work is not None:
            self._work.close()
            self._work = None

    # --- on the executors ---

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part of a batch."""
        return batches(self._settings, self._rows, partition)


class _Work:
    """The claims of a stream, in the process that makes them."""

    def __init__(self, queue: SyncPawnQueue, topic: str, consumer: str, *, ttl: float) -> None:
        self._queue = queue
        self._topic = topic
        self._consumer = consumer
        self._ttl, self._session_ttl = ttl, min(SESSION_TTL, ttl)
        self._held: dict[str, Claim] = {}
        self._keeping: dict[str, ExitStack] = {}
        self._finished: set[str] = set()
        self._is_restarted = True  # as far as it knows
        self._left: int | None = None  # of what was there in the beginning, where nothing later is to be taken
        self._next_look = 0.0
        self._closed = threading.Event()

    def take_what_is_there(self) -> None:
        """Take so many messages as there are now, and no more."""
        self._left = self._queue.backlog(self._topic).pending

    def following(self, start: Mapping[str, Any], most: int) -> dict[str, Any]:
        """Claim the batch after this one, or find it again; return the start where there is nothing."""
        number = int(start[_BATCH])
        while True:
            number += 1
            claim = self._claimed(f"{start[_STREAM]}-{number}", most)
            if claim:
                reference = ClaimReference(claim.topic, claim.claim_id, claim.generation, claim.session)
                return {_STREAM: start[_STREAM], _BATCH: number, _CLAIM: reference.to_dict()}
            if claim is None or not (claim.recorded and claim.was_handed_out):
                return dict(start)
            # It was claimed before a restart, and others have had it since: the next one is ours.
            logger.warning(
                "Claim %s of topic %r, which this stream had claimed before it was restarted, has ended: others have "
                "its messages. A longer ttl keeps them for a query that is down for longer.",
                claim.stem,
                claim.topic,
            )

    def portions(self, end: Mapping[str, Any], parts: int | None) -> list[Portion]:
        """Plan a batch. One whose claim has ended has no rows: it is acked, or its messages are others'."""
        claim = self._attached(end)
        return [] if claim is None else self._queue.portions(end[_CLAIM], parts=parts)

    def finish(self, offset: Mapping[str, Any]) -> None:
        """Ack a batch that the sink has; one that was acked before is left alone."""
        reference = offset[_CLAIM]
        if reference is None or reference["claim_id"] in self._finished:
            return
        claim = self._attached(offset)
        if claim is not None:
            try:
                self._queue.ack(claim)
            except LeaseLostError as error:
                _warn_of_loss(error)
            self._release(claim)
        self._finished.add(reference["claim_id"])

    def close(self) -> None:
        """Leave what is not acked to whoever comes by its id, who need not wait."""
        self._closed.set()
        for keeping in self._keeping.values():
            with suppress(PawnQueueError):  # then nothing keeps it
                keeping.close()
        self._queue.close(keep_claims=True)

    def _claimed(self, claim_id: str, most: int) -> Claim | None:
        """Claim by an id, now and then; None where it is not the time to look, or enough was taken."""
        if claim_id in self._held:
            return self._held[claim_id]
        is_old = self._is_restarted and claim_id in self._queue.known_claims(self._topic, [claim_id])
        if self._left is not None and not is_old:
            most = min(most, self._left)
            if most == 0:
                return None
        elif self._closed.wait(max(0.0, min(PAUSE, self._next_look - time.monotonic()))) or (
            time.monotonic() < self._next_look
        ):
            return None
        claim = self._patiently(claim_id, most)
        self._is_restarted = False
        if claim:
            self._keep(claim)
            if self._left is not None and not is_old:
                self._left -= len(claim)
        elif not claim.recorded:
            self._left = None if self._left is None else 0
            self._next_look = time.monotonic() + self._queue.settings.polling.interval_seconds
        return claim

    def _patiently(self, claim_id: str, most: int) -> Claim:
        """Claim, and wait for the former self of this query where it may be alive."""
        give_up = time.monotonic() + PATIENCE
        while True:
            try:
                return self._queue.claim(
                    self._topic,
                    self._consumer,
                    max_messages=most,
                    claim_id=claim_id,
                    owner=self._consumer,
                    ttl=self._ttl,
                    session_ttl=self._session_ttl,
                )
            except ClaimBusyError as busy:
                left = give_up - time.monotonic()
                if left <= 0 or self._closed.wait(min(max(busy.retry_after, 0.1), left)):
                    raise

    def _attached(self, offset: Mapping[str, Any]) -> Claim | None:
        """Return the claim of a batch, found again after a restart; None where it has ended."""
        reference = ClaimReference.of(offset[_CLAIM])
        held = self._held.get(reference.claim_id)
        if held is not None:
            return held
        try:
            claim = self._queue.attach(
                reference, payloads=False, wait=PATIENCE, ttl=self._ttl, session_ttl=self._session_ttl
            )
        except LeaseLostError as error:
            _warn_of_loss(error)
            return None
        if not claim:
            if claim.ended_unsettled:
                _warn_of_loss(f"Claim {claim.stem} of topic {claim.topic!r} has ended before it was acked.")
            return None
        self._keep(claim)
        return claim

    def _keep(self, claim: Claim) -> None:
        self._held[claim.claim_id] = claim
        keeping = self._keeping[claim.claim_id] = ExitStack()
        keeping.enter_context(self._queue.keep_alive(claim, on_lost=_warn_of_loss))

    def _release(self, claim: Claim) -> None:
        del self._held[claim.claim_id]
        with suppress(PawnQueueError):  # it has ended, or is lost, which was told
            self._keeping.pop(claim.claim_id).close()


def _warn_of_loss(why: object) -> None:
    logger.warning(
        "A batch was not acked, and others may have its messages, which the sink has as well, or in part: %s Let the "
        "sink tell by the column id what it has, or give the stream a longer ttl.",
        why,
    )
