"""§4, Pausing and Age, and §7, Backpressure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pawnqueue.bucket import topics
from pawnqueue.claims import by_id, claiming, expiry, record_retention
from pawnqueue.claims.bodies import Bodies
from pawnqueue.claims.by_id import ById
from pawnqueue.claims.claiming import Attempt
from pawnqueue.context import Context
from pawnqueue.publish import backpressure
from pawnqueue.publish.backpressure import Backpressure, _TopicRoom
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


@mutant(
    "§4 Pausing: a call does not go on with a record of its own that it could not give back",
    1795183253008277,
    arena="flow-csprng",
)
def calls_go_on_with_what_they_could_not_give_back() -> Patches:
    def end_unless_given_back(*_: Any) -> None:
        return None

    return [(module, "end_unless_given_back", end_unless_given_back) for module in (claiming, by_id)]


@mutant(
    "§4 Pausing: the leases of an attempt that died before its record are not adopted",
    test="tests/pawnqueue/claims/test_pausing.py::test_leases_of_an_attempt_that_died_are_not_adopted",
)
def adopted_while_paused() -> Patches:
    original = ById._begin

    async def begin(self: ById, request: Any) -> Any:
        orphans = await self._orphans(request)
        if not orphans:
            return await original(self, request)
        going_on = request.topic.settings.model_copy(update={"paused": False})
        topic = request.topic.model_copy(update={"settings": going_on})
        return await self._adopt(replace(request, topic=topic, recent=None), orphans)

    return [(ById, "_begin", begin)]


@mutant("§4 Age: what is too old is handed out to nobody", 32, 88, 108, arena="flow")
def old_ones_are_handed_out() -> Patches:
    return [(expiry, "expired", lambda *_: {})]


@mutant(
    "§4 Age: nothing is buried before the margin is over, too",
    test="tests/pawnqueue/claims/test_expiry.py::test_nothing_is_buried_before_its_time",
)
def expired_early() -> Patches:
    original = expiry.is_expired
    return [(expiry, "is_expired", lambda topic, name, now, margin: original(topic, name, now, -margin))]


@mutant(
    "§4 Age: a redriven message counts from its redrive",
    test="tests/pawnqueue/claims/test_expiry.py::test_a_redriven_message_counts_from_its_redrive",
)
def redriven_ones_expire_by_their_names() -> Patches:
    async def kept_by_date(*_: Any) -> dict[str, Any]:
        return {}

    return [(expiry, "kept_by_date", kept_by_date)]


@mutant(
    "§4 Age: a claim goes on with what it was given",
    test="tests/pawnqueue/claims/test_expiry.py::test_a_claim_goes_on_with_what_it_was_given",
)
def resumed_claims_expire() -> Patches:
    original = Bodies.fetch

    async def fetch(*given: Any, is_resumed: bool = False, **more: Any) -> Bodies:
        del is_resumed
        return await original(*given, **more)

    return [(Bodies, "fetch", fetch)]


@mutant(
    "§7 What expired unread leaves a trace",
    test="tests/pawnqueue/claims/test_expiry.py::test_a_publishers_trace_is_kept",
)
def expired_ones_leave_no_trace() -> Patches:
    return [(record_retention, "EXPIRED", "another reason")]


@mutant(
    "§4 Age: by the limit that is set now",
    test="tests/pawnqueue/bucket/test_live_settings.py::test_max_age_raised",
)
def expired_by_hearsay() -> Patches:
    class AsItWasRead:
        @staticmethod
        async def look() -> None:
            return None

    return [(Context, "topic_marker", lambda *_: AsItWasRead)]


# --- §7, Backpressure ---

_TESTS = "tests/pawnqueue/publish/test_backpressure.py"


@mutant("§7 Backpressure: what this process has published since its count is added to it", 0, 2, 4, arena="flow")
def own_messages_are_forgotten() -> Patches:
    return [(_TopicRoom, "pending", lambda _, count: count.pending)]


@mutant(
    "§7 Backpressure: the less room is left, the sooner a count is made anew",
    test=f"{_TESTS}::test_a_call_waits_for_room",
)
def counts_are_kept() -> Patches:
    return [(Backpressure, "_is_due", lambda *_: False)]


@mutant(
    "§7 Backpressure: what is under way while it is counted is added to the count",
    test=f"{_TESTS}::test_what_is_under_way_during_a_count_counts",
)
def under_way_is_forgotten() -> Patches:
    original = Backpressure._count

    async def count(self: Backpressure, topic: Any, room: _TopicRoom, limit: int) -> None:
        under_way, room.under_way = room.under_way, 0
        try:
            await original(self, topic, room, limit)
        finally:
            room.under_way += under_way

    return [(Backpressure, "_count", count)]


@mutant(
    "§7 Backpressure: one count serves many calls",
    test=f"{_TESTS}::test_a_busy_publisher_pays_far_less_than_a_list_a_message",
)
def each_call_counts() -> Patches:
    return [(backpressure, "MAX_COUNT_SECONDS", 0.0), (backpressure, "MIN_COUNT_SECONDS", 0.0)]


@mutant(
    "§7 Backpressure: nobody is refused by settings that are older than five seconds",
    test="tests/pawnqueue/bucket/test_live_settings.py::test_max_pending_raised",
)
def refused_by_hearsay() -> Patches:
    async def recent(*_: Any) -> None:
        return None

    return [(topics.KnownTopics, "recent", recent)]
