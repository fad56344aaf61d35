"""Renew a claim in time, or find that it is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawnqueue.errors import LeaseLostError, StoreError
from pawnqueue.events import Renewed
from pawnqueue.runtime.cancellation import shield_and_wait

if TYPE_CHECKING:
    from pawnqueue.claims.claim import Claim
    from pawnqueue.claims.held import HeldClaim
    from pawnqueue.context import Context
    from pawnqueue.domain.claim_record import ClaimRecord


async def renew(context: Context, claim: HeldClaim, ttl: float | None = None, session_ttl: float | None = None) -> None:
    """Extend the claim's times: one compare-and-set, whatever the claim's size.

    :raises LeaseLostError: it is no longer ours. Its consumer has to stop working on its messages.
    :raises StoreError: the outcome is not known. The claim is trusted until its deadline, and may be renewed again.
    """
    async with claim.lock:
        backoff = context.store.backoff()
        while True:
            if _is_settled(claim):
                return  # nothing is left to keep, and a final record is not written again
            # ⚑ §2: the new time is counted from before the request is sent, and a claim past its time is lost.
            # The store's time comes first: it shows whether our clock has stopped.
            started = context.clock.elapsed()
            now = await context.now()
            _check_trusted(claim, context.clock.elapsed())
            lasts = claim.ttl if ttl is None else ttl
            trusted = min(lasts, session_time(claim, lasts) if session_ttl is None else session_ttl)
            changed = renewed(context, claim.record, now, ttl=lasts, session_ttl=trusted)
            if changed.session_end <= now:
                raise lost_error(claim, f"it is older than claims.max_claim_age_seconds={_max_age(context):g}")
            if await shield_and_wait(claim.replace_record(context, changed), context.clock):
                claim.trust(context.trusted_until(started, changed.session_end - now), trusted)
                if context.clock.elapsed() >= claim.trusted_until(in_doubt=False):
                    raise lost_error(claim, "its renewal took longer than its time")
                context.events.tell(Renewed(topic=claim.topic, claim=claim.stem, seconds=lasts))
                return
            await claim.refresh(context)
            if claim.state != "open":
                raise lost_error(claim, "somebody has ended it")
            if not claim.is_ours():
                raise lost_error(claim, "another session works for it")
            # Still open and ours: the janitor has renewed it, or an earlier write of ours has landed late. Renew that
            # record: the claim is not lost, however often this happens.
            if not await backoff.pause():
                raise contended_error(claim, "renewed", "renew")


def session_time(claim: Claim, lasts: float) -> float:
    """Return the session's time to live for a renewal that gives none: as it was, or as long as the claim's."""
    return claim.session_ttl if claim.session_ttl < claim.ttl else lasts


def renewed(context: Context, record: ClaimRecord, now: float, *, ttl: float, session_ttl: float) -> ClaimRecord:
    """Return the record with the times that its session's renewal gives it.

    ⚑ §4: neither is earlier than it was: if the renewal's answer is lost, its holder still trusts the later time. Only
    the session itself moves the session's time, and a new session begins with a time of its own.
    """
    until = lengthened(context, record, now + ttl)
    session_until = min(max(record.session_end, now + session_ttl), until)
    return record.model_copy(update={"until": until, "session_until": session_until, "lasts": ttl})


def _is_settled(claim: HeldClaim) -> bool:
    if not claim.recorded:
        return False
    # ⚑ §4: others may take what its record does not list. No version of ours writes such a record.
    if claim.unlisted:
        raise lost_error(claim, f"its record does not list {len(claim.unlisted)} of its messages any more")
    return not claim.left


def _check_trusted(claim: HeldClaim, now: float) -> None:
    if claim.lost or claim.given_away:
        raise lost_error(claim, claim.lost or "it was handed over")
    if now >= claim.trusted_until(in_doubt=False):
        raise lost_error(claim, "its time was over before it was renewed")


def lengthened(context: Context, record: ClaimRecord, until: float) -> float:
    """Return the time that a renewal may give a claim: not less than it has, nor past ``max_claim_age_seconds``.

    ⚑ §4: with less time, and a lost answer, the claim would be over before its holder knows. The greatest age is for
    hung runs, which would hold messages for ever.
    """
    return max(record.until, min(until, record.created_at + _max_age(context)))


def lost_error(claim: HeldClaim, why: str, operation: str = "renew") -> LeaseLostError:
    """Remember that the claim is lost, and make the error that says so."""
    claim.lose(why)
    return LeaseLostError(
        f"Claim {claim.claim_id} of topic {claim.topic!r} is lost: {why}. Stop working on what is left of it "
        f"({claim.messages_left} messages): others may have them. A longer ttl, or earlier renewals, keep a claim over "
        "long work.",
        topic=claim.topic,
        operation=operation,
    )


def contended_error(claim: HeldClaim, done: str, operation: str) -> StoreError:
    """Make the error that says that a claim's record kept changing until the retry budget was used up."""
    return StoreError(
        f"Claim {claim.claim_id} of topic {claim.topic!r} could not be {done}, as its record kept changing: "
        f"{operation} it again.",
        transient=True,
        topic=claim.topic,
        operation=operation,
    )


def _max_age(context: Context) -> float:
    return context.settings.claims.max_claim_age_seconds
