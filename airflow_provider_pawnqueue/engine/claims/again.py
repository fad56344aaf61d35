"""Claim again by the same id, and attach: the same messages, as far as they are ours; never a second batch (§4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pawnqueue.engine import layout
from airflow_provider_pawnqueue.engine.claims import records
from airflow_provider_pawnqueue.engine.claims.bodies import Bodies, fetch_bodies
from airflow_provider_pawnqueue.engine.claims.claim import Claim
from airflow_provider_pawnqueue.engine.claims.claiming import Order, Won, as_claim, record_claim, without_bad_ones
from airflow_provider_pawnqueue.engine.claims.effects import carry_out
from airflow_provider_pawnqueue.engine.claims.keeping import lengthened, lost_error
from airflow_provider_pawnqueue.engine.claims.records import FoundRecord
from airflow_provider_pawnqueue.engine.claims.takeover import fence, is_over
from airflow_provider_pawnqueue.engine.errors import LeaseLostError
from airflow_provider_pawnqueue.engine.gather import each
from airflow_provider_pawnqueue.engine.hint import glance_at_lease
from airflow_provider_pawnqueue.engine.records import Member
from airflow_provider_pawnqueue.engine.store.port import Done, Unknown

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.claims.looking import Lookout
    from airflow_provider_pawnqueue.engine.context import Context
    from airflow_provider_pawnqueue.engine.leases.lease import FoundLease


async def latest_generation(context: Context, topic: str, claim_id: str) -> int | None:
    """Return the newest generation of a claim that has a record, or None: one LIST."""
    before = layout.claim(topic, claim_id).removesuffix(".json")
    generations = []
    async for page in context.store.pages(layout.claims(topic), start_after=before):
        for info in page:
            parsed = layout.parse_claim(info.key)
            if parsed is not None and parsed[0] == claim_id:
                generations.append(parsed[1])
        if not page[-1].key.startswith(before):
            break
    return max(generations, default=None)


async def next_generation(context: Context, order: Order, standing: FoundRecord) -> int | None:
    """Return the generation that a new owner may begin, after the last one has ended; None: look again.

    A record in a final state is never opened again.
    """
    record = standing.record
    if record.state == "open":
        now = await context.now()
        if not is_over(context, record.until, now):
            raise LeaseLostError(
                f"Claim {order.claim_id} of topic {order.topic.topic!r} is still held for owner {record.owner!r}, for "
                f"{record.until - now:.0f} seconds unless it is renewed: wait, or claim under another claim_id.",
                topic=order.topic.topic,
                operation="claim",
            )
        if await fence(context, order.topic.topic, standing) is None:
            return None
    return record.generation + 1


async def adopt(context: Context, order: Order, found: dict[str, FoundLease]) -> Claim | None:
    """Record the leases that a former attempt at this very claim won before it died, with the time that they have.

    Returns None where another one has recorded the claim meanwhile.
    """
    started = context.clock.elapsed()
    now = await context.now()
    found = dict(sorted(found.items(), key=lambda one: one[1].lease.key))  # in publish order
    until = min(one.lease.until for one in found.values())
    deadline = started + until - now - context.margin - context.time.error
    won = Won(
        until,
        deadline,
        members={uuid: Member(name=one.lease.key, deliveries=one.lease.deliveries) for uuid, one in found.items()},
        versions={uuid: one.version for uuid, one in found.items()},
    )
    return await record_claim(context, order, won)


async def resume(context: Context, order: Order, standing: FoundRecord, *, vacated: str | None = None) -> Claim | None:
    """Work for an open claim in a new session. Returns None if its record changed meanwhile: look again.

    ⚑ §4, Sessions: who does not know by a reference that the last session has handed over waits until its time is over,
    as it may be alive and knows nothing of us. Its next renewal or settlement is refused.
    """
    record = standing.record
    now = await context.now()
    # Our own session stands there if an earlier attempt landed of which nobody knew: nobody else works for it.
    if record.session not in ("", vacated, order.session):
        left = record.until + context.margin - now
        if left > 0:
            await context.clock.sleep(left)
            return None
    started = context.clock.elapsed()
    now = await context.now()
    until = lengthened(context, record, now + order.ttl)
    longest = max(order.ttl, until - now)  # the record's size tells it
    changed = record.model_copy(update={"session": order.session, "until": until, "ttl": longest})
    outcome = await records.change(context, order.topic.topic, changed, standing.version)
    if isinstance(outcome, Unknown):
        raise outcome.fault
    if not isinstance(outcome, Done):
        return None
    deadline = started + until - now - context.margin
    members = {uuid: record.members[uuid] for uuid in record.unsettled}
    bodies = await fetch_bodies(context, order.topic, members, {})
    # The session before us may have been given what is bad or gone now: it counts as handed out.
    bodies.decisions = {uuid: one.model_copy(update={"unseen": False}) for uuid, one in bodies.decisions.items()}
    claim = as_claim(order, FoundRecord(changed, outcome.version), bodies, versions={}, deadline=deadline)
    if until <= now:
        raise lost_error(claim, "it is older than claims.max_claim_age_seconds")
    return await without_bad_ones(context, claim, bodies)


async def finish(context: Context, order: Order, standing: FoundRecord) -> FoundRecord | None:
    """Carry out what an open claim has decided of all that it had, and close it. None: others do; look again.

    ⚑ §5.5: whoever decided it died before the end, or was refused by the store. There is nothing to wait for.
    """
    topic = order.topic.topic
    failed = await carry_out(context, topic, standing.record, list(standing.record.settled), {})
    if failed:
        raise next(iter(failed.values()))
    closed = standing.record.model_copy(update={"state": "closed"})
    outcome = await records.change(context, topic, closed, standing.version)
    if isinstance(outcome, Unknown):
        raise outcome.fault
    return FoundRecord(closed, outcome.version) if isinstance(outcome, Done) else None


def ended(order: Order, standing: FoundRecord) -> Claim:
    """Show a claim that has ended: it has no messages, and tells what was decided."""
    return as_claim(order, standing, Bodies(), versions={}, deadline=0.0)


async def orphans(context: Context, lookout: Lookout, order: Order) -> dict[str, FoundLease]:
    """Return the leases that name this claim while it has no record, and whose time is not over.

    Only leases that no live claim covers are read. What is over may be taken by others at this moment, and is left
    to them.
    """
    listed, claims = await lookout.list_leases(), await lookout.list_claims()
    covered = await lookout.covered(claims)
    unsure = []
    for uuid, info in listed.items():
        glance = glance_at_lease(info.size, info.last_modified)
        if uuid not in covered and (glance is None or glance.state == "held"):
            unsure.append(uuid)

    async def read(uuid: str) -> FoundLease | None:
        return await context.read_lease(order.topic.topic, uuid)

    found = dict(zip(unsure, await each(read, unsure, at_once=context.at_once), strict=True))
    now = await context.now()
    return {
        uuid: one
        for uuid, one in found.items()
        if one is not None and one.lease.claim == order.stem and one.lease.state == "held" and one.lease.until > now
    }
