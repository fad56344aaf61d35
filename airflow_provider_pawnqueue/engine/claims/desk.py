"""The desk at which consumers ask for messages and give them back: one for each open queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_pawnqueue.engine import layout
from airflow_provider_pawnqueue.engine.claims import again, records
from airflow_provider_pawnqueue.engine.claims.claim import Claim, ClaimReference, Settlement
from airflow_provider_pawnqueue.engine.claims.claiming import Order, claim_fresh
from airflow_provider_pawnqueue.engine.claims.looking import Lookout
from airflow_provider_pawnqueue.engine.claims.settling import Settled, settle
from airflow_provider_pawnqueue.engine.claims.spread import Spread
from airflow_provider_pawnqueue.engine.errors import LeaseLostError

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.claims.records import FoundRecord
    from airflow_provider_pawnqueue.engine.context import Context
    from airflow_provider_pawnqueue.engine.records import Decision, TopicRecord

#: How often a claim is looked at again because somebody changed it between the look and the write.
LOOKS = 20


class Claims:
    """Gives out claims of one bucket. Remembers of each topic what need not be read twice."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lookouts: dict[str, Lookout] = {}
        self._spreads: dict[str, Spread] = {}

    async def claim(  # noqa: PLR0913 - what a consumer asks for
        self, topic: TopicRecord, *, claim_id: str | None, owner: str, consumer: str, most: int, ttl: float
    ) -> Claim:
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
            named=claim_id is not None,
        )
        if claim_id is None:
            # A generated id was never used: there is nothing to find.
            claim = await claim_fresh(self._context, self._lookout(topic), self._spread(topic), order)
            if claim is None:
                raise _lost(order, "its leases were taken for abandoned before it was recorded: ttl is too short")
            return claim
        for _ in range(LOOKS):
            claim = await self._look_and_claim(order)
            if claim is not None:
                return claim
        raise _lost(order, "others keep working for it")

    async def attach(self, topic: TopicRecord, reference: ClaimReference, *, ttl: float) -> Claim:
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
        )
        for _ in range(LOOKS):
            standing = await records.read(self._context, topic.topic, order.stem)
            if standing is None:
                raise _lost(order, "it has no record any more")
            if standing.record.state != "open" or not standing.record.unsettled:
                return again.ended(order, standing)
            claim = await again.resume(self._context, order, standing, vacated=reference.session)
            if claim is not None:
                return claim
        raise _lost(order, "others keep working for it")

    async def settle(self, claim: Claim, decisions: Mapping[str, Decision]) -> Settlement:
        """Settle messages by their ids, and tell what became of each."""
        uuids = claim._uuids_by_id()  # noqa: SLF001 - this package's own
        wanted = {
            uuid: decision if uuid == one else decision.model_copy(update={"id": one})
            for one, decision in decisions.items()
            for uuid in uuids.get(one, ())
        }
        result = await settle(self._context, claim, wanted) if wanted else Settled()
        settlement = Settlement(not_in_claim=[one for one in decisions if one not in uuids])
        names = {"acked": settlement.acked, "dead": settlement.buried, "released": settlement.released}
        for one in decisions:
            of_one = uuids.get(one, [])
            if any(uuid in result.unknown for uuid in of_one):
                settlement.unknown.append(one)
            elif any(uuid in result.lost for uuid in of_one):
                settlement.lost.append(one)
            elif of_one:
                names.get(result.decided[of_one[0]].how, settlement.lost).append(one)
        return settlement

    def forget(self, topics: Iterable[str]) -> None:
        """Forget what was remembered of these topics."""
        for topic in topics:
            self._lookouts.pop(topic, None)
            self._spreads.pop(topic, None)

    async def _look_and_claim(self, order: Order) -> Claim | None:
        """Find the claim again, or begin it. Returns None if somebody changed something meanwhile: look again."""
        generation = await again.latest_generation(self._context, order.topic.topic, order.claim_id)
        if generation is None:
            return await self._begin(order)
        stem = layout.claim_stem(order.claim_id, generation)
        standing = await records.read(self._context, order.topic.topic, stem)
        if standing is None:
            return None
        if standing.record.owner == order.owner:
            if standing.record.state == "open":
                return await self._go_on(order, standing)
            if standing.record.was_handed_out:
                return again.ended(order, standing)
            # All that it had won was bad and is buried: its owner has had nothing, and is not to go without.
        following = await again.next_generation(self._context, order, standing)
        return None if following is None else await self._begin(replace(order, generation=following))

    async def _go_on(self, order: Order, standing: FoundRecord) -> Claim | None:
        if standing.record.unsettled:
            return await again.resume(self._context, order, standing)
        finished = await again.finish(self._context, order, standing)
        return again.ended(order, finished) if finished and finished.record.was_handed_out else None

    async def _begin(self, order: Order) -> Claim | None:
        lookout = self._lookout(order.topic)
        orphans = await again.orphans(self._context, lookout, order)
        if orphans:
            return await again.adopt(self._context, order, orphans)
        return await claim_fresh(self._context, lookout, self._spread(order.topic), order)

    def _lookout(self, topic: TopicRecord) -> Lookout:
        return self._lookouts.setdefault(topic.topic, Lookout(self._context, topic.topic))

    def _spread(self, topic: TopicRecord) -> Spread:
        return self._spreads.setdefault(topic.topic, Spread(self._context.clock))


def _lost(order: Order, why: str) -> LeaseLostError:
    return LeaseLostError(
        f"Claim {order.claim_id} of topic {order.topic.topic!r} could not be had: {why}. Claim anew.",
        topic=order.topic.topic,
        operation="claim",
    )
