"""What a Spark job calls: to find its claim, to check that it still holds, and to report failed messages."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pawnqueue import ClaimReference, InvalidArgumentError, LeaseLostError, SyncPawnQueue
from pawnqueue.domain.bounds import MAX_REASON_CHARACTERS
from pyspark_pawnqueue.job_environment import CLAIM_VARIABLE, REPORT_VARIABLE
from pyspark_pawnqueue.spark_errors import raise_spark_errors
from pyspark_pawnqueue.spark_options import SparkOptions, read_references
from pyspark_pawnqueue.stream_claims import BATCH, CLAIM, STREAM, ack, attach_ended, warn_of_lost_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["ack_finished", "ack_promptly", "confirm", "job_claims", "report_failures"]


def job_claims() -> list[ClaimReference]:
    """Return the claims that ``PawnQueueSparkSubmitOperator`` submitted this job for.

    :raises InvalidArgumentError: something else submitted this job.
    """
    text = os.environ.get(CLAIM_VARIABLE)
    if not text:
        raise InvalidArgumentError(
            "No PawnQueueSparkSubmitOperator has submitted this job, so it has no claim of its own: pass the claim as "
            "an argument of the job, and to the option claim.",
            operation="job_claims",
        )
    return read_references(text)


def confirm(claim: ClaimReference | Mapping[str, Any] | str) -> None:
    """Check that a claim still holds, right before work that cannot be undone. Otherwise others may have its messages.

    It costs one request. The operator ends its job anyway when the claim is lost. This check is for the moment before a
    commit, and for drivers that nothing ends.

    :param claim: the claim, by its reference; of a list, each of them.
    :raises PawnQueueSparkError: the claim has ended, has expired, or is settled.
    """
    meant = read_references(claim) if isinstance(claim, str) else [ClaimReference.of(claim)]
    with raise_spark_errors(), SyncPawnQueue.open(SparkOptions.of({}).settings()) as queue:
        for each in meant:
            # ⚑ This raises for a settled claim too: its messages may have been given back, so others may have them.
            queue.portions(each, parts=1)


def report_failures(claim: ClaimReference | Mapping[str, Any] | str, failed: DataFrame | Mapping[str, str]) -> int:
    """Report which messages of a claim have failed: settling requeues or buries them. Return how many were reported.

    The report counts if the job succeeds. If the job fails, all its messages have failed. The last report of a message
    counts, and reporting it twice does no harm.

    :param claim: the claim, by its reference.
    :param failed: a DataFrame with a column ``id``, and optionally ``reason``, one row a message; or reasons by id.
    :raises InvalidArgumentError: there is no such column, or an id is not one; or nobody reads the report, as neither
        our operator nor a task of Airflow runs this job.
    """
    reference = read_references(claim)[0] if isinstance(claim, str) else ClaimReference.of(claim)
    reasons = {
        each: (str(why) if why else "the job could not do it")[:MAX_REASON_CHARACTERS]
        for each, why in _failures(reference, failed)
        if _check_id(reference, each)
    }
    path = os.environ.get(REPORT_VARIABLE)
    if path:
        _write(Path(path), reference, reasons)
    else:
        _report_to_airflow_task(reference, reasons)
    return len(reasons)


def ack_finished(query: StreamingQuery, options: Mapping[str, str] | None = None) -> int:
    """Ack the last batch of a stream that has ended, if the stream could not. Return how many messages that are.

    Call it for a query that was stopped between two triggers, or was run ``once``, and is not started again soon. A
    query of ``availableNow`` has acked everything. It may be called after any end, a failure too: a batch that the sink
    may lack is left to the restart. The query's progress tells: Spark writes it after it has noted a batch as done.

    :param query: the query, which has ended.
    :param options: those options of the stream that say where the queue is, if it has any.
    :raises InvalidArgumentError: the query is running, and acks by itself.
    """
    if query.isActive:
        raise InvalidArgumentError(
            f"ack_finished is for a query that has ended, and {query.name or query.id} is running: it acks a batch by "
            "itself when it looks for the next one. Call query.stop() or query.awaitTermination() first.",
            operation="ack_finished",
        )
    references = list(_last_batches(query))
    if not references:
        return 0
    with raise_spark_errors(), SyncPawnQueue.open(SparkOptions.of(options or {}).settings()) as queue:
        return sum(_ack(queue, reference) for reference in references)


def ack_promptly(spark: SparkSession) -> None:
    """Have the streams of this session ack each batch at once, when its sink has it, and not at their next trigger.

    Call it once, before or after queries are started. Without it a query with a trigger of ten minutes acks a batch
    ten minutes later. It listens to the queries' progress, and costs no request. The driver's Python and its JVM
    have to be on one machine, of one user and with one ``TMPDIR``. So for a client of Spark Connect on another machine
    it has no effect.

    :param spark: the session in which the queries are started.
    """
    # Jobs that only read a claim need no part of Spark from here.
    from pyspark_pawnqueue.done_listener import DoneListener  # noqa: PLC0415 - as above

    spark.streams.addListener(DoneListener())


def _last_batches(query: StreamingQuery) -> Iterator[ClaimReference]:
    """Return the claims of the last batch: one for each source of this format."""
    progress: Mapping[str, Any] = query.lastProgress or {}
    for source in progress.get("sources", ()):
        end = json.loads(source["endOffset"] or "null")
        if isinstance(end, dict) and {STREAM, BATCH, CLAIM} <= end.keys() and end[CLAIM] is not None:
            yield ClaimReference.of(end[CLAIM])


def _ack(queue: SyncPawnQueue, reference: ClaimReference) -> int:
    claim = attach_ended(queue, reference)
    try:
        return 0 if claim is None else ack(queue, claim)
    except LeaseLostError as error:
        warn_of_lost_batch(error)
        return 0


def _failures(claim: ClaimReference, failed: DataFrame | Mapping[str, str]) -> Iterable[tuple[Any, Any]]:
    if isinstance(failed, Mapping):
        return failed.items()
    columns = getattr(failed, "columns", None)
    if columns is None or list(columns).count("id") != 1:
        has = "is not a DataFrame" if columns is None else f"has the columns {', '.join(columns) or '(none)'}"
        raise _report_error(
            claim,
            f"takes a DataFrame with one column id, and this one {has}: keep the column id of the messages that were "
            "read, or pass reasons by id.",
        )
    if "reason" not in columns:
        return ((row["id"], None) for row in failed.select("id").collect())
    # Cut on the executors: a reason may be a whole payload, and the driver collects all of them at once.
    reason = failed["reason"].cast("string").substr(1, MAX_REASON_CHARACTERS)
    return ((row["id"], row["reason"]) for row in failed.select("id", reason.alias("reason")).collect())


def _check_id(claim: ClaimReference, each: object) -> bool:
    if isinstance(each, str) and each:
        return True
    raise _report_error(
        claim,
        f"takes the ids of messages, and {each!r} is not an id: keep the column id of the messages that were read.",
    )


def _write(path: Path, claim: ClaimReference, reasons: Mapping[str, str]) -> None:
    """Add lines to the report. Batches of a stream may do so at once, and each line stays whole."""
    try:
        opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(opened, "w", encoding="utf-8") as report:
            fcntl.flock(report, fcntl.LOCK_EX)  # until the file is closed, which writes all lines
            report.writelines(json.dumps({"id": each, "why": why}) + "\n" for each, why in reasons.items())
    except OSError as error:
        raise _report_error(
            claim,
            f"cannot write to {path}, where the submit operator reads the report ({error.strerror}): run the driver on "
            "the operator's machine (deploy mode client).",
        ) from None


def _report_to_airflow_task(claim: ClaimReference, reasons: Mapping[str, str]) -> None:
    """Report to the task of Airflow that runs this job in its own process."""
    with suppress(InvalidArgumentError):
        if "airflow" in sys.modules:  # otherwise no task runs here, and Airflow need not be installed
            from airflow_provider_pawnqueue.hooks.reports import add  # noqa: PLC0415 - as above

            add(reasons, ())
            return
    raise _report_error(
        claim,
        "has nobody to report to: neither a PawnQueueSparkSubmitOperator nor a task of Airflow runs this job. Settle "
        "the claim by queue.settle(claim, bury={id: reason}) instead.",
    )


def _report_error(claim: ClaimReference, sentence: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"report_failures for claim {claim.stem} of topic {claim.topic!r} {sentence}",
        topic=claim.topic,
        operation="report_failures",
    )
