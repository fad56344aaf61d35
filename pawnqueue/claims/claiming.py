"""Claim a batch: win its leases, read its messages, record it, and only then hand it out (§4)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

from pawnqueue.claims import effects, settling
from pawnqueue.claims.bodies import Bodies
from pawnqueue.claims.candidates import BACKGROUND_WAIT_SECONDS, Candidate, Finder
from pawnqueue.claims.contention import Contention, Picks
from pawnqueue.claims.held import HeldClaim
from pawnqueue.claims.set_aside import MAX_BAD_BATCH_BYTES
from pawnqueue.domain import layout
from pawnqueue.domain import lease as leases
from pawnqueue.domain.bounds import MOST_COUNT
from pawnqueue.domain.identifiers import Version
from pawnqueue.domain.records import ClaimRecord, Decision, Member
from pawnqueue.errors import CompatibilityError, LeaseLostError, StoreError
from pawnqueue.events import GivenBack, logger_of
from pawnqueue.registers.register import Versioned
from pawnqueue.registers.strategy import Step
from pawnqueue.runtime.cancellation import shield_and_wait
from pawnqueue.stores.port import Done, Expect, Unknown

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.domain.records import TopicRecord

logger = logger_of("claims")

#: Candidates that others were faster at are replaced so many times after one look, and so many looks are taken.
ROUNDS = 5
LOOKS = 6
#: So many batches that were bad altogether are got through in one claim.
MOST_BAD = 50
#: Winning may take this part of the claim's time, and so may reading: what is left is for the work.
SHARE = 0.25
#: Why a claim was lost before it was handed out.
TOO_LATE = "reading its messages took longer than its time, or failed"
#: So many times what is wanted is taken from what there is: what others are faster at is replaced.
SPARE = 4
#: What was seen so many seconds ago is not tried for after refusals: others may have done with it meanwhile.
FRESH = 1.0
#: So many times ``concurrency.max_in_flight`` leases are asked for between two moments at which a claim can be cut.
CHUNK = 4
#: For so long at least a message is tried to be read.
LEAST_PATIENCE = 1.0


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
    named: bool = True  # its id was given, and may be given again
    payloads: bool = True  # attach: its messages are read
    own_ttl: bool = True  # attach: for as long as is asked here, and not for as long as it was claimed for

    def lasting_as(self, record: ClaimRecord, margin: float) -> ClaimRequest:
        """Return it with the time that the claim was made for, where none is asked here.

        ⚑ §4: a session that has no wish of its own neither cuts the time that a janitor renews by, nor lengthens it.
        """
        lasts = record.lasts or record.ttl
        if self.own_ttl or lasts <= margin:
            return self
        return replace(self, ttl=lasts, session_ttl=min(self.session_ttl, lasts))

    @property
    def stem(self) -> str:
        """The name of its record, in keys and leases."""
        return layout.claim_stem(self.claim_id, self.generation)


class Outcome(Enum):
    """Why an attempt at a claim gave none."""

    NOTHING = "there is nothing to be had"
    CROWDED = "others were faster"
    BAD = "what was won is not to be handed out"
    TAKEN = "another one has recorded this very claim meanwhile"


@dataclass(slots=True)
class Won:
    """The leases of a batch, and the times that they all have."""

    until: float
    session_until: float
    deadline: float
    members: dict[str, Member] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    asked: dict[str, Member] = field(default_factory=dict)  # won as well, or not: nobody knows


async def claim_fresh(
    context: Context, finder: Finder, contention: Contention, request: ClaimRequest
) -> HeldClaim | None:
    """Claim messages that nobody has. Returns None where the claim's id has been used up meanwhile: look again.

    ⚑ §5.7: nobody leaves empty-handed while there is plenty: who lost a race looks again, and tries elsewhere.
    """
    fault: StoreError | None = None
    unread = is_answered = False
    began = context.clock.elapsed()
    looks = 0.0
    while looks < LOOKS:
        # ⚑ §5.6: bad messages, one after another, do not make a claim take longer than one of them.
        patience = max(request.ttl * SHARE - (context.clock.elapsed() - began), LEAST_PATIENCE)
        attempt = Attempt(context, finder, contention, request, patience)
        result = await attempt.run()
        unread = unread or attempt.unread
        fault = fault or attempt.fault
        is_answered = is_answered or attempt.is_answered
        if isinstance(result, HeldClaim):
            return result
        if result is Outcome.TAKEN or (request.named and attempt.recorded):
            return None
        took = context.clock.elapsed() - began
        if result is Outcome.NOTHING or ((fault or result is Outcome.BAD) and took > 2 * SHARE * request.ttl):
            break
        # Bad messages are out of the way now: there is progress, however many there are.
        looks += 1 if result is not Outcome.BAD else LOOKS / MOST_BAD
        request = request if request.named else replace(request, claim_id=context.clock.uuid())
    if unread and fault is None:
        await _check_that_the_store_answers(context, request.topic.name)
    # ⚑ §5.6: where the store has answered for other leases, what it refuses concerns the messages that it refused.
    if fault is not None and not is_answered:
        raise fault
    empty = nothing(context, request)
    if unread:
        empty.lose(TOO_LATE)
    return empty


def not_had(request: ClaimRequest, why: str) -> LeaseLostError:
    """Make the error that says that a claim could not be had."""
    return LeaseLostError(
        f"Claim {request.claim_id} of topic {request.topic.name!r} could not be had: {why}. Claim anew.",
        topic=request.topic.name,
        operation="claim",
    )


async def _check_that_the_store_answers(context: Context, topic: str) -> None:
    """Tell messages that cannot be read, which concern nobody else, from a store that gives nothing, and raise that."""
    await context.with_budget().registers.look(layout.topic_marker(topic))


class Attempt:
    """One look, and what comes of it."""

    def __init__(
        self, context: Context, finder: Finder, contention: Contention, request: ClaimRequest, patience: float
    ) -> None:
        self._context = context
        self._patience = patience
        self._finder = finder
        self._contention = contention
        self._request = request
        self._won: Won | None = None
        self._looked = 0.0
        self._size = request.max_messages  # how many messages are to be won: more than the claim wants, after bad ones
        self._recorded: Versioned[ClaimRecord] | None = None
        self._may_be_recorded = False
        self.fault: StoreError | None = None
        self.unread = False  # there were messages, or leases, that the store does not give
        self.is_answered = False  # of some lease it has said whether it is ours

    @property
    def recorded(self) -> bool:
        """Whether its record is in the bucket."""
        return self._recorded is not None

    async def run(self) -> HeldClaim | Outcome:
        """Claim once. Whatever interrupts it, what was won is given back."""
        request = self._request
        self._looked = self._context.clock.elapsed()
        self._size = size = self._finder.bad_batches.size(request.max_messages)
        window = self._contention.window(size)
        pool = await self._finder.candidates(window, most=max(window, SPARE * size), most_reads=2 * size)
        if not pool:
            return Outcome.NOTHING
        try:
            self._won = won = await self._win_of(pool)
            if not won.members:
                return Outcome.CROWDED
            # ⚑ §4.4: the bodies are read only now, after the leases: what is not there was settled before us.
            bodies = await Bodies.fetch(self._context, request.topic, won.members, self._patience)
            self._note(bodies, won.members)
            if bodies.give_back_surplus(won.members, request.max_messages, request.max_bytes):
                self._finder.mark_stale()
            return await self._record(won, bodies)
        except BaseException:
            await shield_and_wait(self._give_back(), self._context.clock)
            raise

    async def _win_of(self, pool: list[Candidate]) -> Won:
        picks = self._contention.picks(pool, self._size)
        left: list[Candidate] = []
        try:
            won = await self._win(picks)
            left = picks.left if self._contention.is_alone else []
        finally:
            self._finder.take_back(pool, left)
            if picks.left and not left:  # with others about, or after an error, it is looked at again
                self._finder.mark_stale()
        return won

    async def _win(self, picks: Picks) -> Won:
        request, context = self._request, self._context
        # ⚑ §2: the time of a claim is counted from before its first request was sent.
        started = context.clock.elapsed()
        now = await context.now()
        self._won = won = Won(
            now + request.ttl,
            now + request.session_ttl,
            context.trusted_until(started, min(request.ttl, request.session_ttl)),
        )
        sizes: dict[str, int] = {}
        max_bytes = request.max_bytes
        if self._size > request.max_messages:
            max_bytes = MAX_BAD_BATCH_BYTES if math.isinf(max_bytes) else max(MAX_BAD_BATCH_BYTES, max_bytes)
        for _ in range(ROUNDS):
            used = sum(sizes[uuid] for uuid in won.members)
            batch = picks.take(self._size - len(won.members), max_bytes - used, is_first=not won.members)
            sizes.update({candidate.id: candidate.unit.size for candidate in batch})
            if not batch or context.clock.elapsed() - started > request.session_ttl * SHARE:
                break
            refused = 0
            for some in _chunks(batch, CHUNK * context.at_once if context.registers.is_certain else len(batch)):
                # ⚑ §4, Interrupted: a lease that was asked for may be won. Its answer is waited for; no more is sent.
                refused += await shield_and_wait(self._ask_for(won, some), context.clock)
            self._contention.learn(len(batch), refused)
            if refused:
                self._finder.mark_stale()
                # A store may take seconds to refuse something: SeaweedFS does.
                if context.registers.is_certain and context.clock.elapsed() - self._looked > FRESH:
                    break
        return won

    async def _ask_for(self, won: Won, batch: Sequence[Candidate]) -> int:
        """Ask for these leases; return how many of them are not ours."""
        steps = [self._step(candidate, won) for candidate in batch]
        won.asked.update({candidate.id: member for candidate, (_, member) in zip(batch, steps, strict=True)})
        patient = self._context.with_budget(self._patience)
        outcomes = await patient.registers.write([step for step, _ in steps])
        refused = 0
        for candidate, (_, member), outcome in zip(batch, steps, outcomes, strict=True):
            if not isinstance(outcome, Unknown):
                self.is_answered = True
                del won.asked[candidate.id]
            if isinstance(outcome, Done):
                won.members[candidate.id] = member
                won.versions[candidate.id] = outcome.version
            else:
                # Refused: another consumer was faster. Unknown: where it lands, it names a claim that does not know it.
                refused += 1
                if isinstance(outcome, Unknown):
                    # ⚑ §5.6: it concerns its own message; the others are not to wait for it again and again.
                    self.unread = self.unread or outcome.unseen
                    self.fault = self.fault or (None if outcome.unseen else outcome.fault)
                    self._finder.set_aside.put(candidate.id, outcome.fault)
        return refused

    def _step(self, candidate: Candidate, won: Won) -> tuple[Step, Member]:
        request, before = self._request, candidate.lease
        # ⚑ §4: deliveries are hand-outs: this will be the next.
        member = Member(name=candidate.unit.name, size=candidate.unit.size, deliveries=1)
        if before is not None:
            told = before.value
            member = Member(
                name=candidate.unit.name,
                size=candidate.unit.size,
                deliveries=min(told.deliveries + 1, MOST_COUNT),
                reason=told.reason,
                error=told.error,
            )
        # Its time is the session's: a claimer that dies before it has recorded the claim is soon known to be gone.
        lease = leases.held(
            candidate.id,
            candidate.unit.name,
            consumer=request.consumer,
            claim=request.stem,
            deliveries=member.deliveries,
            until=min(won.until, won.session_until),
            ttl=min(request.ttl, request.session_ttl),
        ).model_copy(update={"reason": member.reason, "error": member.error})
        key = layout.lease(request.topic.name, candidate.id)
        return Step(key, lease, Expect.NOTHING if before is None else before.version), member

    def _note(self, bodies: Bodies, members: Mapping[str, Member]) -> None:
        """Remember what this process cannot take, and that what is gone shows that others are at work here.

        ⚑ §5.6: under the message's name, as another message may have its uuid.
        """
        names = {uuid: member.name for uuid, member in members.items()}
        for uuid, why in bodies.aside.items():
            self._finder.set_aside.put(names[uuid], why)
            if isinstance(why, StoreError):
                self.unread = True
        for uuid, decision in bodies.decisions.items():
            if decision.how == "gone":
                self._finder.set_aside.put(names[uuid], "its message is not there", quiet=True)
                self._contention.meet()
                self._finder.mark_stale()

        judged = [bodies.aside.get(uuid, decision) for uuid, decision in bodies.decisions.items()]
        if bodies.messages:
            self._finder.bad_batches.learn(is_bad=False)
            for uuid in bodies.messages:
                self._finder.is_well(uuid, names[uuid])
        elif all(isinstance(why, CompatibilityError) or getattr(why, "how", "") == "dead" for why in judged):
            self._finder.bad_batches.learn(is_bad=True)

    async def _record(self, won: Won, bodies: Bodies) -> HeldClaim | Outcome:
        """⚑ §4.3: record what was won, and what is to become of the bad ones, before any of it is handed out."""
        context, request = self._context, self._request
        if context.clock.elapsed() >= won.deadline:
            # ⚑ §4: nothing of it may be handed out any more, so it is not recorded, and does not count as delivered.
            late = nothing(context, request)
            late.lose(TOO_LATE)
            return late
        record = made_record(request, won, bodies.decisions)
        created = await shield_and_wait(self._create(record, context), context.clock)
        if created is None:
            await shield_and_wait(self._give_up(won), context.clock)
            return Outcome.TAKEN
        claim = as_claim(context, request, created, bodies, versions=won.versions, deadline=won.deadline)
        # A creation that was sent twice may land once more where its record has been deleted: it is closed, and kept.
        if created.is_repeated:
            claim.keep_record()
        if not context.registers.is_certain:
            await self._leave_to_rivals(claim)
        errands, errand = self._finder.background, f"what claim {request.stem} found bad in {request.topic.name}"
        if bodies.decisions:
            # Beside the delivery of the good ones: a burial that the store refuses does not hold them up for long.
            errands.run(errand, lambda: _carried_out(context, claim))
            await errands.done(errand, BACKGROUND_WAIT_SECONDS)
        if not claim:
            return Outcome.BAD
        if not in_time(context, claim):
            await self._give_back()
            return Outcome.BAD
        return claim

    async def _leave_to_rivals(self, claim: HeldClaim) -> None:
        """Give back what another live claim's record names: it is that claim's."""
        theirs = await self._finder.named_by_others(self._request.stem, claim.record.members)
        if theirs:
            # ⚑ §6: no longer than for a time of ours. After that their record is asked again, and what only a forged
            # one held is free as soon as somebody has deleted it.
            ours = await self._context.now() + self._request.ttl
            decisions = {
                uuid: Decision(how="released", until=min(until, ours), by="claim") for uuid, until in theirs.items()
            }
            await settling.settle(self._context, claim, decisions)
            claim.withhold(theirs)

    async def _create(self, record: ClaimRecord, context: Context) -> Versioned[ClaimRecord] | None:
        """Create the claim's record; None: somebody else has."""
        register = context.claim_record(self._request.topic.name, self._request.stem)
        self._may_be_recorded = True
        created = await register.create(record)
        if created is None:
            # ⚑ §2: we may have created it, and a janitor may have renewed it since: then it names our session.
            found = await register.read()
            if found is not None and found.value.session == self._request.session and found.value.state == "open":
                created = replace(found, is_repeated=True)
            else:
                self._may_be_recorded = False
        self._recorded = created
        return created

    async def _give_back(self) -> None:
        """Let others have what was won, as nobody was given it. ⚑ §4: by the record, which alone says whose it is.

        Somebody who works for the same claim may be about to record the very leases (§4, adopted): who creates the
        record decides. Where nobody can tell whether ours was created, all of it waits for its time to end.
        """
        won = self._won
        if won is None or not (won.members or won.asked):
            return
        self._finder.mark_stale()
        if self._recorded is None:
            # What was asked for and cut, by a second cancellation, may be ours; whoever carries this out looks first.
            won = replace(won, members={**won.asked, **won.members})
        given_back = dict.fromkeys(won.members, Decision(how="released", by="claim"))
        context, request = self._context.with_budget(), self._request
        try:
            if self._may_be_recorded and self._recorded is None:
                # Its answer was lost, or cut. If it stands there, nobody was given what it lists.
                found = await context.claim_record(request.topic.name, request.stem).read()
                if found is None or found.value.session != request.session:
                    return
                self._recorded = found
            if self._recorded is None:
                await self._create(made_record(request, won, given_back), context)
            if self._recorded is None:
                return
            claim = as_claim(context, request, self._recorded, Bodies(), versions=won.versions, deadline=0.0)
            await settling.settle(context, claim, given_back)
            context.events.tell(
                GivenBack(
                    topic=claim.topic, claim=claim.stem, messages=len(won.members), why="nobody was given them in time"
                )
            )
        except StoreError as error:
            logger.warning("What claim %s had won could not be given back: %s", request.stem, error)

    async def _give_up(self, won: Won) -> None:
        """Release what was won for a claim that somebody else has recorded: what is not among its members is nobody's.

        Who its members are never changes, so lease by lease will do here.
        """
        context, request = self._context.with_budget(), self._request
        self._finder.mark_stale()
        try:
            found = await context.claim_record(request.topic.name, request.stem).read()
            mine = [uuid for uuid in won.members if found is not None and uuid not in found.value.members]
            now = await context.now()
            record, unseen = made_record(request, won, {}), Decision(how="released", by="claim")
            freed = {uuid: effects.released(record, uuid, unseen, now) for uuid in mine}
            steps = [
                Step(layout.lease(request.topic.name, uuid), lease, won.versions[uuid]) for uuid, lease in freed.items()
            ]
            await context.registers.write(steps)
        except (StoreError, CompatibilityError) as error:
            logger.warning(
                "What was won for claim %s, which another one has, waits for its time to end: %s", request.stem, error
            )


