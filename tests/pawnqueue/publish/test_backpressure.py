"""``max_pending`` of a topic: publishing more is an error, or waits for room; and what counting costs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import ConfigError, QueueClosedError, QueueFullError
from pawnqueue.events import TopicFull
from pawnqueue.publish.backpressure import MAX_COUNT_SECONDS
from tests.pawnqueue.virtual import TOPIC, World, numbered, numbers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.pawnqueue.virtual import Process

LIMIT = 10


@pytest.fixture(params=["conditional_write", "csprng_verify"])
async def full_world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A bucket of either strategy, with a topic of ten messages at most."""
    async with World(request.param) as world:
        world.topic(packs=True, max_pending=LIMIT)
        yield world


@pytest.fixture(params=[False, True], ids=["single", "packs"])
def how(request: pytest.FixtureRequest) -> dict[str, bool]:
    """How messages are published: singly, or in packs."""
    return {"pack": request.param}


async def test_more_than_the_topic_may_have_is_refused(full_world: World, how: dict[str, Any]) -> None:
    """The error names the topic, the count and the limit; nothing of the call was published. Then it has room again."""
    ann = await full_world.process()
    await ann.queue.publish(TOPIC, numbered(8), **how)
    with pytest.raises(QueueFullError, match=r"'orders' has 8 messages.*at most 10.*no room for 3 more") as full:
        await ann.queue.publish(TOPIC, numbered(3, 8), **how)
    assert (full.value.topic, full.value.pending, full.value.max_pending) == (TOPIC, 8, LIMIT)
    assert 0 < full.value.retry_after <= MAX_COUNT_SECONDS
    assert (await ann.queue.stats(TOPIC)).pending == 8
    await ann.queue.publish(TOPIC, numbered(2, 8), **how)
    claim = await ann.queue.claim(TOPIC, "c", max_messages=LIMIT)
    with pytest.raises(QueueFullError):  # what is in flight counts
        await ann.queue.publish(TOPIC, numbered(1, 10), **how)
    await ann.queue.ack(claim)
    await full_world.later(2)
    assert len(await ann.queue.publish(TOPIC, numbered(LIMIT, 10), **how)) == LIMIT


async def test_a_call_that_never_fits_says_so(full_world: World) -> None:
    """It does not wait for what cannot come, and an empty call is always done."""
    ann = await full_world.process()
    began = full_world.clock.elapsed()
    with pytest.raises(QueueFullError, match="11 at once never fit"):
        await ann.queue.publish(TOPIC, numbered(LIMIT + 1), wait=1000)
    assert full_world.clock.elapsed() - began < 5
    assert await ann.queue.publish(TOPIC, []) == []


async def test_calls_at_the_same_time_share_the_room(full_world: World, how: dict[str, Any]) -> None:
    """Of one process no more are let in than fit, and they are counted once for all."""
    ann = await full_world.process()
    with ann.client.counting() as counted:
        done = await asyncio.gather(
            *(ann.queue.publish(TOPIC, numbered(1, n), **how) for n in range(30)), return_exceptions=True
        )
    assert sum(isinstance(each, list) for each in done) == LIMIT
    assert sum(isinstance(each, QueueFullError) for each in done) == 30 - LIMIT
    assert counted["LIST"] <= 2
    assert (await ann.queue.stats(TOPIC)).pending == LIMIT


async def test_what_is_under_way_during_a_count_counts(world: World) -> None:
    """Its PUTs may land behind the LIST: other calls of this process do not take the room that it was given."""
    world.topic(max_pending=LIMIT)
    ann = await world.process()
    await ann.queue.publish(TOPIC, numbered(1))

    async def slow(kind: str, key: str) -> None:
        if kind == "PUT" and "/messages/" in key:
            await world.later(5)

    ann.client.meanwhile = slow
    first = asyncio.create_task(ann.queue.publish(TOPIC, numbered(8, 1)))
    await world.later(3)
    with pytest.raises(QueueFullError):
        await ann.queue.publish(TOPIC, numbered(8, 9))
    assert len(await first) == 8


