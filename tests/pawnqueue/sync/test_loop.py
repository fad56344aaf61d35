"""SyncPawnQueue and its own loop: nothing that is raised there ends it, and what users give runs in their threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from pawnqueue import (
    Claim,
    InvalidArgumentError,
    LeaseLostError,
    MemoryStore,
    NewMessage,
    PawnQueue,
    PawnQueueError,
    QueueClosedError,
    SyncPawnQueue,
    events,
)
from pawnqueue.events import Event
from pawnqueue.maintenance import OpenClaim
from tests.pawnqueue.sync.around import TOPIC, fence, threads
from tests.pawnqueue.virtual import numbered, numbers

T = TypeVar("T")


def within(work: Callable[[], T], seconds: float = 5.0) -> T:
    """Do the work in a thread of its own, and fail where it hangs; what it raises is raised here."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - whatever it is
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done.result(seconds)


EXITS = [SystemExit, KeyboardInterrupt]


@pytest.fixture
def watched(store: MemoryStore) -> Iterator[SyncPawnQueue]:
    """A queue with a topic of three messages, which is closed only if that does not hang."""
    queue = within(lambda: SyncPawnQueue.open(store=store))
    within(lambda: queue.create_topic(TOPIC))
    within(lambda: queue.publish(TOPIC, numbered(3)))
    yield queue
    within(queue.close)
    assert threads() == []


@pytest.mark.parametrize("error", EXITS)
def test_what_a_generator_raises_to_end_the_program_reaches_its_caller(
    watched: SyncPawnQueue, error: type[BaseException]
) -> None:
    """And the queue goes on for others."""

    def generator() -> Iterator[dict[str, int]]:
        yield {"n": 1}
        raise error

    with pytest.raises(error):
        within(lambda: watched.publish(TOPIC, generator()))
    assert within(watched.list_topics) == [TOPIC]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("error", EXITS)
def test_what_ask_raises_to_end_the_program_reaches_the_sweep(
    watched: SyncPawnQueue, error: type[BaseException], *, is_async: bool
) -> None:
    """It may be a function or a coroutine function. Other calls that are under way go on."""
    begun = threading.Event()

    def ask(_: OpenClaim) -> None:
        raise error

    async def ask_later(_: OpenClaim) -> None:
        raise error

    def wait() -> list[str]:
        begun.set()
        return watched.claim("later", "c", wait=20).ids

    assert within(lambda: watched.claim(TOPIC, "c", claim_id="a"))
    within(lambda: watched.create_topic("later"))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        assert begun.wait(20)
        with pytest.raises(error):
            within(lambda: watched.sweep(TOPIC, ask=ask_later if is_async else ask))
        ids = within(lambda: watched.publish("later", numbered(1)))
        assert waiting.result(20) == ids


