"""Publish: what is in the bucket afterwards, and the caller's error when requests go wrong."""

from __future__ import annotations

import asyncio
import json
import uuid
from datetime import datetime

import pytest

from pawnqueue import (
    InvalidPayloadError,
    InvalidTopicError,
    PublishError,
    QueueClosedError,
    RetryBudgetExceededError,
    StoreError,
    TopicNotFoundError,
)
from pawnqueue.catalog import letters, units
from pawnqueue.domain import layout
from tests.pawnqueue.virtual import TOPIC, Kind, Process, World, numbered, numbers
from tools.kit.stores import Answer, CarryOut, Request


def stored(world: World, topic: str = TOPIC) -> list[dict[str, object]]:
    """The messages' bodies in LIST order."""
    names = world.bucket.below("messages/", topic=topic)
    return [json.loads(world.bucket.body(units.key_of(topic, name))) for name in names]


async def test_ids_come_in_the_order_of_the_payloads(world: World, ann: Process) -> None:
    """Each payload's id is at its place, whichever of the concurrent requests is answered first."""
    ids = await ann.queue.publish(TOPIC, numbered(100))
    by_id = {body["id"]: body["payload"] for body in stored(world)}
    assert [by_id[one] for one in ids] == numbered(100)


async def test_keys_are_in_publish_order_within_one_call(world: World, ann: Process) -> None:
    """LIST is publish order: the time in a key is strictly later than that in the one before, to the microsecond."""
    ids = await ann.queue.publish(TOPIC, numbered(2000))
    assert [body["id"] for body in stored(world)] == ids
    stamps = [name.partition("-")[0] for name in world.bucket.below("messages/")]
    assert len(set(stamps)) == len(stamps)


async def test_keys_are_in_publish_order_over_calls(world: World, ann: Process) -> None:
    """A later call sorts behind an earlier one, even within the same instant."""
    for start in range(0, 200, 10):
        await ann.queue.publish(TOPIC, numbered(10, start))
    assert [body["payload"] for body in stored(world)] == numbered(200)


async def test_a_message_is_one_put(ann: Process) -> None:
    """Publishing costs one request a message."""
    with ann.client.counting() as requests:
        await ann.queue.publish(TOPIC, numbered(50))
    assert requests == {"PUT": 50}


async def test_a_message_has_pawn_queues_fields(world: World, ann: Process) -> None:
    """What the published library reads is there as it writes it: id, topic, producer, an ISO time and the payload."""
    [one] = await ann.queue.publish(TOPIC, [{"a": 1}], producer="shop")
    [body] = stored(world)
    producer = await ann.queue.register_producer("shop")
    assert (body["id"], body["topic"], body["producer_id"], body["payload"]) == (
        one,
        TOPIC,
        producer.id,
        {"a": 1},
    )
    assert uuid.UUID(one).version == 4
    assert abs(datetime.fromisoformat(str(body["created_at"])).timestamp() - world.clock.server()) < 1
    assert str(body["created_at"]).endswith("+00:00")
    assert world.bucket.below("messages/")[0].endswith(f"-{one}.json")


async def test_headers_are_carried_to_the_consumer(ann: Process) -> None:
    """What was given as headers is what each message of the call has."""
    await ann.queue.publish(TOPIC, numbered(2), headers={"trace": "äöü", "empty": ""})
    claim = await ann.queue.claim(TOPIC, "c")
    assert [dict(message.headers) for message in claim] == [{"trace": "äöü", "empty": ""}] * 2


@pytest.mark.parametrize(
    "headers",
    [{"a": 1}, {1: "a"}, {"a": None}, ["a"], "a", {"a": b"b"}, {"a": "\ud800"}, {"\udfff": "a"}, {"a": "x" * 60_000}],
    ids=["number", "key", "None", "list", "text", "bytes", "surrogate", "surrogate key", "long"],
)
async def test_headers_that_are_no_text_are_refused(ann: Process, headers: object) -> None:
    """Headers that no consumer could be given are refused before any request is made."""
    with ann.client.counting() as requests, pytest.raises(InvalidPayloadError, match="headers"):
        await ann.queue.publish(TOPIC, numbered(1), headers=headers)  # type: ignore[arg-type]
    assert not requests


async def test_nothing_to_publish_is_no_request(ann: Process) -> None:
    """An empty list of payloads gives an empty list of ids."""
    with ann.client.counting() as requests:
        assert await ann.queue.publish(TOPIC, []) == []
    assert not requests


