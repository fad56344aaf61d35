"""Settings of a live topic, changed under its users: a test for each row of docs/how-to/flow-control.md."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pawnqueue import QueueFullError
from pawnqueue.bucket.topics import RECENT_RECORD_SECONDS, RECORD_CACHE_SECONDS
from tests.pawnqueue.virtual import MARGIN, TOPIC, numbered, numbers

if TYPE_CHECKING:
    from tests.pawnqueue.virtual import Process, World

MAX_AGE = 100.0
#: By then nobody doubts that it is over.
EXPIRED = MAX_AGE + 2 * MARGIN + 1
#: A claim that waits looks again after five seconds, and a bit of jitter.
POLL = 5.5


@pytest.fixture(params=[False, True], ids=["single", "packs"])
def how(request: pytest.FixtureRequest, world: World) -> dict[str, bool]:
    """How messages are published: singly, or in packs."""
    world.topic(packs=True if request.param else None)
    return {"pack": request.param}


async def test_paused_on(how: dict[str, bool], world: World, ann: Process, bob: Process) -> None:
    """A busy consumer in another process is given nothing 5 seconds later. What it holds goes on."""
    await ann.queue.publish(TOPIC, numbered(4), **how)
    claim = await bob.queue.claim(TOPIC, "c", max_messages=1)
    await ann.queue.update_topic(TOPIC, paused=True)
    await world.later(RECENT_RECORD_SECONDS)
    assert not await bob.queue.claim(TOPIC, "c")
    assert (await bob.queue.ack(claim)).complete


async def test_paused_off(how: dict[str, bool], world: World, ann: Process, bob: Process) -> None:
    """Claims that wait go on, here at once, and elsewhere within 5 seconds and a poll's pause."""
    await ann.queue.publish(TOPIC, numbered(2), **how)
    await ann.queue.update_topic(TOPIC, paused=True)
    await world.later(RECENT_RECORD_SECONDS)
    waiting = [asyncio.create_task(each.queue.claim(TOPIC, "c", max_messages=1, wait=600)) for each in (ann, bob)]
    await world.later(60)
    began = world.clock.elapsed()
    await ann.queue.update_topic(TOPIC, paused=False)
    assert numbers(await waiting[0]) == [0]
    assert world.clock.elapsed() == began
    assert numbers(await waiting[1]) == [1]
    assert world.clock.elapsed() - began <= RECENT_RECORD_SECONDS + POLL


async def _reasons(process: Process) -> list[str]:
    return [letter.reason for letter in await process.queue.dead_letters(TOPIC)]


@pytest.mark.parametrize("age", [None, 10 * MAX_AGE], ids=["set", "lowered"])
async def test_max_age_lowered(
    how: dict[str, bool], world: World, ann: Process, bob: Process, age: float | None
) -> None:
    """A process that was busy hands out older messages for 5 more seconds, and buries them then."""
    await ann.queue.update_topic(TOPIC, max_age_seconds=age)
    await ann.queue.publish(TOPIC, numbered(3), **how)
    await world.later(EXPIRED)
    await bob.queue._known_topics.recent(TOPIC)  # it has read the earlier limit just now
    await ann.queue.update_topic(TOPIC, max_age_seconds=MAX_AGE)
    assert numbers(await bob.queue.claim(TOPIC, "c", max_messages=1)) == [0]
    await world.later(RECENT_RECORD_SECONDS)
    assert not await bob.queue.claim(TOPIC, "c")
    assert await _reasons(ann) == ["expired"] * 2


@pytest.mark.parametrize("age", [10 * MAX_AGE, None], ids=["raised", "removed"])
async def test_max_age_raised(
    how: dict[str, bool], world: World, ann: Process, bob: Process, age: float | None
) -> None:
    """Once update_topic has returned, no process buries by the earlier limit, whatever it has read before."""
    await ann.queue.update_topic(TOPIC, max_age_seconds=MAX_AGE)
    await ann.queue.publish(TOPIC, numbered(3), **how)
    await world.later(EXPIRED)
    await bob.queue._known_topics.recent(TOPIC)  # it has read the earlier limit just now
    await ann.queue.update_topic(TOPIC, max_age_seconds=age)
    assert numbers(await bob.queue.claim(TOPIC, "c")) == [0, 1, 2]
    assert await _reasons(ann) == []


