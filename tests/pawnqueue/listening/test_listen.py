"""A worker: its handler's end decides about each message, its claims live as long as they are worked on."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import (
    BuryMessage,
    InvalidArgumentError,
    Message,
    PawnQueue,
    QueueDrainedError,
    RequeueMessage,
    Retry,
    TopicNotFoundError,
)
from pawnqueue import events as happened
from tests.pawnqueue.listening.working import Handling, listening
from tests.pawnqueue.virtual import TOPIC, TTL, World, numbered, numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.pawnqueue.virtual import Process


async def _nothing(message: Message) -> None:
    """Do nothing."""


@pytest.mark.parametrize("pack", [False, True])
async def test_what_is_handled_is_acked(packed_world: World, *, pack: bool) -> None:
    """Each message is given to the handler once, and is gone afterwards."""
    ann, done = await packed_world.process(), list[int]()
    await ann.queue.publish(TOPIC, numbered(120), pack=pack)
    all_done = asyncio.Event()

    async def handle(message: Message) -> None:
        done.append(message.payload["n"])
        if len(done) == 120:
            all_done.set()

    async with listening(ann, handle) as worker:
        await all_done.wait()
        drained = await ann.queue.drain(10)
        report = await worker.report()
    assert sorted(done) == list(range(120))
    assert (report.acked, report.given_back, report.left) == (120, [], [])
    assert (drained.given_back, drained.left, drained.complete) == ([], [], True)
    stats = await ann.queue.stats(TOPIC)
    assert (stats.pending, stats.in_flight, stats.dead) == (0, 0, 0)


async def test_a_message_is_acked_after_its_handler(ann: Process, world: World) -> None:
    """And not before: a process that dies has lost nothing."""
    handling = Handling()
    await ann.queue.publish(TOPIC, numbered(1))
    async with listening(ann, handling):
        await handling.until(lambda: handling.running)
        await world.later(1)
        assert (await ann.queue.stats(TOPIC)).in_flight == 1
        handling.end()
        await world.later(1)
        assert (await ann.queue.stats(TOPIC)).in_flight == 0


async def test_no_more_handlers_run_than_concurrency_says(ann: Process) -> None:
    """And as many, as long as there are messages."""
    handling = Handling()
    await ann.queue.publish(TOPIC, numbered(20))
    async with listening(ann, handling, concurrency=3):
        for ended in range(0, 18, 3):
            await handling.until(lambda ended=ended: len(handling.ended) == ended and len(handling.running) == 3)
            handling.end()
        await handling.until(lambda: len(handling.running) == 2)
        handling.end()
    assert handling.most == 3
    assert sorted(handling.ended) == list(range(20))


async def test_slow_handlers_hold_two_rounds_of_work(world: World, ann: Process, bob: Process) -> None:
    """The other messages are free for other workers."""
    handling = Handling()
    await ann.queue.publish(TOPIC, numbered(40))
    async with listening(ann, handling, concurrency=4):
        await handling.until(lambda: len(handling.running) == 4)
        await world.later(120)
        assert (await bob.queue.stats(TOPIC)).in_flight == 8
        handling.end()
        await handling.until(lambda: len(handling.running) == 4)
        await world.later(1)
        assert (await bob.queue.stats(TOPIC)).in_flight == 8


async def test_what_waits_behind_slow_handlers_is_kept(world: World, ann: Process, bob: Process) -> None:
    """Its claim is renewed for as long as it takes, and nobody else is given it."""
    handling = Handling()
    await ann.queue.publish(TOPIC, numbered(2))
    async with listening(ann, handling, concurrency=1):
        await handling.until(lambda: handling.running)
        await world.later(10 * TTL)
        assert not await bob.queue.claim(TOPIC, "other")
        handling.end()
        await handling.until(lambda: handling.numbers == [0, 1])
        await world.later(10 * TTL)
        assert not await bob.queue.claim(TOPIC, "other")
        handling.end()
    assert handling.ended == [0, 1]
    assert (await bob.queue.stats(TOPIC)).pending == 0


async def test_a_failure_gives_the_message_back(world: World, ann: Process, caplog: pytest.LogCaptureFixture) -> None:
    """It comes again, later after each delivery, and is a dead letter in the end, with the exception."""
    world.topic(max_deliveries=3)
    ann = await world.process()
    await ann.queue.publish(TOPIC, [{"n": 0, "secret": "of the payload"}])
    at: list[float] = []

    async def fail(message: Message) -> None:
        at.append(world.clock.elapsed())
        assert message.deliveries == len(at)
        raise ValueError("no such customer")

    told: list[happened.Event] = []
    ann.queue._context.events._listener = told.append
    with caplog.at_level(logging.INFO):
        async with listening(ann, fail, retry=Retry(10, factor=3, jitter=0)) as worker:
            await world.later(200)
            await ann.queue.drain(10)
            report = await worker.report()
    assert len(at) == 3
    assert 10 <= at[1] - at[0] < 20
    assert 30 <= at[2] - at[1] < 40
    [letter] = await ann.queue.dead_letters(TOPIC)
    assert (letter.reason, letter.error, letter.deliveries) == ("ValueError", "no such customer", 3)
    assert (report.requeued, report.acked) == (3, 0)
    failures = [event for event in told if isinstance(event, happened.HandlerFailed)]
    assert [(event.error, event.deliveries, event.delay) for event in failures] == [
        ("ValueError", 1, 10), ("ValueError", 2, 30), ("ValueError", 3, 90),
    ]  # fmt: skip
    assert all(event.where.startswith("test_listen.py:") for event in failures)
    assert "ValueError in test_listen.py:" in caplog.text
    assert "no such customer" not in caplog.text
    assert "of the payload" not in caplog.text


async def test_a_dead_letter_shows_no_key_of_the_store(world: World) -> None:
    """Although the exception does."""
    key = "a-key-that-nobody-may-see"
    keys = {"bucket_name": "virtual", "aws_access_key_id": "AK", "aws_secret_access_key": key}
    queue = await PawnQueue.open({"s3": keys}, store=world.bucket, clock=world.clock)
    world.topic(max_deliveries=1)
    await queue.publish(TOPIC, numbered(1))

    async def fail(message: Message) -> None:
        raise ValueError(f"signed with {key}")

    listening_ = asyncio.ensure_future(queue.listen(TOPIC, fail, consumer="c", retry=0))
    while not (letters := list(await queue.dead_letters(TOPIC))):
        await world.later(1)
    await queue.drain(5)
    await listening_
    await queue.aclose()
    assert letters[0].error == "signed with …"


async def test_a_handler_decides_by_what_it_raises(world: World, ann: Process) -> None:
    """RequeueMessage names the delay, BuryMessage the reason."""
    await ann.queue.publish(TOPIC, numbered(2))
    at: list[float] = []

    async def handle(message: Message) -> None:
        if message.payload["n"]:
            raise BuryMessage("no such parcel", "details")
        at.append(world.clock.elapsed())
        if len(at) == 1:
            raise RequeueMessage(70, reason="not yet")

    async with listening(ann, handle) as worker:
        await world.later(100)
        await ann.queue.drain(10)
        report = await worker.report()
    assert 70 <= at[1] - at[0] < 80
    [letter] = await ann.queue.dead_letters(TOPIC)
    assert (letter.reason, letter.error, letter.deliveries) == ("no such parcel", "details", 1)
    assert (report.acked, report.requeued, report.buried) == (1, 1, 1)


async def test_a_lost_claim_cancels_its_handlers(world: World, ann: Process) -> None:
    """Those that wait do not begin, and the worker goes on: it claims what it has lost like anybody else."""
    handling = Handling()
    await ann.queue.publish(TOPIC, numbered(3))
    async with listening(ann, handling, concurrency=3) as worker:
        await handling.until(lambda: len(handling.running) == 3)
        [stem] = [name.removesuffix(".json") for name in world.bucket.below("claims/")]
        world.alter(stem, state="expired")
        await handling.until(lambda: handling.cancelled == [0, 1, 2])
        await handling.until(lambda: len(handling.running) == 3)
        handling.end()
        await world.later(1)
        await ann.queue.drain(10)
        report = await worker.report()
    assert (report.acked, report.lost) == (3, 3)
    assert [message.deliveries for message in handling.given] == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("pack", [False, True])
async def test_a_settlement_finds_the_loss(
    packed_world: World, caplog: pytest.LogCaptureFixture, *, pack: bool
) -> None:
    """Before a renewal does: what is acked too late is lost, its other handlers are cancelled, and it goes on."""
    world = packed_world
    ann = await world.process()
    handling = Handling()
    await ann.queue.publish(TOPIC, numbered(3), pack=pack)
    async with listening(ann, handling, concurrency=3) as worker:
        await handling.until(lambda: len(handling.running) == 3)
        [stem] = [name.removesuffix(".json") for name in world.bucket.below("claims/")]
        world.alter(stem, state="expired")
        handling.end(1)
        await handling.until(lambda: sorted(handling.cancelled) == [0, 2])
        while len(handling.ended) < 4:  # of a pack whose claim lapsed a smaller group is taken first
            await handling.until(lambda: handling.running)
            handling.end()
            await world.later(5)
        await ann.queue.drain(20)
        report = await worker.report()
    assert (report.acked, report.lost, report.left) == (3, 3, [])
    assert "never retrieved" not in caplog.text


async def test_a_handler_that_ignores_its_cancellation_acks_nothing(world: World, ann: Process, bob: Process) -> None:
    """Its claim was lost: others decide about the message."""
    await ann.queue.publish(TOPIC, numbered(1))
    begun, ended = asyncio.Event(), asyncio.Event()

    async def stubborn(message: Message) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.set()

    async with listening(ann, stubborn) as worker:
        await begun.wait()
        [stem] = [name.removesuffix(".json") for name in world.bucket.below("claims/")]
        world.alter(stem, state="expired")
        await ended.wait()
        await ann.queue.drain(10)
        report = await worker.report()
    assert (report.acked, report.lost) == (0, 1)
    await world.later()
    assert numbers(await bob.queue.claim(TOPIC, "other")) == [0]


OUTAGE = {"retry": {"budget_seconds": 5.0}}


@pytest.mark.parametrize("seconds", [20, 300])
async def test_a_worker_lives_through_an_outage(world: World, caplog: pytest.LogCaptureFixture, seconds: float) -> None:
    """It is logged once, as is its end; what was handled meanwhile is acked, and new messages are found."""
    ann, bob = await world.process(**OUTAGE), await world.process()
    handling = Handling()
    await ann.queue.publish(TOPIC, numbered(3))
    with caplog.at_level(logging.INFO, "pawnqueue.listening"):
        async with listening(ann, handling, concurrency=5) as worker:
            await handling.until(lambda: len(handling.running) == 3)
            ann.client.inject("lost")
            await world.later(5)
            handling.end()
            await world.later(seconds)
            ann.client.heal()
            await bob.queue.publish(TOPIC, numbered(1, start=9))
            await handling.until(lambda: 9 in handling.running)
            handling.end()
            await world.later(40)
            await ann.queue.drain(10)
            report = await worker.report()
    assert caplog.text.count("cannot reach the store") == 1
    assert caplog.text.count("reaches the store again") == 1
    assert report.acked == 4
    assert (report.lost, report.left) == (0, [])
    assert (await bob.queue.stats(TOPIC)).pending == 0


async def test_what_others_have_after_an_outage_is_lost_once(world: World) -> None:
    """It was handled here, and is delivered again all the same: the report counts it."""
    ann, bob = await world.process(**OUTAGE), await world.process()
    handling = Handling()
    await ann.queue.publish(TOPIC, numbered(2))
    async with listening(ann, handling) as worker:
        await handling.until(lambda: len(handling.running) == 2)
        ann.client.inject("lost")
        handling.end(0)
        await world.later(2 * TTL)
        assert handling.cancelled == [1]
        claim = await bob.queue.claim(TOPIC, "other", wait=60)
        assert sorted(numbers(claim)) == [0, 1]
        ann.client.heal()
        await bob.queue.ack(claim)
        await world.later(60)
        await ann.queue.drain(10)
        report = await worker.report()
    assert (report.acked, report.lost, report.left) == (0, 2, [])


async def test_a_worker_starts_in_an_outage(world: World) -> None:
    """It waits for the store as it would later."""
    ann, bob = await world.process(**OUTAGE), await world.process()
    world.topic("elsewhere")
    handling = Handling()
    ann.client.inject("lost")
    async with listening(ann, handling, "elsewhere"):
        await world.later(100)
        ann.client.heal()
        await bob.queue.publish("elsewhere", numbered(1))
        await handling.until(lambda: handling.running)
        handling.end()
    assert handling.ended == [0]


async def test_what_finishes_together_is_settled_together(ann: Process) -> None:
    """A claim of many messages whose handlers do not wait is settled by one or two writes of its record."""
    await ann.queue.publish(TOPIC, numbered(100))
    done = asyncio.Event()
    left = 100

    async def handle(message: Message) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    async with listening(ann, handle, concurrency=50):
        await done.wait()
    writes = Counter(key for kind, key in ann.client.requests if kind == "PUT" and "/claims/" in key)
    # One write creates the record, and one or two settle. A third may renew it.
    assert max(writes.values()) <= 3
    assert len(writes) <= 4


async def test_claims_grow_as_long_as_handlers_wait_for_them(world: World) -> None:
    """A thousand messages of a fast handler are not claimed one by one."""
    ann = await world.process()
    ann.client.latency = 0.02
    world.fill([{"id": str(number), "payload": {"n": number}} for number in range(1000)])
    done, left = asyncio.Event(), 1000

    async def handle(message: Message) -> None:
        nonlocal left
        await world.clock.sleep(0.001)
        left -= 1
        if not left:
            done.set()

    async with listening(ann, handle, concurrency=1):
        await done.wait()
    assert len({key for kind, key in ann.client.requests if kind == "PUT" and "/claims/" in key}) < 60


async def test_an_idle_worker_costs_what_a_claim_that_waits_costs(world: World) -> None:
    """Not a request more, an hour long."""
    ann, bob = await world.process(), await world.process()
    for process in (ann, bob):
        await process.queue.claim(TOPIC, "c")
    with ann.client.counting() as listened:
        async with listening(ann, _nothing):
            await world.later(3000)
    with bob.client.counting() as waited:
        await bob.queue.claim(TOPIC, "c", wait=3000)
    assert listened["LIST"] <= waited["LIST"] + 1
    assert sum(listened.values()) <= sum(waited.values()) + 3


async def test_topics_take_turns(world: World, ann: Process) -> None:
    """No topic waits until another one is empty."""
    world.topic("parcels")
    for topic in (TOPIC, "parcels"):
        await ann.queue.publish(topic, numbered(50))
    seen: list[str] = []
    done = asyncio.Event()

    async def handle(message: Message) -> None:
        seen.append(message.topic)
        await world.clock.sleep(0.1)
        if len(seen) == 100:
            done.set()

    async with listening(ann, handle, [TOPIC, "parcels"], concurrency=2, max_messages=5):
        await done.wait()
    for first in range(0, 80, 20):
        assert set(seen[first : first + 20]) == {TOPIC, "parcels"}


async def test_a_worker_that_is_cancelled_gives_back(world: World, ann: Process, bob: Process) -> None:
    """At once, after its handlers have seen the cancellation."""
    handling = Handling()
    await ann.queue.publish(TOPIC, numbered(4))
    async with listening(ann, handling, concurrency=2) as worker:
        await handling.until(lambda: len(handling.running) == 2)
        await world.later(1)
        began = world.clock.elapsed()
        worker.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await worker.task
        assert sorted(handling.cancelled) == [0, 1]
        assert world.clock.elapsed() - began < 1
        assert sorted(numbers(await bob.queue.claim(TOPIC, "other", wait=15))) == [0, 1, 2, 3]


class Callable_:  # noqa: N801 - what a user may write
    """An object that is called asynchronously."""

    async def __call__(self, message: Message) -> None:
        """Do nothing."""

    async def method(self, message: Message) -> None:
        """Do nothing."""


@pytest.mark.parametrize("handler", [_nothing, Callable_(), Callable_().method, partial(_nothing)])
async def test_every_kind_of_async_callable_is_a_handler(world: World, ann: Process, handler: Any) -> None:  # noqa: ANN401
    """It is called with the message."""
    await ann.queue.publish(TOPIC, numbered(1))
    async with listening(ann, handler) as worker:
        await world.later(1)
        await ann.queue.drain(10)
        assert (await worker.report()).acked == 1


def _returns_a_coroutine(message: Message) -> Any:  # noqa: ANN401
    """Be a plain function all the same."""
    return _nothing(message)


async def _two(message: Message, other: object) -> None:
    """Take two."""


async def _yields(message: Message) -> Any:  # noqa: ANN401
    """Be a generator."""
    yield message


class _Yielding:
    """An object that can be called, with a generator as its function."""

    async def __call__(self, message: Message) -> Any:  # noqa: ANN401
        """Be a generator."""
        yield message


@pytest.mark.parametrize("work", [_nothing, _yields])
async def test_a_handler_that_returns_its_work_undone_fails(ann: Process, work: Callable[[Message], object]) -> None:
    """It has awaited nothing: its message comes again."""
    await ann.queue.publish(TOPIC, numbered(1))

    async def handle(message: Message) -> object:
        drains.append(asyncio.ensure_future(ann.queue.drain(5)))
        return work(message)

    drains: list[object] = []
    report = await ann.queue.listen(TOPIC, handle, consumer="c")
    assert (report.acked, report.requeued) == (0, 1)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"handler": print}, "takes an async function of one message, not the plain function print"),
        ({"handler": _returns_a_coroutine}, "takes an async function"),
        ({"handler": 7}, "takes an async function of one message, not 7"),
        ({"handler": None}, "takes an async function"),
        ({"handler": _two}, "is called with one message, and does not take that"),
        ({"handler": _yields}, "has a `yield` in it"),
        ({"handler": _Yielding()}, "of type _Yielding has a `yield` in it"),
        ({"topics": []}, "was given no topic"),
        ({"topics": "a b"}, "not a valid topic name"),
        ({"consumer": ""}, "consumer"),
        ({"concurrency": 0}, "concurrency is a whole number"),
        ({"max_messages": 0}, "max_messages is a whole number"),
        ({"max_bytes": "x"}, "max_bytes is a whole number"),
        ({"ttl": 1}, "ttl=1"),
        ({"retry": "soon"}, "retry is a number of seconds"),
        ({"handle_signals": 1}, "handle_signals is True or False"),
        ({"drain_timeout": -1}, "drain_timeout is a number of seconds"),
    ],
)
async def test_wrong_arguments_are_refused(ann: Process, wrong: dict[str, Any], sentence: str) -> None:
    """In one sentence, before anything is claimed."""
    await ann.queue.publish(TOPIC, numbered(1))
    given: dict[str, Any] = {"topics": TOPIC, "handler": _nothing, "consumer": "c", **wrong}
    with ann.client.counting() as requests, pytest.raises(InvalidArgumentError, match=sentence):
        await ann.queue.listen(given.pop("topics"), given.pop("handler"), **given)
    assert not requests


async def test_a_topic_that_does_not_exist_is_refused(ann: Process) -> None:
    """Nothing of the others is claimed."""
    with pytest.raises(TopicNotFoundError, match="nowhere"):
        await ann.queue.listen([TOPIC, "nowhere"], _nothing, consumer="c")


async def test_a_drained_queue_listens_no_more(ann: Process) -> None:
    """It claims nothing for ever."""
    await ann.queue.drain(0)
    with pytest.raises(QueueDrainedError):
        await ann.queue.listen(TOPIC, _nothing, consumer="c")


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        (Retry(1, factor=2, most=10, jitter=0), [1, 2, 4, 8, 10, 10]),
        (Retry(5, factor=1, jitter=0), [5] * 6),
        (Retry.of(7), [7] * 6),
        (Retry(60, factor=1e300, most=60, jitter=0), [60] * 6),
        (Retry(0), [0] * 6),
    ],
)
def test_a_policy_says_how_long_a_message_waits(policy: Retry, waits: list[float]) -> None:
    """By how often it was delivered."""
    assert [policy.seconds(deliveries, lambda low, _: low) for deliveries in range(1, 7)] == waits


def test_jitter_takes_a_part_off() -> None:
    """At most as much as it says."""
    policy = Retry(8, jitter=0.5)
    assert policy.seconds(1, lambda low, _: low) == 4
    assert policy.seconds(1, lambda _, high: high) == 8
    assert policy.seconds(10**6, lambda _, high: high) == 300


@pytest.mark.parametrize("wrong", [{"first": -1}, {"factor": 0.5}, {"most": "x"}, {"jitter": 2}, {"jitter": None}])
def test_a_policy_is_checked(wrong: dict[str, Any]) -> None:
    """Where it is made."""
    with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
        Retry(**wrong)


@pytest.mark.parametrize("make", [lambda: BuryMessage(" "), lambda: RequeueMessage(-1), lambda: BuryMessage(None)])
def test_what_a_handler_raises_is_checked(make: Any) -> None:  # noqa: ANN401
    """Where it is made: a dead letter has a reason."""
    with pytest.raises(InvalidArgumentError):
        make()


class _NoSuchParcel(BuryMessage):
    """A class that does not call the constructor of the one that it extends."""

    def __init__(self) -> None:
        Exception.__init__(self, "no parcel")


class _Later(RequeueMessage):
    """A class that sets what it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.delay: Any = "soon"


@pytest.mark.parametrize("error", [_NoSuchParcel, _Later])
async def test_an_exception_that_cannot_be_read_is_a_failure(
    ann: Process, world: World, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    """Its message comes again until it is a dead letter, and the next ones are handled; the log says what to do."""
    await ann.queue.update_topic(TOPIC, max_deliveries=2)
    await ann.queue.publish(TOPIC, numbered(3))
    given: list[int] = []

    async def handle(message: Message) -> None:
        given.append(message.payload["n"])
        if message.payload["n"] == 1:
            raise error

    async with listening(ann, handle, retry=1, concurrency=1) as worker:
        await world.later(600)
        stats = await ann.queue.stats(TOPIC)
        assert (await ann.queue.drain(10)).complete
        report = await worker.report()
    assert sorted(given) == [0, 1, 1, 2]
    assert (report.acked, report.requeued, report.left) == (2, 2, [])
    assert (stats.in_flight, stats.dead) == (0, 1)
    [letter] = await ann.queue.dead_letters(TOPIC)
    assert letter.reason == error.__name__
    assert caplog.text.count("let the class call super().__init__") == 2
    assert caplog.text.count(f"The handler failed on message {letter.message.id}") == 2
