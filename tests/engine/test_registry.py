"""The registry: a name has one id for ever, whoever registers it, and the list says when it was last seen."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import pickle
import subprocess
import sys
import uuid
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pawnqueue.engine import (
    CompatibilityError,
    ConfigError,
    PawnQueue,
    QueueClosedError,
    Settings,
    StoreError,
    layout,
)
from tests.engine.virtual import TOPIC, Client, Kind, Process, World, numbered
from tests.support.clock import VirtualClock
from tools.kit.stores import Answer, CarryOut, HookedStore, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider_pawnqueue.engine.records import Registration
    from tools.kit.servers import S3Server

INTERVAL = 60.0


class ScriptedStore(HookedStore):
    """A store in memory that tells when a registration was written, and can refuse to write any."""

    def __init__(self) -> None:
        """Start well."""
        super().__init__()
        self.refuses: StoreError | None = None
        self.tried: asyncio.Queue[str] = asyncio.Queue()
        self.held: asyncio.Event | None = None

    async def answer(self, request: Request, carry_out: CarryOut) -> Answer:
        """Write, and tell."""
        if request.call == "put" and request.key.startswith(("_registry/producers/", "_registry/consumers/")):
            self.tried.put_nowait(request.key)
            if self.held is not None:
                await self.held.wait()
            if self.refuses is not None:
                raise self.refuses
        return await carry_out()

    async def json(self, key: str) -> dict[str, Any]:
        """Return what stands there."""
        found = await self.get(key)
        assert found is not None
        return dict(json.loads(found.body))

    async def keys(self, folder: str = "_registry/") -> list[str]:
        """Return the keys below the folder, without the bucket's record."""
        keys = [info.key async for page in self.pages(folder) for info in page]
        return [key for key in keys if key != "_registry/bucket.json"]


@pytest.fixture
def store() -> ScriptedStore:
    """A new bucket."""
    return ScriptedStore()


def registered_by_pawn_queue(name: str, registered_at: str, role: str = "producers") -> tuple[str, bytes, str]:
    """Return key, body and id of a registration as the published library writes it."""
    entity_id = str(uuid.uuid4())
    body = {
        "role": role,
        "name": name,
        "entity_id": entity_id,
        "registered_at": registered_at,
        "last_seen": registered_at,
    }
    return f"_registry/{role}/{entity_id}.json", json.dumps(body).encode(), entity_id


# --- one id ---


async def test_a_name_keeps_its_id(store: ScriptedStore) -> None:
    """A name that is registered again, in this process or in another, has the same id, and one object."""
    first = await PawnQueue.open(store=store)
    registration = await first.register_producer("billing")
    assert uuid.UUID(registration.entity_id).version == 4
    assert (registration.role, registration.name) == ("producers", "billing")
    assert await first.register_producer("billing") == registration
    await first.aclose()
    async with PawnQueue.open(store=store) as second:
        again = await second.register_producer("billing")
    assert (again.entity_id, again.registered_at) == (registration.entity_id, registration.registered_at)
    assert await store.keys() == [f"_registry/producers/{registration.entity_id}.json"]


async def test_one_id_when_all_register_at_once(store: ScriptedStore) -> None:
    """Of many processes that register a name at the same instant all get the same id, and one object is made."""
    queues = [await PawnQueue.open(store=store) for _ in range(20)]
    found = await asyncio.gather(*(queue.register_producer("billing") for queue in queues))
    assert len({(one.entity_id, one.registered_at) for one in found}) == 1
    assert len(await store.keys()) == 1
    for queue in queues:
        await queue.aclose()


async def test_roles_are_apart(store: ScriptedStore) -> None:
    """A producer and a consumer of one name are two, each with an id of its own, listed each in its role."""
    async with PawnQueue.open(store=store) as queue:
        producer, consumer = await queue.register_producer("billing"), await queue.register_consumer("billing")
        assert producer.entity_id != consumer.entity_id
        assert [(one.role, one.entity_id) for one in await queue.list_producers()] == [
            ("producers", producer.entity_id)
        ]
        assert [(one.role, one.entity_id) for one in await queue.list_consumers()] == [
            ("consumers", consumer.entity_id)
        ]