@pytest.mark.parametrize("error", [*EXITS, asyncio.CancelledError])
def test_what_on_event_raises_is_logged(
    store: MemoryStore, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    """It changes nothing, even if it is SystemExit."""

    def on_event(_: Event) -> None:
        raise error

    queue = within(lambda: SyncPawnQueue.open(store=store, on_event=on_event))
    within(lambda: queue.create_topic(TOPIC))
    assert len(within(lambda: queue.publish(TOPIC, numbered(2)))) == 2
    within(queue.close)
    assert "on_event failed on Published" in caplog.text
    assert error.__name__ in caplog.text
    assert threads() == []


@pytest.mark.parametrize("error", EXITS)
def test_what_an_async_on_lost_raises_is_logged(
    watched: SyncPawnQueue, store: MemoryStore, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    """The block goes on, and so does the queue, as with a plain function."""

    async def on_lost(_: LeaseLostError) -> None:
        raise error

    claim = within(lambda: watched.claim(TOPIC, "c"))
    fence(store, claim)

    def work() -> None:
        with watched.keep_alive(claim, on_lost=on_lost, interval=0.01) as keeper:
            assert keeper.lost.wait(20)

    within(work)
    assert f"on_lost of claim {claim.claim_id} failed" in caplog.text
    assert error.__name__ in caplog.text
    assert within(watched.list_topics) == [TOPIC]


def test_what_is_raised_in_the_thread_of_the_loop_does_not_end_it(watched: SyncPawnQueue) -> None:
    """This holds for exceptions that belong to no call, too."""

    def end() -> None:
        raise SystemExit

    watched._loop._loop.call_soon_threadsafe(end)
    assert within(watched.list_topics) == [TOPIC]
    watched._loop._loop.call_soon_threadsafe(watched._loop._loop.stop)
    assert within(watched.list_topics) == [TOPIC]


def test_a_queue_whose_thread_is_gone_says_so(store: MemoryStore) -> None:
    """A waiting call and a later call raise errors, and closing it does not hang."""
    queue = within(lambda: SyncPawnQueue.open(store=store))
    within(lambda: queue.create_topic(TOPIC))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: queue.claim(TOPIC, "c", wait=3600))
        while len(asyncio.all_tasks(queue._loop._loop)) < 2:
            time.sleep(0.01)
        queue._loop._loop.call_soon_threadsafe(queue._loop._end.set)
        with pytest.raises(PawnQueueError, match="has ended"):
            waiting.result(20)
    for call in (queue.list_topics, queue.close):
        with pytest.raises(PawnQueueError, match="has ended"):
            within(call)
    with pytest.raises(QueueClosedError):
        within(queue.list_topics)
    assert threads() == []


def test_a_generator_runs_in_the_thread_of_its_caller(queue: SyncPawnQueue) -> None:
    """It may call the queue itself, read a cursor, and yield one dict again and again."""
    seen: set[threading.Thread] = set()

    def payloads() -> Iterator[dict[str, int]]:
        reused = {}
        for number in range(3):
            seen.add(threading.current_thread())
            assert queue.list_topics() == [TOPIC]
            reused["n"] = number
            yield reused

    ids = within(lambda: queue.publish(TOPIC, payloads(), headers={"a": "1"}))
    claim = queue.claim(TOPIC, "c")
    assert claim.ids == ids
    assert numbers(claim) == [0, 1, 2]
    assert [message.headers for message in claim] == [{"a": "1"}] * 3

    def drawn(ids: list[str]) -> Iterator[str]:
        for each in ids:
            seen.add(threading.current_thread())
            assert queue.list_topics() == [TOPIC]
            yield each

    assert within(lambda: queue.ack(claim, drawn(ids[:1]))).acked == ids[:1]
    assert within(lambda: queue.nack(claim, drawn(ids[1:]))).buried == ids[1:]
    assert len(within(lambda: queue.redrive(TOPIC, drawn(ids[1:2]))).moved) == 1
    assert "pawnqueue-loop" not in {thread.name for thread in seen}


def test_a_slow_generator_keeps_nobody_from_renewing(queue: SyncPawnQueue) -> None:
    """The queue goes on while its caller draws the payloads."""
    queue.publish(TOPIC, numbered(1))
    claim = queue.claim(TOPIC, "c")
    slow, done = threading.Event(), threading.Event()

    def payloads() -> Iterator[dict[str, int]]:
        slow.set()
        assert done.wait(5)
        yield {"n": 1}

    with ThreadPoolExecutor(1) as pool:
        published = pool.submit(queue.publish, TOPIC, payloads())
        assert slow.wait(5)
        try:
            within(lambda: queue.renew(claim), 3)
        finally:
            done.set()
        assert len(published.result(5)) == 1


WRONG: dict[str, Callable[[Any], Any]] = {
    "a dict for a list": lambda queue: queue.publish(TOPIC, {"a": 1}),
    "a number": lambda queue: queue.publish(TOPIC, 1),
    "the second": lambda queue: queue.publish(TOPIC, iter([{}, {"a": {1}}])),
    "headers": lambda queue: queue.publish(TOPIC, [], headers={"a": 1}),
    "own headers": lambda queue: queue.publish(TOPIC, [NewMessage({}, {"a": 1})]),  # type: ignore[dict-item]
    "topic": lambda queue: queue.publish("/", 1),
    "create": lambda queue: queue.publish(TOPIC, 1, create="yes"),
    "ids of letters": lambda queue: queue.redrive(TOPIC, {"a": 1}),
    "an id of letters": lambda queue: queue.redrive(TOPIC, [1]),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_wrong_iterables_are_told_of_as_in_the_asynchronous_queue(store: MemoryStore, wrong: str) -> None:
    """Both queues raise the same sentence."""
    async with PawnQueue.open(store=store) as theirs:
        await theirs.create_topic(TOPIC)
        with pytest.raises(InvalidArgumentError) as expected:
            await WRONG[wrong](theirs)
    with SyncPawnQueue.open(store=store) as ours, pytest.raises(InvalidArgumentError) as caught:
        WRONG[wrong](ours)
    assert type(caught.value) is type(expected.value)
    assert str(caught.value) == str(expected.value)


def test_a_closed_queue_draws_nothing(store: MemoryStore) -> None:
    """A generator that was passed to it was not started."""
    with SyncPawnQueue.open(store=store) as queue:
        queue.create_topic(TOPIC)
        claim = queue.claim(TOPIC, "c")
    payloads, ids = iter([{"n": 1}]), iter(["a"])
    for call in (
        lambda: queue.publish(TOPIC, payloads),
        lambda: queue.ack(claim, ids),
        lambda: queue.redrive(TOPIC, ids),
    ):
        with pytest.raises(QueueClosedError):
            call()
    assert [*payloads, *ids] == [{"n": 1}, "a"]


CLAIM_USES: dict[str, Callable[[SyncPawnQueue, Claim], object]] = {
    "ack": lambda queue, claim: queue.ack(claim),
    "nack": lambda queue, claim: queue.nack(claim),
    "requeue": lambda queue, claim: queue.requeue(claim),
    "bury": lambda queue, claim: queue.bury(claim, reason="no"),
    "renew": lambda queue, claim: queue.renew(claim),
    "keep_alive": lambda queue, claim: queue.keep_alive(claim).__enter__(),
}


@pytest.mark.parametrize("use", CLAIM_USES)
def test_a_claim_of_another_queue_is_refused(queue: SyncPawnQueue, store: MemoryStore, use: str) -> None:
    """It is handed over and attached to instead; the queue that gave it out works with it as before."""
    queue.publish(TOPIC, numbered(2))
    claim = queue.claim(TOPIC, "c")
    with SyncPawnQueue.open(store=store) as other:
        with pytest.raises(InvalidArgumentError, match="another queue"):
            within(lambda: CLAIM_USES[use](other, claim))
        assert queue.ack(claim, claim.ids[0]).complete
        assert other.ack(other.attach(claim.hand_over())).complete


async def test_a_claim_of_another_asynchronous_queue_is_refused(store: MemoryStore) -> None:
    """This holds for two queues of one event loop, too."""
    async with PawnQueue.open(store=store) as ours, PawnQueue.open(store=store) as other:
        await ours.create_topic(TOPIC)
        await ours.publish(TOPIC, numbered(1))
        claim = await ours.claim(TOPIC, "c")
        with pytest.raises(InvalidArgumentError, match="another queue"):
            await other.ack(claim)
        assert (await ours.ack(claim)).complete


def test_a_queue_is_not_closed_from_its_own_thread(store: MemoryStore) -> None:
    """A listener that closes would wait for itself: it gets an error, and the queue goes on."""
    told: list[PawnQueueError] = []

    def close(event: events.Event) -> None:
        if isinstance(event, events.TopicChanged):
            try:
                queue.close()
            except PawnQueueError as error:
                told.append(error)

    with SyncPawnQueue.open(store=store, on_event=close) as queue:
        within(lambda: queue.create_topic(TOPIC))
        assert queue.list_topics() == [TOPIC]
    assert "from the thread of its own event loop" in str(told[0])
