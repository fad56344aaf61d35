"""Claims over several topics, listeners, and the drain of a queue."""

from __future__ import annotations

from typing import Any

from pawnqueue.claims import waiting
from pawnqueue.claims.open_claims import Claims
from tests.sim.mutants.entering import Patches, mutant

TOPICS = "tests/pawnqueue/claims/test_several_topics.py::"


@mutant("Each topic of a claim has its turn", test=f"{TOPICS}test_full_topics_take_turns")
def the_first_topic_comes_first() -> Patches:
    return [(Claims, "in_turn", lambda _, topics: list(topics))]


@mutant("A new process begins with a topic that is drawn", test=f"{TOPICS}test_short_lived_processes_begin_anywhere")
def all_begin_with_the_first_topic() -> Patches:
    original = Claims.in_turn

    def in_turn(self: Claims, topics: Any) -> list[str]:
        for topic in topics:
            self._topic(topic).turn = self._topic(topic).turn or -1.0
        return original(self, topics)

    return [(Claims, "in_turn", in_turn)]


@mutant("A claim waits for all its topics", test=f"{TOPICS}test_a_claim_waits_for_all_of_them")
def the_first_topic_alone_wakes() -> Patches:
    original = waiting._pause

    async def pause(places: Any, clock: Any, **more: Any) -> Any:
        await original(places[:1], clock, **more)
        return places

    return [(waiting, "_pause", pause)]


@mutant(
    "A topic that is always full does not hide the others",
    test=f"{TOPICS}test_a_topic_that_was_idle_is_found_beside_a_busy_one",
)
def the_full_topic_hides_the_others() -> Patches:
    original = Claims.in_turn

    def in_turn(self: Claims, topics: Any) -> list[str]:
        return sorted(original(self, topics), key=lambda topic: topic != topics[0])

    return [(Claims, "in_turn", in_turn)]
