"""What is said of a settlement: an event, a line in the log where it is not known, an error where messages are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pawnqueue.engine.errors import LeaseLostError
from airflow_provider_pawnqueue.engine.events import Settled, logger_of

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.claims.held import HeldClaim
    from airflow_provider_pawnqueue.engine.context import Context
    from airflow_provider_pawnqueue.engine.settlement import Settlement

logger = logger_of("claims")


def answered(context: Context, claim: HeldClaim, done: Settlement, operation: str) -> Settlement:
    """Tell what became of messages that a consumer settled, and return it.

    :raises LeaseLostError: others have some of them. It is raised after everything else was settled.
    """
    context.events.tell(
        Settled(
            topic=claim.topic,
            claim=claim.stem,
            acked=tuple(done.acked),
            buried=tuple(done.buried),
            released=tuple(done.released),
            lost=tuple(done.lost),
        )
    )
    if done.unknown:
        logger.warning(
            "Of %d messages of claim %s of topic %r it could not be found out whether they are settled (%s, say): "
            "settle them again, or they may be delivered again. %s",
            len(done.unknown),
            claim.stem,
            claim.topic,
            done.unknown[0],
            done.fault,
        )
    if done.lost:
        raise _too_late(claim, done, operation)
    return done


def _too_late(claim: HeldClaim, done: Settlement, operation: str) -> LeaseLostError:
    if claim.given_away:
        why = "this process has handed it over: settle them where it was attached to"
    else:
        why = "others have them, or may have; a longer ttl, or keep_alive, keeps a claim over long work"
        if claim.state != "open" or not claim.is_ours():
            claim.lose("it was taken over")
    return LeaseLostError(
        f"Claim {claim.claim_id} of topic {claim.topic!r} had lost {len(done.lost)} of the "
        f"{len(list(done))} messages that were to be settled ({done.lost[0]!r}): {why}. The error's "
        ".settlement tells what became of each.",
        topic=claim.topic,
        message=done.lost[0],
        operation=operation,
        settlement=done,
    )
