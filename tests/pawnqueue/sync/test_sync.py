"""SyncPawnQueue: the same queue for callers without an event loop, from any thread."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pawnqueue import (
    ConfigError,
    InvalidArgumentError,
    InvalidPayloadError,
    LeaseLostError,
    MemoryStore,
    PawnQueue,
    PawnQueueError,
    PublishError,
    QueueClosedError,
    StoreError,
    SyncPawnQueue,
    TopicExistsError,
    TopicNotEmptyError,
    TopicNotFoundError,
)
from tests.pawnqueue.sync.around import TOPIC, fence, threads
from tests.pawnqueue.virtual import Client, World, numbered, numbers
from tests.support.claims import trusted_until
from tools import twins


def test_a_message_from_publish_to_ack(queue: SyncPawnQueue) -> None:
    """Publish, peek, claim, renew, settle and redrive do what they do in the asynchronous queue."""
    ids = queue.publish(TOPIC, numbered(5), producer="shop", headers={"h": "1"})
    assert numbers(queue.peek(TOPIC, 2)) == [0, 1]
    claim = queue.claim(TOPIC, "c", max_messages=4)
    assert claim.ids == ids[:4]
    queue.renew(claim, ttl=60)
    assert queue.ack(claim, ids[0]).acked == ids[:1]
    assert queue.nack(claim, ids[1], reason="bad").buried == ids[1:2]
    assert queue.nack(claim, ids[2], requeue=True, delay=500).released == ids[2:3]
    stats = queue.stats(TOPIC)
    assert (stats.pending, stats.in_flight, stats.delayed, stats.dead) == (1, 1, 1, 1)
    found = queue.find(TOPIC, ids[1])
    assert found is not None
    assert found.reason == "bad"
    attached = queue.attach(claim.hand_over().to_dict())
    assert attached.ids == ids[3:4]
    assert queue.ack(attached).complete
    assert queue.redrive(TOPIC).moved == ids[1:2]
    assert queue.sweep(TOPIC, dry_run=True).failures == []


def test_topics_and_registrations(queue: SyncPawnQueue) -> None:
    """Topics are made, changed, listed and deleted; producers and consumers are registered and listed."""
    assert queue.create_topic("b", max_deliveries=3).settings.max_deliveries == 3
    assert queue.update_topic("b", max_deliveries=None).settings.max_deliveries is None
    assert queue.topic("b").name == "b"
    assert queue.list_topics() == ["b", TOPIC]
    queue.publish("b", numbered(1))
    queue.delete_topic("b", force=True)
    assert queue.list_topics() == [TOPIC]
    assert queue.register_producer("p").name == "p"
    assert queue.register_consumer("c").name == "c"
    assert [entry.name for entry in queue.list_producers()] == ["p"]
    assert [entry.name for entry in queue.list_consumers()] == ["c"]
    assert queue.strategy == "conditional_write"


def test_the_store_can_be_probed_again(queue: SyncPawnQueue) -> None:
    """It finds what the asynchronous queue finds."""
    assert queue.probe().strategy == "conditional_write"


def public(kind: type) -> dict[str, Any]:
    """The public methods and properties of a class, those that it inherits too."""
    found = {name: value for base in reversed(kind.__mro__) for name, value in vars(base).items()}
    return {name: value for name, value in found.items() if not name.startswith("_")}


#: What callers need beside: their way to end it, and to have several calls made in its loop, awaited or not.
ONLY_SYNC = {"close", "run", "awaited"}


def test_its_calls_are_written_from_the_queues() -> None:
    """The file is what ``python -m tools.twins`` writes now."""
    assert twins.TARGET.read_text(encoding="utf-8") == twins.module(), "run: python -m tools.twins"


def test_it_has_every_method_of_the_queue() -> None:
    """The names, parameters, defaults, types and docstrings are the same, but for the kind of handlers."""
    theirs, ours = public(PawnQueue), public(SyncPawnQueue)
    assert set(theirs) - {"aclose"} == set(ours) - ONLY_SYNC
    for name in set(ours) & set(theirs):
        twin = theirs[name]
        if not inspect.isfunction(twin):
            continue
        there, here = inspect.signature(twin), inspect.signature(ours[name])
        typed = [str(each).replace("SyncHandler", "Handler") for each in here.parameters.values()]
        assert typed == [str(each) for each in there.parameters.values()], name
        if name != "keep_alive":  # which gives each the block of its own kind
            assert here.return_annotation == there.return_annotation, name
        assert inspect.getdoc(ours[name]) == inspect.getdoc(twin), name


ERRORS: dict[type[PawnQueueError], Callable[[SyncPawnQueue], object]] = {
    TopicNotFoundError: lambda queue: queue.claim("nowhere", "c"),
    TopicExistsError: lambda queue: queue.create_topic(TOPIC, max_deliveries=99),
    TopicNotEmptyError: lambda queue: (queue.publish(TOPIC, [{}]), queue.delete_topic(TOPIC)),
    InvalidPayloadError: lambda queue: queue.publish(TOPIC, [{"a": float("nan")}]),
    InvalidArgumentError: lambda queue: queue.claim(TOPIC, "c", ttl=0),
    LeaseLostError: lambda queue: queue.attach({"topic": TOPIC, "claim_id": "a", "generation": 0, "session": "s"}),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_keep_their_type(queue: SyncPawnQueue, kind: type[PawnQueueError]) -> None:
    """What the asynchronous queue raises is what is raised."""
    with pytest.raises(kind) as caught:
        ERRORS[kind](queue)
    assert type(caught.value) is kind


def test_a_publish_error_keeps_what_it_tells() -> None:
    """The error has the lists of ids."""
    world = World()
    client = Client(world.bucket)
    client.inject("denied", "PUT", "*/messages/*", times=1)
    with SyncPawnQueue.open(store=client) as queue, pytest.raises(PublishError) as caught:
        queue.publish(TOPIC, numbered(3))
    assert (len(caught.value.failed), len(caught.value.published)) == (1, 2)


def test_an_opening_that_fails_leaves_no_thread() -> None:
    """The error is raised, and nothing is left of the attempt."""
    client = Client(World().bucket)
    client.inject("denied")
    with pytest.raises(StoreError):
        SyncPawnQueue.open(store=client)
    with pytest.raises(ConfigError):
        SyncPawnQueue.open({"s3": {}})
    assert threads() == []


def test_it_is_used_from_several_threads(queue: SyncPawnQueue) -> None:
    """Eight threads that share it publish and consume each message once."""

    def publish(start: int) -> None:
        queue.publish(TOPIC, numbered(10, start))

    def consume(_: int) -> list[int]:
        seen: list[int] = []
        while claim := queue.claim(TOPIC, "c", max_messages=5):
            seen += numbers(claim)
            assert queue.ack(claim).complete
        return seen

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(publish, range(0, 80, 10)))
        found = [number for part in pool.map(consume, range(8)) for number in part]
    while claim := queue.claim(TOPIC, "c"):
        found += numbers(claim)
        queue.ack(claim)
    assert sorted(found) == list(range(80))
    assert threads() == ["pawnqueue-loop"]


async def test_it_works_inside_a_running_event_loop(store: MemoryStore) -> None:
    """A call in the thread of an event loop works, and blocks that loop."""
    with SyncPawnQueue.open(store=store) as queue:
        queue.create_topic(TOPIC)
        queue.publish(TOPIC, numbered(1))
        assert len(queue.claim(TOPIC, "c")) == 1
    assert asyncio.get_running_loop().is_running()
    assert threads() == []


EVERY_METHOD: dict[str, Callable[[SyncPawnQueue], object]] = {
    "probe": lambda queue: queue.probe(),
    "create_topic": lambda queue: queue.create_topic(TOPIC),
    "topic": lambda queue: queue.topic(TOPIC),
    "list_topics": lambda queue: queue.list_topics(),
    "register_producer": lambda queue: queue.register_producer("p"),
    "list_consumers": lambda queue: queue.list_consumers(),
    "publish": lambda queue: queue.publish(TOPIC, [{}]),
    "claim": lambda queue: queue.claim(TOPIC, "c"),
    "redrive": lambda queue: queue.redrive(TOPIC),
    "sweep": lambda queue: queue.sweep(TOPIC),
    "peek": lambda queue: queue.peek(TOPIC),
    "stats": lambda queue: queue.stats(TOPIC),
}


@pytest.mark.parametrize("name", EVERY_METHOD)
def test_a_closed_queue_says_so(store: MemoryStore, name: str) -> None:
    """Every method is an error then, closing it again is none, and its thread has ended."""
    queue = SyncPawnQueue.open(store=store)
    assert not queue.closed
    queue.close()
    assert queue.closed
    assert threads() == []
    with pytest.raises(QueueClosedError):
        EVERY_METHOD[name](queue)
    queue.close()


def test_a_claim_cannot_be_used_with_a_closed_queue(store: MemoryStore) -> None:
    """What was claimed stays claimed until its time is over; the queue settles and keeps nothing any more."""
    with SyncPawnQueue.open(store=store) as queue:
        queue.create_topic(TOPIC)
        queue.publish(TOPIC, numbered(1))
        claim = queue.claim(TOPIC, "c")
    for use in (queue.ack, queue.nack, queue.renew):
        with pytest.raises(QueueClosedError):
            use(claim)
    with pytest.raises(QueueClosedError), queue.keep_alive(claim):
        pass


def test_a_closed_queue_is_not_entered(store: MemoryStore) -> None:
    """The block is not begun, as with the asynchronous queue."""
    queue = SyncPawnQueue.open(store=store)
    queue.close()
    with pytest.raises(QueueClosedError), queue:
        pytest.fail("it was entered")


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy, copy.copy])
def test_a_queue_is_not_copied(queue: SyncPawnQueue, copied: Callable[[SyncPawnQueue], object]) -> None:
    """Its thread is of one process: it says what to do instead."""
    with pytest.raises(PawnQueueError, match="open one in each process"):
        copied(queue)


def test_closing_ends_what_other_threads_wait_for(store: MemoryStore) -> None:
    """A thread that waits for messages gets an error when another one closes the queue, and does not wait for ever."""
    queue = SyncPawnQueue.open(store=store)
    queue.create_topic(TOPIC)
    told: list[BaseException] = []

    def wait() -> None:
        try:
            queue.claim(TOPIC, "c", wait=3600)
        except BaseException as error:  # noqa: BLE001 - whatever it is
            told.append(error)

    waiting = [threading.Thread(target=wait) for _ in range(3)]
    for thread in waiting:
        thread.start()
    while len(asyncio.all_tasks(queue._loop._loop)) < 4:
        time.sleep(0.01)
    closing = [threading.Thread(target=queue.close) for _ in range(3)]
    for thread in closing:
        thread.start()
    for thread in waiting + closing:
        thread.join(30)
        assert not thread.is_alive()
    assert [type(error) for error in told] == [QueueClosedError] * 3
    assert threads() == []


def test_keep_alive_renews_for_the_length_of_a_block(queue: SyncPawnQueue) -> None:
    """The claim's time moves on while the block runs, and the renewals end with it."""
    queue.publish(TOPIC, numbered(1))
    claim = queue.claim(TOPIC, "c")
    before = trusted_until(claim)
    with queue.keep_alive(claim, interval=0.01) as keeper:
        while trusted_until(claim) == before:
            time.sleep(0.01)
        assert not keeper.lost.is_set()
    assert len(asyncio.all_tasks(queue._loop._loop)) == 1
    assert queue.ack(claim).complete