async def test_a_held_message_is_not_touched_by_a_new_age(
    how: dict[str, bool], world: World, ann: Process, bob: Process
) -> None:
    """Its consumer settles it. What it gives back is judged by the limit when it is claimed again."""
    await ann.queue.publish(TOPIC, numbered(2), **how)
    claim = await bob.queue.claim(TOPIC, "c", ttl=1000)
    await world.later(EXPIRED)
    await ann.queue.update_topic(TOPIC, max_age_seconds=MAX_AGE)
    await bob.queue.ack(claim, claim.ids[:1])
    await bob.queue.requeue(claim, claim.ids[1:])
    assert not await bob.queue.claim(TOPIC, "c")
    assert await _reasons(ann) == ["expired"]


async def _fill(ann: Process, how: dict[str, bool], limit: int | None) -> None:
    """Publish twenty messages, and set the limit, which this process has read since."""
    await ann.queue.publish(TOPIC, numbered(20), **how)
    await ann.queue.update_topic(TOPIC, max_pending=limit)
    await ann.queue._known_topics.recent(TOPIC)


@pytest.mark.parametrize("limit", [None, 100], ids=["set", "lowered"])
async def test_max_pending_lowered(
    how: dict[str, bool], world: World, ann: Process, bob: Process, limit: int | None
) -> None:
    """Publishers in other processes follow within a minute. What is stored stays, and is consumed."""
    await _fill(ann, how, limit)
    await bob.queue.update_topic(TOPIC, max_pending=10)
    await ann.queue.publish(TOPIC, numbered(1, 20), **how)
    await world.later(RECORD_CACHE_SECONDS)
    with pytest.raises(QueueFullError):
        await ann.queue.publish(TOPIC, numbered(1, 21), **how)
    assert len(await ann.queue.peek(TOPIC, 100)) == 21


@pytest.mark.parametrize("limit", [100, None], ids=["raised", "removed"])
async def test_max_pending_raised(
    how: dict[str, bool], world: World, ann: Process, bob: Process, limit: int | None
) -> None:
    """Publishers follow within 5 seconds, also calls that wait."""
    await _fill(ann, how, 20)
    waiting = asyncio.create_task(ann.queue.publish(TOPIC, numbered(5, 20), wait=600, **how))
    await world.later(30)
    assert not waiting.done()
    began = world.clock.elapsed()
    await bob.queue.update_topic(TOPIC, max_pending=limit)
    assert len(await waiting) == 5
    assert world.clock.elapsed() - began <= RECENT_RECORD_SECONDS + 2


async def test_overload_raise(how: dict[str, bool], world: World, ann: Process, bob: Process) -> None:
    """Calls that wait raise the error within 5 seconds."""
    await _fill(ann, how, 20)
    await ann.queue.update_topic(TOPIC, overload="block", overload_timeout_seconds=1000)
    waiting = asyncio.create_task(ann.queue.publish(TOPIC, numbered(1, 20), **how))
    await world.later(30)
    assert not waiting.done()
    began = world.clock.elapsed()
    await bob.queue.update_topic(TOPIC, overload="raise")
    with pytest.raises(QueueFullError):
        await waiting
    assert world.clock.elapsed() - began <= RECENT_RECORD_SECONDS + 2


async def test_overload_block(how: dict[str, bool], world: World, ann: Process, bob: Process) -> None:
    """The next calls wait, in other processes from 5 seconds later on."""
    await _fill(ann, how, 20)
    await bob.queue.update_topic(TOPIC, overload="block", overload_timeout_seconds=1000)
    await world.later(RECENT_RECORD_SECONDS)
    waiting = asyncio.create_task(ann.queue.publish(TOPIC, numbered(1, 20), **how))
    await world.later(30)
    assert not waiting.done()
    await bob.queue.ack(await bob.queue.claim(TOPIC, "c", max_messages=20))
    assert len(await waiting) == 1
