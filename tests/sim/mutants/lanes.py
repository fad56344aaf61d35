"""§1, §5.7: priorities and delays."""

from __future__ import annotations

from pawnqueue.claims import candidates
from pawnqueue.context import Context
from pawnqueue.domain import lanes
from tests.sim.mutants.entering import Patches, mutant

_TESTS = "tests/pawnqueue/claims/test_lanes.py"


@mutant("§1 What was published with a delay is given to nobody before its time", 9, 37, 54)
def delays_are_ignored() -> Patches:
    return [(lanes, "is_early", lambda *_: False)]


@mutant("§1 A delay is over when it surely is, whatever the error of a process's time", 9, 40, 63, arena="patience")
def delays_end_by_a_guess() -> Patches:
    return [(Context, "earliest_now", Context.now)]


@mutant(
    "§5.7 A message of a low priority does not wait for ever behind higher ones",
    test=f"{_TESTS}::test_nobody_is_starved_by_a_higher_priority",
)
def the_oldest_never_come_first() -> Patches:
    return [(candidates, "OLDEST_FIRST_SHARE", 0.0)]


@mutant(
    "§4.1 A large topic is listed lane by lane",
    test=f"{_TESTS}::test_a_high_message_is_seen_at_once_in_a_large_topic",
)
def lanes_share_a_cursor() -> Patches:
    return [(lanes, "are_listed_apart", lambda _: False)]