async def test_a_call_waits_for_room(full_world: World, how: dict[str, Any]) -> None:
    """With ``overload="block"``, or for as long as the call says; then it goes on, or raises the error."""
    ann, bob = await full_world.process(), await full_world.process()
    await ann.queue.publish(TOPIC, numbered(LIMIT), **how)
    began = full_world.clock.elapsed()
    with pytest.raises(QueueFullError):
        await ann.queue.publish(TOPIC, numbered(1, 10), wait=20, **how)
    assert 20 <= full_world.clock.elapsed() - began < 22
    await ann.queue.update_topic(TOPIC, overload="block", overload_timeout_seconds=60)
    waiting = asyncio.create_task(ann.queue.publish(TOPIC, numbered(3, 10), **how))
    await full_world.later(30)
    assert not waiting.done()
    claim = await bob.queue.claim(TOPIC, "c", max_messages=LIMIT)
    await bob.queue.ack(claim)
    began = full_world.clock.elapsed()
    assert len(await waiting) == 3
    assert full_world.clock.elapsed() - began < 3
    await ann.queue.publish(TOPIC, numbered(7, 13), **how)
    began = full_world.clock.elapsed()
    with pytest.raises(QueueFullError):
        await ann.queue.publish(TOPIC, numbered(1), **how)
    assert 60 <= full_world.clock.elapsed() - began < 62
    with pytest.raises(QueueFullError):
        await ann.queue.publish(TOPIC, numbered(1), wait=0, **how)


async def test_a_call_that_waits_ends_with_its_queue(full_world: World) -> None:
    """A process that shuts down is not held up by a full topic."""
    ann = await full_world.process()
    await ann.queue.publish(TOPIC, numbered(LIMIT))
    waiting = asyncio.create_task(ann.queue.publish(TOPIC, numbered(1), wait=1000))
    await full_world.later(5)
    await ann.queue.aclose()
    with pytest.raises(QueueClosedError):
        await waiting


async def test_several_producers_overshoot_by_what_they_publish_between_two_counts(
    full_world: World, how: dict[str, Any]
) -> None:
    """Each process counts for itself: so each may fill the room that it has seen, once."""
    producers = [await full_world.process() for _ in range(3)]
    for each in producers:
        await each.queue.publish(TOPIC, numbered(1), **how)
    for each in producers:
        done = await asyncio.gather(
            *(each.queue.publish(TOPIC, numbered(1, n), **how) for n in range(LIMIT)), return_exceptions=True
        )
        assert isinstance(done[-1], QueueFullError)
    assert LIMIT < (await producers[0].queue.stats(TOPIC)).pending <= 3 * LIMIT
    await full_world.later(MAX_COUNT_SECONDS)
    for each in producers:
        with pytest.raises(QueueFullError):
            await each.queue.publish(TOPIC, numbered(1), **how)


@pytest.mark.parametrize("limit", [1_000, 100_000])
async def test_a_busy_publisher_pays_far_less_than_a_list_a_message(world: World, limit: int) -> None:
    """It counts every half minute where there is much room, and once a second at most where there is little."""
    world.topic(max_pending=limit)
    ann = await world.process()
    began = world.clock.elapsed()
    with ann.client.counting() as counted:
        for n in range(900):
            await ann.queue.publish(TOPIC, numbered(1, n))
            await world.later(0.1)
    seconds = world.clock.elapsed() - began
    assert counted["LIST"] <= (seconds / MAX_COUNT_SECONDS + 2 if limit == 100_000 else 0.25 * seconds)


async def test_counting_ends_at_the_limit(world: World) -> None:
    """However many messages there are, no more pages are listed than show that the topic is full."""
    world.topic(max_pending=1500)
    world.fill({"id": f"{n}", "payload": {}} for n in range(5000))
    ann = await world.process()
    with ann.client.counting() as counted, pytest.raises(QueueFullError, match="has 2,000 messages"):
        await ann.queue.publish(TOPIC, numbered(1))
    assert counted["LIST"] == 2


