"""PawnQueue, the front door: what opening, using and closing it means, beyond what each operation's own tests say."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pawnqueue import InvalidTopicError, PawnQueue, PawnQueueError, Portion, QueueClosedError, TopicNotFoundError
from tests.pawnqueue.virtual import TOPIC, Client, Process, World, numbered, numbers


async def _handle(_: object) -> None:
    """Do nothing with a message."""


#: Every asynchronous method, called in a way that is right as long as the queue is open.
CALLS: dict[str, Callable[[PawnQueue, Any], Awaitable[Any]]] = {
    "probe": lambda queue, _: queue.probe(),
    "create_topic": lambda queue, _: queue.create_topic(TOPIC),
    "update_topic": lambda queue, _: queue.update_topic(TOPIC, max_deliveries=3),
    "pause": lambda queue, _: queue.pause(TOPIC),
    "resume": lambda queue, _: queue.resume(TOPIC),
    "topic": lambda queue, _: queue.topic(TOPIC),
    "list_topics": lambda queue, _: queue.list_topics(),
    "delete_topic": lambda queue, _: queue.delete_topic(TOPIC),
    "register_producer": lambda queue, _: queue.register_producer("p"),
    "register_consumer": lambda queue, _: queue.register_consumer("c"),
    "list_producers": lambda queue, _: queue.list_producers(),
    "list_consumers": lambda queue, _: queue.list_consumers(),
    "publish": lambda queue, _: queue.publish(TOPIC, numbered(1)),
    "claim": lambda queue, _: queue.claim(TOPIC, "c"),
    "listen": lambda queue, _: queue.listen(TOPIC, _handle, consumer="c"),
    "drain": lambda queue, _: queue.drain(),
    "attach": lambda queue, claim: queue.attach(claim.hand_over()),
    "held": lambda queue, claim: queue.held(claim.hand_over()),
    "messages": lambda queue, claim: queue.messages(claim.hand_over()),
    "last_claim": lambda queue, claim: queue.last_claim(TOPIC, claim.claim_id),
    "known_claims": lambda queue, claim: queue.known_claims(TOPIC, [claim.claim_id]),
    "renew": lambda queue, claim: queue.renew(claim),
    "leave": lambda queue, claim: queue.leave(claim),
    "ack": lambda queue, claim: queue.ack(claim),
    "nack": lambda queue, claim: queue.nack(claim),
    "release": lambda queue, claim: queue.release(TOPIC, claim.claim_id, "c"),
    "settle": lambda queue, claim: queue.settle(claim),
    "settle_overwritten": lambda queue, claim: queue.settle_overwritten(claim),
    "requeue": lambda queue, claim: queue.requeue(claim),
    "bury": lambda queue, claim: queue.bury(claim, reason="no"),
    "health": lambda queue, _: queue.health(),
    "completed": lambda queue, _: queue.completed(TOPIC),
    "dead_letters": lambda queue, _: queue.dead_letters(TOPIC),
    "redrive": lambda queue, _: queue.redrive(TOPIC),
    "purge": lambda queue, _: queue.purge(TOPIC, dry_run=True),
    "sweep": lambda queue, _: queue.sweep(TOPIC),
    "peek": lambda queue, _: queue.peek(TOPIC),
    "find": lambda queue, claim: queue.find(TOPIC, claim.ids[0]),
    "stats": lambda queue, _: queue.stats(TOPIC),
    "backlog": lambda queue, _: queue.backlog(TOPIC),
    "portions": lambda queue, _: queue.portions(TOPIC),
    "read": lambda queue, _: queue.read(Portion(TOPIC, ())),
    "fetch": lambda queue, _: queue.fetch(Portion(TOPIC, ())),
    "look_again": lambda queue, _: queue.look_again(Portion(TOPIC, ())),
    "stage": lambda queue, _: queue.stage(TOPIC, "w", 0, numbered(1)),
    "commit_write": lambda queue, _: queue.commit_write(TOPIC, "w", []),
    "abort_write": lambda queue, _: queue.abort_write(TOPIC, "w"),
}
UNKNOWN = "00000000-0000-4000-8000-000000000000"
OF_A_TOPIC: dict[str, Callable[[PawnQueue, str], Awaitable[Any]]] = {
    "topic": lambda queue, topic: queue.topic(topic),
    "update_topic": lambda queue, topic: queue.update_topic(topic, max_deliveries=3),
    "pause": lambda queue, topic: queue.pause(topic),
    "resume": lambda queue, topic: queue.resume(topic),
    "delete_topic": lambda queue, topic: queue.delete_topic(topic),
    "publish": lambda queue, topic: queue.publish(topic, numbered(1)),
    "claim": lambda queue, topic: queue.claim(topic, "c"),
    "attach": lambda queue, topic: queue.attach({"topic": topic, "claim_id": "a", "generation": 0, "session": "s"}),
    "messages": lambda queue, topic: queue.messages({"topic": topic, "claim_id": "a", "generation": 0, "session": "s"}),
    "last_claim": lambda queue, topic: queue.last_claim(topic, "a"),
    "known_claims": lambda queue, topic: queue.known_claims(topic, ["a"]),
    "release": lambda queue, topic: queue.release(topic, "a", "c"),
    "backlog": lambda queue, topic: queue.backlog(topic),
    "completed": lambda queue, topic: queue.completed(topic),
    "dead_letters": lambda queue, topic: queue.dead_letters(topic),
    "redrive": lambda queue, topic: queue.redrive(topic),
    "purge": lambda queue, topic: queue.purge(topic),
    "sweep": lambda queue, topic: queue.sweep(topic),
    "peek": lambda queue, topic: queue.peek(topic),
    "find": lambda queue, topic: queue.find(topic, UNKNOWN),
    "stats": lambda queue, topic: queue.stats(topic),
    "portions": lambda queue, topic: queue.portions(topic),
    "stage": lambda queue, topic: queue.stage(topic, "w", 0, numbered(1)),
    "commit_write": lambda queue, topic: queue.commit_write(topic, "w", []),
    "abort_write": lambda queue, topic: queue.abort_write(topic, "w"),
}


def test_every_method_is_tried_here() -> None:
    """``CALLS`` has every public method."""
    there = {name for name, _ in inspect.getmembers(PawnQueue, inspect.iscoroutinefunction)}
    assert {name for name in there if not name.startswith("_")} - {"aclose"} == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
async def test_a_closed_queue_says_so_and_asks_nothing(world: World, ann: Process, name: str) -> None:
    """Every method is an error once the queue is closed, before any request is made."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    assert not ann.queue.closed
    await ann.queue.aclose()
    assert ann.queue.closed
    with ann.client.counting() as requests, pytest.raises(QueueClosedError):
        await CALLS[name](ann.queue, claim)
    assert not requests


