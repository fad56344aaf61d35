"""Claims by an id that may be asked for again: the same messages, as far as they are ours, and never a second batch.

§4, Sessions and Idempotent by claim id. What is found under the id decides:

no record, and no lease names it      begin it
no record, and leases name it         adopt them: a former attempt won them and died before its record
open, ours, and something is left     resume it in a new session, once the last one's time is over
open, ours, and all of it is decided  finish it; what was handed out has ended, else its next generation begins
open, of another owner                busy; once its time is over it is fenced, and its next generation begins
over, ours, and was handed out        it has ended: no messages, and what was decided
over, otherwise                       its next generation begins

A release by the id begins nothing, and does not wait:

open, ours, and something is left     all of that is given back if the last session's time is over; else it is busy
open, ours, and all of it is decided  carry that out, unless its session may be about to; nothing is given back
anything else                         nothing is given back
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pawnqueue.claims import effects, leaving, renewing, settling, takeover
from pawnqueue.claims.bodies import Bodies
from pawnqueue.claims.candidates import FULL_LISTING_SECONDS
from pawnqueue.claims.claim_making import (
    ClaimRequest,
    Won,
    end_unless_given_back,
    make_claim,
    make_empty_claim,
    make_record,
    settle_bad_ones,
    withhold_if_late,
)
from pawnqueue.claims.claim_reads import latest_generations
from pawnqueue.claims.claiming import MAX_TTL_SHARE, claim_fresh, claim_lost_error
from pawnqueue.context import PER_OBJECT_RETRY_SECONDS
from pawnqueue.domain import layout, share
from pawnqueue.domain import lease as leases
from pawnqueue.domain.claim_record import ClaimRecord, Decision, Member
from pawnqueue.errors import ClaimBusyError, CompatibilityError, PawnQueueError, StoreError
from pawnqueue.events import logger_of
from pawnqueue.registers.register import Versioned
from pawnqueue.runtime.cancellation import shield_and_wait

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pawnqueue.claims.candidates import Finder
    from pawnqueue.claims.contention import Contention
    from pawnqueue.claims.held import HeldClaim
    from pawnqueue.context import Context
    from pawnqueue.domain.lease import Lease

logger = logger_of("claims")

#: How often a claim's record is read, if it changes each time between its reading and our write.
MAX_RECORD_READS = 200
#: Of an owner's or a consumer's name in an error.
MAX_SHOWN_NAME_CHARACTERS = 200


class ById:
    """The claims of one topic, by their ids. A step returns None if the record has changed: then it is read again."""

    def __init__(self, context: Context, finder: Finder, contention: Contention) -> None:
        self._context = context
        self._finder = finder
        self._contention = contention
        self._without_record: dict[str, float] = {}  # ids that had no record, and when that was found

    async def claim(self, request: ClaimRequest) -> HeldClaim:
        """Find the claim again, or begin it.

        :raises ClaimBusyError: another process works for it.
        """
        for _ in range(MAX_RECORD_READS):
            claim = await self._look_and_claim(request)
            if claim is not None:
                return claim
        raise claim_lost_error(request, "its record keeps changing")

    async def attach(self, request: ClaimRequest, vacated: str) -> HeldClaim:
        """Resume a claim, in one generation, that the ``vacated`` session has handed over."""
        for _ in range(MAX_RECORD_READS):
            found = await self._context.claim_record(request.topic.name, request.stem).read()
            if found is None:
                raise claim_lost_error(request, "it has no record any more")
            if found.value.state != "open" or not found.value.unsettled:
                return self._show_ended(request, found)
            lasting = request.lasting_as(found.value, self._context.settings.claims.margin_seconds)
            claim = await self._resume(lasting, found, vacated=vacated)
            if claim is not None:
                return claim
        raise claim_lost_error(request, "its record keeps changing")

    async def release(self, request: ClaimRequest, owners: Collection[str], decision: Decision) -> HeldClaim | None:
        """Decide that all undecided messages are given back; return the claim with just these.

        None: it has ended, belongs to none of these owners, or does not exist. The caller carries out the decisions,
        also the earlier ones.

        :raises ClaimBusyError: another process works for it.
        """
        context, topic = self._context, request.topic.name
        for _ in range(MAX_RECORD_READS):
            generations = await latest_generations(context, topic, [request.claim_id])
            if not generations:
                return None
            request = replace(request, generation=generations[request.claim_id])
            found = await context.claim_record(topic, request.stem).read()
            if found is None:
                continue
            record = found.value
            if record.state != "open" or record.owner not in owners:
                return None
            now = await context.now()
            if self._may_be_alive(record, now):
                if not record.unsettled:
                    return None  # the session that has decided all of it is about to carry it out
                raise busy_error(context, request, record, record.session_end, now, operation="release")
            given_up = await self._give_up(request, found, decision) if record.unsettled else found
            if given_up is not None:
                left = Bodies.not_read(record)
                return make_claim(context, request, given_up, left, versions={}, deadline=0.0)
        raise claim_lost_error(request, "its record keeps changing")

    # --- what is found under the id ---

    async def _look_and_claim(self, request: ClaimRequest) -> HeldClaim | None:
        # ⚑ §4.1: a consumer that polls by an id need not look for the record each time. If another process has begun
        # the claim meanwhile, the creation of our record is refused, and then we look again.
        if self._context.clock.elapsed() - self._without_record.get(request.claim_id, -math.inf) < FULL_LISTING_SECONDS:
            return await self._begin_fresh(request)
        generations = await latest_generations(self._context, request.topic.name, [request.claim_id])
        if not generations:
            return await self._begin(request)
        stem = layout.claim_stem(request.claim_id, generations[request.claim_id])
        found = await self._context.claim_record(request.topic.name, stem).read()
        return None if found is None else await self._go_on(request, found)

    async def _go_on(self, request: ClaimRequest, found: Versioned[ClaimRecord]) -> HeldClaim | None:
        record = found.value
        if record.owner == request.owner:
            if record.state == "open":
                return await (self._resume(request, found) if record.unsettled else self._finish(request, found))
            if record.was_handed_out and not record.was_returned:
                return self._show_ended(request, found)
            # All that it had won was bad and is buried, or was given back when its process ended in good order. Its
            # owner has finished with none of it, and gets the next generation.
        following = await self._next_generation(request, found)
        return None if following is None else await self._begin(replace(request, generation=following))

    async def _next_generation(self, request: ClaimRequest, found: Versioned[ClaimRecord]) -> int | None:
        """Return the generation that may begin, after the last one has ended; None: the record has changed.

        A record that is final is never opened again.

        :raises ClaimBusyError: it has not ended.
        """
        context, record = self._context, found.value
        if record.state == "open":
            now = await context.now()
            if not context.is_over(record.until, now):
                raise busy_error(context, request, record, record.until, now)
            if await takeover.fence(context, request.topic.name, found) is None:
                return None
        if layout.parse_stem(layout.claim_stem(request.claim_id, record.generation + 1)) is None:
            raise CompatibilityError(
                f"Claim {request.claim_id} of topic {request.topic.name!r} has a record of generation "
                f"{record.generation}, behind which there is none, and which nobody of ours has written: delete it, or "
                "use another claim_id.",
                topic=request.topic.name,
                operation="claim",
            )
        return record.generation + 1

    # --- no record: begin, or adopt ---

    async def _begin(self, request: ClaimRequest) -> HeldClaim | None:
        """Adopt the leases of a former attempt, or else claim new messages.

        An id without a record is remembered, so that the next poll by it need not look for a record.
        """
        orphans = await self._orphans(request)
        if orphans:
            # ⚑ §4: nobody was given them, and nobody is while the topic is paused.
            request = await request.with_recent_topic()
            if request.topic.settings.paused:
                return make_empty_claim(self._context, request)
            return await self._adopt(request, orphans)
        if request.generation == 0:
            now = self._context.clock.elapsed()
            self._without_record = {
                claim_id: at for claim_id, at in self._without_record.items() if now - at < FULL_LISTING_SECONDS
            }
            self._without_record[request.claim_id] = now
        return await self._begin_fresh(request)

    async def _begin_fresh(self, request: ClaimRequest) -> HeldClaim | None:
        try:
            claim = await claim_fresh(self._context, self._finder, self._contention, request)
        except BaseException:
            self._without_record.pop(request.claim_id, None)  # leases may name it, or its record may exist
            raise
        if claim is None or claim:
            self._without_record.pop(request.claim_id, None)
        return claim

    async def _orphans(self, request: ClaimRequest) -> dict[str, Versioned[Lease]]:
        """Return the leases that name this claim while it has no record, and whose time is not over.

        Leases whose time is over may be taken by other consumers at this moment, and are left to them.
        """
        context = self._context
        found = await self._finder.leases_of(request.stem, most_reads=2 * request.max_messages)
        now = await context.now()
        return {
            uuid: lease
            for uuid, lease in found.items()
            if leases.is_held_by(lease.value, request.stem)
            # Enough of its time has to be left to read the message and to record the claim.
            and lease.value.until > now + 2 * context.margin + context.time.error
        }

    async def _adopt(self, request: ClaimRequest, orphans: dict[str, Versioned[Lease]]) -> HeldClaim | None:
        """Record the leases that a former attempt at this very claim won before it died, with the time that they have.

        None also if nothing of it can be handed out.
        """
        context = self._context
        started = context.clock.elapsed()
        now = await context.now()
        orphans = dict(sorted(orphans.items(), key=lambda item: item[1].value.key))  # in publish order
        # ⚑ §4: a claim has packs or single messages. Of two attempts that died, each may have won the leases of a kind.
        is_of_packs = layout.is_of_pack(next(iter(orphans)))
        orphans = {unit_id: lease for unit_id, lease in orphans.items() if layout.is_of_pack(unit_id) == is_of_packs}
        until = min(lease.value.until for lease in orphans.values())
        won = Won(
            until,
            until,
            context.trusted_until(started, until - now) - context.time.error,
            members={uuid: _as_member(lease.value) for uuid, lease in orphans.items()},
            versions={uuid: lease.version for uuid, lease in orphans.items()},
        )
        bodies = await Bodies.fetch(context, request.topic, won.members, PER_OBJECT_RETRY_SECONDS)
        if context.clock.elapsed() >= won.deadline:
            return None
        # Plans of the work need the messages' sizes, which leases do not tell.
        for uuid, size in bodies.sizes.items():
            won.members[uuid] = won.members[uuid].model_copy(update={"size": size})
        bodies.give_back_surplus(won.members, request.max_messages, request.max_bytes)
        record = make_record(request, won, bodies.decisions)
        created = await context.claim_record(request.topic.name, request.stem).create(record)
        if created is None:
            return None
        claim = make_claim(context, request, created, bodies, versions=won.versions, deadline=won.deadline)
        claim.untried.update(dict.fromkeys(bodies.decisions, context.clock.elapsed()))
        if bodies.decisions:
            await settling.carry_out_decided(context, claim)
        is_paused = (await request.with_recent_topic()).topic.settings.paused
        if claim and (is_paused or not withhold_if_late(context, claim)):
            # Nobody was given it, so it does not count as delivered, and its owner can claim it again.
            unseen = Decision(how="released", by="claim")
            await settling.settle(context.with_budget(), claim, dict.fromkeys(record.unsettled, unseen))
            return end_unless_given_back(context, request, claim)
        return claim or None

    # --- a record: resume, finish, or show how it ended ---

    async def _resume(
        self, request: ClaimRequest, found: Versioned[ClaimRecord], *, vacated: str | None = None
    ) -> HeldClaim | None:
        """Work for an open claim in a new session.

        ⚑ §4, Sessions: without a reference, which shows that the last session has handed over, a new session waits
        until the last one's time is over. That one may be alive, and does not know of us. Its next renewal or
        settlement is refused. The claim's own time, which its run's janitor renews, does not matter here.

        :raises ClaimBusyError: the last session may be alive.
        """
        context, record = self._context, found.value
        now = await context.now()
        # The record names our own session if an earlier attempt landed without an answer: nobody else works for it.
        if record.session not in ("", vacated, request.session) and not context.is_over(record.session_end, now):
            raise busy_error(context, request, record, record.session_end, now)
        started = context.clock.elapsed()
        now = await context.now()
        # A new session begins with a time of its own. Ours goes on if the record already names it.
        before = record if record.session == request.session else record.model_copy(update={"session_until": 0.0})
        changed = renewing.renewed(context, before, now, ttl=request.ttl, session_ttl=request.session_ttl)
        changed = changed.model_copy(update={"session": request.session})
        change = context.claim_record(request.topic.name, changed.stem).replace(found, changed)
        taken = await shield_and_wait(change, context.clock)
        if taken is None:
            return None
        deadline = context.trusted_until(started, changed.session_end - now)
        members = {uuid: record.unsettled_part(uuid) for uuid in record.unsettled}
        try:
            bodies = Bodies.not_read(record)
            if request.payloads:
                bodies = await Bodies.fetch(
                    context,
                    request.topic,
                    members,
                    max(PER_OBJECT_RETRY_SECONDS, request.ttl * MAX_TTL_SHARE),
                    is_resumed=True,
                )
        except BaseException:
            # The next session is not to wait for ours, whether it comes by the id or by the reference.
            held = make_claim(context, request, taken, Bodies(), versions={}, deadline=deadline)
            with suppress(StoreError, CompatibilityError):
                await shield_and_wait(leaving.vacate(context.with_budget(), held), context.clock)
            raise
        # The former session may have been given what is bad or gone now, so it counts as handed out.
        bodies.decisions = {
            uuid: decision.model_copy(update={"by": "consumer"}) for uuid, decision in bodies.decisions.items()
        }
        claim = make_claim(context, request, taken, bodies, versions={}, deadline=deadline)
        if changed.session_end <= now:
            raise renewing.lost_error(claim, "it is older than claims.max_claim_age_seconds")
        return await settle_bad_ones(context, claim, bodies)

    def _may_be_alive(self, record: ClaimRecord, now: float) -> bool:
        """Say whether the session in the record may be at work. ⚑ §4: without a reference, others wait for it."""
        return record.session != "" and not self._context.is_over(record.session_end, now)

    async def _give_up(
        self, request: ClaimRequest, found: Versioned[ClaimRecord], decision: Decision
    ) -> Versioned[ClaimRecord] | None:
        """Decide what becomes of all that is left of a claim, in a session that does nothing else with it.

        ⚑ §4, Sessions: the last session's time is over, so it trusts nothing any more. This is one compare-and-set, and
        renews nothing. If it comes first, a renewal, settlement, fence or resumption of the claim is refused. If one of
        them comes first, this is refused.
        """
        record = found.value
        given_back = decision.model_copy(update={"by": "other"})  # to the session that had it
        decided = record.with_decisions(dict.fromkeys(record.unsettled, given_back))
        changed = decided.model_copy(update={"session": request.session, "session_until": 0.0})
        return await self._context.claim_record(request.topic.name, changed.stem).replace(found, changed)

    async def _carry_out(self, topic: str, record: ClaimRecord) -> Mapping[str, PawnQueueError]:
        return await effects.carry_out(self._context.with_budget(), topic, record, record.settled, {})

    async def _finish(self, request: ClaimRequest, found: Versioned[ClaimRecord]) -> HeldClaim | None:
        """Carry out what a claim has decided of all its messages, and show the claim as it ended.

        ⚑ §5.5: the process that decided it died before the end, or was refused by the store. What is refused again is
        left to the next process that finds it. The claim has ended all the same.
        """
        context, topic, record = self._context, request.topic.name, found.value
        failed, finished = await effects.finish(context, topic, found, self._carry_out(topic, record))
        if failed:
            logger.warning(
                "Claim %s of topic %r has decided of %d messages what could not be carried out: %s",
                request.stem,
                topic,
                len(failed),
                next(iter(failed.values())),
            )
        if finished is None:
            return None
        if record.was_handed_out and not record.was_returned:
            return self._show_ended(request, finished)
        # The store refuses to carry out decisions on messages that nobody was given: begin the next generation.
        if finished.value.state == "closed" or await takeover.fence(context, topic, finished) is None:
            return None
        return await self._begin(replace(request, generation=record.generation + 1))

    def _show_ended(self, request: ClaimRequest, found: Versioned[ClaimRecord]) -> HeldClaim:
        """Show a claim that has ended: it has no messages, and tells what was decided."""
        return make_claim(self._context, request, found, Bodies(), versions={}, deadline=0.0)


def _as_member(lease: Lease) -> Member:
    """Return a unit as the claim that its lease names has it."""
    if lease.shares:
        shares = share.handed_out(lease.shares, lease.taken)
        return Member(name=lease.key, shares=shares, rest=share.union(lease.shares) & ~lease.taken)
    return Member(name=lease.key, deliveries=lease.deliveries, reason=lease.reason, error=lease.error)


def _who(record: ClaimRecord) -> str:
    who = f"consumer {_shown(record.consumer)} (in another process, or by another claim of this one)"
    return who if record.owner == record.consumer else f"{who} on behalf of {_shown(record.owner)}"


def _shown(name: str) -> str:
    """Return a name as an error shows it. Another program has written it, so it may be long and hold any character."""
    return repr(name if len(name) <= MAX_SHOWN_NAME_CHARACTERS else f"{name[:MAX_SHOWN_NAME_CHARACTERS]}…")


def busy_error(  # noqa: PLR0913, PLR0917 - the request, the record, and its times
    context: Context,
    request: ClaimRequest,
    record: ClaimRecord,
    until: float,
    now: float,
    operation: str = "claim",
) -> ClaimBusyError:
    """Make the error that says who works for the claim, and until when."""
    left = max(0.0, until + context.margin - now)
    advice = "claim again then, pass wait=, or claim under another claim_id"
    if operation == "release":
        advice = "release it then, or have it settled where it is worked on"
    return ClaimBusyError(
        f"Claim {request.claim_id} of topic {request.topic.name!r} is worked for by {_who(record)}, for {left:.0f} "
        f"more seconds unless that is renewed: {advice}.",
        claim_id=request.claim_id,
        owner=record.owner,
        until=datetime.fromtimestamp(until + context.margin, UTC),
        retry_after=left,
        topic=request.topic.name,
        operation=operation,
    )