async def test_a_topic_without_the_setting_is_not_counted(world: World, ann: Process) -> None:
    """Publishing costs not one request more."""
    with ann.client.counting() as counted:
        await ann.queue.publish(TOPIC, numbered(5), wait=10)
    assert (counted["PUT"], counted["LIST"]) == (5, 0)


async def test_what_is_not_new_is_let_in(full_world: World) -> None:
    """Redriven messages, requeued ones and committed writes count, and are not held up."""
    ann = await full_world.process()
    await ann.queue.publish(TOPIC, numbered(LIMIT))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=LIMIT)
    await ann.queue.bury(claim, claim.ids[:5], reason="r")
    await ann.queue.requeue(claim)
    await full_world.later(2)
    await ann.queue.publish(TOPIC, numbered(5, 10))
    part = await ann.queue.stage(TOPIC, "w", 0, numbered(4, 20))
    await ann.queue.commit_write(TOPIC, "w", [part])
    assert len((await ann.queue.redrive(TOPIC)).moved) == 5
    assert (await ann.queue.stats(TOPIC)).pending == 19
    with pytest.raises(QueueFullError):
        await ann.queue.publish(TOPIC, numbered(1))


async def test_a_full_topic_is_told_of_once_a_call(full_world: World) -> None:
    """The event says how full it is, and whether the call waits."""
    told: list[TopicFull] = []
    ann = await full_world.process()
    ann.queue._context.events._listener = lambda event: told.append(event) if isinstance(event, TopicFull) else None
    await ann.queue.publish(TOPIC, numbered(LIMIT))
    for wait in (None, 5):
        with pytest.raises(QueueFullError):
            await ann.queue.publish(TOPIC, numbered(2), wait=wait)
    assert [(each.messages, each.pending, each.max_pending, each.waits) for each in told] == [
        (2, LIMIT, LIMIT, False),
        (2, LIMIT, LIMIT, True),
    ]
    full = "Topic 'orders' is full: it has 10 messages of at most 10."
    assert told[0].sentence() == f"{full} 2 messages were not published."


async def test_nothing_is_dropped(ann: Process) -> None:
    """``drop_oldest`` is refused with the reason, and so is what is no limit."""
    with pytest.raises(ConfigError, match=r"pass 'raise' or 'block' \(.*nothing is lost here\), not 'drop_oldest'"):
        await ann.queue.update_topic(TOPIC, max_pending=5, overload="drop_oldest")  # type: ignore[typeddict-item]
    for wrong in (0, -1, 1.5, True, "many"):
        with pytest.raises(ConfigError, match="max_pending of topic 'orders' is wrong: pass a whole number from 1"):
            await ann.queue.update_topic(TOPIC, max_pending=wrong)  # type: ignore[typeddict-item]
    with pytest.raises(ConfigError, match="overload_timeout_seconds of topic 'orders' is wrong"):
        await ann.queue.update_topic(TOPIC, overload_timeout_seconds=-1)
    assert numbers(await ann.queue.claim(TOPIC, "c")) == []


async def test_packs_that_are_new_in_a_topic_are_counted(world: World) -> None:
    """A process that knows the topic from before they were allowed looks for them, too."""
    world.topic(packs=None, max_pending=LIMIT)
    ann, bob = await world.process(), await world.process()
    await ann.queue.publish(TOPIC, numbered(1), pack=False)
    await bob.queue.update_topic(TOPIC, packs=True)
    await bob.queue.publish(TOPIC, numbered(LIMIT - 1), pack=True)
    await world.later(MAX_COUNT_SECONDS + 1)
    with pytest.raises(QueueFullError):
        await ann.queue.publish(TOPIC, numbered(LIMIT - 1), pack=False)
