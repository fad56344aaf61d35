"""§4, take over: when what another claim has may be taken."""

from __future__ import annotations

from typing import Any

from pawnqueue.claims import effects, overwritten, takeover
from pawnqueue.claims.register_cache import RegisterCache
from pawnqueue.domain.claim_record import ClaimRecord, Decision
from pawnqueue.domain.judgement import UnitState
from pawnqueue.errors import StoreError
from pawnqueue.reads import portions
from tests.sim.mutants.entering import Patches, mutant


@mutant(
    "§4 Where an overdue lease's claim has no record, a fenced one is created first",
    test="tests/pawnqueue/claims/test_takeover.py::test_a_claimer_that_comes_too_late_with_its_record_has_nothing",
)
def no_record_is_free() -> Patches:
    async def create_fenced(*_: Any) -> bool:
        return True

    return [(takeover._Judging, "_create_fenced", create_fenced)]


@mutant(
    "§4 An open claim that is over is fenced by compare-and-set before its messages are taken", 4, 4, 42, arena="duel"
)
def no_fence() -> Patches:
    async def fence(_context: Any, _topic: str, found: Any) -> Any:
        return found

    return [(takeover, "fence", fence)]


@mutant("§4 A claim that was fenced early still waits for its last time", 21, 4, 21)
def early_fence_is_free() -> Patches:
    original, original_live = takeover._Judging._state, RegisterCache._live_until

    def state(self: Any, lease: Any, unit_id: str, record: ClaimRecord | None) -> UnitState:
        judged = original(self, lease, unit_id, record)
        is_fenced = record is not None and record.state == "expired"
        return UnitState.LAPSED if is_fenced and judged is UnitState.HELD else judged

    def live_until(self: RegisterCache, stem: str, info: Any, now: float) -> float | None:
        known = self._records.get(stem)
        fenced = known is not None and known.state == "expired"
        return None if fenced else original_live(self, stem, info, now)

    return [(takeover._Judging, "_state", state), (RegisterCache, "_live_until", live_until)]


def _free_where(*, settled: bool) -> Patches:
    """Leases of a claim that has a record are free, at any time, where one of them was settled; or where none was."""
    original = takeover._Judging._judge_claim

    async def judge_claim(self: Any, stem: str, leases: Any) -> None:
        found = await self._context.claim_record(self._topic, stem).read()
        if found is not None and any(uuid in found.value.settled for uuid in leases) is settled:
            self.judged.free.update(leases)
        else:
            await original(self, stem, leases)

    return [(takeover._Judging, "_judge_claim", judge_claim)]


@mutant("§4 The claim's time counts, not the lease's: a renewed claim is held", 2, 21, 33)
def only_the_lease_counts() -> Patches:
    async def covered(*_: Any) -> dict[str, float]:
        return {}

    return [*_free_where(settled=False), (RegisterCache, "covered", covered)]


@mutant("§5.3 What was settled is carried out by the next process that meets it, and not delivered again", 164, 231)
def decided_is_taken() -> Patches:
    return _free_where(settled=True)


@mutant("§5.5 Every crash point is finished by someone", 16, 2, 3)
def nobody_finishes_effects() -> Patches:
    original = effects.carry_out

    async def carry_out(*arguments: Any, **more: Any) -> dict[str, Any]:
        # The process that decided still carries the decision out; another that finds it unfinished does not.
        return await original(*arguments, **more) if "at_last" in more else {}

    return [(effects, "carry_out", carry_out)]


@mutant(
    "§4 What a plan of a claim names is read only while the claim is held",
    test="tests/pawnqueue/reads/test_portions.py::test_a_plan_that_is_older_than_the_end_of_its_claim",
)
def plans_outlive_their_claims() -> Patches:
    async def check_held(*_: Any) -> None:
        pass

    return [(portions, "_check_held", check_held)]


@mutant(
    "§4 Of a claim that is handed out once more, only what was overwritten is given back",
    test="tests/pawnqueue/claims/test_overwritten.py::test_what_is_as_it_was_claimed_is_not_given_back",
)
def given_back_as_claimed() -> Patches:
    async def is_as_claimed(*_: Any) -> bool:
        return False

    return [(overwritten, "_is_as_claimed", is_as_claimed)]


@mutant(
    "§4 Where a message that was not overwritten cannot be read, nothing of the claim is settled",
    test="tests/pawnqueue/claims/test_overwritten.py::test_nothing_is_settled_where_one_cannot_be_read",
)
def settled_in_part() -> Patches:
    original = overwritten.read_each

    async def read_each(*arguments: Any) -> Any:
        try:
            return await original(*arguments)
        except StoreError:
            return [([], Decision(how="released"))]

    return [(overwritten, "read_each", read_each)]
