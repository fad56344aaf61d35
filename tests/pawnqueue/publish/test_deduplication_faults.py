"""Deduplication when publishers die, topics are being deleted, and shards are full: no message is swallowed."""

from __future__ import annotations

import asyncio
import base64
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import PublishError, QueueFullError, TopicNotEmptyError, TopicNotFoundError
from pawnqueue.domain import layout
from pawnqueue.domain.dedup_segment import SHARDS, DedupSegment, Reservation, hash_of_key, shard_of
from pawnqueue.domain.records import TopicRecord
from pawnqueue.publish import dedup_log
from tests.pawnqueue.publish.test_deduplication import HOUR, MESSAGES, OVER, SEGMENTS, consumed, key_of, messages
from tests.pawnqueue.virtual import TOPIC, Died, World, numbered, numbers

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


# --- full shards, and forged names ---


@pytest.mark.parametrize("number", [99_999_999, 100 * 10**9, 999_999_999_999])
async def test_a_forged_number_stops_no_shard(world: World, number: int) -> None:
    """The log goes on behind it, or does not mind it."""
    ann, bob = await world.process(), await world.process()
    for shard in range(SHARDS):
        world.bucket.plant(layout.dedup_segment(TOPIC, tag_of(world), shard, number), b"x")
    await ann.queue.publish(TOPIC, numbered(8), dedup_key=key_of)
    assert len((await bob.queue.publish(TOPIC, numbered(9), dedup_key=key_of)).duplicates) == 8
    await world.later(3 * 86_400)
    await bob.queue.sweep(TOPIC)
    cid = await world.process()
    await cid.queue.publish(TOPIC, numbered(8, 20), dedup_key=key_of)
    assert len((await ann.queue.publish(TOPIC, numbered(8, 20), dedup_key=key_of)).duplicates) == 8


def tag_of(world: World) -> str:
    """The tag of the topic's log."""
    key = layout.topic_marker(TOPIC)
    return layout.dedup_tag(TopicRecord.decode(world.bucket.body(key), key).created_at)


@pytest.mark.parametrize("sweeps", [False, True])
async def test_dead_publishers_do_not_fill_a_shard(
    world: World, monkeypatch: pytest.MonkeyPatch, *, sweeps: bool
) -> None:
    """What they reserved makes room when it is over."""
    monkeypatch.setattr(dedup_log, "MAX_RESERVED_ROWS", 60)
    ann = await world.process()
    for number in range(6):
        await die_before_the_put(world, 100, 100 * number)
        await world.later(OVER)
    if sweeps:
        await ann.queue.sweep(TOPIC)
    await ann.queue.publish(TOPIC, numbered(100, 10_000), dedup_key=key_of)
    assert len(await consumed(ann)) == 100


async def test_forged_reservations_do_not_fill_a_shard(world: World) -> None:
    """They make room as soon as they are over."""
    ann, bob = await world.process(), await world.process()
    now = world.clock.server()
    for shard in range(SHARDS):
        rows = b"".join(bytes([shard]) + os.urandom(31) for _ in range(dedup_log.MAX_RESERVED_ROWS + 10))
        unit = "20260101T000000_000000-00000000-0000-4000-8000-000000000000"
        record = DedupSegment(
            reserved=[Reservation(unit=unit, at=now, until=now, rows=base64.b64encode(rows).decode())]
        )
        world.bucket.plant(layout.dedup_segment(TOPIC, tag_of(world), shard, 0), record.encode())
    await world.later(OVER + 5)
    await bob.queue.sweep(TOPIC)
    await ann.queue.publish(TOPIC, numbered(1), dedup_key="a")


