"""How much could be claimed, cheaply."""

from __future__ import annotations

import pytest

from pawnqueue import Backlog
from pawnqueue.catalog import units
from tests.pawnqueue.virtual import OVERDUE, TOPIC, TTL, Process, World, numbered

SHARED = "6f1c5f34-0f4e-4c8e-9d7b-0123456789ab"


async def test_an_idle_topic_is_one_list(world: World, ann: Process, bob: Process) -> None:
    """The backlog is empty, whatever claims and dead letters exist; nothing is old."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    await ann.queue.ack(claim, claim[0])
    await ann.queue.nack(claim)
    with bob.client.counting() as requests:
        assert await bob.queue.backlog(TOPIC) == Backlog(pending=0, oldest_age_seconds=None)
    assert requests == {"LIST": 1}


async def test_what_could_be_claimed_is_counted(world: World, ann: Process, bob: Process) -> None:
    """Not what is in flight, nor what is delayed; as old as the oldest of it, and not of the others."""
    await ann.queue.publish(TOPIC, numbered(4))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=3, ttl=500)
    await ann.queue.nack(claim, claim[0], requeue=True, delay=500)
    await world.later(10)
    await ann.queue.publish(TOPIC, numbered(2))
    with bob.client.counting() as requests:
        found = await bob.queue.backlog(TOPIC)
    assert found.pending == 3
    assert found.oldest_age_seconds == pytest.approx(10, abs=1)
    assert requests == {"LIST": 2}
    stats = await bob.queue.stats(TOPIC)
    assert (stats.pending, stats.in_flight, stats.delayed) == (3, 2, 1)
    assert await ann.queue.claim(TOPIC, "d", max_messages=3)
    assert await bob.queue.backlog(TOPIC) == Backlog(0, None)


async def test_what_was_abandoned_or_given_back_is_counted(world: World, ann: Process, bob: Process) -> None:
    """As soon as somebody could have it; a claim that lives on has its own, however old its leases are."""
    await ann.queue.publish(TOPIC, numbered(3))
    await ann.queue.claim(TOPIC, "c", max_messages=1)
    live = await ann.queue.claim(TOPIC, "c", max_messages=2)
    await ann.queue.nack(live, live[0], requeue=True)
    await ann.queue.renew(live, ttl=500)
    assert (await bob.queue.backlog(TOPIC)).pending == 1
    await world.later(OVERDUE)
    found = await bob.queue.backlog(TOPIC)
    assert found.pending == 2
    assert found.oldest_age_seconds == pytest.approx(OVERDUE, abs=2)


@pytest.mark.parametrize(("at_least", "lists", "pending"), [(1, 2, 1000), (1001, 3, 2000), (None, 4, 2500)])
async def test_it_stops_when_there_is_enough(ann: Process, at_least: int | None, lists: int, pending: int) -> None:
    """A call that only asks whether there is a backlog does not count a million messages."""
    await ann.queue.publish(TOPIC, numbered(2500))
    with ann.client.counting() as requests:
        found = await ann.queue.backlog(TOPIC, at_least=at_least)
    assert (found.pending, dict(requests)) == (pending, {"LIST": lists})


async def test_what_is_in_flight_is_not_enough(world: World, ann: Process, bob: Process) -> None:
    """It goes on until it has seen enough that could be claimed, and reads no record unless there is not enough."""
    await ann.queue.publish(TOPIC, numbered(1500))
    live = await ann.queue.claim(TOPIC, "c", max_messages=1200, ttl=TTL)
    await ann.queue.renew(live, ttl=5000)
    await world.later(50)  # their leases look overdue
    with bob.client.counting() as requests:
        assert (await bob.queue.backlog(TOPIC, 200)).pending == 300
    assert requests["GET"] == 0
    assert (await bob.queue.backlog(TOPIC, 301)).pending == 300


async def test_messages_without_a_time_have_no_age(world: World, ann: Process) -> None:
    """Somebody's keys may have none: they are counted all the same. A stranger is not counted."""
    world.bucket.plant(f"{TOPIC}/messages/x-00000000-0000-4000-8000-000000000001.json", "{}")
    world.bucket.plant(f"{TOPIC}/messages/notes.txt", "")
    assert await ann.queue.backlog(TOPIC) == Backlog(1, None)


@pytest.mark.parametrize("held", [True, False], ids=["held", "given back"])
async def test_each_message_under_a_shared_uuid_counts(world: World, ann: Process, *, held: bool) -> None:
    """One lease tells the state of all messages under its uuid, as only its body names the one that it is for."""
    for number in range(3):
        name = units.name_at(world.clock.server() + number, SHARED)
        world.bucket.plant(units.key_of(TOPIC, name), {"id": "same", "payload": {"n": number}})
    await world.later(5)
    claim = await ann.queue.claim(TOPIC, "c", max_messages=1, ttl=500)
    assert len(claim) == 1
    if not held:
        await ann.queue.requeue(claim)
    stats, found = await ann.queue.stats(TOPIC), await ann.queue.backlog(TOPIC)
    assert (stats.in_flight, stats.pending, found.pending) == ((3, 0, 0) if held else (0, 3, 3))
    assert found.oldest_age_seconds == (None if held else pytest.approx(5, abs=1))


async def test_what_is_set_aside_counts_unless_it_is_not_wanted(world: World, ann: Process, bob: Process) -> None:
    """One that this process cannot read is left out by its name, and a slice of a pack by its id."""
    await ann.queue.publish(TOPIC, [{"n": 0}])
    world.bucket.plant(units.key_of(TOPIC, world.bucket.below("messages/")[0]), '{"id":"z","v":9,"payload":{}}')
    await world.later(20)
    await ann.queue.update_topic(TOPIC, packs=True)
    await ann.queue.publish(TOPIC, numbered(200), pack=True)
    assert len(await ann.queue.claim(TOPIC, "c", max_messages=200)) == 200, "the other one is set aside"
    await ann.queue.publish(TOPIC, numbered(200), pack=True)
    await ann.queue.requeue(await ann.queue.claim(TOPIC, "c", max_messages=50))
    every, some = await ann.queue.backlog(TOPIC), await ann.queue.backlog(TOPIC, set_aside=False)
    assert (every.pending, some.pending) == (201, 200)
    assert every.oldest_age_seconds == pytest.approx(20, abs=1)
    assert some.oldest_age_seconds == pytest.approx(0, abs=1)
    elsewhere = await bob.queue.backlog(TOPIC, set_aside=False)
    assert elsewhere.oldest_age_seconds == pytest.approx(20, abs=1), "bob has not tried it"

    [piece] = [name.removesuffix(".lease") for name in world.bucket.below("leases/") if ".0-50." in name]
    ann.queue._claims._topic(TOPIC).finder.set_aside.put(piece, "a fault")
    assert (await ann.queue.backlog(TOPIC, set_aside=False)).pending == 150
    assert (await ann.queue.backlog(TOPIC)).pending == 201
