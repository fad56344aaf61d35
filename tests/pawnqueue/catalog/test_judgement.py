"""The one judgement of a unit, by its lease and by the record of its claim."""

from __future__ import annotations

import pytest

from pawnqueue.domain.claim_record import ClaimRecord, Decision, Member
from pawnqueue.domain.judgement import UnitState, judge, needs_record
from pawnqueue.domain.lease import Lease

NOW, MARGIN = 1000.0, 5.0
UNIT = "6f1c5f34-0f4e-4c8e-9d7b-0123456789ab"
OTHER = "7f1c5f34-0f4e-4c8e-9d7b-0123456789ab"


def lease(state: str = "held", until: float = NOW - MARGIN, claim: str = "run.0") -> Lease:
    """A lease that is just overdue, unless it says otherwise."""
    return Lease.model_validate({"state": state, "until": until, "claim": claim, "deliveries": 1})


def record(
    state: str = "open", until: float = NOW - MARGIN, *, members: tuple[str, ...] = (UNIT,), settled: str = ""
) -> ClaimRecord:
    """The record of the lease's claim, whose time is just over unless it says otherwise."""
    found = ClaimRecord(claim_id="run", until=until, members={each: Member(name=f"1-{each}.json") for each in members})
    decided = {UNIT: Decision(how=settled)} if settled else {}  # type: ignore[arg-type]
    return found.model_copy(update={"state": state, "settled": decided})


@pytest.mark.parametrize(
    ("of_unit", "of_claim", "state"),
    [
        pytest.param(lease(until=NOW - MARGIN + 1), None, UnitState.HELD, id="not overdue until the margin has passed"),
        pytest.param(lease("released", NOW + 1), None, UnitState.DELAYED, id="given back with a delay"),
        pytest.param(lease("released", NOW), None, UnitState.FREE, id="given back: a delay has no margin"),
        pytest.param(lease("moving"), None, UnitState.MOVING, id="a redrive that is over"),
        pytest.param(lease("moving", NOW), None, UnitState.HELD, id="a redrive at work"),
        pytest.param(lease(claim=""), None, UnitState.FREE, id="no claim: pawn-queue's lease, or garbage"),
        pytest.param(lease(claim="../x"), None, UnitState.FREE, id="not a claim's name"),
        pytest.param(lease(), None, UnitState.UNRECORDED, id="no record"),
        pytest.param(lease(), record(settled="acked"), UnitState.DECIDED, id="acked, not removed"),
        pytest.param(lease(), record("closed", settled="released"), UnitState.DECIDED, id="given back, not yet free"),
        pytest.param(lease(), record(members=(OTHER,)), UnitState.NOT_LISTED, id="recorded without it"),
        pytest.param(lease(), record(until=NOW), UnitState.HELD, id="the claim was renewed"),
        pytest.param(lease(), record(), UnitState.LAPSED, id="the claim is over"),
        pytest.param(lease(), record("expired", NOW), UnitState.HELD, id="fenced early: its process may be alive"),
        pytest.param(lease(), record("expired"), UnitState.LAPSED, id="fenced, and its session is over"),
    ],
)
def test_every_state_has_its_cause(of_unit: Lease, of_claim: ClaimRecord | None, state: UnitState) -> None:
    """The lease decides while its time lasts; then the record of the claim that it names does."""
    assert judge(of_unit, UNIT, of_claim, now=NOW, margin=MARGIN).state is state
    if of_claim is not None:
        assert needs_record(of_unit, NOW, MARGIN)
