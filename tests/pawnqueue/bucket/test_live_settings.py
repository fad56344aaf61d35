"""Settings of a live topic, changed under its users: a test for each row of docs/how-to/flow-control.md."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pawnqueue.bucket.topics import RECENT_RECORD_SECONDS
from tests.pawnqueue.virtual import TOPIC, numbered, numbers

if TYPE_CHECKING:
    from tests.pawnqueue.virtual import Process, World

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