@pytest.mark.parametrize("world", ["conditional_write"], indirect=True)  # the other would take minutes
@pytest.mark.parametrize(("processes", "calls"), [(1, 20), (2, 5)])
async def test_publishers_wait_for_room_in_a_shard(
    world: World, monkeypatch: pytest.MonkeyPatch, processes: int, calls: int
) -> None:
    """Healthy publishers do not fail, however many messages they publish at the same time."""
    monkeypatch.setattr(dedup_log, "MAX_RESERVED_ROWS", 150)
    monkeypatch.setattr(dedup_log, "MAX_STEP_ROWS", 60)
    publishers = [await world.process() for _ in range(processes)]
    for each in publishers:
        each.client.latency = 0.05
    await asyncio.gather(
        *(
            each.queue.publish(TOPIC, numbered(100, 100 * (calls * place + number)), dedup_key=key_of)
            for place, each in enumerate(publishers)
            for number in range(calls)
        )
    )
    assert sorted(await consumed(publishers[0])) == list(range(100 * processes * calls))


# --- what is published again ---


@pytest.mark.parametrize(("max_age", "after"), [(600, 1200), (40, 0)])
async def test_a_retry_is_no_older_than_it_is(world: World, max_age: float, after: float) -> None:
    """A message that a dead publisher has not sent is published anew, and not buried as too old."""
    world.topic(packs=True, dedup_window_seconds=HOUR, max_age_seconds=max_age)
    await die_before_the_put(world)
    await world.later(after)
    bob = await world.process()
    assert not (await bob.queue.publish(TOPIC, numbered(1), dedup_key=key_of)).duplicates
    assert numbers(await bob.queue.claim(TOPIC, "c")) == [0]


@pytest.mark.parametrize("first", [None, 60.0])
async def test_a_retry_has_its_own_delay(world: World, first: float | None) -> None:
    """Whatever delay the dead publisher asked for."""
    world.topic(packs=True, dedup_window_seconds=HOUR, delays=True)
    dying, bob = await world.process(), await world.process()
    dying.client.inject("dies", "PUT", MESSAGES)
    with suppress(Died, ExceptionGroup):
        await dying.queue.publish(TOPIC, numbered(1), dedup_key="a", delay=first)
    dying.client.dead = True
    await bob.queue.publish(TOPIC, numbered(1), dedup_key="a", delay=600)
    await world.later(120)
    assert not await bob.queue.claim(TOPIC, "c")
    await world.later(600)
    assert numbers(await bob.queue.claim(TOPIC, "c")) == [0]


@pytest.mark.parametrize("world", ["conditional_write"], indirect=True)
async def test_a_call_that_fails_midway_says_what_was_published(world: World) -> None:
    """The store's time cannot be asked for between two portions: the rest has failed."""
    bob = await world.process(retry={"budget_seconds": 1})
    await world.later(238.5)
    bob.client.latency = 0.5
    bob.client.inject("lost", "PUT", "*_probe/*")
    with pytest.raises(PublishError) as caught:
        await bob.queue.publish(TOPIC, numbered(600), dedup_key=key_of, pack=False)
    assert 0 < len(caught.value.published) == len(messages(world)) < 600
    assert len(caught.value.failed) == 600 - len(messages(world))


async def test_a_call_that_fails_while_it_waits_says_what_was_published(world: World) -> None:
    """Of two keys one was published at once, and for the other the call waits for a dead publisher."""
    bob = await world.process(retry={"budget_seconds": 1})
    await world.later(225)
    await die_before_the_put(world)
    bob.client.inject("lost", "PUT", "*_probe/*")
    with pytest.raises(PublishError) as caught:
        await bob.queue.publish(TOPIC, numbered(2), dedup_key=key_of)
    assert len(messages(world)) == len(caught.value.published) == 1


