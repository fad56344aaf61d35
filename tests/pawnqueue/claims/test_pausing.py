"""A paused topic: nobody is given anything of it, everything else goes on, and it goes on when it is resumed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pawnqueue import ConfigError, StoreError, TopicNotFoundError
from pawnqueue.bucket.topics import RECENT_RECORD_SECONDS, RECORD_CACHE_SECONDS
from pawnqueue.claims.claim_making import NOT_GIVEN_BACK
from pawnqueue.domain import layout
from pawnqueue.domain.records import TopicRecord
from tests.pawnqueue.virtual import TOPIC, TTL, numbered, numbers

if TYPE_CHECKING:
    from tests.pawnqueue.virtual import Process, World

#: A claim that waits looks again after five seconds by default, and a bit of jitter.
POLL = 6.0
MARKER = layout.topic_marker(TOPIC)


def _stored(world: World) -> TopicRecord:
    return TopicRecord.decode(world.bucket.body(MARKER), MARKER)


@pytest.fixture(params=[False, True], ids=["single", "packs"])
def how(request: pytest.FixtureRequest, world: World) -> dict[str, bool]:
    """How messages are published: singly, or in packs."""
    world.topic(packs=True if request.param else None)
    return {"pack": request.param}


async def test_nothing_of_a_paused_topic_is_given_to_anybody(
    how: dict[str, bool], world: World, ann: Process, bob: Process
) -> None:
    """Neither in the process that paused it nor, five seconds later, in another one that was busy with it."""
    await ann.queue.publish(TOPIC, numbered(4), **how)
    assert len(await bob.queue.claim(TOPIC, "c", max_messages=1)) == 1
    topic = await ann.queue.pause(TOPIC)
    assert topic.settings.paused
    assert not await ann.queue.claim(TOPIC, "c")
    await world.later(RECENT_RECORD_SECONDS)
    assert not await bob.queue.claim(TOPIC, "c")
    assert not await bob.queue.claim(TOPIC, "c", claim_id="job")
    assert (await ann.queue.stats(TOPIC)).paused


async def test_it_goes_on_when_it_is_resumed(how: dict[str, bool], world: World, ann: Process, bob: Process) -> None:
    """All that was published before and meanwhile is delivered, in order, and a claim that waits has it soon."""
    await ann.queue.publish(TOPIC, numbered(2), **how)
    await ann.queue.pause(TOPIC)
    await world.later(RECENT_RECORD_SECONDS)
    waiting = asyncio.create_task(bob.queue.claim(TOPIC, "c", wait=600))
    await world.later(60)
    await ann.queue.publish(TOPIC, numbered(2, 2), **how)
    assert not waiting.done()
    began = world.clock.elapsed()
    assert not (await ann.queue.resume(TOPIC)).settings.paused
    assert numbers(await waiting) == [0, 1, 2, 3]
    assert world.clock.elapsed() - began <= RECENT_RECORD_SECONDS + POLL


async def test_a_claim_that_waits_in_the_process_that_resumes_it_goes_on_at_once(world: World, ann: Process) -> None:
    """It does not wait for its next look."""
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.pause(TOPIC)
    waiting = asyncio.create_task(ann.queue.claim(TOPIC, "c", wait=600))
    await world.later(60)
    began = world.clock.elapsed()
    await ann.queue.resume(TOPIC)
    assert numbers(await waiting) == [0]
    assert world.clock.elapsed() == began


async def test_everything_else_goes_on(how: dict[str, bool], world: World, ann: Process, bob: Process) -> None:
    """Consumers renew, requeue, ack and bury what they hold; sweeps and redrives work; claims by an id are answered."""
    await ann.queue.publish(TOPIC, numbered(4), **how)
    claim = await bob.queue.claim(TOPIC, "c", claim_id="job")
    await ann.queue.pause(TOPIC)
    await world.later(RECENT_RECORD_SECONDS)
    await bob.queue.renew(claim)
    first, second, third, fourth = claim
    await bob.queue.ack(claim, first)
    await bob.queue.requeue(claim, second)
    await bob.queue.bury(claim, third, reason="r")
    await bob.queue.leave(claim)
    again = await ann.queue.claim(TOPIC, "c", claim_id="job")
    assert numbers(again) == [3]
    await ann.queue.ack(again)
    assert (await ann.queue.sweep(TOPIC)).paused
    await ann.queue.redrive(TOPIC)
    assert numbers(await ann.queue.peek(TOPIC)) in ([1, 2], [2, 1])
    assert not await ann.queue.claim(TOPIC, "c")
    await ann.queue.resume(TOPIC)
    assert sorted([*numbers(await ann.queue.claim(TOPIC, "c")), *numbers(await ann.queue.claim(TOPIC, "c"))]) == [1, 2]
    assert not (await ann.queue.sweep(TOPIC)).paused
    del fourth


async def test_leases_of_an_attempt_that_died_are_not_adopted(world: World, ann: Process, bob: Process) -> None:
    """Nobody was given what it had won. After the pause, the next attempt has it."""
    await ann.queue.publish(TOPIC, numbered(1))
    bob.client.inject("dies", "PUT", f"{TOPIC}/claims/*")
    with pytest.raises(Exception, match=r"^$"):
        await bob.queue.claim(TOPIC, "c", claim_id="job", ttl=TTL)
    await ann.queue.pause(TOPIC)
    assert not await ann.queue.claim(TOPIC, "c", claim_id="job", ttl=TTL)
    await ann.queue.resume(TOPIC)
    assert numbers(await ann.queue.claim(TOPIC, "c", claim_id="job", ttl=TTL)) == [0]


@pytest.mark.parametrize("claim_id", [None, "job"])
async def test_a_claim_that_takes_long_gives_back_what_it_won(
    how: dict[str, bool], world: World, ann: Process, bob: Process, claim_id: str | None
) -> None:
    """The topic was paused while it read the messages: they are given back unseen, and count as not delivered."""
    await ann.queue.publish(TOPIC, numbered(2), **how)

    async def slow(kind: str, key: str) -> None:
        if kind == "GET" and ("/messages/" in key or "/packs/" in key):
            bob.client.meanwhile = None
            await ann.queue.pause(TOPIC)
            await world.later(RECENT_RECORD_SECONDS + 1)

    bob.client.meanwhile = slow
    assert not await bob.queue.claim(TOPIC, "c", claim_id=claim_id)
    assert bob.client.meanwhile is None
    await ann.queue.resume(TOPIC)
    assert [message.deliveries for message in await ann.queue.claim(TOPIC, "c", claim_id=claim_id)] == [1, 1]


@pytest.mark.parametrize("is_adopted", [False, True])
async def test_a_call_does_not_go_on_with_what_it_could_not_give_back(
    how: dict[str, bool], world: World, ann: Process, bob: Process, *, is_adopted: bool
) -> None:
    """It was too late to hand it out, and the topic is paused by now: it is lost, and claimable later."""
    await ann.queue.publish(TOPIC, numbered(1), **how)
    if is_adopted:
        cid = await world.process()
        cid.client.inject("dies", "PUT", f"{TOPIC}/claims/*")
        with pytest.raises(Exception, match=r"^$"):
            await cid.queue.claim(TOPIC, "c", claim_id="job", ttl=TTL)
    written = 0

    async def slow(kind: str, key: str) -> None:
        nonlocal written
        if kind != "PUT" or not key.startswith(layout.claims(TOPIC)):
            return
        written += 1
        if written == 1:  # the record is made, too late
            await world.later(TTL)
            bob.client.inject("lost", "PUT", key, passed=1)
        elif written == 2:  # it is to be given back, which cannot be confirmed
            await ann.queue.pause(TOPIC)
            await world.later(60)
        elif written == 3:
            bob.client.heal()

    bob.client.meanwhile = slow
    claim = await bob.queue.claim(TOPIC, "c", claim_id="job", ttl=TTL)
    assert not claim
    assert claim.lost == NOT_GIVEN_BACK
    bob.client.heal()
    await world.later()
    await ann.queue.resume(TOPIC)
    assert numbers(await ann.queue.claim(TOPIC, "d", wait=60)) == [0]


async def test_a_paused_topic_costs_a_waiting_consumer_no_list(world: World, ann: Process, bob: Process) -> None:
    """It reads the topic's marker, at most every five seconds."""
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.pause(TOPIC)
    await world.later(RECENT_RECORD_SECONDS)
    assert not await bob.queue.claim(TOPIC, "c", wait=30)
    with bob.client.counting() as counted:
        assert not await bob.queue.claim(TOPIC, "c", wait=600)
    assert set(counted) <= {"GET", "PUT", "HEAD"}
    assert counted["GET"] <= 600 / RECENT_RECORD_SECONDS
    assert counted["PUT"] <= 600 / 240 + 1  # the store's time


