"""§4, steps 1-4, deliveries, and what becomes of a claim that is interrupted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from pawnqueue.claims import by_id, claiming, open_claims, renewing, settling, takeover
from pawnqueue.claims.bodies import Bodies
from pawnqueue.claims.claiming import Attempt
from pawnqueue.claims.held import HeldClaim
from pawnqueue.context import Context
from pawnqueue.domain import layout
from pawnqueue.domain.bounds import LATEST_TIME
from pawnqueue.domain.claim_record import ClaimRecord, Decision, Member
from pawnqueue.domain.lease import released
from pawnqueue.registers.claim_records import ClaimRecordRegister
from pawnqueue.registers.register import Versioned
from pawnqueue.registers.strategy import Step
from tests.sim.mutants.entering import Patches, mutant
from tests.sim.mutants.times import AS_IT_WAS_RECKONED


@mutant("§4.4 Creating the record extends nothing", 42, 149, 203, arena="duel")
def record_extends() -> Patches:
    original = Attempt._record

    async def record(self: Attempt, won: Any, bodies: Bodies) -> Any:
        context, request = self._context, self._request
        now = await context.now()
        won.until, won.session_until, won.deadline = now + request.ttl, now + request.session_ttl, math.inf
        result = await original(self, won, bodies)
        if isinstance(result, HeldClaim):
            result.trust(
                context.trusted_until(context.clock.elapsed(), min(request.ttl, request.session_ttl)),
                request.session_ttl,
            )
        return result

    return [(Attempt, "_record", record), AS_IT_WAS_RECKONED]


@mutant("§4.4 The record is created only where there is none: a taker may have fenced it", 19, 20, arena="duel")
def record_overwrites() -> Patches:
    async def create(self: Any, record: ClaimRecord) -> Any:
        if record.state == "open":
            return Versioned(
                record, await self._registers.overwrite(self._key, record.stamped(self._registers._clock.nonce()))
            )
        return await original(self, record)

    original = ClaimRecordRegister.create
    return [(ClaimRecordRegister, "create", create)]


@mutant("§4.3 The bodies are read only after the leases were won", 89, 206)
def bodies_first() -> Patches:
    read: ContextVar[Bodies | None] = ContextVar("read", default=None)
    original, original_fetch = Attempt._win, Bodies.fetch

    async def win(self: Attempt, picks: Any) -> Any:
        members = {one.id: Member(name=one.unit.name) for one in picks.left}
        read.set(await original_fetch(self._context, self._request.topic, members, self._retry_seconds))
        return await original(self, picks)

    async def fetch(context: Context, topic: Any, members: Mapping[str, Member], seconds: float, **how: Any) -> Bodies:
        early = read.get()
        read.set(None)
        if early is None:  # a session that resumes a claim has its leases already
            return await original_fetch(context, topic, members, seconds, **how)
        return Bodies(
            *(
                {uuid: one for uuid, one in part.items() if uuid in members}
                for part in (early.messages, early.decisions, early.aside)
            )
        )

    return [(Attempt, "_win", win), (Bodies, "fetch", fetch)]


@mutant("§4 What must not be handed out is in the record as settled already", 76, 91, 106, arena="stuck")
def bad_ones_are_not_settled() -> Patches:
    original = claiming.make_record

    def make_record(request: Any, won: Any, decisions: Mapping[str, Decision]) -> ClaimRecord:
        return original(request, won, {})

    return [(claiming, "make_record", make_record)]


# --- deliveries ---


@mutant("§4 A lease whose claim has no record, or does not list it, is no delivery", 1, 13, 16, arena="crowd")
def leases_won_are_deliveries() -> Patches:
    return [(takeover, "_not_handed_out", lambda leases: leases)]


@mutant("§4 What a claim gave back unseen is no delivery", 14, 22, 26, arena="stuck")
def unseen_is_a_delivery() -> Patches:
    return [(Decision, "counted", lambda _, deliveries: deliveries)]


@mutant(
    "§5.6 Deliveries and reasons belong to one message: another under its uuid begins with its own",
    test="tests/pawnqueue/claims/test_shared_uuids.py::test_deliveries_and_reasons_belong_to_one_message",
)
def deliveries_by_uuid() -> Patches:
    original = claiming.as_member

    def as_member(unit: Any, before: Any) -> Member:
        named = None if before is None else before.model_copy(update={"key": ""})
        return original(unit, named)

    return [(claiming, "as_member", as_member)]


# --- interrupted ---


@mutant("§4 A claim that is cancelled gives back what it won", 10, 33, 38, arena="patience")
def cancelled_keeps() -> Patches:
    async def give_back(_: Attempt) -> None:
        return None

    return [(Attempt, "_give_back", give_back)]


@mutant("§4 What was sent is waited for, as it may land", 197, 330, arena="patience")
def cut_off() -> Patches:
    async def cut(work: Any, *_: Any) -> Any:
        return await work

    return [(claiming, "shield_and_wait", cut), (by_id, "shield_and_wait", cut), (renewing, "shield_and_wait", cut)]


@mutant(
    "§4 A cancelled claim gives back by a record: somebody may be about to record the very leases",
    test="tests/pawnqueue/claims/test_giving_back.py"
    "::test_who_adopts_what_is_given_back_at_that_moment_does_not_have_it_beside_others",
)
def given_back_without_a_record() -> Patches:
    async def give_back(self: Attempt) -> None:
        won, context, topic = self._won, self._context, self._request.topic.name
        if won is None or not won.members or self._recorded is not None:
            return
        now = await context.now()
        steps = [
            Step(
                layout.lease(topic, uuid),
                released(
                    uuid,
                    one.name,
                    consumer=self._request.consumer,
                    claim=self._request.stem,
                    deliveries=one.deliveries - 1,
                    until=0.0,
                    now=now,
                ),
                won.versions[uuid],
            )
            for uuid, one in won.members.items()
        ]
        await context.registers.write(steps)

    return [(Attempt, "_give_back", give_back)]


@mutant(
    "§6 What another live record names is given back for the claim's own time at most",
    test="tests/pawnqueue/claims/test_forged_registers.py::test_messages_that_a_forged_record_names_come_when_it_is_deleted",
)
def rivals_are_believed_for_ever() -> Patches:
    async def leave_to_rivals(self: Attempt, claim: HeldClaim) -> None:
        theirs = await self._finder.named_by_others(self._request.stem, claim.record.members)
        decisions = {uuid: Decision(how="released", until=LATEST_TIME, by="claim") for uuid in theirs}
        await settling.settle(self._context, claim, decisions)
        claim.withhold(theirs)

    return [(Attempt, "_leave_to_rivals", leave_to_rivals)]


@mutant("§4 A queue that is closed gives back what it has and did not hand over", 7, 15, 22, arena="patience")
def closed_keeps() -> Patches:
    async def give_back(*_: Any) -> int:
        return 0

    return [(open_claims.Claims, "_return", give_back)]


@mutant(
    "§4 Nothing is buried by a limit that is not set any more",
    test="tests/pawnqueue/claims/test_deliveries.py::test_nothing_is_buried_by_a_limit_that_was_raised",
)
def buried_by_hearsay() -> Patches:
    class AsItWasRead:
        @staticmethod
        async def look() -> None:
            return None

    return [(Context, "topic_marker", lambda *_: AsItWasRead)]
