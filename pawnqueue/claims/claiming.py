"""Claim a batch: win its leases, read its messages, record it, and only then hand it out (§4)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from itertools import takewhile
from typing import TYPE_CHECKING

from pawnqueue.claims import effects, expiry, packs, settling, splitting
from pawnqueue.claims.bodies import Bodies
from pawnqueue.claims.candidate import Candidate, messages_of
from pawnqueue.claims.candidates import BACKGROUND_WAIT_SECONDS, Finder
from pawnqueue.claims.claim_making import (
    TOO_LATE,
    ClaimRequest,
    Won,
    as_member,
    end_unless_given_back,
    make_claim,
    make_empty_claim,
    make_record,
    withhold_if_late,
)
from pawnqueue.claims.contention import Contention, Picks
from pawnqueue.claims.held import HeldClaim
from pawnqueue.claims.set_aside import MAX_BAD_BATCH, MAX_BAD_BATCH_BYTES
from pawnqueue.domain import lanes, layout
from pawnqueue.domain import lease as leases
from pawnqueue.domain.claim_record import ClaimRecord, Decision, Member
from pawnqueue.domain.object_sizes import MAX_CLAIM_FIRST_PARTS, MAX_CLAIM_MESSAGES
from pawnqueue.errors import CompatibilityError, LeaseLostError, StoreError
from pawnqueue.events import GivenBack, logger_of
from pawnqueue.registers.register import Versioned
from pawnqueue.registers.strategy import Step
from pawnqueue.runtime.cancellation import shield_and_wait
from pawnqueue.stores.port import Done, Expect, Unknown

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.domain.lease import Lease

logger = logger_of("claims")

#: How often candidates that other consumers have won are replaced by others of the same listing.
MAX_REPLACEMENT_ROUNDS = 5
#: How often one claim lists, each time after it has won nothing.
MAX_LISTINGS = 6
#: How many batches without one good message a claim gets through before it returns empty.
MAX_BAD_BATCHES = 50
#: The part of a claim's time that winning its leases may take, and reading its messages too. The work has the rest.
MAX_TTL_SHARE = 0.25
#: How many times the batch's size is listed, so that candidates that others win are replaced without another LIST.
OVERFETCH = 4
#: After a refusal, older listings are discarded: other consumers may have settled what they show.
MAX_LISTING_AGE_SECONDS = 1.0
#: How many times ``concurrency.max_in_flight`` leases are asked for before a cancelled claim can stop.
UNINTERRUPTED_ROUNDS = 4
#: How long each message is tried at least, however little of the claim's time is left.
MIN_READ_SECONDS = 1.0


class NoClaim(Enum):
    """Why an attempt gave no claim."""

    NOTHING = "no message can be claimed"
    CROWDED = "other consumers were faster"
    BAD = "nothing that was won can be handed out"
    TAKEN = "another process has recorded this very claim"
    PAUSED = "the topic is paused"


async def claim_fresh(
    context: Context, finder: Finder, contention: Contention, request: ClaimRequest
) -> HeldClaim | None:
    """Claim messages that nobody has; None: the claim's id has been used up meanwhile, and is to be looked up again.

    ⚑ §5.7: no consumer returns empty-handed while many messages wait: after a lost race it lists again, and tries
    elsewhere.
    """
    if request.topic.settings.paused and (await request.with_recent_topic()).topic.settings.paused:
        return make_empty_claim(context, request)
    fault: StoreError | None = None
    unread = is_answered = False
    began = context.clock.elapsed()
    looks = 0.0
    while looks < MAX_LISTINGS:
        # ⚑ §5.6: bad messages, one after another, do not make a claim take longer than one of them.
        patience = max(request.ttl * MAX_TTL_SHARE - (context.clock.elapsed() - began), MIN_READ_SECONDS)
        attempt = Attempt(context, finder, contention, request, patience)
        result = await attempt.run()
        unread = unread or attempt.unread
        fault = fault or attempt.fault
        is_answered = is_answered or attempt.is_answered
        if isinstance(result, HeldClaim):
            return result
        if result is NoClaim.PAUSED:
            return attempt.end_unless_given_back() or make_empty_claim(context, request)
        if result is NoClaim.TAKEN or (request.named and attempt.recorded):
            return attempt.end_unless_given_back()
        took = context.clock.elapsed() - began
        if result is NoClaim.NOTHING or ((fault or result is NoClaim.BAD) and took > 2 * MAX_TTL_SHARE * request.ttl):
            break
        # Bad messages are settled by now, so a batch of them counts as progress.
        looks += 1 if result is not NoClaim.BAD else MAX_LISTINGS / MAX_BAD_BATCHES
        request = request if request.named else replace(request, claim_id=context.clock.uuid())
    if unread and fault is None:
        await _check_that_the_store_answers(context, request.topic.name)
    # ⚑ §5.6: if the store has answered for other leases, a fault concerns the messages at which it occurred.
    if fault is not None and not is_answered:
        raise fault
    empty = make_empty_claim(context, request)
    if unread:
        empty.lose(TOO_LATE)
    return empty


def claim_lost_error(request: ClaimRequest, why: str) -> LeaseLostError:
    """Make the error that says why a claim could not be made or resumed."""
    return LeaseLostError(
        f"Claim {request.claim_id} of topic {request.topic.name!r} is not available: {why}. Claim anew.",
        topic=request.topic.name,
        operation="claim",
    )


async def _check_that_the_store_answers(context: Context, topic: str) -> None:
    """Raise if the store answers nothing at all. Single messages that cannot be read are no such error."""
    await context.with_budget().registers.look(layout.topic_marker(topic))


class Attempt:
    """One attempt at a claim: a listing, and what it leads to."""

    def __init__(
        self, context: Context, finder: Finder, contention: Contention, request: ClaimRequest, retry_seconds: float
    ) -> None:
        self._context = context
        self._retry_seconds = retry_seconds
        self._finder = finder
        self._contention = contention
        self._request = request
        self._won: Won | None = None
        self._looked_at = 0.0  # elapsed
        self._size = request.max_messages  # how many messages to win: after bad batches, more than the claim wants
        self._recorded: Versioned[ClaimRecord] | None = None
        self._claim: HeldClaim | None = None  # what was made of the record, and knows what became of it
        self._may_be_recorded = False
        self.fault: StoreError | None = None
        self.unread = False  # whether the store does not show some message or lease
        self.is_answered = False  # whether the outcome of some lease is known
        self.buried = 0  # how many messages its record says to bury

    @property
    def recorded(self) -> bool:
        """Whether its record is known to be in the bucket."""
        return self._recorded is not None

    def end_unless_given_back(self) -> HeldClaim | None:
        """Return a lost claim without messages if what was won may not have been given back; else None."""
        if self._claim is None:
            return None
        return end_unless_given_back(self._context, self._request, self._claim)

    async def run(self) -> HeldClaim | NoClaim:
        """Claim once. After an error or a cancellation, what was won is given back."""
        request = self._request
        self._looked_at = self._context.clock.elapsed()
        self._size = size = self._finder.bad_batches.size(request.max_messages)
        window = self._contention.window(size)
        self._finder.settings = request.topic.settings
        pool = await self._finder.candidates(window, most=max(window, OVERFETCH * size), most_reads=2 * size)
        if not pool:
            return NoClaim.NOTHING
        if not request.buries_only and await self._is_paused_for(pool):
            return NoClaim.PAUSED
        try:
            pool = await self._old_ones_together(pool)
            if not pool:
                return NoClaim.NOTHING
            self._won = won = await self._win_of(pool)
            if not won.members:
                return NoClaim.CROWDED
            if self._finder.settings.priorities is not None:
                won.members = dict(sorted(won.members.items(), key=lambda one: lanes.by_priority(one[1].name)))
            # ⚑ §4.4: the bodies are read only now, after the leases: what is not there was settled before us.
            bodies = await Bodies.fetch(
                self._context, self._request.topic, won.members, self._retry_seconds, fresh=won.fresh
            )
            self._note(bodies, won.members)
            if request.buries_only:
                bodies.give_back_all(won.members)
            if bodies.give_back_surplus(won.members, request.max_messages, request.max_bytes):
                self._finder.mark_stale()
            return await self._record(won, bodies)
        except BaseException:
            await shield_and_wait(self._give_back(), self._context.clock)
            raise

    async def _is_paused_for(self, pool: list[Candidate]) -> bool:
        """Say whether the topic is paused. If so, or if that cannot be found out, the candidates are taken back."""
        is_paused = True
        try:
            is_paused = await self._is_paused()
        finally:
            if is_paused:
                self._finder.take_back(pool, pool)
        return is_paused

    async def _old_ones_together(self, pool: list[Candidate]) -> list[Candidate]:
        """Return the candidates, and win more than the claim wants if the first ones are too old by their names.

        ⚑ §5.7: they are buried together, and a pack of them is not split for a claim that wants less.
        """
        topic, margin = self._request.topic, self._context.margin
        if topic.settings.max_age_seconds is None:
            return pool
        try:
            now = await self._context.now()
        except BaseException:
            self._finder.take_back(pool, pool)
            raise

        def is_old(candidate: Candidate) -> bool:
            return expiry.is_expired(topic, candidate.unit.name, now, margin)

        if self._request.buries_only:
            old = [each for each in pool if each.history is None and is_old(each)]
            others = [each for each in pool if each not in old]
            self._finder.take_back(others, others)
            pool = old
        else:
            old = list(takewhile(is_old, pool))
        if old:
            self._size = max(self._size, old[0].count, min(messages_of(old), MAX_BAD_BATCH))
        return pool

    async def _is_paused(self) -> bool:
        """⚑ §4: say whether the topic is paused, by settings that are a few seconds old at most."""
        self._request = await self._request.with_recent_topic()
        return self._request.topic.settings.paused

    async def _win_of(self, pool: list[Candidate]) -> Won:
        alike, others = await self._of_one_kind(pool)
        if alike and not alike[0].unit.is_pack:
            self._size = min(self._size, MAX_CLAIM_MESSAGES)  # a record of more could not be read
        picks = self._contention.picks(alike, self._size)
        left: list[Candidate] = []
        try:
            won = await self._win(picks)
            left = picks.left if self._contention.is_alone else []
        finally:
            self._finder.take_back(pool, [*left, *others])
            if picks.left and not left:  # other consumers are at work, or there was an error: list again
                self._finder.mark_stale()
        return won

    async def _of_one_kind(self, pool: list[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
        """Return those candidates that are packs, or those that are not, as the first of them is; and the others.

        ⚑ §4: a claim has single messages or packs. Of a pack only those messages can be taken that are due.
        """
        is_pack = pool[0].unit.is_pack
        others = [candidate for candidate in pool if candidate.unit.is_pack != is_pack]
        alike = [candidate for candidate in pool if candidate.unit.is_pack == is_pack]
        if others and self._finder.settings.priorities is not None:
            # A batch is not filled up with messages of a lower priority than those of the other kind.
            best = max(lanes.priority_of(candidate.unit.name) for candidate in others)
            least = min(best, lanes.priority_of(pool[0].unit.name))
            is_high = [lanes.priority_of(candidate.unit.name) >= least for candidate in alike]
            others += [candidate for candidate, high in zip(alike, is_high, strict=True) if not high]
            alike = [candidate for candidate, high in zip(alike, is_high, strict=True) if high]
        if not is_pack:
            return alike, others
        now = await self._context.now()
        sized = [self._sized(candidate, now) for candidate in alike]
        for candidate in sized:
            if not candidate.of and not packs.shares_of(candidate.unit, candidate.history):
                # ⚑ §5.6: another pack under this uuid has the lease. That one is tried for the next time.
                self._finder.set_aside.put(candidate.unit.name, "its lease is another pack's", quiet=True)
        return [candidate for candidate in sized if candidate.of], others

    def _sized(self, candidate: Candidate, now: float) -> Candidate:
        """Return a pack with the numbers of those messages that a claim may take now."""
        unit, most = candidate.unit, self._request.topic.settings.max_deliveries
        of = packs.to_take(unit, candidate.history, now, most, self._finder.unread_of(unit.name))
        return replace(candidate, of=of, is_cut=False, is_alone=packs.is_to_be_alone(unit, candidate.history, of, most))

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
        parts: dict[str, int] = {}
        max_bytes = request.max_bytes
        if self._size > request.max_messages:
            max_bytes = MAX_BAD_BATCH_BYTES if math.isinf(max_bytes) else max(MAX_BAD_BATCH_BYTES, max_bytes)
        for _ in range(MAX_REPLACEMENT_ROUNDS):
            used = sum(sizes[uuid] for uuid in won.members)
            # ⚑ §1: a record with more parts could not be read after all of them are decided.
            max_parts = MAX_CLAIM_FIRST_PARTS - sum(parts[uuid] for uuid in won.members)
            batch = picks.take(
                self._size - won.messages, max_bytes - used, max_parts=max_parts, is_first=not won.members
            )
            sizes.update({candidate.id: candidate.size for candidate in batch})
            parts.update({candidate.id: candidate.parts for candidate in batch})
            if not batch or context.clock.elapsed() - started > request.session_ttl * MAX_TTL_SHARE:
                break
            if batch[0].is_cut and batch[0].unit.is_whole:
                picks.left = [*await shield_and_wait(self._split(batch[0]), context.clock), *picks.left]
                continue
            refused = 0
            for some in _chunks(
                batch, UNINTERRUPTED_ROUNDS * context.at_once if context.registers.is_certain else len(batch)
            ):
                # ⚑ §4, Interrupted: a lease that was asked for may be won. A cancelled claim waits for its answer, and
                # asks for no more.
                refused += await shield_and_wait(self._ask_for(won, some), context.clock)
            self._contention.learn(len(batch), refused)
            if batch[0].is_alone and won.members:
                break
            if refused:
                self._finder.mark_stale()
                # A store may take seconds to refuse a write (SeaweedFS does).
                if context.registers.is_certain and context.clock.elapsed() - self._looked_at > MAX_LISTING_AGE_SECONDS:
                    break
        return won

    async def _split(self, candidate: Candidate) -> list[Candidate]:
        """Divide a pack that has more messages than are wanted into slices, and return them; none after a refusal.

        ⚑ §4: each has a lease of its own, so that other consumers need not wait for this one.
        """
        context, unit, topic = self._context, candidate.unit, self._request.topic
        now = await context.now()
        lease = leases.split(
            unit.id,
            unit.name,
            packs.shares_of(unit, candidate.history),
            splitting.slice_length(unit.count, self._request.max_messages),
            consumer=self._request.consumer,
            now=now,
        )
        key = layout.lease(topic.name, unit.id)
        step = Step(key, lease, Expect.NOTHING if candidate.lease is None else candidate.lease.version)
        [outcome] = await context.with_budget(self._retry_seconds).registers.write([step])
        if isinstance(outcome, Unknown):
            self._note_unknown(unit.id, outcome)
            return []
        self.is_answered = True
        if not isinstance(outcome, Done):
            self._finder.mark_stale()
            self._contention.meet()
            return []
        root = Versioned(lease, outcome.version)
        slices = [self._sized(Candidate(each, root=root), now) for each in unit.slices(lease.length)]
        return [each for each in slices if each.of]

    async def _ask_for(self, won: Won, batch: Sequence[Candidate]) -> int:
        """Ask for these leases; return how many of them are not ours."""
        steps = [self._step(candidate, won) for candidate in batch]
        won.asked.update({candidate.id: member for candidate, (_, member, _) in zip(batch, steps, strict=True)})
        won.fresh.update(candidate.id for candidate in batch if candidate.history is None)
        won.leases.update({candidate.id: lease for candidate, (_, _, lease) in zip(batch, steps, strict=True)})
        patient = self._context.with_budget(self._retry_seconds)
        outcomes = await patient.registers.write([step for step, _, _ in steps])
        refused = 0
        for candidate, (_, member, _), outcome in zip(batch, steps, outcomes, strict=True):
            if not isinstance(outcome, Unknown):
                self.is_answered = True
                del won.asked[candidate.id]
            if isinstance(outcome, Done):
                won.members[candidate.id] = member
                won.versions[candidate.id] = outcome.version
            else:
                # Refused: another consumer was faster. Unknown: if it lands, it names a claim that does not list it.
                refused += 1
                if isinstance(outcome, Unknown):
                    self._note_unknown(candidate.id, outcome)
        return refused

    def _note_unknown(self, unit_id: str, outcome: Unknown) -> None:
        """⚑ §5.6: it concerns its own unit, which is set aside: the others do not wait for it again."""
        self.unread = self.unread or outcome.unseen
        self.fault = self.fault or (None if outcome.unseen else outcome.fault)
        self._finder.set_aside.put(unit_id, outcome.fault)

    def _step(self, candidate: Candidate, won: Won) -> tuple[Step, Member, Lease]:
        before = candidate.history
        # It ends with the session's time: if the claimer dies before it has recorded the claim, others need not wait
        # for the claim's own time.
        until, ttl = min(won.until, won.session_until), min(self._request.ttl, self._request.session_ttl)
        unit, holder = candidate.unit, {"consumer": self._request.consumer, "claim": self._request.stem}
        if unit.is_pack:
            shares = packs.shares_of(unit, before)
            member = packs.as_member(unit, shares, candidate.of)
            lease = leases.held_pack(unit.id, unit.name, shares, candidate.of, **holder, until=until, ttl=ttl)
        else:
            member = as_member(unit, before)
            lease = leases.held(
                unit.id, unit.name, **holder, deliveries=member.deliveries, until=until, ttl=ttl
            ).model_copy(update={"reason": member.reason, "error": member.error})
        key = layout.lease(self._request.topic.name, candidate.id)
        step = Step(key, lease, Expect.NOTHING if candidate.lease is None else candidate.lease.version)
        return step, member, lease

    def _note(self, bodies: Bodies, members: Mapping[str, Member]) -> None:
        """Set aside what this process cannot take. A message that is gone shows that other consumers are at work.

        ⚑ §5.6: under the message's name, as another message may have its uuid.
        """
        names = {uuid: member.name for uuid, member in members.items()}
        for uuid, why in bodies.aside.items():
            unread = bodies.unread_numbers(uuid)
            self._finder.note_unread(names[uuid], unread)
            # The other messages of a pack do not wait for some of them, and its other slices not for this one.
            if uuid not in bodies.packs or not bodies.packs[uuid].of:
                is_of_slice = unread and not layout.is_whole_pack(names[uuid], uuid)
                self._finder.set_aside.put(uuid if is_of_slice else names[uuid], why)
            if isinstance(why, StoreError):
                self.unread = True
        for uuid, decision in bodies.decisions.items():
            if decision.how == "gone":
                self._finder.set_aside.put(names[uuid], "its message is not there", quiet=True)
                self._contention.meet()
                self._finder.mark_stale()

        judged = [bodies.aside.get(layout.parse_entry(uuid)[0], each) for uuid, each in bodies.decisions.items()]
        if not bodies.is_empty:
            self._finder.bad_batches.learn(is_bad=False)
            for uuid in [*bodies.messages, *(each for each in bodies.packs if each not in bodies.aside)]:
                self._finder.is_well(uuid, names[uuid])
        elif all(isinstance(why, CompatibilityError) or getattr(why, "how", "") == "dead" for why in judged):
            self._finder.bad_batches.learn(is_bad=True)

    async def _record(self, won: Won, bodies: Bodies) -> HeldClaim | NoClaim:
        """⚑ §4.3: record what was won, and what is to become of the bad ones, before any of it is handed out."""
        context, request = self._context, self._request
        if context.clock.elapsed() >= won.deadline:
            # ⚑ §4: it is too late to hand it out, so it is not recorded, and does not count as delivered.
            late = make_empty_claim(context, request)
            late.lose(TOO_LATE)
            return late
        record = make_record(request, won, bodies.decisions)
        created = await shield_and_wait(self._create(record, context), context.clock)
        if created is None:
            await shield_and_wait(self._give_up(won), context.clock)
            return NoClaim.TAKEN
        self._claim = claim = make_claim(
            context, request, created, bodies, versions=won.versions, deadline=won.deadline
        )
        claim.untried.update(dict.fromkeys(bodies.decisions, context.clock.elapsed()))
        self.buried = sum(each.how == "dead" for each in bodies.decisions.values())
        # A creation that was sent twice may land once more where its record has been deleted: it is closed, and kept.
        if created.is_repeated:
            claim.keep_record()
        if not context.registers.is_certain:
            await self._leave_to_rivals(claim)
        errands, errand = self._finder.background, f"what claim {request.stem} found bad in {request.topic.name}"
        if bodies.decisions:
            # In the background: a burial that the store refuses does not delay the good messages for long.
            errands.run(errand, lambda: self._carry_out(claim))
            await errands.done(errand, BACKGROUND_WAIT_SECONDS)
        if not claim:
            return NoClaim.BAD
        if await self._is_paused():  # all of this may have taken long
            await self._give_back()
            return NoClaim.PAUSED
        if not withhold_if_late(context, claim):
            await self._give_back()
            return NoClaim.BAD
        return claim

    async def _carry_out(self, claim: HeldClaim) -> None:
        await settling.carry_out_decided(self._context, claim)
        if claim.record.leaves_rest:
            self._finder.mark_stale()

    async def _leave_to_rivals(self, claim: HeldClaim) -> None:
        """Give back what another live claim's record names: it is that claim's."""
        theirs = await self._finder.named_by_others(self._request.stem, claim.record.members)
        if theirs:
            # ⚑ §6: for one time of ours at most. Then their record is read again, so what only a forged record named is
            # free as soon as that record is deleted.
            ours = await self._context.now() + self._request.ttl
            decisions = {
                uuid: Decision(how="released", until=min(until, ours), by="claim") for uuid, until in theirs.items()
            }
            await settling.settle(self._context, claim, decisions)
            claim.withhold(theirs)

    async def _create(self, record: ClaimRecord, context: Context) -> Versioned[ClaimRecord] | None:
        """Create the claim's record, and return it; None: another process has created it."""
        register = context.claim_record(self._request.topic.name, self._request.stem)
        self._may_be_recorded = True
        created = await register.create(record)
        if created is None:
            # ⚑ §2: the record may be ours: an attempt without an answer has created it, and a janitor has renewed it
            # since. Then it names our session.
            found = await register.read()
            if found is not None and found.value.session == self._request.session and found.value.state == "open":
                created = replace(found, is_repeated=True)
            else:
                self._may_be_recorded = False
        self._recorded = created
        return created

    async def _give_back(self) -> None:
        """Let others have what was won, as nobody was given it.

        ⚑ §4: by the record, which alone says whose the messages are. Another process may be about to adopt these very
        leases for the same claim (§4): the process that creates the record decides. If it is not known whether ours was
        created, all messages wait for the end of their leases.
        """
        won = self._won
        if won is None or not (won.members or won.asked):
            return
        self._finder.mark_stale()
        if self._recorded is None:
            # After a second cancellation, leases with unknown outcomes may be ours. Carrying this out reads them first.
            won = replace(won, members={**won.asked, **won.members})
        given_back = dict.fromkeys(won.members, Decision(how="released", by="claim"))
        context, request = self._context.with_budget(), self._request
        try:
            if self._may_be_recorded and self._recorded is None:
                # The answer of its creation was lost, or cut. If it exists, nobody was given what it lists.
                found = await context.claim_record(request.topic.name, request.stem).read()
                if found is None or found.value.session != request.session:
                    return
                self._recorded = found
            if self._recorded is None:
                await self._create(make_record(request, won, given_back), context)
            if self._recorded is None:
                return
            self._claim = claim = make_claim(
                context, request, self._recorded, Bodies(), versions=won.versions, deadline=0.0
            )
            await settling.settle(context, claim, given_back)
            context.events.tell(
                GivenBack(
                    topic=claim.topic, claim=claim.stem, messages=won.messages, why="nobody was given them in time"
                )
            )
        except StoreError as error:
            logger.warning("What claim %s had won could not be given back: %s", request.stem, error)

    async def _give_up(self, won: Won) -> None:
        """Release what was won for a claim that another process has recorded, and that its record does not list.

        A record's members never change, so each lease can be released by itself.
        """
        context, request = self._context.with_budget(), self._request
        self._finder.mark_stale()
        try:
            found = await context.claim_record(request.topic.name, request.stem).read()
            mine = [uuid for uuid in won.members if found is not None and uuid not in found.value.members]
            now = await context.now()
            record, unseen = make_record(request, won, {}), Decision(how="released", by="claim")
            freed = {uuid: effects.given_back(record, uuid, unseen, won.leases[uuid], now) for uuid in mine}
            steps = [
                Step(layout.lease(request.topic.name, uuid), lease, won.versions[uuid]) for uuid, lease in freed.items()
            ]
            await context.registers.write(steps)
        except (StoreError, CompatibilityError) as error:
            logger.warning(
                "What was won for claim %s, which another process has, waits for the end of its leases: %s",
                request.stem,
                error,
            )


def _chunks(batch: Sequence[Candidate], size: int) -> Iterator[Sequence[Candidate]]:
    for start in range(0, len(batch), size):
        yield batch[start : start + size]