async def test_an_unknown_topic_is_an_error(world: World, ann: Process) -> None:
    """A message for a topic that does not exist is not published, and the error names it."""
    with pytest.raises(TopicNotFoundError, match="'nowhere'"):
        await ann.queue.publish("nowhere", numbered(1))
    assert not [key for key in world.bucket.below() if key.startswith("nowhere")]


async def test_a_topic_can_be_created_on_the_way(world: World, ann: Process) -> None:
    """With ``create=True`` the topic exists afterwards, with the message in it; doing it again changes nothing."""
    await ann.queue.publish("new", numbered(1), create=True)
    marker = world.bucket.body(layout.topic_marker("new"))
    await ann.queue.publish("new", numbered(1, 1), create=True)
    assert world.bucket.body(layout.topic_marker("new")) == marker
    assert [body["payload"] for body in stored(world, "new")] == numbered(2)


@pytest.mark.parametrize("topic", ["", "a/b", "-a", "x" * 129, "a b", None, 5], ids=repr)
async def test_a_name_that_is_none_is_refused_without_a_request(ann: Process, topic: str) -> None:
    """An invalid topic name is an error before any request is made."""
    with ann.client.counting() as requests, pytest.raises(InvalidTopicError):
        await ann.queue.publish(topic, numbered(1), create=True)
    assert not requests


async def test_a_closed_queue_publishes_nothing(ann: Process) -> None:
    """Publishing through a closed queue is an error."""
    await ann.queue.aclose()
    with ann.client.counting() as requests, pytest.raises(QueueClosedError):
        await ann.queue.publish(TOPIC, numbered(1))
    assert not requests


async def test_what_the_store_rejects_is_named_as_failed(world: World, ann: Process) -> None:
    """Of a call that fails in part, each message is said to be failed or published, and that is what the bucket has."""
    ann.client.inject("denied", "PUT", times=3, passed=2)
    with pytest.raises(PublishError, match="3 were not published") as caught:
        await ann.queue.publish(TOPIC, numbered(8))
    error = caught.value
    assert len(error.ids) == 8
    assert (len(error.failed), len(error.unknown), len(error.published)) == (3, 0, 5)
    assert sorted(error.published) == sorted(str(body["id"]) for body in stored(world))
    assert not any(fault.transient for fault in error.failed.values())
    assert error.topic == TOPIC


async def test_what_nobody_can_tell_is_named_as_unknown(world: World, ann: Process) -> None:
    """A message of which no request was ever answered is neither failed nor published."""
    names: list[str] = []

    def choose(kind: Kind, key: str) -> None:
        # Nothing about the third message is answered.
        if kind == "PUT" and "/messages/" in key and key not in names:
            names.append(key)
            if len(names) == 3:
                ann.client.inject("lost", key=f"*{key[-41:-5]}*")

    ann.client.meanwhile = choose
    with pytest.raises(PublishError, match="of 1 it is not known whether they were") as caught:
        await ann.queue.publish(TOPIC, numbered(5))
    error = caught.value
    assert list(error.unknown) == [error.ids[2]]
    assert isinstance(error.unknown[error.ids[2]], RetryBudgetExceededError)
    assert error.published == [one for one in error.ids if one != error.ids[2]]
    assert len(stored(world)) == 4


async def test_failed_and_unknown_are_told_apart_in_one_call(ann: Process) -> None:
    """One error names the rejected, the doubtful and the published messages of a call."""
    keys: list[str] = []

    def choose(kind: Kind, key: str) -> None:
        if kind == "PUT" and key not in keys:
            keys.append(key)
            if len(keys) == 1:
                ann.client.inject("denied", "PUT", key)
            elif len(keys) == 2:
                ann.client.inject("lost", "PUT", key)

    ann.client.meanwhile = choose
    with pytest.raises(PublishError) as caught:
        await ann.queue.publish(TOPIC, numbered(3))
    error = caught.value
    assert (list(error.failed), list(error.unknown), error.published) == (error.ids[:1], error.ids[1:2], error.ids[2:])


async def test_a_message_whose_answer_was_lost_is_not_sent_twice(world: World, ann: Process) -> None:
    """A PUT that landed without an answer is found by a look, and counts as published."""
    ann.client.inject("answer lost", "PUT", times=1)
    with ann.client.counting() as requests:
        [one] = await ann.queue.publish(TOPIC, numbered(1))
    assert requests == {"PUT": 1, "HEAD": 1, "GET": 2}
    assert [body["id"] for body in stored(world)] == [one]


