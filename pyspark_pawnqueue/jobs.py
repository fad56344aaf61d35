"""For jobs: which claim they were submitted for, whether it stands, and which messages they could not do."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pawnqueue import ClaimReference, InvalidArgumentError, SyncPawnQueue
from pyspark_pawnqueue.job import CLAIM_VARIABLE, REPORT_VARIABLE
from pyspark_pawnqueue.options import Options, references, told
from pyspark_pawnqueue.stream_end import ack_finished

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["ack_finished", "confirm", "job_claims", "report_failures"]

#: So long is a reason that is told of a message, at most.
LONGEST_REASON: Final = 2000


def job_claims() -> list[ClaimReference]:
    """Return the claims that this job was submitted for by ``PawnQueueSparkSubmitOperator``.

    :raises InvalidArgumentError: it was submitted by something else.
    """
    text = os.environ.get(CLAIM_VARIABLE)
    if not text:
        raise InvalidArgumentError(
            "This job was not submitted by a PawnQueueSparkSubmitOperator, which would have named a claim: pass the "
            "claim as an argument of the job, and to the option claim.",
            operation="job_claims",
        )
    return references(text)


def confirm(claim: ClaimReference | Mapping[str, Any] | str) -> None:
    """Make sure that a claim stands, right before what cannot be undone: else others may have its messages.

    It costs a request. What the operator submitted is ended anyway when its claim is lost; this is for the moment
    before a commit, and for drivers that nobody ends.

    :param claim: the claim, by its reference; of a list, each of them.
    :raises PawnQueueSparkError: it has ended, or its time is over, or it is settled.
    """
    meant = references(claim) if isinstance(claim, str) else [ClaimReference.of(claim)]
    with told(), SyncPawnQueue.open(Options.of({}).settings()) as queue:
        for each in meant:
            # ⚑ Settled counts as ended, and this raises: it may mean given back, and then others have its messages.
            queue.portions(each, parts=1)


def report_failures(claim: ClaimReference | Mapping[str, Any] | str, failed: DataFrame | Mapping[str, str]) -> int:
    """Report which messages of a claim were not done: settle requeues or buries them. Return how many were reported.

    It is passed on when the job succeeds; of a job that fails, no message is done. What is reported of a message last
    counts, and reporting twice does no harm.

    :param claim: the claim, by its reference.
    :param failed: a DataFrame with a column ``id``, and ``reason`` if it knows one, a row a message; or reasons by id.
    :raises InvalidArgumentError: it has no such column, or an id is none; or nobody listens: no operator of ours, and
        no task of Airflow, runs this job.
    """
    reference = references(claim)[0] if isinstance(claim, str) else ClaimReference.of(claim)
    reasons = {
        each: (str(why) if why else "the job could not do it")[:LONGEST_REASON]
        for each, why in _told(reference, failed)
        if _is_id(reference, each)
    }
    path = os.environ.get(REPORT_VARIABLE)
    if path:
        _write(Path(path), reference, reasons)
    else:
        _tell_the_task(reference, reasons)
    return len(reasons)


def _told(claim: ClaimReference, failed: DataFrame | Mapping[str, str]) -> Iterable[tuple[Any, Any]]:
    if isinstance(failed, Mapping):
        return failed.items()
    columns = getattr(failed, "columns", None)
    if columns is None or list(columns).count("id") != 1:
        has = "is none" if columns is None else f"has {', '.join(columns) or 'none'}"
        raise _wrong(
            claim,
            f"takes a DataFrame with one column id, and this one {has}: keep the column id of what was read, or pass "
            "reasons by id.",
        )
    if "reason" not in columns:
        return ((row["id"], None) for row in failed.select("id").collect())
    # Cut before they come here: a reason may be a payload, and the driver has them all at once.
    reason = failed["reason"].cast("string").substr(1, LONGEST_REASON)
    return ((row["id"], row["reason"]) for row in failed.select("id", reason.alias("reason")).collect())


def _is_id(claim: ClaimReference, each: object) -> bool:
    if isinstance(each, str) and each:
        return True
    raise _wrong(claim, f"takes the ids of messages, and {each!r} is none: keep the column id of what was read.")


def _write(path: Path, claim: ClaimReference, reasons: Mapping[str, str]) -> None:
    """Add to the report. Batches of a stream may do so at once, and each line stays whole."""
    try:
        opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(opened, "w", encoding="utf-8") as report:
            fcntl.flock(report, fcntl.LOCK_EX)  # until it is closed, and so is written
            report.writelines(json.dumps({"id": each, "why": why}) + "\n" for each, why in reasons.items())
    except OSError as error:
        raise _wrong(
            claim,
            f"cannot write to {path}, where the operator that submitted this job reads it ({error.strerror}): have the "
            "driver run on the operator's machine (deploy mode client).",
        ) from None


def _tell_the_task(claim: ClaimReference, reasons: Mapping[str, str]) -> None:
    """Report to the task of Airflow that runs this job in its own process."""
    with suppress(InvalidArgumentError):
        if "airflow" in sys.modules:  # or no task runs here; where jobs run, Airflow need not be installed
            from airflow_provider_pawnqueue.hooks.reports import add  # noqa: PLC0415 - as above

            add(reasons, ())
            return
    raise _wrong(
        claim,
        "has nobody who listens: no PawnQueueSparkSubmitOperator has submitted this job, and no task of Airflow runs "
        "it. Settle by queue.settle(claim, bury={id: reason}).",
    )


def _wrong(claim: ClaimReference, sentence: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"report_failures for claim {claim.stem} of topic {claim.topic!r} {sentence}",
        topic=claim.topic,
        operation="report_failures",
    )