@pytest.mark.parametrize("name", OF_A_TOPIC)
async def test_a_topic_that_is_not_there_is_an_error(world: World, ann: Process, name: str) -> None:
    """Every method of a topic raises TopicNotFoundError, and creates nothing."""
    before = world.bucket.snapshot()
    with pytest.raises(TopicNotFoundError) as caught:
        await OF_A_TOPIC[name](ann.queue, "nowhere")
    assert caught.value.topic == "nowhere"
    assert "create_topic('nowhere')" in str(caught.value)
    assert world.bucket.snapshot() == before


@pytest.mark.parametrize("name", OF_A_TOPIC)
@pytest.mark.parametrize("topic", ["", "a/b", "_registry", ".", "-", "a\n", "x" * 129, "ü"], ids=repr)
async def test_a_name_that_no_topic_can_have_is_refused_unasked(ann: Process, name: str, topic: str) -> None:
    """Every method of a topic refuses it before any request is made."""
    with ann.client.counting() as requests, pytest.raises(InvalidTopicError):
        await OF_A_TOPIC[name](ann.queue, topic)
    assert not requests


async def test_closing_twice_is_closing_once(ann: Process) -> None:
    """The second time, nothing happens; and a store of the caller's own is left open."""
    await ann.queue.aclose()
    await ann.queue.aclose()
    assert not ann.client.closed


async def test_a_queue_is_a_context_manager(world: World) -> None:
    """It is open inside the block and closed behind it, whatever happened there."""
    client = Client(world.bucket)
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the work is in the block
        async with PawnQueue.open(store=client, clock=world.clock) as queue:
            await queue.publish(TOPIC, numbered(1))
            1 / 0  # noqa: B018 - the work
    assert queue.closed
    opened = await PawnQueue.open(store=client, clock=world.clock)
    async with opened as same:
        assert same is opened
    assert opened.closed
    with pytest.raises(QueueClosedError):
        async with opened:
            pass


async def test_nothing_runs_behind_a_closed_queue(world: World, ann: Process) -> None:
    """The heartbeat of its registrations ends with it."""
    before = asyncio.all_tasks()
    await ann.queue.publish(TOPIC, numbered(1), producer="shop")
    assert asyncio.all_tasks() != before
    await ann.queue.aclose()
    assert asyncio.all_tasks() == before
    with ann.client.counting() as requests:
        await world.later(1000)
    assert not requests


