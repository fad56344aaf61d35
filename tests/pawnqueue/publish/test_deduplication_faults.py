"""Deduplication when publishers die, topics are being deleted, and shards are full: no message is swallowed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from pawnqueue import TopicNotEmptyError, TopicNotFoundError
from pawnqueue.domain import layout
from tests.pawnqueue.publish.test_deduplication import HOUR, MESSAGES, consumed, key_of, messages
from tests.pawnqueue.virtual import TOPIC, Died, World, numbered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(params=["conditional_write", "csprng_verify"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A bucket of either strategy, with a topic that allows packs."""
    async with World(request.param) as world:
        world.topic(packs=True, dedup_window_seconds=HOUR)
        yield world
        for process in world._processes:  # the dead ones are closed, too
            process.client.dead = False
            process.client.heal()


async def die_before_the_put(world: World, count: int = 1, start: int = 0) -> None:
    """Let a publisher reserve the keys of these numbers, and die before it sends their messages."""
    dying = await world.process()
    dying.client.inject("dies", "PUT", MESSAGES)
    dying.client.inject("dies", "PUT", "*/packs/*")
    with suppress(Died, ExceptionGroup):
        await dying.queue.publish(TOPIC, numbered(count, start), dedup_key=key_of)
    dying.client.dead = True


# --- a topic that is being deleted ---


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize("world", ["conditional_write"], indirect=True)  # the other needs a faster store
async def test_a_deletion_that_is_refused_swallows_nothing(world: World, *, pack: bool) -> None:
    """The marker is away for a moment: what the call has noted before stays, and the rest is free again."""
    ann = await world.process(packs={"messages": 250, "min_messages": 100})
    bob, cid, dan = [await world.process() for _ in range(3)]
    ann.client.latency, bob.client.latency = 0.6, 0.4

    async def wait_for_ann(kind: str, key: str) -> None:
        if kind == "DELETE" and key == layout.topic_marker(TOPIC):
            while not messages(world):
                await world.clock.sleep(0.01)
            await dan.queue.publish(TOPIC, [{"n": 999}])
            await world.clock.sleep(0.35)

    bob.client.meanwhile = wait_for_ann
    deleting = asyncio.create_task(bob.queue.delete_topic(TOPIC))
    with suppress(TopicNotFoundError):
        await ann.queue.publish(TOPIC, numbered(500), dedup_key=key_of, pack=pack)
    with pytest.raises(TopicNotEmptyError):
        await deleting
    await world.clock.sleep(60)
    await ann.queue.publish(TOPIC, numbered(500), dedup_key=key_of, pack=pack)
    assert sorted(await consumed(cid)) == [*range(500), 999]


async def test_a_call_that_waited_withdraws_nothing_that_is_noted(world: World) -> None:
    """Of two keys one was published at once, and the marker is away when the other's publisher is known to be dead."""
    ann, cid = await world.process(), await world.process()
    await die_before_the_put(world, 1, 1)
    task = asyncio.create_task(ann.queue.publish(TOPIC, numbered(2), dedup_key=key_of))
    await world.later(31)
    key = layout.topic_marker(TOPIC)
    body = world.bucket.body(key)
    world.bucket.remove(key)
    with pytest.raises(TopicNotFoundError, match="Of 1 of the 2 messages"):
        await task
    world.bucket.plant(key, body)
    ids = await ann.queue.publish(TOPIC, numbered(2), dedup_key=key_of)
    assert ids.duplicates == (0,)
    assert await consumed(cid) == [0, 1]


@pytest.mark.parametrize("knows_topic", [False, True])
async def test_a_message_that_another_publisher_has_noted_is_not_withdrawn(world: World, *, knows_topic: bool) -> None:
    """The other one may have returned its id."""
    ann, bob, cid = [await world.process() for _ in range(3)]
    key = layout.topic_marker(TOPIC)
    body = world.bucket.body(key)

    async def be_slow(_: str, where: str) -> None:
        if where == key:
            await world.clock.sleep(4)

    await world.later(5)
    if knows_topic:
        await bob.queue.publish(TOPIC, numbered(1, 77))
    ann.client.meanwhile = be_slow
    world.bucket.remove(key)
    task = asyncio.create_task(ann.queue.publish(TOPIC, numbered(1), dedup_key="a"))
    await world.clock.sleep(0.5)
    with suppress(TopicNotFoundError):
        await bob.queue.publish(TOPIC, numbered(1), dedup_key="a")
    with pytest.raises(TopicNotFoundError):
        await task
    world.bucket.plant(key, body)
    await cid.queue.publish(TOPIC, numbered(1), dedup_key="a")
    assert (await consumed(cid)).count(0) == 1


async def test_a_withdrawn_message_frees_its_key(world: World) -> None:
    """The next publisher of the key need not wait."""
    ann, bob = await world.process(), await world.process()
    key = layout.topic_marker(TOPIC)
    body = world.bucket.body(key)
    await bob.queue.publish(TOPIC, numbered(1, 77))
    await ann.queue.publish(TOPIC, numbered(1, 78), dedup_key=key_of)
    await world.later(5)
    world.bucket.remove(key)
    with pytest.raises(TopicNotFoundError, match="Nothing was published"):
        await ann.queue.publish(TOPIC, numbered(1), dedup_key="a")
    assert len(messages(world)) == 2
    world.bucket.plant(key, body)
    began = world.clock.elapsed()
    assert not (await bob.queue.publish(TOPIC, numbered(1), dedup_key="a")).duplicates
    assert world.clock.elapsed() - began < 2
