"""Claim a batch: win its leases, record it, and only then read it (§4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_pawnqueue.engine import layout
from airflow_provider_pawnqueue.engine.claims import records
from airflow_provider_pawnqueue.engine.claims.bodies import Bodies, fetch_bodies
from airflow_provider_pawnqueue.engine.claims.claim import Claim
from airflow_provider_pawnqueue.engine.claims.looking import Candidate, Lookout
from airflow_provider_pawnqueue.engine.claims.records import FoundRecord
from airflow_provider_pawnqueue.engine.claims.settling import settle
from airflow_provider_pawnqueue.engine.claims.spread import Spread
from airflow_provider_pawnqueue.engine.gather import together
from airflow_provider_pawnqueue.engine.leases import lease as leases
from airflow_provider_pawnqueue.engine.leases.cas import Step
from airflow_provider_pawnqueue.engine.records import ClaimRecord, Member
from airflow_provider_pawnqueue.engine.store.port import Done, Expect, Unknown

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.context import Context
    from airflow_provider_pawnqueue.engine.records import TopicRecord

#: Candidates that others were faster at are replaced so many times within one claim.
ROUNDS = 4
#: Winning may take this part of the claim's time: what is left is for the work.
WINNING_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Order:
    """What a consumer asks for."""

    topic: TopicRecord
    claim_id: str
    generation: int
    owner: str
    consumer: str
    session: str
    most: int
    ttl: float
    named: bool = True  # its id was given, and may be given again

    @property
    def stem(self) -> str:
        """The name of its record, in keys and leases."""
        return layout.claim_stem(self.claim_id, self.generation)


@dataclass(slots=True)
class Won:
    """The leases of a batch, and the time that they all have."""

    until: float
    deadline: float
    members: dict[str, Member] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)


async def claim_fresh(context: Context, lookout: Lookout, spread: Spread, order: Order) -> Claim | None:
    """Claim messages that nobody has. Returns None where another one has recorded this very claim meanwhile."""
    won = await _win_leases(context, lookout, spread, order)
    if not won.members:
        return nothing(order)
    return await record_claim(context, order, won)


async def record_claim(context: Context, order: Order, won: Won) -> Claim | None:
    """Create the record of a batch that was won, and read its messages.

    Returns None where another one has recorded this very claim meanwhile.
    """
    record = ClaimRecord(
        claim_id=order.claim_id,
        generation=order.generation,
        owner=order.owner,
        consumer=order.consumer,
        session=order.session,
        created_at=won.until - order.ttl,
        # ⚑ §4: creating the record extends nothing. A taker judges the leases by the same time until it is there.
        until=won.until,
        ttl=order.ttl,
        members=won.members,
    )
    # ⚑ §4: the bodies are read only now, after the leases: what is not there was settled by somebody before us. They
    # need not wait for the record: who may take one of the leases has fenced it first, and then we are refused.
    outcome, bodies = await together(
        records.create(context, order.topic.topic, record),
        fetch_bodies(context, order.topic, record.members, won.sizes),
    )
    if isinstance(outcome, Unknown):
        raise outcome.fault
    if not isinstance(outcome, Done):
        return None
    standing = FoundRecord(record, outcome.version)
    claim = as_claim(order, standing, bodies, versions=won.versions, deadline=won.deadline)
    return await without_bad_ones(context, claim, bodies)


def as_claim(
    order: Order, standing: FoundRecord, bodies: Bodies, *, versions: Mapping[str, str], deadline: float
) -> Claim:
    """Put a claim together from its record and its messages."""
    messages = list(bodies.messages.values())
    uuids = {uuid: message.id for uuid, message in bodies.messages.items()}
    claim = Claim(
        standing.record,
        standing.version,
        order.topic.topic,
        messages,
        uuids=uuids,
        leases=versions,
        deadline=deadline,
    )
    claim._is_fleeting = not order.named  # noqa: SLF001 - this package's own
    return claim


async def without_bad_ones(context: Context, claim: Claim, bodies: Bodies) -> Claim:
    """Settle what must not be handed out: malformed messages, those delivered too often, those that are gone."""
    if bodies.decisions:
        await settle(context, claim, bodies.decisions)
    if context.clock.elapsed() >= claim.deadline:
        claim._lost = "reading its messages took longer than its time"  # noqa: SLF001 - this package's own
        claim.messages = ()
    return claim


def nothing(order: Order) -> Claim:
    """Make the claim of a consumer that found no message. It is in no bucket."""
    record = ClaimRecord(
        claim_id=order.claim_id,
        generation=order.generation,
        owner=order.owner,
        consumer=order.consumer,
        session=order.session,
        state="closed",
    )
    return Claim(record, "", order.topic.topic, (), uuids={}, leases={}, deadline=0.0)


async def _win_leases(context: Context, lookout: Lookout, spread: Spread, order: Order) -> Won:
    candidates = await lookout.candidates(spread.window(order.most), most_reads=2 * order.most)
    # ⚑ §2: the time of a claim is counted from before its first request was sent.
    started = context.clock.elapsed()
    now = await context.now()
    until = now + order.ttl
    won = Won(until, started + order.ttl - context.margin)
    left = spread.chosen(candidates, order.most)
    for _ in range(ROUNDS):
        batch, left = left[: order.most - len(won.members)], left[order.most - len(won.members) :]
        if not batch or context.clock.elapsed() - started > order.ttl * WINNING_SHARE:
            break
        steps = [_step(order, one, until) for one in batch]
        outcomes = await context.registers.write(steps)
        refused = 0
        for one, step, outcome in zip(batch, steps, outcomes, strict=True):
            if isinstance(outcome, Done):
                lease = step.record
                won.members[one.uuid] = Member(name=one.name, deliveries=getattr(lease, "deliveries", 1))
                won.versions[one.uuid] = outcome.version
                won.sizes[one.uuid] = one.size
            else:
                # Refused: another consumer was faster. Unknown: where it lands, it names a claim that does not know it.
                refused += 1
        spread.learn(len(batch), refused)
    return won


def _step(order: Order, one: Candidate, until: float) -> Step:
    before = one.lease
    lease = leases.held(
        one.uuid,
        one.name,
        consumer=order.consumer,
        claim=order.stem,
        deliveries=1 if before is None else before.lease.deliveries + 1,
        until=until,
        ttl=order.ttl,
    )
    key = layout.lease(order.topic.topic, one.uuid)
    return Step(key, lease, Expect.NOTHING if before is None else before.version)