async def test_a_consumer_of_a_topic_that_cannot_be_read_is_given_nothing(
    world: World, ann: Process, bob: Process
) -> None:
    """It may be paused. The messages stay claimable, also for that consumer."""
    await ann.queue.publish(TOPIC, numbered(1))
    await world.later(RECENT_RECORD_SECONDS)
    bob.client.inject("denied", "GET", MARKER)
    with pytest.raises(StoreError):
        await bob.queue.claim(TOPIC, "c")
    bob.client.heal()
    assert numbers(await bob.queue.claim(TOPIC, "c")) == [0]


async def test_the_backlog_of_a_paused_topic_is_empty(world: World, ann: Process, bob: Process) -> None:
    """Nobody who waits for claimable messages is woken in vain."""
    await ann.queue.publish(TOPIC, numbered(3))
    assert (await bob.queue.backlog(TOPIC)).pending == 3
    await ann.queue.pause(TOPIC)
    await world.later(RECORD_CACHE_SECONDS)
    found = await bob.queue.backlog(TOPIC)
    assert (found.pending, found.oldest_age_seconds, found.paused) == (0, None, True)
    assert (await ann.queue.stats(TOPIC)).pending == 3
    await ann.queue.resume(TOPIC)
    await world.later(RECENT_RECORD_SECONDS)
    found = await bob.queue.backlog(TOPIC)
    assert (found.pending, found.paused) == (3, False)


