"""The heartbeat: registered names are marked as seen, at an interval, until the queue is closed."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from pawnqueue import PawnQueue, QueueClosedError, StoreError
from tests.pawnqueue.bucket.registered import (
    INTERVAL,
    ScriptedStore,
    beating,
    every_record,
    kinds,
    registered_by_pawn_queue,
    seen,
)
from tests.pawnqueue.virtual import TOPIC, Kind, Process, World, numbered
from tests.support.clock import VirtualClock


@pytest.fixture
def store() -> ScriptedStore:
    """A new bucket."""
    return ScriptedStore()


async def test_who_was_registered_before_is_seen_at_once(world: World, ann: Process) -> None:
    """A process that uses a known name and is gone within the minute was seen; a new name costs one PUT alone."""
    await ann.queue.register_producer("shop")
    await ann.queue.aclose()
    await world.later(1000)
    short = await world.process()
    await short.queue.publish(TOPIC, numbered(1), producer="shop")
    await short.queue.register_producer("new")
    await world.later(1)
    await short.queue.aclose()
    listed = {one.name: one for one in await (await world.process()).queue.list_producers()}
    assert abs(listed["shop"].last_seen.timestamp() - world.clock.server()) < 5
    assert kinds(short.client)["PUT"] == 2


async def test_who_was_seen_just_now_is_not_written_again(world: World) -> None:
    """Many processes that start with one name at once write it once."""
    processes = [await world.process() for _ in range(10)]
    await asyncio.gather(*(one.queue.register_producer("shop") for one in processes))
    await world.later(1)
    assert sum(kinds(one.client)["PUT"] for one in processes) <= 10  # the second in the race was refused
    late = await world.process()
    await late.queue.register_producer("shop")
    await world.later(1)
    assert kinds(late.client) == {"GET": 1}


async def test_a_heart_beats_for_the_others_too(world: World, ann: Process, caplog: pytest.LogCaptureFixture) -> None:
    """One registration that cannot be written keeps none of the others from being seen, whatever the store raises."""
    names = [f"shop-{number}" for number in range(5)]
    ids = [(await ann.queue.register_producer(name)).id for name in names]
    ann.client.inject("denied", "PUT", f"*{ids[0]}*")
    await world.later(INTERVAL + 1)
    listed = {one.name: one for one in await ann.queue.list_producers()}
    fresh = {name for name, one in listed.items() if world.clock.server() - one.last_seen.timestamp() < INTERVAL / 2}
    assert fresh == set(names[1:])
    assert "will be retried" in caplog.text
    ann.client.heal()

    def broken(kind: Kind, key: str) -> None:
        if kind == "PUT" and ids[1] in key:
            ann.client.meanwhile = None
            raise ZeroDivisionError

    ann.client.meanwhile = broken
    await world.later(2 * INTERVAL)
    assert beating() == ["pawnqueue-heartbeat"]
    assert world.clock.server() - (await ann.queue.list_producers())[1].last_seen.timestamp() < INTERVAL + 5


async def test_the_heartbeat_tells_when_one_was_last_seen(store: ScriptedStore) -> None:
    """Every interval ``last_seen`` of all that this process has registered is written; the rest stays as it was."""
    clock = VirtualClock(by_hand=True)
    key, body, _ = registered_by_pawn_queue("old", "2019-01-01T00:00:00+00:00")
    record = {**json.loads(body), "colour": "red"}
    await store.put(key, json.dumps(record).encode())
    async with PawnQueue.open(store=store, clock=clock, registry={"heartbeat_interval_seconds": INTERVAL}) as queue:
        registered = [
            await queue.register_producer("billing"),
            await queue.register_consumer("billing"),
            await queue.register_producer("old"),
        ]
        before = await every_record(store)
        while not store.tried.empty():
            store.tried.get_nowait()
        for beat in (1, 2, 3):
            await clock.advance(INTERVAL)
            touched = {await store.tried.get() for _ in registered}
            assert len(touched) == 3
            await clock.fallen_asleep.wait()
            after = await every_record(store)
            assert set(after) == set(before)
            for one in touched:
                seconds = seen(after[one]) - seen(before[one])
                if before[one]["name"] == "old":
                    assert after[one]["colour"] == "red"
                # Virtual time has passed by so much; server time is known to a second.
                assert seconds == pytest.approx(beat * INTERVAL, abs=2)
                volatile = {"last_seen": None, "nonce": None}
                assert {**after[one], **volatile} == {**before[one], **volatile}
                assert after[one]["v"] == 1
            assert store.tried.empty()
        assert after[key] == record


async def test_a_failed_beat_is_made_up_for(store: ScriptedStore, caplog: pytest.LogCaptureFixture) -> None:
    """A beat that fails is logged as a warning, and the next one is made."""
    clock = VirtualClock(by_hand=True)
    async with PawnQueue.open(store=store, clock=clock, registry={"heartbeat_interval_seconds": INTERVAL}) as queue:
        registration = await queue.register_producer("billing")
        key = await store.tried.get()
        store.refuses = StoreError("The disk is full.")
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                await clock.advance(INTERVAL)
                assert await store.tried.get() == key
                await clock.fallen_asleep.wait()
        assert [record.getMessage() for record in caplog.records] == [
            "The heartbeat of the registrations failed and will be retried: The disk is full."
        ] * 2
        store.refuses = None
        await clock.advance(INTERVAL)
        assert await store.tried.get() == key
        await clock.fallen_asleep.wait()
        assert seen(await store.json(key)) > registration.last_seen.timestamp()


async def test_the_heartbeat_ends_with_the_queue(store: ScriptedStore) -> None:
    """Closing the queue ends the heartbeat, between two beats and in the middle of one; nothing is written later."""
    for in_the_middle in (False, True):
        clock = VirtualClock(by_hand=True)
        queue = await PawnQueue.open(store=store, clock=clock)
        await queue.register_producer("billing")
        if in_the_middle:
            store.held = asyncio.Event()
            while not store.tried.empty():
                store.tried.get_nowait()
            await clock.advance(INTERVAL)
            await store.tried.get()
        before = await every_record(store)
        await queue.aclose()
        await queue.aclose()
        assert beating() == []
        if store.held is not None:
            store.held.set()
        await asyncio.sleep(0)
        assert await every_record(store) == before
        with pytest.raises(QueueClosedError):
            await queue.register_producer("billing")
        assert beating() == []


async def test_who_only_looks_has_no_heartbeat(store: ScriptedStore) -> None:
    """A queue that registered nobody has none, and one that registered many has one."""
    async with PawnQueue.open(store=store) as queue:
        await queue.list_producers()
        assert beating() == []
        for number in range(3):
            await queue.register_producer(f"billing-{number}")
        assert beating() == ["pawnqueue-heartbeat"]