async def test_a_message_that_did_not_arrive_is_sent_again_under_its_key(world: World, ann: Process) -> None:
    """A PUT that was lost is repeated with the same key and body, until the store has it."""
    ann.client.inject("lost", "PUT", times=3)
    [one] = await ann.queue.publish(TOPIC, numbered(1))
    sent = [key for kind, key in ann.client.requests if kind == "PUT" and "/messages/" in key]
    assert len(sent) == 4
    assert len(set(sent)) == 1
    assert [body["id"] for body in stored(world)] == [one]


@pytest.mark.parametrize("trace", ["lease", "dead letter"])
async def test_any_trace_of_a_message_says_that_it_landed(world: World, ann: Process, trace: str) -> None:
    """A message without an answer that was claimed or buried meanwhile is not sent again."""

    def gone(kind: Kind, key: str) -> None:
        if kind == "HEAD" and world.bucket.below("messages/"):
            parsed = units.parse(world.bucket.below("messages/")[0])
            assert parsed is not None
            world.bucket.remove(units.key_of(TOPIC, parsed.name))
            if trace == "lease":
                world.bucket.plant(layout.lease(TOPIC, parsed.id), {"v": 1, "key": parsed.name})
            else:
                world.bucket.plant(letters.reason_key_of(TOPIC, parsed.id), {"v": 1, "reason": "", "name": parsed.name})

    ann.client.inject("answer lost", "PUT", times=1)
    ann.client.meanwhile = gone
    await ann.queue.publish(TOPIC, numbered(1))
    assert not world.bucket.below("messages/")


async def test_a_rejection_after_doubt_is_still_doubt(ann: Process) -> None:
    """A message that may have landed is not called failed because a later attempt was rejected."""
    ann.client.inject("lost", "PUT", times=1)
    ann.client.inject("denied", "PUT")
    with pytest.raises(PublishError) as caught:
        await ann.queue.publish(TOPIC, numbered(1))
    assert list(caught.value.unknown) == caught.value.ids


async def test_a_store_that_hides_whether_it_landed_leaves_it_unknown(ann: Process) -> None:
    """If the look after a lost answer is rejected, the outcome is unknown."""
    ann.client.inject("answer lost", "PUT", times=1)
    ann.client.inject("denied", "HEAD")
    with pytest.raises(PublishError) as caught:
        await ann.queue.publish(TOPIC, numbered(1))
    assert list(caught.value.unknown) == caught.value.ids


async def test_a_producer_that_cannot_be_registered_publishes_nothing(world: World, ann: Process) -> None:
    """Without its producer's id no message is sent."""
    ann.client.inject("denied", "PUT", "_registry/*")
    with pytest.raises(StoreError):
        await ann.queue.publish(TOPIC, numbered(3), producer="shop")
    assert not stored(world)


async def test_payloads_may_be_a_generator(ann: Process) -> None:
    """Payloads are taken from anything that can be iterated over, once."""
    await ann.queue.publish(TOPIC, (one for one in numbered(5)))
    assert numbers(await ann.queue.claim(TOPIC, "c")) == [0, 1, 2, 3, 4]


# --- into a topic that was deleted ---


async def deleted(world: World, process: Process) -> None:
    """Another process deletes the topic, which this one has just used."""
    await process.queue.publish(TOPIC, numbered(1))
    await process.queue.ack(await process.queue.claim(TOPIC, "c"))
    other = await world.process()
    await other.queue.delete_topic(TOPIC)
    assert not world.bucket.below(f"{TOPIC}/")


async def test_nothing_is_published_into_a_topic_that_was_deleted(world: World, ann: Process) -> None:
    """A publisher that used it a moment ago gets an error, and what it wrote is gone; nobody relies on it any more."""
    await deleted(world, ann)
    with (
        ann.client.counting() as requests,
        pytest.raises(
            TopicNotFoundError, match=r"Topic 'orders' was deleted. Nothing was published: create it"
        ) as caught,
    ):
        await ann.queue.publish(TOPIC, numbered(50))
    assert (caught.value.topic, caught.value.operation) == (TOPIC, "publish")
    assert requests == {"PUT": 50, "HEAD": 1, "DELETE": 1}
    assert not stored(world)
    with ann.client.counting() as requests, pytest.raises(TopicNotFoundError):
        await ann.queue.publish(TOPIC, numbered(50))
    assert requests == {"GET": 1}
    await ann.queue.publish(TOPIC, numbered(2), create=True)
    assert len(stored(world)) == 2


