"""Keep a claim: renew it in time, and know when it is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pawnqueue.engine.claims import records
from airflow_provider_pawnqueue.engine.errors import LeaseLostError
from airflow_provider_pawnqueue.engine.store.port import Done, Unknown

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.claims.claim import Claim
    from airflow_provider_pawnqueue.engine.context import Context
    from airflow_provider_pawnqueue.engine.records import ClaimRecord


async def renew(context: Context, claim: Claim, ttl: float) -> None:
    """Move the claim's time: one compare-and-set, whatever its size.

    :raises LeaseLostError: it is no longer ours. Whoever works on its messages has to stop.
    :raises StoreError: it could not be found out; the claim is trusted until its deadline, and may be renewed again.
    """
    async with claim._lock:  # noqa: SLF001 - this package's own
        for _ in range(2):
            if claim.recorded and not claim._record.unsettled:  # noqa: SLF001
                return  # all is settled: there is nothing to keep, and a final record is not written again
            # ⚑ §2: counted from before the request is sent; and who is past its time has lost it, and says so.
            started = context.clock.elapsed()
            _check_trusted(claim, started)
            now = await context.now()
            until = lengthened(context, claim._record, now + ttl)  # noqa: SLF001
            if until <= now:
                raise lost_error(claim, f"it is older than claims.max_claim_age_seconds={_max_age(context):g}")
            longest = max(ttl, until - now)  # the record's size tells it
            changed = claim._record.model_copy(update={"until": until, "ttl": longest})  # noqa: SLF001
            outcome = await records.change(context, claim.topic, changed, claim._version)  # noqa: SLF001
            if isinstance(outcome, Unknown):
                raise outcome.fault
            if isinstance(outcome, Done):
                claim._now_at(changed, outcome.version)  # noqa: SLF001
                claim._deadline = started + (until - now) - context.margin  # noqa: SLF001
                if context.clock.elapsed() >= claim.deadline:
                    raise lost_error(claim, "its renewal took longer than its time")
                return
            await claim._refresh(context)  # noqa: SLF001
            if claim.state != "open":
                raise lost_error(claim, "somebody has ended it")
            if not claim._is_ours():  # noqa: SLF001
                raise lost_error(claim, "another session works for it")
            # Still open and ours: an earlier write of ours, of which nobody knew, had landed. Once more, on top of it.
        raise lost_error(claim, "its record keeps changing")


def _check_trusted(claim: Claim, now: float) -> None:
    if claim.lost or claim._given_away:  # noqa: SLF001
        raise lost_error(claim, claim.lost or "it was handed over")
    if now >= claim.deadline:
        raise lost_error(claim, "its time was over before it was renewed")


def lengthened(context: Context, record: ClaimRecord, until: float) -> float:
    """Return the time that a renewal may give a claim: never less than it has, and never past its greatest age.

    ⚑ §4: less would be a claim that is over before its holder knows, where the renewal's answer was lost. The greatest
    age is for hung runs: they do not hold messages for ever.
    """
    return max(record.until, min(until, record.created_at + _max_age(context)))


def lost_error(claim: Claim, why: str) -> LeaseLostError:
    """Remember that the claim is lost, and make the error that says so."""
    if not claim._given_away:  # noqa: SLF001
        claim._lost = why  # noqa: SLF001
    return LeaseLostError(
        f"Claim {claim.claim_id} of topic {claim.topic!r} is lost: {why}. Stop working on its {len(claim)} messages: "
        "others may have them. To keep a claim over long work, renew it more often or use keep_alive.",
        topic=claim.topic,
        operation="renew",
    )


def _max_age(context: Context) -> float:
    return context.settings.claims.max_claim_age_seconds
