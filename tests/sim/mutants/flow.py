"""§4, Pausing."""

from __future__ import annotations

from typing import Any

from pawnqueue.bucket import topics
from pawnqueue.claims.by_id import ById
from pawnqueue.claims.claiming import Attempt
from tests.sim.mutants.entering import Patches, mutant


@mutant("§4 Pausing: a claim hands out by settings that are five seconds old at most", 0, 1, 4, arena="flow")
def pauses_are_heard_of_late() -> Patches:
    return [(topics, "RECENT_RECORD_SECONDS", topics.RECORD_CACHE_SECONDS)]


@mutant("§4 Pausing: what was won before the topic was paused is given back unseen", 60, 115, 260, arena="flow")
def what_was_won_is_handed_out() -> Patches:
    original = Attempt._is_paused

    async def is_paused(self: Attempt) -> bool:
        return self._won is None and await original(self)

    return [(Attempt, "_is_paused", is_paused)]


@mutant("§4 Pausing: the leases of an attempt that died before its record are not adopted", 445, 610, 782, arena="flow")
def adopted_while_paused() -> Patches:
    original = ById._begin

    async def begin(self: ById, request: Any) -> Any:
        orphans = await self._orphans(request)
        return await (self._adopt(request, orphans) if orphans else original(self, request))

    return [(ById, "_begin", begin)]