async def test_an_id_outlives_silence(store: ScriptedStore) -> None:
    """A name that was last seen years ago still has its id, and the day on which it was registered."""
    key, body, entity_id = registered_by_pawn_queue("billing", "2019-01-01T00:00:00+00:00")
    await store.put(key, body)
    async with PawnQueue.open(store=store) as queue:
        registration = await queue.register_producer("billing")
        assert (registration.entity_id, registration.registered_at) == (entity_id, "2019-01-01T00:00:00+00:00")
    # Ours too: made by this version, then aged.
    async with PawnQueue.open(store=store) as queue:
        ours = await queue.register_producer("shipping")
    aged = await store.json(f"_registry/producers/{ours.entity_id}.json")
    aged["last_seen"] = aged["registered_at"] = "2019-01-01T00:00:00+00:00"
    await store.put(f"_registry/producers/{ours.entity_id}.json", json.dumps(aged).encode())
    async with PawnQueue.open(store=store) as queue:
        assert (await queue.register_producer("shipping")).entity_id == ours.entity_id


async def test_an_id_of_the_published_library_is_kept(store: ScriptedStore) -> None:
    """A name that pawn-queue registered keeps its random id, also when two of ours register it at once."""
    key, body, entity_id = registered_by_pawn_queue("billing", "2025-01-02T03:04:05.000006+00:00")
    other = registered_by_pawn_queue("shipping", "2025-01-02T03:04:05.000006+00:00")
    await store.put(key, body)
    await store.put(*other[:2])
    queues = [await PawnQueue.open(store=store) for _ in range(5)]
    found = await asyncio.gather(*(queue.register_producer("billing") for queue in queues))
    assert {one.entity_id for one in found} == {entity_id}
    assert {one.registered_at for one in found} == {"2025-01-02T03:04:05.000006+00:00"}
    assert len(await store.keys()) == 3  # its own, the other one, and ours at the name's own key
    assert (await store.get(key) or pytest.fail("gone")).body == body
    for queue in queues:
        await queue.aclose()


async def test_the_elder_of_two_ids_is_kept(store: ScriptedStore) -> None:
    """Where pawn-queue has registered a name twice, all of ours agree on the elder id."""
    younger = registered_by_pawn_queue("billing", "2025-01-02T00:00:00+00:00")
    elder = registered_by_pawn_queue("billing", "2025-01-01T00:00:00+00:00")
    for key, body, _ in (younger, elder):
        await store.put(key, body)
    queues = [await PawnQueue.open(store=store) for _ in range(5)]
    found = await asyncio.gather(*(queue.register_producer("billing") for queue in queues))
    assert {one.entity_id for one in found} == {elder[2]}
    assert [one.entity_id for one in await queues[0].list_producers()] == [elder[2]]
    for queue in queues:
        await queue.aclose()


async def test_list_and_register_agree_on_the_id(store: ScriptedStore) -> None:
    """Where pawn-queue registers a name just after we did, by a clock that is behind, the list shows our id too."""
    async with PawnQueue.open(store=store) as queue:
        registration = await queue.register_producer("billing")
        key, body, _ = registered_by_pawn_queue("billing", "2019-01-01T00:00:00+00:00")
        await store.put(key, body)
        assert [one.entity_id for one in await queue.list_producers()] == [registration.entity_id]


PROCESS = """
import asyncio, base64, pickle, sys
from airflow_provider_pawnqueue.engine import PawnQueue

async def main():
    async with PawnQueue.open(pickle.loads(base64.b64decode(sys.argv[1]))) as queue:
        print("ready", flush=True)
        sys.stdin.readline()
        print((await queue.register_consumer("billing")).entity_id, flush=True)

asyncio.run(main())
"""


