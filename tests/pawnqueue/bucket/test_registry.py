"""The registry: a name has one id for ever, in every process, and the list says when it was last seen."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import pickle
import subprocess
import sys
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from pawnqueue import CompatibilityError, InvalidArgumentError, PawnQueue, Settings, StoreError
from pawnqueue.domain import layout
from tests.pawnqueue.bucket.registered import ScriptedStore, registered_by_pawn_queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from tools.kit.servers import S3Server


@pytest.fixture
def store() -> ScriptedStore:
    """A new bucket."""
    return ScriptedStore()


# --- one id ---


async def test_a_name_keeps_its_id(store: ScriptedStore) -> None:
    """A name that is registered again, in this process or in another, has the same id, and one object."""
    first = await PawnQueue.open(store=store)
    registration = await first.register_producer("billing")
    assert uuid.UUID(registration.id).version == 4
    assert (registration.role, registration.name) == ("producer", "billing")
    assert await first.register_producer("billing") == registration
    await first.aclose()
    async with PawnQueue.open(store=store) as second:
        again = await second.register_producer("billing")
    assert (again.id, again.registered_at) == (registration.id, registration.registered_at)
    assert await store.keys() == [f"_registry/producers/{registration.id}.json"]


async def test_one_id_when_all_register_at_once(store: ScriptedStore) -> None:
    """Of many processes that register a name at the same instant all get the same id, and one object is made."""
    queues = [await PawnQueue.open(store=store) for _ in range(20)]
    found = await asyncio.gather(*(queue.register_producer("billing") for queue in queues))
    assert len({(one.id, one.registered_at) for one in found}) == 1
    assert len(await store.keys()) == 1
    for queue in queues:
        await queue.aclose()


async def test_roles_are_apart(store: ScriptedStore) -> None:
    """A producer and a consumer of one name are two, each with an id of its own, listed each in its role."""
    async with PawnQueue.open(store=store) as queue:
        producer, consumer = await queue.register_producer("billing"), await queue.register_consumer("billing")
        assert producer.id != consumer.id
        assert [(one.role, one.id) for one in await queue.list_producers()] == [("producer", producer.id)]
        assert [(one.role, one.id) for one in await queue.list_consumers()] == [("consumer", consumer.id)]


async def test_an_id_outlives_silence(store: ScriptedStore) -> None:
    """A name that was last seen years ago still has its id, and the day on which it was registered."""
    key, body, entity_id = registered_by_pawn_queue("billing", "2019-01-01T00:00:00+00:00")
    await store.put(key, body)
    async with PawnQueue.open(store=store) as queue:
        registration = await queue.register_producer("billing")
        assert (registration.id, registration.registered_at) == (entity_id, datetime(2019, 1, 1, tzinfo=UTC))
    # Ours too: made by this version, then aged.
    async with PawnQueue.open(store=store) as queue:
        ours = await queue.register_producer("shipping")
    aged = await store.json(f"_registry/producers/{ours.id}.json")
    aged["last_seen"] = aged["registered_at"] = "2019-01-01T00:00:00+00:00"
    await store.put(f"_registry/producers/{ours.id}.json", json.dumps(aged).encode())
    async with PawnQueue.open(store=store) as queue:
        assert (await queue.register_producer("shipping")).id == ours.id


async def test_an_id_of_the_published_library_is_kept(store: ScriptedStore) -> None:
    """A name that pawn-queue registered keeps its random id, also when two of ours register it at once."""
    key, body, entity_id = registered_by_pawn_queue("billing", "2025-01-02T03:04:05.000006+00:00")
    other = registered_by_pawn_queue("shipping", "2025-01-02T03:04:05.000006+00:00")
    await store.put(key, body)
    await store.put(*other[:2])
    queues = [await PawnQueue.open(store=store) for _ in range(5)]
    found = await asyncio.gather(*(queue.register_producer("billing") for queue in queues))
    assert {one.id for one in found} == {entity_id}
    assert {one.registered_at for one in found} == {datetime(2025, 1, 2, 3, 4, 5, 6, tzinfo=UTC)}
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
    assert {one.id for one in found} == {elder[2]}
    assert [one.id for one in await queues[0].list_producers()] == [elder[2]]
    for queue in queues:
        await queue.aclose()


async def test_list_and_register_agree_on_the_id(store: ScriptedStore) -> None:
    """Where pawn-queue registers a name just after we did, by a clock that is behind, the list shows our id too."""
    async with PawnQueue.open(store=store) as queue:
        registration = await queue.register_producer("billing")
        key, body, _ = registered_by_pawn_queue("billing", "2019-01-01T00:00:00+00:00")
        await store.put(key, body)
        assert [one.id for one in await queue.list_producers()] == [registration.id]


PROCESS = """
import asyncio, base64, pickle, sys
from pawnqueue import PawnQueue

