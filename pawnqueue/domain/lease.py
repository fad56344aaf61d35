"""The lease's state machine (§3), written once for every strategy.

(none) --create--> held by claim C        held by C --take over, C can never settle it again--> held by D
held by C --C released it--> released     released, its time passed --take over--> held by D, deliveries + 1
(none) --redrive--> moving --> released
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Literal

from pydantic import Field

from pawnqueue.domain import layout, numbers, share, size_hint
from pawnqueue.domain.bounds import Count, HolderText, MessageName, ReasonText, Time, UuidText
from pawnqueue.domain.numbers import Numbers
from pawnqueue.domain.record import Record
from pawnqueue.domain.share import Share
from pawnqueue.domain.times import iso

#: pawn-queue's consumers delete, at every poll, a lease whose ``expires_at`` is past; ours are timed by ``until``.
SECONDS_PER_DAY = timedelta(days=1).total_seconds()


class Lease(Record):
    """``{topic}/leases/{unit id}.lease``: which claim has the unit (§3). pawn-queue writes the first four fields.

    ``expires_at`` is for pawn-queue's eyes only; our time is ``until``.
    """

    what: ClassVar[str] = "lease"

    consumer_id: HolderText = ""
    message_id: str = ""
    claimed_at: str = ""
    expires_at: str = ""
    #: ``split``: a pack whose slices have leases of their own. ``done``: a slice of which all messages are finished.
    state: Literal["held", "released", "moving", "split", "done"] = "held"
    until: Time = 0.0
    ttl: Time = 0.0
    key: MessageName | Literal[""] = ""  # the message's name
    claim: str = ""  # the stem of its record; none for a lease of pawn-queue's
    deliveries: Count = 0  # held: how often it was handed out if it is handed out by this lease; released: so far
    source: UuidText | Literal[""] = ""  # moving: the dead letter's uuid
    reason: ReasonText = ""  # released: given with it, and the error beside it
    error: ReasonText = ""
    #: Of a pack: its messages that are not finished, with their histories; ``deliveries`` above counts nothing then.
    shares: list[Share] = Field(default=[])
    taken: Numbers = 0  # of a pack that is held: the messages that are handed out by this lease
    length: Count = 0  # of a pack that is split: how many messages each of its slices has

    def fits(self, key: str) -> bool:
        """See :meth:`Record.fits`."""
        uuid = layout.parse_lease(key)
        return (
            uuid is not None
            and self._has_shares_of(layout.range_of(uuid))
            and (not self.key or layout.is_name_of(self.key, uuid))
            and (not self.claim or layout.parse_stem(self.claim) is not None)
            and (not self.claim or bool(self.key) or self.v == 0)  # whoever adopts it makes a member of it
            and (self.state != "moving" or bool(self.key and self.source))
        )

    def _has_shares_of(self, covers: tuple[int, int] | None) -> bool:
        """⚑ A lease of a pack names each message that is not finished once. Another lease has no shares."""
        if covers is None:
            return not (self.shares or self.taken or self.length) and self.state not in {"split", "done"}
        whole = share.union(self.shares)
        return (
            bool(self.key)
            and self.state != "moving"
            and bool(self.shares) == (self.state != "done")
            and bool(self.length) == (self.state == "split")
            and self.length < covers[1] - covers[0]
            and share.are_disjoint(self.shares, numbers.between(*covers))
            and self.taken & whole == self.taken
        )

    def _as_json(self, *, but: Collection[str] = ()) -> dict[str, Any]:
        empty = {name for name in ("shares", "taken", "length") if not getattr(self, name)}
        return super()._as_json(but={*but, *empty})

    def encode(self) -> bytes:
        """Return the body. Its size shows state and time to live in a LIST."""
        return size_hint.padded(super().encode(), *size_hint.of_lease(self.state, self.ttl))


def held(  # noqa: PLR0913 - the fields of one lease
    uuid: str, name: str, *, consumer: str, claim: str, deliveries: int, until: float, ttl: float
) -> Lease:
    """Make the lease by which a claim has a message."""
    made = Lease(key=name, consumer_id=consumer, claim=claim, deliveries=deliveries, until=until, ttl=ttl)
    return _timed(made, uuid, now=until - ttl)


def released(  # noqa: PLR0913 - the fields of one lease
    uuid: str, name: str, *, consumer: str, claim: str, deliveries: int, until: float, now: float
) -> Lease:
    """Make the lease of a message that anyone may take from a time on."""
    ttl = max(0.0, until - now)
    made = Lease(key=name, consumer_id=consumer, claim=claim, deliveries=deliveries, until=until, ttl=ttl)
    return _timed(made.model_copy(update={"state": "released"}), uuid, now=now)


def held_pack(  # noqa: PLR0913 - the fields of one lease
    unit_id: str, name: str, shares: Sequence[Share], taken: int, *, consumer: str, claim: str, until: float, ttl: float
) -> Lease:
    """Make the lease by which a claim has a pack, and is given the messages in ``taken``.

    Their shares are as they were before: a process that takes the pack over learns from the claim's record whether
    they were handed out.
    """
    made = held(unit_id, name, consumer=consumer, claim=claim, deliveries=0, until=until, ttl=ttl)
    return made.model_copy(update={"shares": share.merged(shares), "taken": taken})


def released_pack(  # noqa: PLR0913 - the fields of one lease
    unit_id: str, name: str, shares: Sequence[Share], *, consumer: str, claim: str, now: float
) -> Lease:
    """Make the lease of a pack that anyone may take once the first of its messages is due."""
    until = min(each.until for each in shares)
    made = released(unit_id, name, consumer=consumer, claim=claim, deliveries=0, until=until, now=now)
    return made.model_copy(update={"shares": share.merged(shares)})


def split(  # noqa: PLR0913 - the fields of one lease
    unit_id: str, name: str, shares: Sequence[Share], length: int, *, consumer: str, now: float
) -> Lease:
    """Make the lease that divides a pack into slices of this length. It stays until the pack is deleted.

    Each slice begins with its part of the shares.
    """
    made = released(unit_id, name, consumer=consumer, claim="", deliveries=0, until=0.0, now=now)
    return made.model_copy(update={"state": "split", "shares": share.merged(shares), "length": length})


def done(unit_id: str, name: str, *, consumer: str, claim: str, now: float) -> Lease:
    """Make the lease of a slice of which nothing is left. It stays until the pack is deleted.

    ⚑ §5.4: without it, a LIST would show the slice as one that nobody has.
    """
    made = released(unit_id, name, consumer=consumer, claim=claim, deliveries=0, until=0.0, now=now)
    return made.model_copy(update={"state": "done"})


def moving(uuid: str, name: str, *, source: str, until: float, ttl: float) -> Lease:
    """Make the lease that locks the new place of a dead letter while it is moved there."""
    made = Lease(state="moving", key=name, consumer_id="redrive", source=source, until=until, ttl=ttl)
    return _timed(made, uuid, now=until - ttl)


def is_over(until: float, now: float, margin: float) -> bool:
    """⚑ §2: a taker waits until the margin after somebody's time, as its holder stops the margin before it."""
    return now >= until + margin


def is_held_by(lease: Lease, stem: str) -> bool:
    """Say whether a lease gives its message to this claim."""
    return lease.state == "held" and lease.claim == stem


def due_at(lease: Lease, margin: float) -> float:
    """Return the server time from which the lease lets its message be claimed. A delay has no holder, and no margin."""
    if lease.state in {"split", "done"}:
        return math.inf
    return lease.until if lease.state == "released" else lease.until + margin


def is_due(lease: Lease, now: float, margin: float) -> bool:
    """Say whether a lease's time is over: what was released is anybody's, of the rest it is asked whose it was."""
    return now >= due_at(lease, margin)


def _timed(lease: Lease, uuid: str, *, now: float) -> Lease:
    """Add what pawn-queue reads: whose lease it is, and an expiry that its consumers' janitors do not reach."""
    fields = {"message_id": uuid, "claimed_at": iso(now), "expires_at": iso(max(now, lease.until) + SECONDS_PER_DAY)}
    return lease.model_copy(update=fields)
