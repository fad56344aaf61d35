"""The one judgement of a unit: by its lease, and by the record of the claim that the lease names (§3, §4)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from pawnqueue.domain import layout
from pawnqueue.domain.lease import is_due, is_over

if TYPE_CHECKING:
    from pawnqueue.domain.claim_record import ClaimRecord
    from pawnqueue.domain.lease import Lease


class UnitState(Enum):
    """What a unit that has a lease is, and so what may be done with it."""

    HELD = "held"
    """A claim holds it, or a redrive moves it, and its time is not over."""
    DELAYED = "delayed"
    """It was given back, and may be claimed later."""
    FREE = "free"
    """It was given back, or no claim can settle it. A claimer that replaces the lease has it."""
    MOVING = "moving"
    """The redrive that moves it is over and has to be finished."""
    UNRECORDED = "unrecorded"
    """Its claim has no record. It is free once a fenced record is created, as the claimer then comes too late."""
    DECIDED = "decided"
    """Its claim has settled it. Only the effect has to be carried out."""
    NOT_LISTED = "not listed"
    """Its claim was recorded without it, so it was handed out to nobody."""
    LAPSED = "lapsed"
    """The time of its claim is over. It is free once the claim is fenced."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The state of a unit, and until when it lasts."""

    state: UnitState
    until: float
    """The server time at which the lease, or its claim's record, says that the state ends."""


def needs_record(lease: Lease, now: float, margin: float) -> bool:
    """Say whether the lease leaves it to the record of its claim what the unit is."""
    return lease.state == "held" and is_due(lease, now, margin) and layout.parse_stem(lease.claim) is not None


def judge(lease: Lease, unit_id: str, record: ClaimRecord | None, *, now: float, margin: float) -> Judgement:
    """Judge a unit.

    :param record: of the claim that the lease names, if :func:`needs_record`; None where there is none.
    """
    if not is_due(lease, now, margin):
        return Judgement(UnitState.DELAYED if lease.state == "released" else UnitState.HELD, lease.until)
    if lease.state == "moving":
        return Judgement(UnitState.MOVING, lease.until)
    if not needs_record(lease, now, margin):
        # Given back; or garbage, or pawn-queue's: there is no record to fence, only a time that is over.
        return Judgement(UnitState.FREE, lease.until)
    return _judge_by_record(lease, unit_id, record, now=now, margin=margin)


def _judge_by_record(lease: Lease, unit_id: str, record: ClaimRecord | None, *, now: float, margin: float) -> Judgement:
    if record is None:
        return Judgement(UnitState.UNRECORDED, lease.until)
    if unit_id in record.settled:
        # ⚑ §5.3: it was settled, only not carried out. It is not delivered again.
        return Judgement(UnitState.DECIDED, lease.until)
    if unit_id not in record.members:
        # ⚑ §4: a lease that landed late.
        return Judgement(UnitState.NOT_LISTED, lease.until)
    # ⚑ §4: a claim that was fenced early keeps its units until its session's time is over, as its process may be alive.
    is_lapsed = is_over(record.free_at, now, margin)
    return Judgement(UnitState.LAPSED if is_lapsed else UnitState.HELD, record.free_at)