@pytest.mark.servers
async def test_one_id_in_several_processes(seaweedfs: S3Server, settings_for: Callable[..., Settings]) -> None:
    """Processes that register a name at the same instant on a real store get one id."""
    settings = settings_for(seaweedfs)
    async with PawnQueue.open(settings):  # the probe is not what is tested
        pass
    command = [sys.executable, "-c", PROCESS, base64.b64encode(pickle.dumps(settings)).decode()]
    processes = [
        await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
        outputs = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert [process.returncode for process in processes] == [0, 0, 0, 0]
    assert len({output for output, _ in outputs}) == 1
    async with PawnQueue.open(settings) as queue:
        [listed] = await queue.list_consumers()
    assert outputs[0][0].decode().strip() == listed.entity_id


# --- what it costs ---


def registry(client: Client, since: int = 0) -> list[tuple[str, str]]:
    """What was asked of the producers' folder."""
    return [(kind, key) for kind, key in client.requests[since:] if key.startswith("_registry/producers/")]


def kinds(client: Client, since: int = 0) -> Counter[str]:
    """How often each kind of request was."""
    return Counter(kind for kind, _ in registry(client, since))


def plant(world: World, count: int, start: int = 0) -> None:
    """Register producers by the published library."""
    for number in range(start, start + count):
        world.bucket.plant(*registered_by_pawn_queue(f"old-{number}", "2025-01-02T00:00:00+00:00")[:2])


async def test_starting_together_costs_as_much_as_starting_alone(world: World) -> None:
    """300 first publishes of one process, by one producer, read the registry and the topic once."""
    plant(world, 50)
    alone, many = await world.process(), await world.process()
    for process in (alone, many):
        process.queue._known_topics.forget(TOPIC)
        process.client.latency = 0.02
    await alone.queue.publish(TOPIC, numbered(1), producer="shop")
    assert kinds(alone.client) == {"GET": 51, "LIST": 1, "PUT": 1}

    world.bucket.remove(registry(alone.client)[0][1])
    before = len(many.client.requests)
    await asyncio.gather(*(many.queue.publish(TOPIC, numbered(1), producer="shop") for _ in range(300)))
    assert kinds(many.client) == {"GET": 51, "LIST": 1, "PUT": 1}
    markers = [kind for kind, key in many.client.requests[before:] if key == layout.topic_marker(TOPIC)]
    assert markers == ["GET"]
    assert len(world.bucket.below("messages/")) == 301


async def test_many_names_that_are_registered_at_once_share_the_look(world: World) -> None:
    """Each name costs its own GET and PUT; the folder is listed twice at most, and each entry of others read once."""
    plant(world, 50)
    process = await world.process()
    process.client.latency = 0.02
    await asyncio.gather(*(process.queue.register_producer(f"shop-{number}") for number in range(300)))
    asked = kinds(process.client)
    assert (asked["GET"], asked["PUT"]) == (350, 300)
    assert asked["LIST"] <= 2


async def test_a_second_name_costs_one_look_at_what_is_new(world: World, ann: Process, bob: Process) -> None:
    """What was read once is not read again for another name, though its owner is alive and writes it anew."""
    plant(world, 50)
    await ann.queue.register_producer("first")
    await bob.queue.register_producer("other")
    before = len(ann.client.requests)
    await ann.queue.register_producer("second")
    assert kinds(ann.client, before) == {"GET": 2, "LIST": 1, "PUT": 1}
    await world.later(100)  # the others' hearts beat
    plant(world, 3, start=50)
    before = len(ann.client.requests)
    await ann.queue.register_producer("third")
    assert kinds(ann.client, before) == {"GET": 4, "LIST": 1, "PUT": 1}
    before = len(ann.client.requests)
    await ann.queue.register_producer("first")
    assert registry(ann.client, before) == []


async def test_a_list_reads_what_is_new_since_the_last_one(world: World, ann: Process, bob: Process) -> None:
    """Whoever was not seen since is not read again."""
    plant(world, 50)
    await bob.queue.register_producer("shop")
    assert len(await ann.queue.list_producers()) == 51
    await world.later(100)
    before = len(ann.client.requests)
    listed = {one.name: one for one in await ann.queue.list_producers()}
    assert len(listed) == 51
    assert kinds(ann.client, before) == {"LIST": 1, "GET": 1}
    assert world.clock.server() - seen(listed["shop"].model_dump()) < INTERVAL + 5


async def test_who_is_registered_during_a_look_is_found_by_the_next(world: World, ann: Process) -> None:
    """A name that the published library registers behind the back of a look is not given another id."""
    ann.client.latency = 0.02
    planted: list[str] = []

    def meanwhile(kind: Kind, key: str) -> None:
        if kind == "GET" and planted == [] and len(registry(ann.client)) > 5:  # the first name's look is under way
            new, body, entity_id = registered_by_pawn_queue("late", "2025-01-02T00:00:00+00:00")
            world.bucket.plant(new, body)
            planted.append(entity_id)
            late.append(asyncio.create_task(ann.queue.register_producer("late")))

    late: list[asyncio.Task[Registration]] = []
    plant(world, 200)
    ann.client.meanwhile = meanwhile
    await ann.queue.register_producer("early")
    assert [one.entity_id for one in await asyncio.gather(*late)] == planted


async def test_who_is_cancelled_leaves_the_others_their_registration(world: World, ann: Process) -> None:
    """Of many who wait for one attempt some are cancelled: the others are given the id by the same requests."""
    plant(world, 50)
    ann.client.latency = 0.02
    asked = [asyncio.create_task(ann.queue.register_producer("shop")) for _ in range(10)]
    await world.later(0.05)  # in the middle of it
    assert not any(one.done() for one in asked)
    for one in (asked[0], *asked[5:]):
        one.cancel()
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert [isinstance(one, asyncio.CancelledError) for one in outcomes] == [True, *[False] * 4, *[True] * 5]
    assert kinds(ann.client) == {"GET": 51, "LIST": 1, "PUT": 1}
    [first] = {one.entity_id for one in outcomes if not isinstance(one, BaseException)}
    assert (await ann.queue.register_producer("shop")).entity_id == first


async def test_one_that_cannot_be_read_keeps_no_other_name(
    world: World, ann: Process, caplog: pytest.LogCaptureFixture
) -> None:
    """Where an entry is denied, or of a newer format, others are registered all the same, and it is told."""
    plant(world, 3)
    denied = world.bucket.below("producers/", topic="_registry")[1]
    world.bucket.plant("_registry/producers/new.json", '{"v": 7}')
    ann.client.inject("denied", "GET", f"_registry/producers/{denied}")
    assert (await ann.queue.register_producer("shop")).name == "shop"
    assert {record.getMessage().partition(" ")[0] for record in caplog.records} == {
        f"_registry/producers/{denied}",
        "_registry/producers/new.json",
    }


async def test_one_that_cannot_be_read_now_may_be_the_name(world: World) -> None:
    """Where the store fails for a moment, a name is not given a second id because its first one was not seen."""
    key, body, entity_id = registered_by_pawn_queue("shop", "2025-01-02T00:00:00+00:00")
    world.bucket.plant(key, body)
    process = await world.process()
    process.client.inject("lost", "GET", key, times=3)
    assert (await process.queue.register_producer("shop")).entity_id == entity_id


async def test_one_that_can_never_be_read_keeps_nobody_from_publishing(
    world: World, ann: Process, caplog: pytest.LogCaptureFixture
) -> None:
    """It answers 500 for ever: within seconds it is taken for another name's, and that is told."""
    plant(world, 3)
    bad = world.bucket.below("producers/", topic="_registry")[1]
    ann.client.inject("lost", "GET", f"_registry/producers/{bad}")
    started = world.clock.elapsed()
    assert len(await ann.queue.publish(TOPIC, numbered(1), producer="shop")) == 1
    assert world.clock.elapsed() - started < 5
    [line] = [record for record in caplog.records if bad in record.getMessage()]
    assert line.levelname == "WARNING"
    assert "left alone" in line.getMessage()


async def test_a_name_whose_own_registration_cannot_be_read_gets_no_second_id(world: World, ann: Process) -> None:
    """It stands at the name's own key: whose name it is, is known."""
    entity_id = (await ann.queue.register_producer("shop")).entity_id
    process = await world.process()
    process.client.inject("lost", "GET", f"_registry/producers/{entity_id}.json")
    with pytest.raises(StoreError):
        await process.queue.register_producer("shop")
    assert len(world.bucket.below("producers/", topic="_registry")) == 1


@pytest.mark.parametrize("fault", ["lost", "denied", "of a newer format"])
async def test_the_list_leaves_out_what_cannot_be_read(
    world: World, ann: Process, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are listed within seconds; it is told, and listed when it can be read again."""
    for name in ("bad", "good"):
        world.bucket.plant(*registered_by_pawn_queue(name, "2025-01-02T00:00:00+00:00", "consumers")[:2])
    assert [one.name for one in await ann.queue.list_consumers()] == ["bad", "good"]
    [bad] = [key for key in world.bucket.below() if "/consumers/" in key and b'"bad"' in world.bucket.body(key)]
    body = world.bucket.body(bad)
    world.bucket.plant(bad, '{"v": 7}' if fault == "of a newer format" else body + b" ")
    if fault != "of a newer format":
        ann.client.inject("denied" if fault == "denied" else "lost", "GET", bad)
    started = world.clock.elapsed()
    assert [one.name for one in await ann.queue.list_consumers()] == ["good"]
    assert world.clock.elapsed() - started < 5
    assert [record.levelname for record in caplog.records if bad in record.getMessage()] == ["WARNING"]
    ann.client.heal()
    world.bucket.plant(bad, body)
    assert [one.name for one in await ann.queue.list_consumers()] == ["bad", "good"]


async def test_a_list_of_a_store_that_gives_nothing_is_an_error(world: World, ann: Process) -> None:
    """It tells registrations that it does not give, which are none, from an outage."""
    plant(world, 2)
    ann.client.inject("lost", "GET", "_registry/producers/*")
    assert await ann.queue.list_producers() == []
    ann.client.inject("lost", "GET")
    with pytest.raises(StoreError):
        await ann.queue.list_producers()


# --- heartbeat ---


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
    assert abs(datetime.fromisoformat(listed["shop"].last_seen).timestamp() - world.clock.server()) < 5
    assert kinds(short.client)["PUT"] == 2


async def test_who_was_seen_just_now_is_not_written_again(world: World) -> None:
    """Many processes that start with one name at once write it once."""
    processes = [await world.process() for _ in range(10)]
    await asyncio.gather(*(one.queue.register_producer("shop") for one in processes))
    await world.later(1)
    assert sum(kinds(one.client)["PUT"] for one in processes) <= 10  # who came second in the race was refused
    late = await world.process()
    await late.queue.register_producer("shop")
    await world.later(1)
    assert kinds(late.client) == {"GET": 1}


async def test_a_heart_beats_for_the_others_too(world: World, ann: Process, caplog: pytest.LogCaptureFixture) -> None:
    """One registration that cannot be written keeps none of the others from being seen, whatever the store raises."""
    names = [f"shop-{number}" for number in range(5)]
    ids = [(await ann.queue.register_producer(name)).entity_id for name in names]
    ann.client.inject("denied", "PUT", f"*{ids[0]}*")
    await world.later(INTERVAL + 1)
    listed = {one.name: one for one in await ann.queue.list_producers()}
    fresh = {name for name, one in listed.items() if world.clock.server() - seen(one.model_dump()) < INTERVAL / 2}
    assert fresh == set(names[1:])
    assert "is tried again" in caplog.text
    ann.client.heal()

    def broken(kind: Kind, key: str) -> None:
        if kind == "PUT" and ids[1] in key:
            ann.client.meanwhile = None
            raise ZeroDivisionError

    ann.client.meanwhile = broken
    await world.later(2 * INTERVAL)
    assert beating() == ["pawnqueue-heartbeat"]
    assert world.clock.server() - seen((await ann.queue.list_producers())[1].model_dump()) < INTERVAL + 5


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


def seen(record: dict[str, Any]) -> float:
    """Return when it was last seen."""
    return datetime.fromisoformat(record["last_seen"]).timestamp()


async def every_record(store: ScriptedStore) -> dict[str, dict[str, Any]]:
    """Return all registrations by key."""
    return {key: await store.json(key) for key in await store.keys()}


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
            "The heartbeat of the registrations failed and is tried again: The disk is full."
        ] * 2
        store.refuses = None
        await clock.advance(INTERVAL)
        assert await store.tried.get() == key
        await clock.fallen_asleep.wait()
        assert seen(await store.json(key)) > datetime.fromisoformat(registration.last_seen).timestamp()


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


def beating() -> list[str]:
    """Return the heartbeats that are under way."""
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "pawnqueue-heartbeat"]


async def test_who_only_looks_has_no_heartbeat(store: ScriptedStore) -> None:
    """A queue that registered nobody has none, and one that registered many has one."""
    async with PawnQueue.open(store=store) as queue:
        await queue.list_producers()
        assert beating() == []
        for number in range(3):
            await queue.register_producer(f"billing-{number}")
        assert beating() == ["pawnqueue-heartbeat"]


# --- listing ---


async def test_a_listing_shows_a_name_once(store: ScriptedStore) -> None:
    """Entries of one name are shown as one, with the latest time; names are sorted."""
    key, body, entity_id = registered_by_pawn_queue("billing", "2019-01-01T00:00:00+00:00")
    await store.put(key, body)
    async with PawnQueue.open(store=store) as queue:
        for name in ("shipping", "billing", "Ärger"):
            await queue.register_producer(name)
        # pawn-queue's own process goes on, and was the last to be seen.
        later = {**json.loads(body), "last_seen": "2999-01-01T00:00:00+00:00"}
        await store.put(key, json.dumps(later).encode())
        listed = await queue.list_producers()
    assert [one.name for one in listed] == ["billing", "shipping", "Ärger"]
    assert (listed[0].entity_id, listed[0].registered_at) == (entity_id, "2019-01-01T00:00:00+00:00")
    assert listed[0].last_seen == "2999-01-01T00:00:00+00:00"


async def test_a_thousand_and_more_are_listed(store: ScriptedStore) -> None:
    """A listing of several pages is complete."""
    for number in range(1100):
        key, body, _ = registered_by_pawn_queue(f"p{number:04d}", "2019-01-01T00:00:00+00:00")
        await store.put(key, body)
    async with PawnQueue.open(store=store) as queue:
        assert [one.name for one in await queue.list_producers()] == [f"p{number:04d}" for number in range(1100)]


GARBAGE = {
    "_registry/producers/empty.json": b"",
    "_registry/producers/text.json": b"not JSON",
    "_registry/producers/list.json": b"[1]",
    "_registry/producers/half.json": b'{"name": "billing"}',
    "_registry/producers/deep.json": b"[" * 100_000,
    "_registry/producers/notes/readme.txt": b"hello",
}


async def test_garbage_is_left_alone(store: ScriptedStore, caplog: pytest.LogCaptureFixture) -> None:
    """What is no registration is passed over with a warning, and stays as it is."""
    for key, body in GARBAGE.items():
        await store.put(key, body)
    async with PawnQueue.open(store=store) as queue:
        with caplog.at_level(logging.WARNING):
            registration = await queue.register_producer("billing")
        assert {record.getMessage() for record in caplog.records} == {
            f"{key} is no registration and is left alone." for key in GARBAGE
        }
        assert [one.entity_id for one in await queue.list_producers()] == [registration.entity_id]
    for key, body in GARBAGE.items():
        assert (await store.get(key) or pytest.fail("gone")).body == body


async def test_garbage_in_a_name_s_own_place_is_told(store: ScriptedStore) -> None:
    """Where something else stands at the key of a name, the error names the object to delete."""
    async with PawnQueue.open(store=store) as queue:
        registration = await queue.register_producer("billing")
    key = f"_registry/producers/{registration.entity_id}.json"
    await store.put(key, b"garbage")
    async with PawnQueue.open(store=store) as queue:
        with pytest.raises(
            StoreError, match=f"'billing' is taken by what is no registration: delete {key}, and"
        ) as caught:
            await queue.register_producer("billing")
        assert not caught.value.transient
        await store.delete([key])
        assert (await queue.register_producer("billing")).entity_id == registration.entity_id


async def test_a_newer_registration_is_refused_by_name(store: ScriptedStore) -> None:
    """An entry of a newer format is never overwritten or misread: who has its name is told so."""
    key = f"_registry/producers/{layout.id_of_name('producers', 'billing')}.json"
    await store.put(key, b'{"v": 7}')
    async with PawnQueue.open(store=store) as queue:
        assert await queue.list_producers() == []
        with pytest.raises(CompatibilityError, match=rf"{key} has format 7"):
            await queue.register_producer("billing")
    assert (await store.get(key) or pytest.fail("gone")).body == b'{"v": 7}'


@pytest.mark.parametrize("name", ["", "  ", "x" * 257, "\ud800", None, 5, b"billing"])
async def test_no_one_has_such_a_name(store: ScriptedStore, name: str) -> None:
    """A bad name is refused before any request, and the error says what a name is."""
    async with PawnQueue.open(store=store) as queue:
        for register in (queue.register_producer, queue.register_consumer):
            with pytest.raises(ConfigError, match="name of a producer or consumer is a text of 1 to 256 characters"):
                await register(name)
        assert await store.keys() == []


@pytest.mark.parametrize("name", ["x", "x" * 256, "dag/task.1", "日本 ümläut", "\x00\n", " x "])
async def test_any_text_is_a_name(store: ScriptedStore, name: str) -> None:
    """Names need not be fit for keys."""
    async with PawnQueue.open(store=store) as queue:
        registration = await queue.register_producer(name)
        assert registration.name == name
        assert [one.name for one in await queue.list_producers()] == [name]