async def test_a_topic_that_is_not_paused_is_stored_as_before(world: World, ann: Process) -> None:
    """Earlier versions and pawn-queue read the same marker; pausing twice writes it once."""
    before = world.bucket.body(MARKER)
    await ann.queue.resume(TOPIC)
    assert world.bucket.body(MARKER) == before
    await ann.queue.pause(TOPIC)
    paused = world.bucket.body(MARKER)
    assert b'"paused":true' in paused
    assert _stored(world).settings.paused
    await ann.queue.pause(TOPIC)
    assert world.bucket.body(MARKER) == paused
    await ann.queue.resume(TOPIC)
    assert b"paused" not in world.bucket.body(MARKER)


async def test_a_topic_is_created_or_updated_as_paused(world: World, ann: Process) -> None:
    """It is a setting like others: the settings of one topic can be given to another."""
    assert (await ann.queue.create_topic("later", paused=True)).settings.paused
    assert (await ann.queue.update_topic("later", paused=False)).settings.paused is False
    for wrong in (None, 1, "yes"):
        with pytest.raises(ConfigError, match="paused of topic 'later' is wrong: pass True or False"):
            await ann.queue.update_topic("later", paused=wrong)


async def test_only_a_topic_that_exists_is_paused(ann: Process) -> None:
    """A misspelled name is an error."""
    for change in (ann.queue.pause, ann.queue.resume):
        with pytest.raises(TopicNotFoundError, match="oders"):
            await change("oders")


async def test_of_several_topics_the_others_go_on(world: World, ann: Process, bob: Process) -> None:
    """A claim over several topics is given messages of those that are not paused."""
    await ann.queue.create_topic("bills")
    for topic in (TOPIC, "bills"):
        await ann.queue.publish(topic, numbered(2))
    await ann.queue.pause(TOPIC)
    await world.later(RECENT_RECORD_SECONDS)
    assert (await bob.queue.claim([TOPIC, "bills"], "c")).topic == "bills"
    assert not await bob.queue.claim([TOPIC, "bills"], "c")
