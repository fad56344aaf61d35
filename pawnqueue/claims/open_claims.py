"""The claims of an open queue: claiming, attaching, settling, and giving back what is held when it is closed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pawnqueue.claims import settling
from pawnqueue.claims.bodies import read_ids
from pawnqueue.claims.by_id import ById
from pawnqueue.claims.candidates import Finder
from pawnqueue.claims.claim_making import ClaimRequest
from pawnqueue.claims.claiming import MAX_TTL_SHARE, claim_fresh, claim_lost_error
from pawnqueue.claims.contention import Contention
from pawnqueue.claims.effect_retries import EffectRetries
from pawnqueue.claims.leaving import vacate
from pawnqueue.claims.overwritten import overwritten
from pawnqueue.claims.renewing import lost_error
from pawnqueue.claims.settlement_report import answered, not_its_own_error
from pawnqueue.claims.waiting import IdlePauses
from pawnqueue.context import PER_OBJECT_RETRY_SECONDS
from pawnqueue.domain.claim_record import Decision
from pawnqueue.domain.settlement import SettledMembers, Settlement
from pawnqueue.domain.times import iso
from pawnqueue.errors import QueueClosedError, QueueDrainedError
from pawnqueue.events import Claimed, GivenBack, QueueClosed, logger_of
from pawnqueue.runtime.cancellation import LAST_ANSWER_SECONDS, shield_and_wait
from pawnqueue.runtime.concurrency import for_each, wait_at_most

if TYPE_CHECKING:
    from pawnqueue.claims.claim import ClaimReference, Meant
    from pawnqueue.claims.claim_making import RecentTopic
    from pawnqueue.claims.held import HeldClaim
    from pawnqueue.context import Context
    from pawnqueue.domain.records import TopicRecord

logger = logger_of("claims")

#: How many claims a log line names.
MAX_CLAIMS_SHOWN = 20
#: How often a drain looks whether claims are still held, where nothing that is settled here wakes it.
MIN_LOOK_SECONDS = 0.05
MAX_LOOK_SECONDS = 1.0


class Claims:
    """Claims messages for one open queue, and remembers of each topic what need not be read twice."""

    def __init__(self, context: Context, recent_topic: RecentTopic) -> None:
        self._context = context
        self._recent_topic = recent_topic
        self._topics: dict[str, _TopicState] = {}
        self._given_out: list[HeldClaim] = []
        self._closing = _Closing([])
        self._under_way: set[asyncio.Task[HeldClaim]] = set()
        self._cut_off: set[asyncio.Task[HeldClaim]] = set()
        self._effect_retries = EffectRetries(context, self.look_anew)
        self._looks = 0  # of claims of several topics
        self._refusal: type[QueueClosedError | QueueDrainedError] | None = None  # what new claims end with
        self._has_settled = asyncio.Event()

    async def claim(self, asked: ClaimRequest) -> HeldClaim:
        """Claim what is asked for in a new session, or find again what was claimed under the id."""
        claim_id = asked.claim_id if asked.named else self._context.clock.uuid()
        session = self._context.clock.uuid()
        request = replace(asked, claim_id=claim_id, session=session, recent=self._recent_topic)
        state = self._topic(request.topic.name)
        return await self._in_hand(state.by_id.claim(request) if request.named else self._claim_any(state, request))

    async def _claim_any(self, state: _TopicState, request: ClaimRequest) -> HeldClaim:
        # A made-up id was never used: there is nothing to find.
        claim = await claim_fresh(self._context, state.finder, state.contention, request)
        if claim is None:
            raise claim_lost_error(
                request, "its leases were taken for abandoned before it was recorded: ttl is too short"
            )
        return claim

    async def attach(  # noqa: PLR0913 - what an attachment may ask for
        self,
        topic: TopicRecord,
        reference: ClaimReference,
        *,
        ttl: float,
        session_ttl: float,
        payloads: bool,
        own_ttl: bool,
    ) -> HeldClaim:
        """Go on with a claim that another process has handed over.

        :param payloads: read its messages.
        :param own_ttl: ``ttl`` was asked for; else the claim lasts for as long as it was claimed for.
        """
        request = ClaimRequest(
            topic=topic,
            claim_id=reference.claim_id,
            generation=reference.generation,
            owner="",
            consumer="",
            session=self._context.clock.uuid(),
            max_messages=0,
            ttl=ttl,
            session_ttl=session_ttl,
            payloads=payloads,
            own_ttl=own_ttl,
        )
        return await self._in_hand(self._topic(topic.name).by_id.attach(request, reference.session))

    def held(self, reference: ClaimReference) -> HeldClaim | None:
        """Return the claim that a reference names, if it was given out here and is worked on."""
        named = reference.topic, reference.claim_id, reference.generation
        now = self._context.clock.elapsed()
        for claim in reversed(self._given_out):
            if (claim.topic, claim.claim_id, claim.generation) == named:
                return claim if claim.is_of(self._context) and claim.is_held(now) else None
        return None

    async def release(
        self, topic: TopicRecord, claim_id: str, owners: Collection[str], decision: Decision
    ) -> list[str]:
        """Give back what the claim of this id has, if it is one of these owners', and return which messages those were.

        A caller that is cancelled waits a while for the end of it, as no other process may carry out its decision.
        """
        request = ClaimRequest(
            topic=topic,
            claim_id=claim_id,
            generation=0,
            owner="",
            consumer="",
            session=self._context.clock.uuid(),
            max_messages=0,
            ttl=0.0,
            session_ttl=0.0,
            payloads=False,
        )
        return await shield_and_wait(self._release(request, owners, decision), self._context.clock)

    async def _release(self, request: ClaimRequest, owners: Collection[str], decision: Decision) -> list[str]:
        topic = request.topic.name
        claim = await self._topic(topic).by_id.release(request, owners, decision)
        if claim is None:
            return []
        ids = list(claim.ids)
        self._given_out.append(claim)  # if this is cancelled, closing the queue finishes it
        await settling.carry_out_decided(self._context, claim)
        self._effect_retries.go_on_with(claim)
        if ids:
            self.look_anew(topic)
            answered(self._context, claim, Settlement(released=ids), "release")
        return ids

    async def settle(
        self,
        claim: HeldClaim,
        decisions: Mapping[Meant, Decision],
        operation: str,
        *,
        rest: Decision | None = None,
        tells_unknown: bool = True,
    ) -> Settlement:
        """Settle messages, each by its id or for itself, all at once, and tell what became of each.

        :param rest: what is decided of all other messages of the claim; without it, nothing.
        :param tells_unknown: log it if the outcome of some is not known.
        :raises LeaseLostError: others have some of them.
        :raises InvalidArgumentError: the claim does not have one of them.
        """
        work = self._settle(claim, decisions, operation, rest=rest, tells_unknown=tells_unknown)
        return await self._context.spans.settle(work, operation, claim)

    async def _settle(
        self,
        claim: HeldClaim,
        decisions: Mapping[Meant, Decision],
        operation: str,
        *,
        rest: Decision | None,
        tells_unknown: bool,
    ) -> Settlement:
        unread = await self._learn_ids(claim, [given for given in decisions if isinstance(given, str)])
        uuids = claim.units_of(decisions)
        # ⚑ §4: refused before anything is settled. Else a misspelled id would be settled with the rest.
        strangers = [
            settling.id_of(given)
            for given, of_one in uuids.items()
            if not of_one and (not unread or not isinstance(given, str))
        ]
        # ⚑ §4: of a claim that has ended, packs and their ids are gone. A retry may name their messages.
        if strangers and not (claim.former_outcomes and all(isinstance(given, str) for given in decisions)):
            raise not_its_own_error(claim, strangers, operation)
        if rest is not None:
            named = {uuid for of_one in uuids.values() for uuid in of_one}
            others = {each: units for each, units in claim.units_of(claim.each).items() if named.isdisjoint(units)}
            decisions = {**decisions, **dict.fromkeys(others, rest)}
            # ⚑ §4: a message that could not be read may be one that was named. It is not settled with the rest.
            uuids |= {each: units if unread.isdisjoint(units) else () for each, units in others.items()}
        wanted = claim.only_given(settling.by_uuid(decisions, uuids, claim.uuids))
        try:
            result = await settling.settle(self._context, claim, wanted) if wanted else SettledMembers()
        finally:
            self._effect_retries.go_on_with(claim)  # also where the caller was cancelled after its decision
            self._has_settled.set()
        if result.gave_back or claim.record.leaves_rest:
            self.look_anew(claim.topic)
        done = settling.settlement_of(claim, result, uuids)
        return answered(self._context, claim, done, operation, tells_unknown=tells_unknown)

    async def settle_overwritten(self, claim: HeldClaim) -> list[str]:
        """Settle messages that were overwritten or removed since they were claimed, and return the ids of their units.

        :raises LeaseLostError: the claim was taken over.
        """
        decisions = await overwritten(self._context, claim)
        if not decisions:
            return []
        try:
            result = await settling.settle(self._context, claim, decisions)
        finally:
            self._effect_retries.go_on_with(claim)
        if result.fault is not None:
            raise result.fault
        if result.lost:
            raise lost_error(claim, "it was taken over", "settle_overwritten")
        claim.withhold(decisions)
        if result.gave_back or claim.record.leaves_rest:
            self.look_anew(claim.topic)
        return list(decisions)

    async def _learn_ids(self, claim: HeldClaim, ids: Collection[str]) -> set[str]:
        """Read the ids of a claim without payloads that may be meant. Return what could not be read, by its names."""
        unread = claim.meant_by(ids)
        if not unread:
            return set()
        members = {uuid: claim.record.members[uuid] for uuid in unread}
        found = await read_ids(
            self._context, claim.topic, members, max(PER_OBJECT_RETRY_SECONDS, claim.ttl * MAX_TTL_SHARE)
        )
        claim.learn_ids(found)
        return claim.unknown_in(unread)

    async def _in_hand(self, work: Coroutine[Any, Any, HeldClaim]) -> HeldClaim:
        """Run the work that returns a claim. Closing the queue cancels it, and gives back what it has won."""
        task = asyncio.ensure_future(self._remembered(work))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        task.add_done_callback(lambda _: work.close())  # it was never begun if the task was cancelled at once
        try:
            claim = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise (self._refusal or QueueClosedError) from None
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled() and task.exception() is None and task.result():
                await shield_and_wait(self._return(task.result()), self._context.clock)  # it had just been won
            raise
        if self._refusal is not None:
            # ⚑ Nobody is given a message after a drain has begun.
            await shield_and_wait(self._return(claim), self._context.clock)
            raise self._refusal
        return self._give_out(claim)

    async def _remembered(self, work: Coroutine[Any, Any, HeldClaim]) -> HeldClaim:
        """Return the claim that the work makes. From that step on a drain, or the closing of the queue, has it."""
        claim = await work
        now = self._context.clock.elapsed()
        self._given_out = [given for given in self._given_out if given.is_held(now) or given.is_unfinished()]
        if claim:
            self._given_out.append(claim)
        return claim

    # --- draining ---

    def stop_claiming(self, refusal: type[QueueClosedError | QueueDrainedError]) -> None:
        """End claims that wait or are being made: what they have won is given back, and nothing is given out.

        :param refusal: what they end with.
        """
        self._refusal = refusal
        for state in self._topics.values():
            state.idle_pauses.look_again()
        self._end_those_under_way()

    def _end_those_under_way(self) -> None:
        """Cancel the work on claims that are being made, once: a second time would cut off what gives back."""
        for task in list(self._under_way):
            if task not in self._cut_off:
                self._cut_off.add(task)
                task.add_done_callback(self._cut_off.discard)
                task.cancel()

    async def until_stopped(self) -> None:
        """Wait for the end of claims that were being made."""
        while self._under_way:
            await asyncio.wait(list(self._under_way))

    def held_now(self) -> list[HeldClaim]:
        """Return the claims that hold messages at this moment, without those that were handed over."""
        now = self._context.clock.elapsed()
        return [claim for claim in self._given_out if claim.is_held(now)]

    async def until_unheld(self, until: float, but: Callable[[], Collection[HeldClaim]]) -> None:
        """Wait until nothing is held, at most until this elapsed time.

        :param but: the claims that somebody else looks after.
        """
        clock = self._context.clock
        while True:
            held = [claim for claim in self.held_now() if claim not in but()]
            now = clock.elapsed()
            if not held or now >= until:
                return
            soonest = min(claim.trusted_until(in_doubt=False) for claim in held)
            self._has_settled.clear()
            # A claim that is handed over says so to nobody here.
            seconds = min(until - now, max(soonest - now, MIN_LOOK_SECONDS), MAX_LOOK_SECONDS)
            if not await wait_at_most(self._has_settled.wait(), clock, seconds) and clock.elapsed() <= now:
                return  # nothing can be waited for any more, as the event loop ends

    async def give_back(self, claim: HeldClaim, *, keep: bool) -> list[str]:
        """Give back what a claim holds, or leave it for the next claim by its id; return the ids that were given back.

        :param keep: leave it, if its id was not made up.
        """
        if keep and not claim.is_fleeting:
            await self._leave(claim)
            return []
        held = claim.unsettled_with_units()
        await self._return(claim)
        decisions = {unit: claim.record.decision_of(unit) for unit in held}
        return [each for unit, each in held.items() if (one := decisions[unit]) is not None and one.by == "closing"]

    async def close(self, *, keep: bool) -> None:
        """Give back the claims that are still held and were not handed over, so that no consumer waits for their time.

        :param keep: keep the claims, and end this process's session on them. The next process that claims by their ids
            has them at once.
        """
        for state in self._topics.values():
            state.idle_pauses.look_again()  # claims that wait end now
        self._end_those_under_way()
        if self._under_way:
            await asyncio.wait(list(self._under_way))
        await self._effect_retries.close()
        now = self._context.clock.elapsed()
        ours = [claim for claim in self._given_out if claim.is_held(now)]
        unfinished = [claim for claim in self._given_out if claim not in ours and claim.is_unfinished()]
        self._given_out = []
        self._closing = _Closing(list(ours), claims=len(ours))

        async def part(claim: HeldClaim) -> None:
            # Nobody can come for a claim whose id was made up.
            kept = keep and not claim.is_fleeting
            left = claim.messages_left
            back = await (self._leave if kept else self._return)(claim)
            self._closing.messages += back
            if back == left or not claim.is_held(self._context.clock.elapsed()):
                self._closing.held.remove(claim)

        await for_each(part, ours, at_once=self._context.at_once)
        await for_each(self._finish, unfinished, at_once=self._context.at_once)
        for state in self._topics.values():
            await state.finder.background.close(LAST_ANSWER_SECONDS)
        if self._closing.held:
            logger.warning("The queue was closed, and %s", _describe_unreturned(self._closing.held))
        self._tell_closed(keep=keep)

    def abandon(self, seconds: float, *, keep: bool) -> None:
        """Log the claims that were not given back when the time for closing the queue was over."""
        now = self._context.clock.elapsed()
        early = [claim for claim in self._given_out if claim.is_held(now)]  # closing was cut off before it reached them
        self._given_out = []
        self._closing.held += early
        self._closing.claims += len(early)
        held = self._closing.held
        logger.warning(
            "Closing the queue was cut off after %g seconds, as the store had not answered: %s",
            seconds,
            _describe_unreturned(held) if held else "other processes finish what it was still doing.",
        )
        self._tell_closed(keep=keep, complete=not held)

    def _tell_closed(self, *, keep: bool, complete: bool | None = None) -> None:
        closing = self._closing
        is_complete = (keep or not closing.held) if complete is None else complete
        self._context.events.tell(
            QueueClosed(claims=closing.claims, messages=closing.messages, kept=keep, complete=is_complete)
        )

    async def _leave(self, claim: HeldClaim) -> int:
        left = claim.messages_left
        try:
            await vacate(self._context.with_budget(), claim)
        except Exception as error:  # noqa: BLE001 - whatever it is, the queue is being closed
            logger.warning("Claim %s could not be left in good order: %r", claim.claim_id, error)
        return left

    async def _finish(self, claim: HeldClaim) -> None:
        """Carry out a decision whose effects were cut off."""
        try:
            await settling.carry_out_decided(self._context.with_budget(), claim)
        except Exception as error:  # noqa: BLE001 - whatever it is, the queue is being closed
            logger.warning("What claim %s has decided could not be carried out: %r", claim.claim_id, error)

    async def _return(self, claim: HeldClaim) -> int:
        decision, left = Decision(how="released", reason="closed", by="closing"), claim.record.messages_left
        try:
            result = await settling.settle(self._context.with_budget(), claim, dict.fromkeys(claim.left, decision))
        except Exception as error:  # noqa: BLE001 - whatever it is, the queue is being closed
            logger.warning("Claim %s could not be given back: %r", claim.claim_id, error)
            return 0
        messages = sum(left[unit_id] for unit_id in result.decided)
        self._context.events.tell(
            GivenBack(
                topic=claim.topic,
                claim=claim.stem,
                messages=messages,
                why="its process has closed the queue",
            )
        )
        return messages

    def look_anew(self, topic: str) -> None:
        """Make the next look at the topic a full listing, as messages were given back here."""
        if topic in self._topics:
            self._topics[topic].finder.mark_stale()
        self.look_again(topic)

    def look_again(self, topic: str, messages: float = math.inf) -> None:
        """Wake as many waiting claims of the topic: this many messages have become claimable here."""
        if topic in self._topics:
            self._topics[topic].idle_pauses.look_again(messages)

    def is_set_aside(self, topic: str, name: str) -> bool:
        """Say whether this process leaves the unit with this name or id alone now, as it could not use it."""
        return topic in self._topics and name in self._topics[topic].finder.set_aside

    def idle_pauses_of(self, topic: str) -> IdlePauses:
        """Return the pauses that all waiting claims of the topic share. They are made on first use."""
        return self._topic(topic).idle_pauses

    def in_turn(self, topics: Sequence[str]) -> list[str]:
        """Return the topics in the order in which a claim looks into them.

        Topics come last that this queue found empty a moment ago, while the pause after that goes on. Of the others,
        and of those, the one comes first that was looked into longest ago. In a new process their order is random, so
        that many short-lived processes do not all take the messages of one topic.
        """
        if len(topics) == 1:
            return list(topics)
        for state in map(self._topic, topics):
            if not state.turn:
                state.turn = -self._context.clock.uniform(0, 1)
        return sorted(
            topics, key=lambda topic: (self._topic(topic).idle_pauses.seconds_left() > 0, self._topic(topic).turn)
        )

    def note_turn(self, topic: str) -> None:
        """Note that a claim of several topics looks into this one now."""
        self._looks += 1
        self._topic(topic).turn = self._looks

    def forget(self, topics: Iterable[str]) -> None:
        """Forget what was remembered of these topics."""
        for topic in topics:
            self._topics.pop(topic, None)

    def _give_out(self, claim: HeldClaim) -> HeldClaim:
        """Return a claim to its consumer, and emit the event.

        A claim without messages is only returned. Decisions of the claim that are not carried out yet are retried in
        the background.
        """
        if claim:
            self._effect_retries.go_on_with(claim)  # it may have found messages that have to be buried
            self._context.events.tell(
                Claimed(topic=claim.topic, claim=claim.stem, ids=tuple(claim.ids), consumer=claim.consumer)
            )
        return claim

    def _topic(self, topic: str) -> _TopicState:
        if topic not in self._topics:
            self._topics[topic] = _TopicState(self._context, topic)
        return self._topics[topic]


@dataclass(slots=True)
class _Closing:
    """The progress of closing the queue: the claims that are still held, and how much was given back."""

    held: list[HeldClaim]
    claims: int = 0
    messages: int = 0


def _describe_unreturned(held: Sequence[HeldClaim]) -> str:
    shown = [f"{claim.stem} of {claim.topic!r} ({claim.messages_left}, {iso(claim.record.free_at)})" for claim in held]
    more = ", …" if len(shown) > MAX_CLAIMS_SHOWN else ""
    return (
        f"{len(held)} of its claims were not given back. Others have their messages when each claim's time is over "
        f"(its messages, its time): {', '.join(shown[:MAX_CLAIMS_SHOWN])}{more}"
    )


class _TopicState:
    """What an open queue remembers of one topic."""

    def __init__(self, context: Context, topic: str) -> None:
        self.finder = Finder(context, topic)
        self.idle_pauses = IdlePauses(context.clock)
        self.turn = 0.0  # among the topics of a claim: the number of its last look, or a random one below 0
        self.contention = Contention(context.clock, by_the_piece=context.registers.is_certain)
        self.by_id = ById(context, self.finder, self.contention)
