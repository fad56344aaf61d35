"""The last batch of a query that has ended: acked by its driver, which knows what the planning process cannot."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pawnqueue import ClaimReference, InvalidArgumentError, LeaseLostError, SyncPawnQueue
from pyspark_pawnqueue.options import Options, told
from pyspark_pawnqueue.stream_claims import BATCH, CLAIM, PATIENCE, STREAM, ack, warn_of_loss

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def ack_finished(query: StreamingQuery, options: Mapping[str, str] | None = None) -> int:
    """Ack the last batch that a query has brought to its sink, where nothing of ours could; return how many that are.

    For a query that was stopped between two of its triggers, or was run ``once``, and is not started again soon; one of
    ``availableNow`` has acked all. It may be called after every end, a failure too: a batch that the sink may not have
    is left to the restart. What the query tells of its progress is written when Spark has noted a batch as done.

    :param query: the query, which has ended.
    :param options: those that tell the stream where the queue is, if options do.
    :raises InvalidArgumentError: the query is running, and acks by itself.
    """
    if query.isActive:
        raise InvalidArgumentError(
            f"ack_finished is for a query that has ended, and {query.name or query.id} is running: it acks a batch by "
            "itself when it looks for the next one. Call query.stop() or query.awaitTermination() first.",
            operation="ack_finished",
        )
    references = list(_of_last_batch(query))
    if not references:
        return 0
    with told(), SyncPawnQueue.open(Options.of(options or {}).settings()) as queue:
        return sum(_acked(queue, reference) for reference in references)


def _of_last_batch(query: StreamingQuery) -> Iterator[ClaimReference]:
    progress: Mapping[str, Any] = query.lastProgress or {}
    for source in progress.get("sources", ()):
        end = json.loads(source["endOffset"] or "null")
        if isinstance(end, dict) and {STREAM, BATCH, CLAIM} <= end.keys() and end[CLAIM] is not None:
            yield ClaimReference.of(end[CLAIM])


def _acked(queue: SyncPawnQueue, reference: ClaimReference) -> int:
    try:
        claim = queue.attach(reference, payloads=False, wait=PATIENCE)
        if claim:
            return ack(queue, claim)
        if claim.ended_unsettled:
            warn_of_loss(f"Claim {claim.stem} of topic {claim.topic!r} has ended before it was acked.")
    except LeaseLostError as error:
        warn_of_loss(error)
    return 0
