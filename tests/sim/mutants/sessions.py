"""§4: renewing, and sessions."""

from __future__ import annotations

from typing import Any

from pawnqueue import queue
from pawnqueue.claims import by_id, keep_alive, renewing
from pawnqueue.claims.by_id import ById
from pawnqueue.claims.held import HeldClaim
from pawnqueue.claims.keep_alive import KeepAlive
from pawnqueue.context import Context
from pawnqueue.domain import layout
from pawnqueue.domain.claim_record import ClaimRecord
from pawnqueue.errors import PawnQueueError
from pawnqueue.maintenance import sweep_claims as sweeping_claims
from pawnqueue.registers.register import Versioned
from tests.sim.mutants.entering import Patches, mutant

# --- renew ---


@mutant("§4 Renew is a compare-and-set, and a holder past its time has lost the claim", 38, 52, 11)
def renews_whatever_happened() -> Patches:
    async def renew(context: Context, claim: Any, ttl: float | None = None, session_ttl: float | None = None) -> None:
        lasts = claim.ttl if ttl is None else ttl
        session = lasts if session_ttl is None else session_ttl
        now = await context.now()
        started = context.clock.elapsed()
        changed = renewing.renewed(context, claim.record, now, ttl=lasts, session_ttl=session)
        body = changed.stamped(context.clock.nonce()).encode()
        version = await context.store.overwrite(layout.claim(claim.topic, changed.stem), body)
        claim.remember(Versioned(changed, version))
        claim.trust(context.trusted_until(started, changed.session_end - now), session)

    return [(renewing, "renew", renew), (queue, "renew", renew)]


@mutant("§4 A renewal never shortens a claim", 4128, arena="duel")
def renewal_shortens() -> Patches:
    def renewed(context: Context, record: ClaimRecord, now: float, *, ttl: float, session_ttl: float) -> ClaimRecord:
        until = min(now + ttl, record.created_at + context.settings.claims.max_claim_age_seconds)
        session_until = min(now + session_ttl, until)
        return record.model_copy(update={"until": until, "session_until": session_until, "lasts": ttl})

    return [(renewing, "renewed", renewed)]


@mutant("§4 That the janitor has renewed meanwhile is no loss", 8, 50, 83, arena="patience")
def renewed_by_others_is_lost() -> Patches:
    original = HeldClaim.replace_record

    async def replace_record(self: HeldClaim, context: Context, changed: ClaimRecord) -> bool:
        is_renewal = changed.settled == self.record.settled and changed.session_until != 0
        is_done = await original(self, context, changed)
        if is_renewal and not is_done:
            raise renewing.lost_error(self, "its record has changed")
        return is_done

    return [(HeldClaim, "replace_record", replace_record)]


@mutant("§4 A process that keeps a claim alive never stops silently", 50, 65, 67, arena="patience")
def kept_no_longer_in_silence() -> Patches:
    original = KeepAlive._renew

    async def renew(self: KeepAlive) -> BaseException | None:
        error = await original(self)
        if error is not None and not isinstance(error, PawnQueueError):
            raise error
        return error

    return [(KeepAlive, "_renew", renew), (KeepAlive, "_ended", lambda _, task: keep_alive._fault(task))]


# --- sessions ---


@mutant("§4 A new session waits until the time of the old one is over, unless that has handed over", 64, 62, 64)
def session_does_not_wait() -> Patches:
    original = ById._resume

    async def resume(self: ById, request: Any, standing: Any, *, vacated: str | None = None) -> Any:
        return await original(self, request, standing, vacated=standing.value.session)

    return [(ById, "_resume", resume)]


@mutant(
    "§4 A new session waits for the session's time, not for the claim's, which its run renews", 8, 10, 11, arena="long"
)
def session_waits_for_the_claim() -> Patches:
    original = ById._resume

    async def resume(self: ById, request: Any, standing: Any, *, vacated: str | None = None) -> Any:
        context, record = self._context, standing.value
        now = await context.now()
        if record.session not in ("", vacated, request.session) and not context.is_over(record.until, now):
            raise by_id.busy_error(context, request, record, record.until, now)
        return await original(self, request, standing, vacated=vacated)

    return [(ById, "_resume", resume)]


@mutant("§4 A release by the id leaves alone what a session may be working on", 183, 455, arena="crowd")
def releases_what_is_worked_on() -> Patches:
    return [(ById, "_may_be_alive", lambda *_: False)]


@mutant("§4 A holder trusts the earlier of both times", 8, 10, 11, arena="long")
def holder_trusts_the_claim() -> Patches:
    def trusted_until(self: HeldClaim, *, in_doubt: bool = True) -> float:
        return self._context.time.trusted_until(self.record.until, self._context.margin, in_doubt=in_doubt)

    return [(HeldClaim, "trusted_until", trusted_until)]


@mutant("§4 On behalf of a run the janitor renews the claim's time alone, never its session's", 8, 10, 11, arena="long")
def janitor_renews_the_session() -> Patches:
    original = sweeping_claims.ClaimSweep._change

    async def change(self: Any, standing: Any, changed: ClaimRecord) -> Any:
        if changed.state == "open":
            changed = changed.model_copy(update={"session_until": changed.until})
        return await original(self, standing, changed)

    return [(sweeping_claims.ClaimSweep, "_change", change)]


@mutant(
    "§4 A claim that was fenced early is waited for until its session's time is over, and no longer",
    1,
    5,
    6,
    arena="long",
)
def fenced_waits_for_the_claim() -> Patches:
    return [(ClaimRecord, "free_at", property(lambda self: self.until))]


# --- leave ---


@mutant(
    "§4 Leaving is a compare-and-set: a session that was taken over in the meantime changes nothing",
    test="tests/pawnqueue/claims/test_leaving.py::test_what_is_lost_is_not_left",
)
def leaves_whatever_happened() -> Patches:
    original = HeldClaim.replace_record

    async def replace_record(self: HeldClaim, context: Context, changed: ClaimRecord) -> bool:
        if changed.session_until != 0:
            return await original(self, context, changed)
        stamped = changed.stamped(context.clock.nonce())
        version = await context.store.overwrite(layout.claim(self.topic, changed.stem), stamped.encode())
        self.remember(Versioned(stamped, version))
        return True

    return [(HeldClaim, "replace_record", replace_record)]


@mutant(
    "§4 A process that leaves a claim works on it no more",
    test="tests/pawnqueue/claims/test_leaving.py::test_who_left_it_works_on_it_no_more",
)
def who_left_works_on() -> Patches:
    return [(HeldClaim, "give_away", lambda _: None)]
