"""The promises of docs/protocol.md, section 5, kept by real processes on a real store: one killed, one frozen.

The processes are those of the demo (``tools/crew``); what each believed is judged by the same rules as the simulation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tools.crew.crew import Crew, crew
from tools.crew.plan import Plan
from tools.kit.history import History

if TYPE_CHECKING:
    from tools.crew.crew import Blow
    from tools.kit.servers import S3Server

pytestmark = pytest.mark.servers


def delivered_to_others(it: Crew, blow: Blow) -> set[str]:
    """Return which of the messages that a struck consumer had were given to others."""
    others = (one for one in it.consumers if one is not blow.worker)
    return blow.ids.intersection(*[set().union(*(one.received for one in others))])


def ids_acked(history: History) -> set[str]:
    """Return the ids that the queue reported to consumers as acked."""
    return {message_id for _, message_id, _ in history.acked}


def test_nothing_is_lost_or_held_twice_though_one_consumer_is_killed_and_one_frozen(seaweedfs: S3Server) -> None:
    """Two publishers, four consumers and a janitor at once: all messages are settled once, and nothing is left."""
    plan = Plan(orders=400, poison_every=40, batch=20, ttl=5.0, seconds_per_batch=0.4, janitors=1)
    with crew(seaweedfs, plan) as it:
        it.start_janitors()
        it.start_consumers()
        it.start_publishers()
        it.wait(lambda: it.settled >= plan.orders / 8, "the consumers are at work")
        killed = it.kill(it.consumers[1])
        frozen = it.freeze(it.consumers[2])
        it.wait_for_publishers()
        it.wait_for_takeover(killed)
        it.wait_for_takeover(frozen)
        it.consumers[2].thaw()
        it.wait_until_empty()
        it.end(it.consumers)
        # The janitor sweeps by itself: a lease that was won and never used is removed after its time.
        it.wait(lambda: not it.remains().left, "the janitor has left nothing", seconds=plan.ttl + 2 * plan.margin)
        it.end(it.janitors)
        remains, history = it.remains(), it.history()

        assert history.violations(left=remains.dead) == []
        assert len(history.published) == plan.orders
        assert len(remains.dead) == plan.poison
        assert ids_acked(history) == history.published - remains.dead
        for blow in (killed, frozen):
            assert blow.ids
            assert delivered_to_others(it, blow) == blow.ids
        assert it.consumers[2].ended, "the frozen consumer went on and ended after the signal"


def test_keep_alive_keeps_a_claim_over_work_that_takes_longer_than_its_time(seaweedfs: S3Server) -> None:
    """A claim of 5 seconds is kept over 12 seconds of work: nobody else is given a message, and all are acked."""
    plan = Plan(orders=50, poison_every=1_000, publishers=1, batch=50, ttl=5.0, seconds_per_batch=12.0)
    assert plan.poison == 0
    with crew(seaweedfs, plan) as it:
        it.start_publishers()
        it.wait_for_publishers()
        it.start_consumers([1])
        it.wait(lambda: len(it.consumers[0].holding) == plan.orders, "consumer 1 has all messages")
        it.start_consumers([2])
        it.wait_until_empty(seconds=plan.seconds_per_batch)
        it.end(it.consumers)
        remains, history = it.remains(), it.history()
        keeper, other = it.consumers

        assert history.violations(left=remains.dead) == []
        assert ids_acked(history) == history.published
        assert {hold.holder.process for hold in history.holds} == {keeper.name}
        assert len({hold.holder for hold in history.holds}) == 1, "one session of one claim had them all the time"
        assert min(at for at, _, _ in history.acked) - keeper.holding_since > 2 * plan.ttl
        assert other.in_vain > 0, "the other consumer looked for messages meanwhile"
        assert remains.left == 0
