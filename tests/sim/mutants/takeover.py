"""§4, take over: when what another claim has may be taken."""

from __future__ import annotations

import math
from typing import Any

from airflow_provider_pawnqueue.engine.claims import again, desk, looking, records, takeover
from airflow_provider_pawnqueue.engine.claims.known import Known
from airflow_provider_pawnqueue.engine.context import Context
from airflow_provider_pawnqueue.engine.janitor import claims as sweeping_claims
from tests.sim.mutants.entering import Patches, mutant


@mutant(
    "§4 Where an overdue lease's claim has no record, a fenced one is created first",
    test="tests/engine/claims/test_takeover.py::test_a_claimer_that_comes_too_late_with_its_record_has_nothing",
)
def no_record_is_free() -> Patches:
    async def create_fenced(*_: Any) -> bool:
        return True

    return [(takeover, "_create_fenced", create_fenced)]


@mutant(
    "§4 An open claim that is over is fenced by compare-and-set before its messages are taken", 4, 4, 42, arena="duel"
)
def no_fence() -> Patches:
    async def fence(_context: Context, _topic: str, standing: Any) -> Any:
        return standing

    return [(module, "fence", fence) for module in (takeover, again, desk, sweeping_claims)]


@mutant("§4 A claim that was fenced early still waits for its last time", 21, 4, 21)
def early_fence_is_free() -> Patches:
    original, original_live = takeover._judge_claim, Known._live_until

    async def judge_claim(context: Context, topic: str, stem: str, *rest: Any) -> None:
        standing = await records.read(context, topic, stem)
        fenced = standing is not None and standing.record.state == "expired"
        leases, now, judged = rest
        await original(context, topic, stem, leases, math.inf if fenced else now, judged)

    def live_until(self: Known, stem: str, info: Any, now: float) -> float | None:
        known = self._records.get(stem)
        fenced = known is not None and known.found.record.state == "expired"
        return None if fenced else original_live(self, stem, info, now)

    return [(takeover, "_judge_claim", judge_claim), (Known, "_live_until", live_until)]


@mutant("§4 The claim's time counts, not the lease's: a renewed claim is held", 2, 21, 33)
def only_the_lease_counts() -> Patches:
    original = takeover._judge_claim

    async def judge_claim(context: Context, topic: str, stem: str, *rest: Any) -> None:
        leases, _, judged = rest
        standing = await records.read(context, topic, stem)
        if standing is not None and not any(uuid in standing.record.settled for uuid in leases):
            judged.free.update(leases)
        else:
            await original(context, topic, stem, *rest)

    async def covered(*_: Any) -> dict[str, float]:
        return {}

    return [(takeover, "_judge_claim", judge_claim), (Known, "covered", covered)]


@mutant("§5.3 What was settled is carried out by whoever meets it, and not delivered again", 40, 53, 69)
def decided_is_taken() -> Patches:
    original = takeover._judge_claim

    async def judge_claim(context: Context, topic: str, stem: str, *rest: Any) -> None:
        leases, _, judged = rest
        standing = await records.read(context, topic, stem)
        if standing is not None and any(uuid in standing.record.settled for uuid in leases):
            judged.free.update(leases)
        else:
            await original(context, topic, stem, *rest)

    return [(takeover, "_judge_claim", judge_claim)]


@mutant("§5.5 Every crash point is finished by someone", 16, 2, 3)
def nobody_finishes_effects() -> Patches:
    async def carry_out(*_: Any, **_more: Any) -> dict[str, Any]:
        return {}

    return [(module, "carry_out", carry_out) for module in (looking, takeover, again, sweeping_claims)]