async def test_a_topics_record_is_read_once_a_minute(world: World, ann: Process) -> None:
    """Its settings change seldom: they are read again after a minute, or at once in the process that changed them."""
    await world.later(61)
    with ann.client.counting() as requests:
        for _ in range(3):
            await ann.queue.publish(TOPIC, numbered(1))
    assert requests["GET"] == 1
    other = await world.process()
    await other.queue.update_topic(TOPIC, max_deliveries=1)
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"), requeue=True)
    await world.later(61)
    assert not await ann.queue.claim(TOPIC, "c")
    assert len(world.bucket.below("dead-letter/")) == 6


async def test_settings_of_a_topic_that_one_changed_hold_at_once(ann: Process) -> None:
    """A process that updates a topic does not go on with the former settings."""
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.update_topic(TOPIC, max_deliveries=1)
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"), requeue=True)
    assert not await ann.queue.claim(TOPIC, "c")


async def test_topics_do_not_know_of_each_other(world: World, ann: Process) -> None:
    """Messages, claims, dead letters and statistics of one topic are not those of another, whatever their names."""
    for topic in ("a", "a.b", "A", "a-"):
        await ann.queue.create_topic(topic)
        await ann.queue.publish(topic, [{"topic": topic}, {"topic": topic}])
        claim = await ann.queue.claim(topic, "c", claim_id="same", max_messages=1)
        await ann.queue.nack(claim)
    for topic in ("a", "a.b", "A", "a-"):
        stats = await ann.queue.stats(topic)
        assert (stats.pending, stats.dead, stats.strangers) == (1, 1, 0)
        assert [message.payload for message in await ann.queue.claim(topic, "c")] == [{"topic": topic}]


async def test_a_topic_made_anew_begins_anew(world: World, ann: Process) -> None:
    """What was remembered of a topic is forgotten with it, in the process that deleted it."""
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.ack(await ann.queue.claim(TOPIC, "c", claim_id="run"))
    await ann.queue.delete_topic(TOPIC)
    with pytest.raises(TopicNotFoundError):
        await ann.queue.claim(TOPIC, "c")
    await ann.queue.create_topic(TOPIC)
    await ann.queue.publish(TOPIC, numbered(1, 7))
    assert numbers(await ann.queue.claim(TOPIC, "c", claim_id="run")) == [7]


async def test_a_topic_with_a_key_prefix_of_anothers_name(world: World, ann: Process) -> None:
    """``delete_topic`` deletes nothing of a topic whose name begins alike."""
    await ann.queue.create_topic("a")
    await ann.queue.create_topic("ab")
    await ann.queue.publish("ab", numbered(1))
    await ann.queue.delete_topic("a")
    assert len(await ann.queue.claim("ab", "c")) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda queue, _: queue.claim(TOPIC, "c", ttl=0),
        lambda queue, _: queue.claim(TOPIC, "c", max_messages=0),
        lambda queue, claim: queue.nack(claim, requeue=True, delay=-1),
        lambda queue, _: queue.redrive(TOPIC, max_messages=0),
        lambda queue, _: queue.peek(TOPIC, 0),
        lambda queue, _: queue.attach({}),
        lambda queue, _: queue.update_topic(TOPIC, max_deliveries=0),
        lambda queue, _: queue.update_topic(TOPIC, nonsense=1),
        lambda queue, _: queue.register_producer(""),
    ],
)
async def test_errors_can_be_caught_as_one_and_sent_elsewhere(ann: Process, wrong: Callable[..., Any]) -> None:
    """All are PawnQueueErrors, and go to another process and back."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    with pytest.raises(PawnQueueError) as caught:
        await wrong(ann.queue, claim)
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert (type(again), str(again)) == (type(caught.value), str(caught.value))


async def test_the_cost_of_a_life(world: World, ann: Process) -> None:
    """A message in a batch of a hundred costs 3.1 requests from publish to ack, all included."""
    with ann.client.counting() as requests:
        for start in range(0, 1000, 100):
            await ann.queue.publish(TOPIC, numbered(100, start))
            assert (await ann.queue.ack(await ann.queue.claim(TOPIC, "c", max_messages=100))).complete
    assert sum(requests.values()) / 1000 <= 3.1
    assert world.bucket.below("messages/") == world.bucket.below("leases/") == []