def test_keep_alive_tells_of_a_loss(queue: SyncPawnQueue, store: MemoryStore) -> None:
    """``on_lost`` is called once with the error, and the block's own errors come through."""
    queue.publish(TOPIC, numbered(1))
    claim = queue.claim(TOPIC, "c")
    told: list[LeaseLostError] = []
    lost = threading.Event()

    def on_lost(error: LeaseLostError) -> None:
        told.append(error)
        lost.set()

    fence(store, claim)
    with (  # noqa: PT012 - the work is in the block
        pytest.raises(ZeroDivisionError),
        queue.keep_alive(claim, on_lost=on_lost, interval=0.01) as keeper,
    ):
        assert lost.wait(30)
        assert keeper.lost.is_set()
        1 / 0  # noqa: B018 - the work
    assert len(told) == 1
    assert claim.lost


def test_a_loss_can_be_waited_for_in_any_thread(queue: SyncPawnQueue, store: MemoryStore) -> None:
    """``.lost`` is a ``threading.Event``, and ``.error`` says why."""
    queue.publish(TOPIC, numbered(1))
    claim = queue.claim(TOPIC, "c")
    with queue.keep_alive(claim, interval=0.01) as keeper, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(keeper.lost.wait, 30) for _ in range(2)]
        assert not keeper.lost.wait(0.2)
        fence(store, claim)
        assert keeper.lost.wait(30)
        assert all(one.result(30) for one in waiting)
        assert isinstance(keeper.error, LeaseLostError)


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, KeyboardInterrupt])
def test_what_on_lost_raises_is_logged(
    queue: SyncPawnQueue, store: MemoryStore, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    """The block goes on, and so does the queue, even if it is SystemExit."""
    queue.publish(TOPIC, numbered(1))
    claim = queue.claim(TOPIC, "c")

    def on_lost(_: LeaseLostError) -> None:
        raise error

    fence(store, claim)
    with queue.keep_alive(claim, on_lost=on_lost, interval=0.01) as keeper:
        assert keeper.lost.wait(30)
    assert f"on_lost of claim {claim.claim_id} failed" in caplog.text
    assert error.__name__ in caplog.text
    assert queue.list_topics() == [TOPIC]


def test_keep_alive_follows_the_claims_own_time(store: MemoryStore) -> None:
    """A short claim is kept by default, in the sync form too."""
    with SyncPawnQueue.open(store=store, claims={"margin_seconds": 0.0}) as queue:
        queue.create_topic(TOPIC)
        queue.publish(TOPIC, numbered(1))
        claim = queue.claim(TOPIC, "c", ttl=3)
        with queue.keep_alive(claim) as keeper:
            assert not keeper.lost.wait(3.5)
        assert queue.ack(claim).complete


@pytest.mark.parametrize("interval", [-1, float("nan"), 30])
def test_an_interval_that_is_none_is_refused(queue: SyncPawnQueue, interval: float) -> None:
    """As in the asynchronous queue; the block is not entered."""
    queue.publish(TOPIC, numbered(1))
    claim = queue.claim(TOPIC, "c")
    with pytest.raises(InvalidArgumentError, match="interval"), queue.keep_alive(claim, interval=interval):
        pytest.fail("it was entered")


def test_a_call_from_its_own_thread_is_an_error_and_no_deadlock(queue: SyncPawnQueue, store: MemoryStore) -> None:
    """``on_lost`` runs in the loop's thread: a call of the queue there raises an error that says so."""
    queue.publish(TOPIC, numbered(1))
    claim = queue.claim(TOPIC, "c")
    told: list[PawnQueueError] = []
    lost = threading.Event()

    def on_lost(_: LeaseLostError) -> None:
        try:
            queue.ack(claim)
        except PawnQueueError as error:
            told.append(error)
        lost.set()

    fence(store, claim)
    with queue.keep_alive(claim, on_lost=on_lost, interval=0.01):
        assert lost.wait(30)
    assert "another thread" in str(told[0])


def test_a_queue_may_be_closed_inside_a_block_that_keeps_alive(store: MemoryStore) -> None:
    """The block ends without an error of its own, nothing is left, and its error says that nobody renews the claim."""
    queue = SyncPawnQueue.open(store=store)
    queue.create_topic(TOPIC)
    queue.publish(TOPIC, numbered(1))
    claim = queue.claim(TOPIC, "c")
    with queue.keep_alive(claim) as keeper:
        queue.close()
        assert keeper.lost.is_set()
    assert "was closed" in str(keeper.error)
    assert threads() == []
