"""Leave a claim to the next session: this session gives back its time, and the next one need not wait (§4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pawnqueue.claims.renewing import contended_error, lost_error
from pawnqueue.errors import PawnQueueError, StoreError
from pawnqueue.events import logger_of
from pawnqueue.runtime.cancellation import shield_and_wait

if TYPE_CHECKING:
    from pawnqueue.claims.claim import ClaimReference
    from pawnqueue.claims.held import HeldClaim
    from pawnqueue.context import Context

logger = logger_of("claims")


async def leave(context: Context, claim: HeldClaim) -> ClaimReference:
    """Leave a claim on behalf of its consumer, and return the reference by which the next session attaches.

    :raises LeaseLostError: another session works for it, or it has ended: there is nothing to leave.
    """
    if claim.lost:
        raise lost_error(claim, claim.lost, "leave")
    if not claim.recorded or not claim.left:
        return claim.hand_over()  # without a request: this process may not know the store's time yet
    was_given_away = claim.given_away
    trusted = claim.trusted_until()
    reference = claim.hand_over()
    try:
        await vacate(context, claim)
    except PawnQueueError as error:
        logger.warning(
            "Claim %s of topic %r is left, but it is not known whether its record says so. By its reference it is "
            "available at once, and by its id when its session's time is over: %s",
            claim.claim_id,
            claim.topic,
            error,
        )
        return reference
    if claim.left and not was_given_away and _was_lost(context, claim, trusted):
        why = "another session works for it" if claim.state == "open" else "somebody has ended it"
        claim.lose_after_all(why)
        raise lost_error(claim, why, "leave")
    return reference


async def vacate(context: Context, claim: HeldClaim) -> None:
    """Give back the session and keep the claim, so that the next session by its id need not wait.

    ⚑ §4: this session no longer works on it.

    :raises StoreError: the outcome is not known. Then the next session may wait until this one's time is over.
    """
    claim.give_away()
    async with claim.lock:
        backoff = context.store.backoff()
        while _is_to_be_left(claim):
            vacated = claim.record.model_copy(update={"session_until": 0.0})
            try:
                if await shield_and_wait(claim.replace_record(context, vacated), context.clock):
                    return
                fault = contended_error(claim, "left", "leave")
            except StoreError as error:
                fault = error
            # Another process has written the record, or the outcome of our write is unknown: read the record.
            await claim.refresh(context)
            if not await backoff.pause():
                raise fault


def _is_to_be_left(claim: HeldClaim) -> bool:
    """Say whether the record shows this process at work, as far as is known."""
    record = claim.record
    return record.state == "open" and record.session == claim.session and record.session_until != 0 and bool(claim.left)


def _was_lost(context: Context, claim: HeldClaim, trusted: float) -> bool:
    """Say whether another process had taken it before it was left.

    If another session is in the record while ours was still trusted, our leave had landed without an answer.
    """
    if claim.state != "open":
        return True
    return claim.record.session != claim.session and context.clock.elapsed() >= trusted