async def main():
    async with PawnQueue.open(pickle.loads(base64.b64decode(sys.argv[1]))) as queue:
        print("ready", flush=True)
        sys.stdin.readline()
        print((await queue.register_consumer("billing")).id, flush=True)

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
    assert outputs[0][0].decode().strip() == listed.id


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
    assert (listed[0].id, listed[0].registered_at) == (entity_id, datetime(2019, 1, 1, tzinfo=UTC))
    assert listed[0].last_seen == datetime(2999, 1, 1, tzinfo=UTC)


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
    "_registry/producers/large.json": b" " * 200_000
    + registered_by_pawn_queue("large", "2019-01-01T00:00:00+00:00")[1],
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
            f"{key} is not a registration, and is left alone." for key in GARBAGE
        }
        assert [one.id for one in await queue.list_producers()] == [registration.id]
    for key, body in GARBAGE.items():
        assert (await store.get(key) or pytest.fail("gone")).body == body


async def test_garbage_in_a_name_s_own_place_is_told(store: ScriptedStore) -> None:
    """If another object is at the key of a name, the error names the object to delete."""
    async with PawnQueue.open(store=store) as queue:
        registration = await queue.register_producer("billing")
    key = f"_registry/producers/{registration.id}.json"
    await store.put(key, b"garbage")
    async with PawnQueue.open(store=store) as queue:
        with pytest.raises(
            StoreError,
            match=f"{key}, the key of producer 'billing', holds something else than its registration: delete it",
        ) as caught:
            await queue.register_producer("billing")
        assert not caught.value.transient
        await store.delete([key])
        assert (await queue.register_producer("billing")).id == registration.id


async def test_a_newer_registration_is_refused_by_name(store: ScriptedStore) -> None:
    """An entry of a newer format is never overwritten or misread: registering its name raises an error."""
    key = f"_registry/producers/{layout.id_of_name('producers', 'billing')}.json"
    await store.put(key, b'{"v": 7}')
    async with PawnQueue.open(store=store) as queue:
        assert await queue.list_producers() == []
        with pytest.raises(CompatibilityError, match=rf"{key} has format 7"):
            await queue.register_producer("billing")
    assert (await store.get(key) or pytest.fail("gone")).body == b'{"v": 7}'


SHOP = layout.registration("producers", layout.id_of_name("producers", "shop"))
SHOP_ID = layout.id_of_name("producers", "shop")
SEEN = {"registered_at": "2019-01-01T00:00:00+00:00", "last_seen": "2019-01-01T00:00:00+00:00"}
NOT_THEIRS: dict[str, bytes] = {
    "nothing": b"",
    "garbage": b"x",
    "a newer format": b'{"v": 2}',
    "too large": b" " * 200_000,
    "another name's": json.dumps({"role": "producers", "name": "victim", "entity_id": "e", **SEEN}).encode(),
    "another name's, of this id": json.dumps(
        {"role": "producers", "name": "victim", "entity_id": SHOP_ID, **SEEN}
    ).encode(),
    "another role's": json.dumps({"role": "consumers", "name": "shop", "entity_id": SHOP_ID, **SEEN}).encode(),
}


@pytest.mark.parametrize("body", NOT_THEIRS.values(), ids=NOT_THEIRS)
async def test_what_others_put_in_a_name_s_place_stops_no_publisher(
    store: ScriptedStore, caplog: pytest.LogCaptureFixture, body: bytes
) -> None:
    """Its messages have the id that the name would get; the log says it once, and the object stays as it is."""
    await store.put(SHOP, body)
    async with PawnQueue.open(store=store) as queue:
        await queue.create_topic("orders")
        await queue.publish("orders", [{"n": 0}, {"n": 1}], producer="shop")
        await queue.publish("orders", [{"n": 2}], producer="shop")
        staged = await queue.stage("orders", "w", 0, [{"n": 3}], producer="shop")
        await queue.commit_write("orders", "w", [staged])
        messages = await queue.peek("orders")
        assert [(message.payload["n"], message.producer_id) for message in messages] == [(n, SHOP_ID) for n in range(4)]
        assert (await queue.publish("orders", [{"n": 4}], producer="other"))[0]
        with pytest.raises((CompatibilityError, StoreError), match=SHOP):
            await queue.register_producer("shop")
        assert "shop" not in {one.name for one in await queue.list_producers()}
    assert caplog.text.count("'shop' publishes without a registration") == 1
    assert caplog.text.count(f"{SHOP} is not a registration") <= 1
    assert (await store.get(SHOP) or pytest.fail("gone")).body == body


@pytest.mark.parametrize("name", ["", "  ", "x" * 257, "\ud800", None, 5, b"billing"])
async def test_no_one_has_such_a_name(store: ScriptedStore, name: str) -> None:
    """A bad name is refused before any request, and the error says what a name is."""
    async with PawnQueue.open(store=store) as queue:
        for register in (queue.register_producer, queue.register_consumer):
            with pytest.raises(
                InvalidArgumentError, match="not a valid name of a producer or consumer: pass 1 to 256 characters"
            ):
                await register(name)
        assert await store.keys() == []


@pytest.mark.parametrize("name", ["x", "x" * 256, "dag/task.1", "日本 ümläut", " x "])
async def test_any_text_is_a_name(store: ScriptedStore, name: str) -> None:
    """Names need not be fit for keys."""
    async with PawnQueue.open(store=store) as queue:
        registration = await queue.register_producer(name)
        assert registration.name == name
        assert [one.name for one in await queue.list_producers()] == [name]