async def test_a_cancelled_call_does_not_hold_up_the_others(world: World) -> None:
    """Two calls share a compare-and-set, and the one that sends it is cancelled."""
    ann = await world.process()
    keys = [key for key in map(str, range(100)) if shard_of(hash_of_key(key)) == 0][:4]
    await ann.queue.publish(TOPIC, numbered(1), dedup_key=keys[0])
    hits = []
    answer = ann.client.answer

    async def answer_late(request: Any, carry_out: Any) -> Any:  # noqa: ANN401 - as the store has it
        given = await answer(request, carry_out)
        if request.kind == "PUT" and "/dedup/" in request.key:
            hits.append(request.key)
            await world.clock.sleep(0.05)
        return given

    ann.client.answer = answer_late  # type: ignore[method-assign]
    first = asyncio.create_task(ann.queue.publish(TOPIC, numbered(1), dedup_key=keys[1]))
    await world.clock.sleep(0.001)
    leader = asyncio.create_task(ann.queue.publish(TOPIC, numbered(1), dedup_key=keys[2]))
    other = asyncio.create_task(ann.queue.publish(TOPIC, numbered(1), dedup_key=keys[3]))
    began = world.clock.elapsed()

    async def cancel() -> None:
        while len(hits) < 2:
            await world.clock.sleep(0.001)
        leader.cancel()

    await asyncio.gather(cancel(), other, first, leader, return_exceptions=True)
    assert not other.result().duplicates
    assert not (await ann.queue.publish(TOPIC, numbered(1), dedup_key=keys[2])).duplicates
    assert world.clock.elapsed() - began < 8


async def test_a_retry_needs_no_room(world: World) -> None:
    """Its messages are in the full topic already."""
    world.topic(packs=True, dedup_window_seconds=HOUR, max_pending=2)
    ann, bob = await world.process(), await world.process()
    ids = await ann.queue.publish(TOPIC, numbered(2), dedup_key=key_of)
    assert await ann.queue.publish(TOPIC, numbered(2), dedup_key=key_of) == ids
    with pytest.raises(QueueFullError):
        await bob.queue.publish(TOPIC, numbered(1, 7), dedup_key=key_of)
    assert await bob.queue.publish(TOPIC, numbered(2), dedup_key=key_of) == ids
    with pytest.raises(QueueFullError):
        await bob.queue.publish(TOPIC, numbered(3), dedup_key=key_of)


async def test_duplicates_take_no_room(world: World) -> None:
    """Five messages are in the topic, however often they were published, and there is room for five."""
    world.topic(packs=True, dedup_window_seconds=HOUR, max_pending=10)
    ann = await world.process()
    for start in (0, 0, 5):
        await ann.queue.publish(TOPIC, numbered(5, start), dedup_key=key_of)
    assert len(messages(world)) == 10


async def test_the_keys_of_a_pack_that_was_not_sent_are_free_at_once(world: World) -> None:
    """The store denied the reservation in one shard only."""
    ann, bob = await world.process(retry={"budget_seconds": 0}), await world.process()
    await ann.queue.publish(TOPIC, numbered(100), dedup_key=lambda payload: f"before {payload['n']}")
    ann.client.inject("denied", "PUT", f"{SEGMENTS[:-1]}*-1.*", times=1)
    with pytest.raises(PublishError) as caught:
        await ann.queue.publish(TOPIC, numbered(100), dedup_key=key_of)
    assert not caught.value.unknown
    began = world.clock.elapsed()
    assert not (await bob.queue.publish(TOPIC, numbered(100), dedup_key=key_of)).duplicates
    assert world.clock.elapsed() - began < 8


async def test_a_sweep_looks_once_for_a_pack(world: World) -> None:
    """And not once for each of its keys."""
    bob = await world.process()
    await die_before_the_put(world, 1000)
    await world.later(120)
    with bob.client.counting() as counted:
        await bob.queue.sweep(TOPIC)
    assert sum(counted.values()) < 100


@pytest.mark.parametrize("world", ["conditional_write"], indirect=True)
async def test_a_claim_record_is_read_once_while_a_publisher_waits(world: World) -> None:
    """It waits half a minute for a dead publisher, beside consumers that have settled a hundred claims."""
    busy, bob = await world.process(), await world.process()
    await die_before_the_put(world)
    for number in range(100):
        await busy.queue.publish(TOPIC, numbered(1, 10 + number), dedup_key=key_of)
        await busy.queue.ack(await busy.queue.claim(TOPIC, "c"))
    with bob.client.counting() as counted:
        assert not (await bob.queue.publish(TOPIC, numbered(1), dedup_key=key_of)).duplicates
    assert 100 < sum(counted.values()) < 300
