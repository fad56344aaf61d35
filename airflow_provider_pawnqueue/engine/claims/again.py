"""Claim again by the same id, and attach: the same messages, as far as they are ours; never a second batch (§4)."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow_provider_pawnqueue.engine import layout
from airflow_provider_pawnqueue.engine.claims import effects, records, takeover
from airflow_provider_pawnqueue.engine.claims.bodies import Bodies, fetch_bodies
from airflow_provider_pawnqueue.engine.claims.claiming import (
    PARTING,
    SHARE,
    Order,
    Won,
    as_claim,
    in_time,
    made_record,
    without_bad_ones,
)
from airflow_provider_pawnqueue.engine.claims.held import HeldClaim
from airflow_provider_pawnqueue.engine.claims.keeping import leave, lost_error, renewed
from airflow_provider_pawnqueue.engine.claims.records import FoundRecord
from airflow_provider_pawnqueue.engine.claims.settling import carry_out_decided, settle
from airflow_provider_pawnqueue.engine.context import HASTE
from airflow_provider_pawnqueue.engine.errors import ClaimBusyError, CompatibilityError, StoreError
from airflow_provider_pawnqueue.engine.gather import each, uncut
from airflow_provider_pawnqueue.engine.records import ClaimRecord, Decision, Member
from airflow_provider_pawnqueue.engine.store.port import Done, Unknown

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.claims.looking import Lookout
    from airflow_provider_pawnqueue.engine.context import Context
    from airflow_provider_pawnqueue.engine.leases.lease import FoundLease

logger = logging.getLogger(__name__)


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

    :raises ClaimBusyError: it has not ended.
    """
    record = standing.record
    if record.state == "open":
        now = await context.now()
        if not context.is_over(record.until, now):
            raise busy_error(context, order, record, record.until, now)
        if await takeover.fence(context, order.topic.topic, standing) is None:
            return None
    if layout.parse_stem(layout.claim_stem(order.claim_id, record.generation + 1)) is None:
        raise CompatibilityError(
            f"Claim {order.claim_id} of topic {order.topic.topic!r} has a record of generation {record.generation}, "
            "behind which there is none, and which nobody of ours has written: delete it, or use another claim_id.",
            topic=order.topic.topic,
            operation="claim",
        )
    return record.generation + 1


async def adopt(context: Context, order: Order, found: dict[str, FoundLease]) -> HeldClaim | None:
    """Record the leases that a former attempt at this very claim won before it died, with the time that they have.

    Returns None where another one has recorded the claim meanwhile, or where nothing of it can be handed out.
    """
    started = context.clock.elapsed()
    now = await context.now()
    found = dict(sorted(found.items(), key=lambda one: one[1].lease.key))  # in publish order
    until = min(one.lease.until for one in found.values())
    won = Won(
        until,
        until,
        context.trusted(started, until - now) - context.time.error,
        members={
            uuid: Member(
                name=one.lease.key, deliveries=one.lease.deliveries, reason=one.lease.reason, error=one.lease.error
            )
            for uuid, one in found.items()
        },
        versions={uuid: one.version for uuid, one in found.items()},
    )
    bodies = await fetch_bodies(context, order.topic, won.members, HASTE)
    if context.clock.elapsed() >= won.deadline:
        return None
    record = made_record(order, won, bodies.decisions)
    outcome = await records.create(context, order.topic.topic, record)
    if isinstance(outcome, Unknown):
        raise outcome.fault
    if not isinstance(outcome, Done):
        return None
    claim = as_claim(
        context, order, FoundRecord(record, outcome.version), bodies, versions=won.versions, deadline=won.deadline
    )
    if bodies.decisions:
        await carry_out_decided(context, claim)
    if claim and not in_time(context, claim):
        # Nobody was given it, so it does not count, and its owner is not to go without.
        await settle(context.patient(), claim, dict.fromkeys(record.unsettled, Decision(how="released", unseen=True)))
    return claim or None


