"""Make a claim of what was won: its members, its record, and what its user is given."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from pawnqueue.claims import settling
from pawnqueue.claims.bodies import Bodies
from pawnqueue.claims.held import HeldClaim
from pawnqueue.domain import layout
from pawnqueue.domain.bounds import MOST_COUNT
from pawnqueue.domain.claim_record import ClaimRecord, Decision, Member
from pawnqueue.domain.completed import WITH_PAYLOADS, WITHOUT_PAYLOADS
from pawnqueue.domain.identifiers import Version
from pawnqueue.registers.register import Versioned

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.domain.lease import Lease
    from pawnqueue.domain.records import TopicRecord
    from pawnqueue.domain.unit import Unit

#: Returns a topic's record as it was a few seconds ago, or later; None: the topic does not exist.
RecentTopic: TypeAlias = "Callable[[str], Awaitable[TopicRecord | None]]"

#: Why a claim was lost before it was handed out.
TOO_LATE = "reading its messages took longer than its time, or failed"
NOT_GIVEN_BACK = "its messages could not be handed out, and it is not known whether they were given back"


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a consumer asks for."""

    topic: TopicRecord
    claim_id: str
    generation: int
    owner: str
    consumer: str
    session: str
    max_messages: int
    ttl: float
    session_ttl: float
    max_bytes: float = math.inf
    named: bool = True  # the caller gave its id, and may give it again
    payloads: bool = True  # attach: whether its messages are read
    own_ttl: bool = True  # attach: it lasts for ``ttl``, and not for as long as it was claimed for
    buries_only: bool = False  # nothing is handed out: what is too old is buried, for a sweep
    recent: RecentTopic | None = None  # reads the topic's record, unless it was read a few seconds ago

    def lasting_as(self, record: ClaimRecord, margin: float) -> ClaimRequest:
        """Return the request with the time that the claim was made for, if it asks for no time of its own.

        ⚑ §4: such a session neither shortens nor lengthens the time by which a janitor renews the claim.
        """
        lasts = record.lasts or record.ttl
        if self.own_ttl or lasts <= margin:
            return self
        return replace(self, ttl=lasts, session_ttl=min(self.session_ttl, lasts))

    async def with_recent_topic(self) -> ClaimRequest:
        """Return the request with the topic's settings of a few seconds ago, or later.

        ⚑ §4: nothing is handed out without this. Older settings may not tell that the topic is paused.
        """
        record = None if self.recent is None else await self.recent(self.topic.name)
        return self if record is None else replace(self, topic=record)

    @property
    def stem(self) -> str:
        """The name of its record, in keys and leases."""
        return layout.claim_stem(self.claim_id, self.generation)


@dataclass(slots=True)
class Won:
    """The leases of a batch, and the times that they all have."""

    until: float
    session_until: float
    deadline: float
    members: dict[str, Member] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    asked: dict[str, Member] = field(default_factory=dict)  # their outcomes are unknown
    leases: dict[str, Lease] = field(default_factory=dict)  # as they were sent
    fresh: set[str] = field(default_factory=set)  # the units that had no lease before

    @property
    def messages(self) -> int:
        """How many messages were won."""
        return sum(member.given.bit_count() if member.is_pack else 1 for member in self.members.values())


def as_member(unit: Unit, before: Lease | None) -> Member:
    """Return a message that is won as a member of its claim, with its deliveries: this will be the next."""
    # ⚑ §5.6: what a lease tells of deliveries belongs to the message that it names. Another one may have its uuid.
    if before is None or before.key not in {unit.name, ""}:
        return Member(name=unit.name, size=unit.size, deliveries=1)
    return Member(
        name=unit.name,
        size=unit.size,
        deliveries=min(before.deliveries + 1, MOST_COUNT),
        reason=before.reason,
        error=before.error,
    )


def make_record(request: ClaimRequest, won: Won, decisions: Mapping[str, Decision]) -> ClaimRecord:
    """Make the record of a batch that was won."""
    return ClaimRecord(
        claim_id=request.claim_id,
        generation=request.generation,
        owner=request.owner,
        consumer=request.consumer,
        session=request.session,
        created_at=won.until - request.ttl,
        # ⚑ §4: creating the record extends nothing: its times are those with which the leases were won.
        until=won.until,
        session_until=min(won.session_until, won.until),
        lasts=request.ttl,
        members=won.members,
        completed=_log_of(request.topic),
    ).with_decisions(decisions)


def _log_of(topic: TopicRecord) -> str:
    log = topic.settings.completed
    if log is None or not log.is_on:
        return ""
    return WITH_PAYLOADS if log.payloads else WITHOUT_PAYLOADS


def make_claim(  # noqa: PLR0913 - the parts of one thing
    context: Context,
    request: ClaimRequest,
    found: Versioned[ClaimRecord],
    bodies: Bodies,
    *,
    versions: Mapping[str, str],
    deadline: float,
) -> HeldClaim:
    """Make a claim from its record and its messages."""
    uuids = {uuid: message.id for uuid, message in bodies.messages.items()}
    uuids.update((uuid, uuid) for uuid in bodies.unread)
    return HeldClaim(
        context,
        request.topic.name,
        found,
        bodies.readable,
        uuids=uuids,
        leases=versions,
        deadline=deadline,
        session_ttl=request.session_ttl,
        is_fleeting=not request.named,
        unread=bodies.unread,
    )


def withhold_if_late(context: Context, claim: HeldClaim) -> HeldClaim:
    """Return the claim; without its messages, and lost, if its time is over by now."""
    if context.clock.elapsed() >= claim.trusted_until():
        claim.lose(TOO_LATE)
        claim.withhold([*claim.uuids, *claim.record.members])
    return claim


def end_unless_given_back(context: Context, request: ClaimRequest, claim: HeldClaim) -> HeldClaim | None:
    """Return a lost claim without messages if this one may still have some that nobody was given; else None.

    ⚑ §4, Pausing: the call that made the record does not go on with it. It would hand the messages out as ones that
    were given before, although the topic may be paused by now, and however old they are.
    """
    if claim.state != "open" or not claim.record.unsettled:
        return None
    lost = make_empty_claim(context, request)
    lost.lose(NOT_GIVEN_BACK)
    return lost


async def settle_bad_ones(context: Context, claim: HeldClaim, bodies: Bodies) -> HeldClaim:
    """Settle what must not be handed out (malformed, delivered too often, or gone), and return the claim if in time."""
    if bodies.decisions:
        await settling.settle(context, claim, bodies.decisions)
    return withhold_if_late(context, claim)


def make_empty_claim(context: Context, request: ClaimRequest) -> HeldClaim:
    """Make the claim of a consumer that found no message. It has no record in the bucket."""
    record = ClaimRecord(
        claim_id=request.claim_id,
        generation=request.generation,
        owner=request.owner,
        consumer=request.consumer,
        session=request.session,
        state="closed",
    )
    return make_claim(context, request, Versioned(record, Version("")), Bodies(), versions={}, deadline=0.0)