async def test_many_who_publish_at_once_look_once(world: World, ann: Process) -> None:
    """One HEAD answers for all of them; if it says that the topic is gone, all calls raise, and nothing is left."""
    ann.client.latency = 0.02
    await world.later(30)
    with ann.client.counting() as requests:
        await asyncio.gather(*(ann.queue.publish(TOPIC, numbered(1)) for _ in range(100)))
    assert requests == {"PUT": 100, "HEAD": 1}
    await world.later(30)
    world.bucket.remove(layout.topic_marker(TOPIC))
    outcomes = await asyncio.gather(
        *(ann.queue.publish(TOPIC, numbered(1)) for _ in range(100)), return_exceptions=True
    )
    assert [type(one) for one in outcomes] == [TopicNotFoundError] * 100
    assert len(stored(world)) == 100


async def test_a_look_of_somebody_elses_does_not_withdraw_what_came_later(world: World, ann: Process) -> None:
    """Publishing after the topic was created again does not get the result of a look that began before."""
    await world.later(30)
    later: list[asyncio.Task[list[str]]] = []

    async def look_slowly(request: Request, carry_out: CarryOut) -> Answer:
        found = await carry_out()
        if request.call == "head" and not later:
            world.topic()
            later.append(asyncio.create_task(ann.queue.publish(TOPIC, numbered(1, 7))))
            await world.later(0.5)
        return found

    world.bucket.remove(layout.topic_marker(TOPIC))
    ann.client.hook = look_slowly
    with pytest.raises(TopicNotFoundError):
        await ann.queue.publish(TOPIC, numbered(1))
    assert await asyncio.gather(*later) == [[body["id"] for body in stored(world)]]


async def test_messages_that_could_not_be_withdrawn_are_told(world: World, ann: Process) -> None:
    """What may be left in a topic that was deleted is named: it is delivered if the topic is created again."""
    await deleted(world, ann)
    keys: list[str] = []

    def choose(kind: Kind, key: str) -> None:
        if kind == "PUT" and "/messages/" in key and key not in keys:
            keys.append(key)
            if len(keys) == 1:
                ann.client.inject("denied", "DELETE", key)
            elif len(keys) == 2:
                ann.client.inject("lost", key=f"*{key[-41:-5]}*")

    ann.client.meanwhile = choose
    with pytest.raises(TopicNotFoundError, match=r"Of 2 of the 5 messages .* The others were not published"):
        await ann.queue.publish(TOPIC, numbered(5))
    assert len(stored(world)) == 1


async def test_a_topic_that_cannot_be_looked_at_is_taken_for_there(
    world: World, ann: Process, caplog: pytest.LogCaptureFixture
) -> None:
    """Where nobody can tell whether it is there still, what was published is, and a warning says so."""
    await world.later(30)
    for effect in ("denied", "lost"):
        ann.client.inject(effect, "HEAD", layout.topic_marker(TOPIC))  # type: ignore[arg-type]
        began = world.clock.elapsed()
        assert len(await ann.queue.publish(TOPIC, numbered(3))) == 3
        assert world.clock.elapsed() - began < 10
        ann.client.heal()
    assert len(stored(world)) == 6
    assert caplog.text.count("It is not known whether topic 'orders' still exists") == 2


async def test_a_topic_is_looked_at_once_a_second_at_most(world: World, ann: Process) -> None:
    """However often something is published, and at once with the messages."""
    ann.client.latency = 0.02
    await world.later(30)
    began = world.clock.elapsed()
    with ann.client.counting() as requests:
        while world.clock.elapsed() - began < 10:
            await ann.queue.publish(TOPIC, numbered(1))
    assert requests["PUT"] == pytest.approx(500, abs=20)
    assert requests["HEAD"] <= 11


@pytest.mark.parametrize("after", [5.0, 5.3, 5.6])
async def test_a_publisher_that_goes_on_is_stopped_by_a_deletion(
    world: World, ann: Process, bob: Process, after: float
) -> None:
    """After ``delete_topic`` has returned nothing is published into the topic, and nothing is left in it."""
    for process in (ann, bob):
        process.client.latency = 0.02
    returned: list[float] = []
    late: list[str] = []

    async def publish() -> None:
        while True:
            began = world.clock.elapsed()
            try:
                ids = await ann.queue.publish(TOPIC, numbered(3))
            except TopicNotFoundError:
                return
            late.extend(ids if returned and began >= returned[0] else [])
            await world.later(0.01)

    publishing = asyncio.create_task(publish())
    await world.later(after)
    await bob.queue.delete_topic(TOPIC, force=True)
    returned.append(world.clock.elapsed())
    await world.later(5)
    assert publishing.done()
    await publishing
    assert late == []
    assert not world.bucket.below(f"{TOPIC}/")
