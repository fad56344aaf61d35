"""Claims over several topics, listeners, and the drain of a queue."""

from __future__ import annotations

from typing import Any

from pawnqueue.claims import KeepAlive, waiting
from pawnqueue.claims.open_claims import Claims
from pawnqueue.listening import draining
from pawnqueue.listening.outcomes import ACKED
from pawnqueue.listening.worker import Worker
from pawnqueue.runtime.lifetime import Lifetime
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


@mutant("A message is acked after its handler", 0, 1, arena="listening")
def acked_before_it_is_done() -> Patches:
    original = Worker._start_handlers

    def start_handlers(self: Worker) -> None:
        original(self)
        for batch in list(self._batches.values()):
            for work in list(batch.running.values()):
                if work.unit in batch.left and not batch.has_outcome(work):
                    self._finish(work, ACKED)

    return [(Worker, "_start_handlers", start_handlers)]


@mutant("What a handler does after its claim was lost does not count", 7, 13, arena="listening")
def lost_ones_are_acked() -> Patches:
    return [(Worker, "_lose", lambda *_: None)]


@mutant("A worker renews its claims while handlers work", 0, 3, arena="listening")
def claims_of_workers_are_not_renewed() -> Patches:
    async def run(_: KeepAlive) -> None:
        pass

    return [(KeepAlive, "_run", run)]


@mutant("Nothing is given out after a drain has begun", 0, 1, arena="listening")
def claimed_after_the_drain() -> Patches:
    return [(Lifetime, "check_claiming", Lifetime.check_open), (Claims, "stop_claiming", lambda *_: None)]


@mutant("A drain gives back what nobody has begun", 1, 3, arena="listening")
def what_waits_is_not_given_back() -> Patches:
    return [(Worker, "_give_back_waiting", lambda self: self._waiting.clear())]


@mutant(
    "A drain keeps its time whatever the store does",
    test="tests/pawnqueue/listening/test_drain.py::test_the_time_is_kept_whatever_the_store_does",
)
def drains_wait_for_the_store() -> Patches:
    original = draining.cancel_after

    async def cancel_after(work: Any, clock: Any, seconds: float) -> bool:
        return await original(work, clock, seconds + 1000.0)

    return [(draining, "cancel_after", cancel_after)]


@mutant(
    "A worker settles before it claims after an outage",
    test="tests/pawnqueue/listening/test_listen.py::test_a_worker_lives_through_an_outage",
)
def claimed_before_it_settles() -> Patches:
    async def settle_first(_: Worker) -> None:
        pass

    return [(Worker, "_settle_first", settle_first)]