def _chunks(batch: Sequence[Candidate], size: int) -> Iterator[Sequence[Candidate]]:
    for start in range(0, len(batch), size):
        yield batch[start : start + size]


def made_record(request: ClaimRequest, won: Won, decisions: Mapping[str, Decision]) -> ClaimRecord:
    """Make the record of a batch that was won."""
    return ClaimRecord(
        claim_id=request.claim_id,
        generation=request.generation,
        owner=request.owner,
        consumer=request.consumer,
        session=request.session,
        created_at=won.until - request.ttl,
        # ⚑ §4: creating the record extends nothing: its times are those that the leases were won with.
        until=won.until,
        session_until=min(won.session_until, won.until),
        lasts=request.ttl,
        members=won.members,
        settled=dict(decisions),
    )


def as_claim(  # noqa: PLR0913 - the parts of one thing
    context: Context,
    request: ClaimRequest,
    found: Versioned[ClaimRecord],
    bodies: Bodies,
    *,
    versions: Mapping[str, str],
    deadline: float,
) -> HeldClaim:
    """Put a claim together from its record and its messages."""
    messages = list(bodies.messages.values())
    uuids = {uuid: message.id for uuid, message in bodies.messages.items()}
    uuids.update((uuid, uuid) for uuid in bodies.unread)
    return HeldClaim(
        context,
        request.topic.name,
        found,
        messages,
        uuids=uuids,
        leases=versions,
        deadline=deadline,
        session_ttl=request.session_ttl,
        is_fleeting=not request.named,
        unread=bodies.unread,
    )


def in_time(context: Context, claim: HeldClaim) -> HeldClaim:
    """Hand out the claim, or nothing of it, if its time is over by now."""
    if context.clock.elapsed() >= claim.trusted_until():
        claim.lose(TOO_LATE)
        claim.withhold(claim.uuids)
    return claim


async def without_bad_ones(context: Context, claim: HeldClaim, bodies: Bodies) -> HeldClaim:
    """Settle what must not be handed out: malformed messages, those delivered too often, those that are gone."""
    if bodies.decisions:
        await settling.settle(context, claim, bodies.decisions)
    return in_time(context, claim)


def nothing(context: Context, request: ClaimRequest) -> HeldClaim:
    """Make the claim of a consumer that found no message. It is in no bucket."""
    record = ClaimRecord(
        claim_id=request.claim_id,
        generation=request.generation,
        owner=request.owner,
        consumer=request.consumer,
        session=request.session,
        state="closed",
    )
    return as_claim(context, request, Versioned(record, Version("")), Bodies(), versions={}, deadline=0.0)


async def _carried_out(context: Context, claim: HeldClaim) -> None:
    await settling.carry_out_decided(context, claim)