async def resume(
    context: Context, order: Order, standing: FoundRecord, *, vacated: str | None = None
) -> HeldClaim | None:
    """Work for an open claim in a new session. Returns None if its record changed meanwhile: look again.

    ⚑ §4, Sessions: who does not know by a reference that the last session has handed over waits until that session's
    time is over, as it may be alive and knows nothing of us. Its next renewal or settlement is refused. The claim's own
    time, which its run's janitor renews, does not matter here.

    :raises ClaimBusyError: the last session may be alive.
    """
    record = standing.record
    now = await context.now()
    # Our own session stands there if an earlier attempt landed of which nobody knew: nobody else works for it.
    if record.session not in ("", vacated, order.session) and not context.is_over(record.session_end, now):
        raise busy_error(context, order, record, record.session_end, now)
    started = context.clock.elapsed()
    now = await context.now()
    # A new session begins with a time of its own; ours goes on if it is there already.
    before = record if record.session == order.session else record.model_copy(update={"session_until": 0.0})
    changed = renewed(context, before, now, ttl=order.ttl, session_ttl=order.session_ttl)
    changed = changed.model_copy(update={"session": order.session})
    outcome = await uncut(records.change(context, order.topic.topic, changed, standing.version), context.clock, PARTING)
    if isinstance(outcome, Unknown):
        raise outcome.fault
    if not isinstance(outcome, Done):
        return None
    deadline = context.trusted(started, changed.session_end - now)
    standing = FoundRecord(changed, outcome.version)
    members = {uuid: record.members[uuid] for uuid in record.unsettled}
    try:
        bodies = await fetch_bodies(context, order.topic, members, max(HASTE, order.ttl * SHARE))
    except BaseException:
        # Whoever comes by its id or the reference next is not to wait for us.
        held = as_claim(context, order, standing, Bodies(), versions={}, deadline=deadline)
        await uncut(leave(context.patient(), held), context.clock, PARTING)
        raise
    # The session before us may have been given what is bad or gone now: it counts as handed out.
    bodies.decisions = {uuid: one.model_copy(update={"unseen": False}) for uuid, one in bodies.decisions.items()}
    claim = as_claim(context, order, standing, bodies, versions={}, deadline=deadline)
    if changed.session_end <= now:
        raise lost_error(claim, "it is older than claims.max_claim_age_seconds")
    return await without_bad_ones(context, claim, bodies)


async def finish(context: Context, order: Order, standing: FoundRecord) -> FoundRecord | None:
    """Carry out what a claim has decided of all that it had, and close it. None: others do; look again.

    ⚑ §5.5: whoever decided it died before the end, or was refused by the store. What is refused again is left to the
    next who meets it: the claim has ended all the same.
    """
    topic = order.topic.topic
    carried_out = effects.carry_out(context.patient(), topic, standing.record, list(standing.record.settled), {})
    failed, closed = await effects.finish(context, topic, standing, carried_out)
    if failed:
        logger.warning(
            "Claim %s of topic %r has decided of %d messages what could not be carried out: %s",
            order.stem,
            topic,
            len(failed),
            next(iter(failed.values())),
        )
    return closed


def busy_error(context: Context, order: Order, record: ClaimRecord, until: float, now: float) -> ClaimBusyError:
    """Say who has the claim, and until when."""
    left = max(0.0, until + context.margin - now)
    return ClaimBusyError(
        f"Claim {order.claim_id} of topic {order.topic.topic!r} is worked for by consumer {record.consumer!r} on "
        f"behalf of {record.owner!r}, for {left:.0f} more seconds unless that is renewed: claim again then, pass "
        "wait=, or claim under another claim_id.",
        claim_id=order.claim_id,
        owner=record.owner,
        until=datetime.fromtimestamp(until + context.margin, UTC),
        retry_after=left,
        topic=order.topic.topic,
        operation="claim",
    )


def ended(context: Context, order: Order, standing: FoundRecord) -> HeldClaim:
    """Show a claim that has ended: it has no messages, and tells what was decided."""
    return as_claim(context, order, standing, Bodies(), versions={}, deadline=0.0)


async def orphans(context: Context, lookout: Lookout, order: Order) -> dict[str, FoundLease]:
    """Return the leases that name this claim while it has no record, and whose time is not over.

    Only leases that no live claim covers are read. What is over may be taken by others at this moment, and is left
    to them.
    """
    listed = await lookout.held_leases()
    covered = await lookout.covered() if listed else {}
    unsure = [uuid for uuid in listed if uuid not in covered]

    async def read(uuid: str) -> FoundLease | None:
        try:
            return await hasty.read_lease(order.topic.topic, uuid)
        except (StoreError, CompatibilityError):
            return None  # ⚑ §5.6: it concerns its own message only

    hasty = context.patient()
    found = dict(zip(unsure, await each(read, unsure, at_once=context.at_once), strict=True))
    now = await context.now()
    return {
        uuid: one
        for uuid, one in found.items()
        if one is not None
        and one.lease.claim == order.stem
        and one.lease.state == "held"
        # There has to be time to read and record them.
        and one.lease.until > now + 2 * context.margin + context.time.error
    }
