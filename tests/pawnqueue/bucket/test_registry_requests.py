"""What the registry costs: a process lists once at its start, shared with others, and then reads only new entries."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pawnqueue import StoreError
from pawnqueue.domain import layout
from tests.pawnqueue.bucket.registered import INTERVAL, kinds, registered_by_pawn_queue, registry
from tests.pawnqueue.virtual import TOPIC, Kind, Process, World, numbered

if TYPE_CHECKING:
    from pawnqueue import Registration


def plant(world: World, count: int, start: int = 0) -> list[str]:
    """Register producers by the published library; return their keys, in the order in which they are listed."""
    keys = []
    for number in range(start, start + count):
        key, body, _ = registered_by_pawn_queue(f"old-{number}", "2025-01-02T00:00:00+00:00")
        world.bucket.plant(key, body)
        keys.append(key)
    return sorted(keys)


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
    """An entry that was not seen since is not read again."""
    plant(world, 50)
    await bob.queue.register_producer("shop")
    assert len(await ann.queue.list_producers()) == 51
    await world.later(100)
    before = len(ann.client.requests)
    listed = {one.name: one for one in await ann.queue.list_producers()}
    assert len(listed) == 51
    assert kinds(ann.client, before) == {"LIST": 1, "GET": 1}
    assert world.clock.server() - listed["shop"].last_seen.timestamp() < INTERVAL + 5


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
    assert [one.id for one in await asyncio.gather(*late)] == planted


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
    [first] = {one.id for one in outcomes if not isinstance(one, BaseException)}
    assert (await ann.queue.register_producer("shop")).id == first


async def test_one_that_cannot_be_read_keeps_no_other_name(
    world: World, ann: Process, caplog: pytest.LogCaptureFixture
) -> None:
    """If an entry is denied, or of a newer format, others are still registered, and a warning names it."""
    _, denied, _ = plant(world, 3)
    world.bucket.plant("_registry/producers/new.json", '{"v": 7}')
    ann.client.inject("denied", "GET", denied)
    assert (await ann.queue.register_producer("shop")).name == "shop"
    assert {record.getMessage().partition(" ")[0] for record in caplog.records} == {
        denied,
        "_registry/producers/new.json",
    }


async def test_one_that_cannot_be_read_now_may_be_the_name(world: World) -> None:
    """Where the store fails for a moment, a name is not given a second id because its first one was not seen."""
    key, body, entity_id = registered_by_pawn_queue("shop", "2025-01-02T00:00:00+00:00")
    world.bucket.plant(key, body)
    process = await world.process()
    process.client.inject("lost", "GET", key, times=3)
    assert (await process.queue.register_producer("shop")).id == entity_id


async def test_one_that_can_never_be_read_keeps_nobody_from_publishing(
    world: World, ann: Process, caplog: pytest.LogCaptureFixture
) -> None:
    """It answers 500 for ever: within seconds it is taken for another name's, and a warning says so."""
    _, bad, _ = plant(world, 3)
    ann.client.inject("lost", "GET", bad)
    started = world.clock.elapsed()
    assert len(await ann.queue.publish(TOPIC, numbered(1), producer="shop")) == 1
    assert world.clock.elapsed() - started < 5
    [line] = [record for record in caplog.records if bad in record.getMessage()]
    assert line.levelname == "WARNING"
    assert "left alone" in line.getMessage()


async def test_a_name_whose_own_registration_cannot_be_read_gets_no_second_id(world: World, ann: Process) -> None:
    """It is at the name's own key, so it is known to be this name's."""
    entity_id = (await ann.queue.register_producer("shop")).id
    process = await world.process()
    process.client.inject("lost", "GET", f"_registry/producers/{entity_id}.json")
    with pytest.raises(StoreError):
        await process.queue.register_producer("shop")
    assert len(world.bucket.below("producers/", topic="_registry")) == 1


@pytest.mark.parametrize("fault", ["lost", "denied", "of a newer format"])
async def test_the_list_leaves_out_what_cannot_be_read(
    world: World, ann: Process, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are listed within seconds; a warning names it, and it is listed when it can be read again."""
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


async def test_who_claims_is_registered_beside_its_claim(world: World) -> None:
    """Once a process and name; no claim waits for it, and it is off where the settings say so."""
    world.topic()
    process = await world.process(registry={"register_consumers": True})
    await process.queue.publish(TOPIC, numbered(3))
    process.client.latency = 0.02
    for name in ("billing", "billing", "shipping"):
        assert await process.queue.claim(TOPIC, name, max_messages=1)
    await world.later(5)
    entries = await process.queue.list_consumers()
    assert [(one.role, one.name) for one in entries] == [("consumer", "billing"), ("consumer", "shipping")]
    quiet = await world.process()
    await quiet.queue.claim(TOPIC, "unheard", max_messages=1)
    await world.later(5)
    assert [one.name for one in await process.queue.list_consumers()] == ["billing", "shipping"]


async def test_a_consumer_that_cannot_be_registered_works_all_the_same(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the store denies the registry, its claims go on, and one warning says so."""
    process = await world.process(registry={"register_consumers": True})
    process.client.inject("denied", "PUT", "_registry/consumers/*")
    await process.queue.publish(TOPIC, numbered(2))
    for _ in range(2):
        assert await process.queue.claim(TOPIC, "billing", max_messages=1)
        await world.later(5)
    assert caplog.text.count("consumer 'billing' could not be registered, and continues without") == 1


async def test_a_queue_that_is_closed_at_once_has_registered_its_consumer(world: World) -> None:
    """Closing waits for the registration that is under way: its write may land all the same."""
    process = await world.process(registry={"register_consumers": True})
    process.client.latency = 0.5
    await process.queue.claim(TOPIC, "brief")
    await process.queue.aclose()
    other = await world.process()
    assert [one.name for one in await other.queue.list_consumers()] == ["brief"]
