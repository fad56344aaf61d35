"""The desk at which consumers ask for messages and give them back: one for each open queue."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_pawnqueue.engine import layout
from airflow_provider_pawnqueue.engine.claims import again, records, takeover
from airflow_provider_pawnqueue.engine.claims.claim import ClaimReference, Settlement
from airflow_provider_pawnqueue.engine.claims.claiming import PARTING, Order, claim_fresh
from airflow_provider_pawnqueue.engine.claims.held import HeldClaim
from airflow_provider_pawnqueue.engine.claims.keeping import leave
from airflow_provider_pawnqueue.engine.claims.looking import FULL_LOOK, Lookout
from airflow_provider_pawnqueue.engine.claims.settling import Settled, carry_out_decided, settle
from airflow_provider_pawnqueue.engine.claims.spread import Spread
from airflow_provider_pawnqueue.engine.errors import LeaseLostError, QueueClosedError
from airflow_provider_pawnqueue.engine.gather import each, uncut
from airflow_provider_pawnqueue.engine.records import Decision

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.claims.records import FoundRecord
    from airflow_provider_pawnqueue.engine.context import Context
    from airflow_provider_pawnqueue.engine.records import TopicRecord

logger = logging.getLogger(__name__)

#: How often a claim is looked at again because somebody changed it between the look and the write.
LOOKS = 200


class Claims:
    """Gives out claims of one bucket. Remembers of each topic what need not be read twice."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lookouts: dict[str, Lookout] = {}
        self._spreads: dict[str, Spread] = {}
        self._given_out: list[HeldClaim] = []
        self._unknown_ids: dict[tuple[str, str], float] = {}
        self._under_way: set[asyncio.Task[HeldClaim]] = set()

    async def claim(  # noqa: PLR0913 - what a consumer asks for
        self,
        topic: TopicRecord,
        *,
        claim_id: str | None,
        owner: str,
        consumer: str,
        most: int,
        ttl: float,
        session_ttl: float,
    ) -> HeldClaim:
        """Claim up to ``most`` messages, or find again what was claimed under the id."""
        order = Order(
            topic=topic,
            claim_id=claim_id or self._context.clock.uuid(),
            generation=0,
            owner=owner,
            consumer=consumer,
            session=self._context.clock.uuid(),
            most=most,
            ttl=ttl,
            session_ttl=min(session_ttl, ttl),
            named=claim_id is not None,
        )
        return await self._in_hand(self._claim_by_id(order) if claim_id is not None else self._claim_any(order))

    async def _claim_any(self, order: Order) -> HeldClaim:
        # A generated id was never used: there is nothing to find.
        topic = order.topic.topic
        claim = await claim_fresh(self._context, self._lookout(topic), self._spread(topic), order)
        if claim is None:
            raise _lost(order, "its leases were taken for abandoned before it was recorded: ttl is too short")
        return claim

    async def _claim_by_id(self, order: Order) -> HeldClaim:
        for _ in range(LOOKS):
            claim = await self._look_and_claim(order)
            if claim is not None:
                return claim
        raise _lost(order, "its record keeps changing")

    async def attach(
        self, topic: TopicRecord, reference: ClaimReference, *, ttl: float, session_ttl: float
    ) -> HeldClaim:
        """Go on with a claim that another process has handed over."""
        order = Order(
            topic=topic,
            claim_id=reference.claim_id,
            generation=reference.generation,
            owner="",
            consumer="",
            session=self._context.clock.uuid(),
            most=0,
            ttl=ttl,
            session_ttl=min(session_ttl, ttl),
        )
        return await self._in_hand(self._attach(order, reference))

    async def _attach(self, order: Order, reference: ClaimReference) -> HeldClaim:
        topic = order.topic
        for _ in range(LOOKS):
            standing = await records.read(self._context, topic.topic, order.stem)
            if standing is None:
                raise _lost(order, "it has no record any more")
            if standing.record.state != "open" or not standing.record.unsettled:
                return again.ended(self._context, order, standing)
            claim = await again.resume(self._context, order, standing, vacated=reference.session)
            if claim is not None:
                return claim
        raise _lost(order, "its record keeps changing")

    async def settle(self, claim: HeldClaim, decisions: Mapping[str, Decision]) -> Settlement:
        """Settle messages by their ids, and tell what became of each."""
        uuids = claim.uuids_by_id()
        wanted = {
            uuid: decision if uuid == one else decision.model_copy(update={"id": one})
            for one, decision in decisions.items()
            for uuid in uuids.get(one, ())
        }
        result = await settle(self._context, claim, wanted) if wanted else Settled()
        settlement = Settlement(not_in_claim=[one for one in decisions if one not in uuids])
        names = {"acked": settlement.acked, "dead": settlement.buried, "released": settlement.released}
        if any(decision.how == "released" for decision in result.decided.values()):
            self.look_anew(claim.topic)
        for one in decisions:
            of_one = uuids.get(one, [])
            if any(uuid in result.unknown for uuid in of_one):
                settlement.unknown.append(one)
            elif any(uuid in result.lost for uuid in of_one):
                settlement.lost.append(one)
            elif of_one:
                names.get(result.decided[of_one[0]].how, settlement.lost).append(one)
            for uuid in of_one:
                if uuid in result.unfinished:
                    settlement.unfinished[one] = str(result.unfinished[uuid])
        return settlement

    async def _in_hand(self, work: Coroutine[Any, Any, HeldClaim]) -> HeldClaim:
        """Do what gives out a claim, such that closing the queue can end it: whatever it has won is given back then."""
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        try:
            claim = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise QueueClosedError from None
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled() and task.exception() is None and task.result():
                await uncut(self._return(task.result()), self._context.clock, PARTING)  # it had just been won
            raise
        return self._give_out(claim)

    async def close(self, *, keep: bool) -> None:
        """Give back what is still held and was not handed over, so that nobody waits for its time to end.

        :param keep: leave the claims as they are, and give back only that this process works for them: whoever comes by
            their ids next has them at once.
        """
        for task in list(self._under_way):
            task.cancel()
        if self._under_way:
            await asyncio.wait(list(self._under_way))
        now = self._context.clock.elapsed()
        ours = [claim for claim in self._given_out if claim.is_held(now)]
        unfinished = [claim for claim in self._given_out if claim not in ours and claim.is_unfinished()]
        self._given_out = []

        async def part(claim: HeldClaim) -> int:
            # A claim whose id was made up is kept for nobody.
            kept = keep and not claim.is_fleeting
            return await (self._leave if kept else self._return)(claim)

        left = sum(len(claim.left) for claim in ours)
        back = await each(part, ours, at_once=self._context.at_once)
        await each(self._finish, unfinished, at_once=self._context.at_once)
        for errands in (lookout.errands for lookout in self._lookouts.values()):
            await errands.close(PARTING)
        if ours:
            what = "left to whoever comes by their ids" if keep else "given back"
            logger.info(
                "Closed with %d open claims: their %d messages were %s%s.",
                len(ours),
                sum(back),
                what,
                "" if sum(back) == left or keep else ", the others wait for their time to end",
            )

    async def _leave(self, claim: HeldClaim) -> int:
        left = len(claim.left)
        try:
            await leave(self._context.patient(), claim)
        except Exception as error:  # noqa: BLE001 - whatever it is, the queue is being closed
            logger.warning("Claim %s could not be left in good order: %r", claim.claim_id, error)
        return left

    async def _finish(self, claim: HeldClaim) -> None:
        """Carry out what was decided and cut off."""
        try:
            await carry_out_decided(self._context.patient(), claim)
        except Exception as error:  # noqa: BLE001 - whatever it is, the queue is being closed
            logger.warning("What claim %s has decided could not be carried out: %r", claim.claim_id, error)

    async def _return(self, claim: HeldClaim) -> int:
        decision = Decision(how="released", reason="closed", returned=True)
        try:
            result = await settle(self._context.patient(), claim, dict.fromkeys(claim.left, decision))
        except Exception as error:  # noqa: BLE001 - whatever it is, the queue is being closed
            logger.warning("Claim %s could not be given back: %r", claim.claim_id, error)
            return 0
        return len(result.decided)

    def look_anew(self, topic: str) -> None:
        """Let the next look at the topic be a full one: something was given back here."""
        if topic in self._lookouts:
            self._lookouts[topic].is_stale()

    def forget(self, topics: Iterable[str]) -> None:
        """Forget what was remembered of these topics."""
        for topic in topics:
            self._lookouts.pop(topic, None)
            self._spreads.pop(topic, None)

    async def _look_and_claim(self, order: Order) -> HeldClaim | None:
        """Find the claim again, or begin it. Returns None if somebody changed something meanwhile: look again."""
        key = (order.topic.topic, order.claim_id)
        # ⚑ §4.1: who waits by an id for something to claim need not look for its record each time. If another process
        # has begun the claim meanwhile, ours is refused its record, and looks again then.
        if self._context.clock.elapsed() - self._unknown_ids.get(key, -math.inf) < FULL_LOOK:
            return await self._begin_fresh(order)
        generation = await again.latest_generation(self._context, order.topic.topic, order.claim_id)
        if generation is None:
            return await self._begin(order)
        stem = layout.claim_stem(order.claim_id, generation)
        standing = await records.read(self._context, order.topic.topic, stem)
        if standing is None:
            return None
        record = standing.record
        if record.owner == order.owner:
            if record.state == "open":
                return await self._go_on(order, standing)
            if record.was_handed_out and not record.was_returned:
                return again.ended(self._context, order, standing)
            # All that it had won was bad and is buried, or it was given back when its process ended in good order: its
            # owner has not finished with anything of it, and is not to go without.
        following = await again.next_generation(self._context, order, standing)
        return None if following is None else await self._begin(replace(order, generation=following))

    async def _go_on(self, order: Order, standing: FoundRecord) -> HeldClaim | None:
        if standing.record.unsettled:
            return await again.resume(self._context, order, standing)
        finished = await again.finish(self._context, order, standing)
        if finished is None:
            return None
        if finished.record.was_handed_out and not finished.record.was_returned:
            return again.ended(self._context, order, finished)
        # What it has decided of messages that nobody was given is being refused by the store: the next generation.
        return None if finished.record.state == "closed" else await self._begin_after(order, finished)

    async def _begin_after(self, order: Order, standing: FoundRecord) -> HeldClaim | None:
        if await takeover.fence(self._context, order.topic.topic, standing) is None:
            return None
        return await self._begin(replace(order, generation=standing.record.generation + 1))

    async def _begin(self, order: Order) -> HeldClaim | None:
        lookout = self._lookout(order.topic.topic)
        orphans = await again.orphans(self._context, lookout, order)
        if orphans:
            return await again.adopt(self._context, order, orphans)
        if order.generation == 0:
            now = self._context.clock.elapsed()
            self._unknown_ids = {key: at for key, at in self._unknown_ids.items() if now - at < FULL_LOOK}
            self._unknown_ids[order.topic.topic, order.claim_id] = self._context.clock.elapsed()
        return await self._begin_fresh(order)

    async def _begin_fresh(self, order: Order) -> HeldClaim | None:
        topic = order.topic.topic
        try:
            claim = await claim_fresh(self._context, self._lookout(topic), self._spread(topic), order)
        except BaseException:
            self._unknown_ids.pop((topic, order.claim_id), None)  # leases may name it, or its record be there
            raise
        if claim is None or claim:
            self._unknown_ids.pop((topic, order.claim_id), None)
        return claim

    def _give_out(self, claim: HeldClaim) -> HeldClaim:
        now = self._context.clock.elapsed()
        self._given_out = [one for one in self._given_out if one.is_held(now) or one.is_unfinished()]
        if claim:
            self._given_out.append(claim)
        return claim

    def _lookout(self, topic: str) -> Lookout:
        return self._lookouts.setdefault(topic, Lookout(self._context, topic))

    def _spread(self, topic: str) -> Spread:
        by_the_piece = self._context.registers.is_certain
        return self._spreads.setdefault(topic, Spread(self._context.clock, by_the_piece=by_the_piece))


def _lost(order: Order, why: str) -> LeaseLostError:
    return LeaseLostError(
        f"Claim {order.claim_id} of topic {order.topic.topic!r} could not be had: {why}. Claim anew.",
        topic=order.topic.topic,
        operation="claim",
    )
