"""For jobs: which claim they were submitted for, whether it stands, and which messages they could not do."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_pawnqueue.engine import ClaimReference, InvalidArgumentError, LeaseLostError, SyncPawnQueue
from airflow_provider_pawnqueue.spark.job import CLAIM_VARIABLE, REPORT_VARIABLE
from airflow_provider_pawnqueue.spark.options import Options, references, told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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

    :param claim: the claim, by its reference.
    :raises PawnQueueSparkError: it has ended, or its time is over, or it is settled.
    """
    reference = references(claim)[0] if isinstance(claim, str) else ClaimReference.of(claim)
    with told(), SyncPawnQueue.open(Options.of({}).settings()) as queue:
        # ⚑ Settled may mean given back: then others have its messages, as if it had been lost.
        if not queue.portions(reference, parts=1):
            raise LeaseLostError(
                f"Claim {reference.stem} of topic {reference.topic!r} is settled: what was made of its messages comes "
                "too late, and others may have them.",
                topic=reference.topic,
                operation="confirm",
            )


def report_failures(claim: ClaimReference | Mapping[str, Any] | str, failed: DataFrame | Mapping[str, str]) -> int:
    """Say which messages of a claim were not done: settle nacks those, and acks the others. Return how many those are.

    It is passed on when the job succeeds; of a job that fails, no message is done. What is reported of a message last
    counts, and reporting twice does no harm.

    :param claim: the claim, by its reference.
    :param failed: a DataFrame with a column ``id``, and ``reason`` if it knows one, a row a message; or reasons by id.
    :raises InvalidArgumentError: it has no such column, or an id is null; or nobody listens: no operator of ours, and
        no task of Airflow, runs this job.
    """
    reference = references(claim)[0] if isinstance(claim, str) else ClaimReference.of(claim)
    reasons = _collected(reference, failed)
    path = os.environ.get(REPORT_VARIABLE)
    if path:
        with Path(path).open("a", encoding="utf-8") as report:
            report.writelines(json.dumps({"id": each, "why": why}) + "\n" for each, why in reasons.items())
    else:
        _tell_the_task(reasons)
    return len(reasons)


def _collected(claim: ClaimReference, failed: DataFrame | Mapping[str, str]) -> dict[str, str]:
    found: dict[Any, Any]
    if isinstance(failed, Mapping):
        found = dict(failed)
    else:
        if "id" not in failed.columns:
            raise InvalidArgumentError(
                f"report_failures for claim {claim.stem} takes a DataFrame with a column id, and this one has "
                f"{', '.join(failed.columns) or 'none'}: keep the column id of what was read.",
                topic=claim.topic,
                operation="report_failures",
            )
        columns = ["id", "reason"] if "reason" in failed.columns else ["id"]
        found = {row["id"]: row["reason"] if len(columns) > 1 else None for row in failed.select(*columns).collect()}
    if not all(isinstance(each, str) and each for each in found):
        raise InvalidArgumentError(
            f"report_failures for claim {claim.stem} takes the ids of messages, and one of them is null: keep the "
            "column id of what was read.",
            topic=claim.topic,
            operation="report_failures",
        )
    return {each: (str(why) if why else "the job could not do it")[:LONGEST_REASON] for each, why in found.items()}


def _tell_the_task(reasons: Mapping[str, str]) -> None:
    """Report to the task of Airflow that runs this job in its own process."""
    try:
        # Where jobs run, Airflow need not be installed.
        from airflow_provider_pawnqueue.hooks.reports import add  # noqa: PLC0415
    except ImportError:
        raise InvalidArgumentError(
            "Nobody listens to report_failures here: no PawnQueueSparkSubmitOperator has submitted this job, and no "
            "task of Airflow runs it. Settle by queue.settle(claim, failed={id: reason}).",
            operation="report_failures",
        ) from None
    add(reasons, ())
