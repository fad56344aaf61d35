"""Claims over several topics: each is of one topic, all topics have their turn, and an idle one costs what it did."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from pawnqueue import InvalidArgumentError, InvalidTopicError, QueueClosedError, TopicNotFoundError
from tests.pawnqueue.virtual import TOPIC, World, numbered, numbers

if TYPE_CHECKING:
    from tests.pawnqueue.virtual import Process

TOPICS = ["orders", "parcels", "scans"]
HALF_A_MINUTE = {"polling": {"interval_seconds": 30, "jitter_max_ms": 0}}


@pytest.fixture
def topics(world: World) -> list[str]:
    """Three topics."""
    for name in TOPICS:
        world.topic(name)
    return TOPICS


async def test_a_claim_has_messages_of_one_topic(ann: Process, topics: list[str]) -> None:
    """It names the topic, and has nothing of the others."""
    for topic in topics:
        await ann.queue.publish(topic, [{"of": topic}])
    found = [await ann.queue.claim(topics, "c", max_messages=10) for _ in topics]
    assert sorted(claim.topic for claim in found) == sorted(topics)
    assert all([message.payload for message in claim] == [{"of": claim.topic}] for claim in found)
    empty = await ann.queue.claim(topics, "c")
    assert not empty
    assert empty.topic in topics


async def test_full_topics_take_turns(ann: Process, topics: list[str]) -> None:
    """Of topics that have messages each is claimed from equally often, whatever the others have."""
    for topic in topics[:2]:
        await ann.queue.publish(topic, numbered(20))
    served = [(await ann.queue.claim(topics, "c", max_messages=1)).topic for _ in range(20)]
    assert Counter(served) == dict.fromkeys(topics[:2], 10)
    assert all(served[turn] != served[turn + 1] for turn in range(19))


async def test_claims_at_the_same_time_look_into_different_topics(ann: Process, topics: list[str]) -> None:
    """Each begins with another one."""
    for topic in topics:
        await ann.queue.publish(topic, numbered(5))
    claims = await asyncio.gather(*(ann.queue.claim(topics, "c", max_messages=1) for _ in topics))
    assert {claim.topic for claim in claims} == set(topics)


async def test_short_lived_processes_begin_anywhere(world: World, topics: list[str]) -> None:
    """Not all of them drain the first topic."""
    publisher = await world.process()
    for topic in topics:
        await publisher.queue.publish(topic, numbered(30))
    first = [(await (await world.process()).queue.claim(topics, "c", max_messages=1)).topic for _ in range(30)]
    assert set(first) == set(topics)


@pytest.mark.parametrize("topic", TOPICS)
async def test_a_claim_waits_for_all_of_them(world: World, topics: list[str], topic: str) -> None:
    """A message that is published here, into whichever of them, is had at once."""
    ann = await world.process(**HALF_A_MINUTE)
    waiting = asyncio.create_task(ann.queue.claim(topics, "c", wait=600))
    await world.later(200)
    began = world.clock.elapsed()
    await ann.queue.publish(topic, numbered(1))
    claim = await waiting
    assert (claim.topic, numbers(claim)) == (topic, [0])
    assert world.clock.elapsed() == began


@pytest.mark.parametrize("topic", TOPICS)
async def test_what_others_publish_is_found_by_the_next_look(world: World, topics: list[str], topic: str) -> None:
    """Within the pause of that topic."""
    ann, bob = await world.process(**HALF_A_MINUTE), await world.process()
    waiting = asyncio.create_task(ann.queue.claim(topics, "c", wait=600))
    await world.later(200)
    began = world.clock.elapsed()
    await bob.queue.publish(topic, numbered(1))
    assert (await waiting).topic == topic
    assert world.clock.elapsed() - began <= 30


async def test_waiting_for_several_costs_what_waiting_for_each_costs(world: World, topics: list[str]) -> None:
    """One LIST a topic a look, and as many looks."""
    together, apart = await world.process(**HALF_A_MINUTE), await world.process(**HALF_A_MINUTE)
    for process in (together, apart):
        for topic in topics:
            await process.queue.claim(topic, "c")
    with together.client.counting() as at_once:
        assert not await together.queue.claim(topics, "c", wait=3600)
    with apart.client.counting() as each:
        await asyncio.gather(*(apart.queue.claim(topic, "c", wait=3600) for topic in topics))
    assert at_once["LIST"] == each["LIST"]
    assert at_once["GET"] <= each["GET"]


async def test_an_idle_topic_beside_a_busy_one_costs_its_own_pauses(world: World, topics: list[str]) -> None:
    """It is not listed for each claim from the busy one."""
    ann, bob = await world.process(**HALF_A_MINUTE), await world.process()
    assert not await ann.queue.claim(topics, "c", wait=300)
    await bob.queue.publish(TOPIC, numbered(40))
    before = len(ann.client.requests)
    had = 0
    while had < 40:
        claim = await ann.queue.claim(topics, "c", max_messages=1, wait=60)
        had += len(claim)
        await ann.queue.ack(claim)
    idle = [key for kind, key in ann.client.requests[before:] if kind == "LIST" and not key.startswith(TOPIC)]
    assert len(idle) <= 4


async def test_a_topic_that_was_idle_is_found_beside_a_busy_one(world: World, topics: list[str]) -> None:
    """Nobody waits longer than its pause because another topic is always full."""
    ann, bob = await world.process(**HALF_A_MINUTE), await world.process()
    assert not await ann.queue.claim(topics, "c", wait=300)
    await bob.queue.publish(TOPIC, numbered(200))
    await bob.queue.publish("scans", numbered(1))
    began = world.clock.elapsed()
    claim = await ann.queue.claim(topics, "c", max_messages=1, wait=60)
    while claim.topic != "scans":
        await ann.queue.ack(claim)
        await world.later(1)
        claim = await ann.queue.claim(topics, "c", max_messages=1, wait=60)
    assert world.clock.elapsed() - began <= 32


async def test_one_topic_in_a_list_is_a_claim_as_any_other(ann: Process) -> None:
    """Also by an id."""
    await ann.queue.publish(TOPIC, numbered(1))
    assert numbers(await ann.queue.claim([TOPIC, TOPIC], "c", claim_id="run")) == [0]


@pytest.mark.parametrize(
    ("given", "kind", "sentence"),
    [
        ([], InvalidArgumentError, "was given no topic"),
        (5, InvalidTopicError, "topic"),
        (["a b"], InvalidTopicError, "a b"),
        ([None], InvalidTopicError, "topic"),
        ({"orders": 1}, InvalidTopicError, "topic"),
    ],
)
async def test_what_names_no_topics_is_refused(
    ann: Process, given: object, kind: type[Exception], sentence: str
) -> None:
    """Before any request."""
    with ann.client.counting() as requests, pytest.raises(kind, match=sentence):
        await ann.queue.claim(given, "c")  # type: ignore[arg-type]
    assert not requests


async def test_an_id_names_a_claim_in_one_topic(ann: Process, topics: list[str]) -> None:
    """With several topics it is refused."""
    with ann.client.counting() as requests, pytest.raises(InvalidArgumentError, match="3 topics were given: pass one"):
        await ann.queue.claim(topics, "c", claim_id="run")
    assert not requests


async def test_a_topic_that_does_not_exist_is_refused(ann: Process, topics: list[str]) -> None:
    """Nothing is claimed from the others."""
    await ann.queue.publish(TOPIC, numbered(1))
    with pytest.raises(TopicNotFoundError, match="nowhere"):
        await ann.queue.claim([TOPIC, "nowhere"], "c")
    assert numbers(await ann.queue.claim(TOPIC, "c")) == [0]


async def test_a_waiting_claim_ends_with_its_queue(world: World, ann: Process, topics: list[str]) -> None:
    """At once."""
    waiting = asyncio.create_task(ann.queue.claim(topics, "c", wait=3600))
    await world.later(100)
    await ann.queue.aclose()
    with pytest.raises(QueueClosedError):
        await waiting


async def test_one_that_is_cancelled_as_it_wakes_lets_the_next_one_look(world: World, topics: list[str]) -> None:
    """Also where they wait for several topics."""
    ann = await world.process(**HALF_A_MINUTE)
    first, second = [asyncio.create_task(ann.queue.claim(topics, "c", wait=600)) for _ in range(2)]
    await world.later(100)
    began = world.clock.elapsed()
    ann.queue._claims.idle_pauses_of("scans").look_again(1)
    first.cancel()
    world.fill([{"id": "i", "payload": {"n": 0}}], topic="scans")
    assert numbers(await second) == [0]
    assert world.clock.elapsed() == began
