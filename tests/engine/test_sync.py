"""SyncPawnQueue: the same queue for callers without an event loop, from any thread, and in a forked child."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from airflow_provider_pawnqueue.engine import (
    Claim,
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
    layout,
)
from airflow_provider_pawnqueue.engine.records import BucketRecord
from tests.engine.virtual import Client, World, numbered, numbers
from tests.support.claims import trusted_until

TOPIC = "orders"

T = TypeVar("T")


def threads() -> list[str]:
    """The threads of queues."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("pawnqueue")]


def fence(store: MemoryStore, claim: Claim) -> None:
    """Let somebody end the claim."""
    record = claim._record.model_copy(update={"state": "expired"})
    store._write(layout.claim(TOPIC, record.stem), record.encode())


@pytest.fixture
def store() -> MemoryStore:
    """A bucket that was opened before."""
    made = MemoryStore()
    made._write(layout.BUCKET_RECORD, BucketRecord(strategy="conditional_write").encode())
    return made


@pytest.fixture
def queue(store: MemoryStore) -> Iterator[SyncPawnQueue]:
    """A queue with a topic; no thread is left when it is closed."""
    with SyncPawnQueue.open(store=store, registry={"register_consumers": False}) as queue:
        queue.create_topic(TOPIC)
        yield queue
    assert threads() == []


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
    """What it finds is what the asynchronous queue finds."""
    assert queue.probe().strategy == "conditional_write"


def public(kind: type) -> dict[str, Any]:
    """The public methods and properties of a class."""
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


def test_it_has_every_method_of_the_queue() -> None:
    """By the same name, with the same parameters, defaults and types, and documented as well."""
    theirs, ours = public(PawnQueue), public(SyncPawnQueue)
    assert set(theirs) - {"aclose"} == set(ours) - {"close", "awaited"}
    for name in set(ours) & set(theirs):
        twin = theirs[name]
        if not inspect.isfunction(twin):
            continue
        there, here = inspect.signature(twin), inspect.signature(ours[name])
        assert list(here.parameters.values()) == list(there.parameters.values()), name
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
    """Its lists of ids come along."""
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
    """In the thread of somebody's event loop it blocks that loop, and works."""
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
    """``.lost`` is an event of threads, which wakes who waits for it, and ``.error`` says why."""
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
    """And changes nothing: the block goes on, and so does the queue, even if it was to end the program."""
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
    """``on_lost`` runs in the loop's thread: what calls the queue there is told so."""
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
    """The block ends without an error of its own, nothing is left, and it is told that nobody keeps the claim now."""
    queue = SyncPawnQueue.open(store=store)
    queue.create_topic(TOPIC)
    queue.publish(TOPIC, numbered(1))
    claim = queue.claim(TOPIC, "c")
    with queue.keep_alive(claim) as keeper:
        queue.close()
        assert keeper.lost.is_set()
    assert "was closed" in str(keeper.error)
    assert threads() == []


def run(script: str) -> str:
    """Run a script in a process of its own, for a bounded time, and return what it printed."""
    lines = [
        "import os, signal, sys, threading, time",
        "from airflow_provider_pawnqueue.engine import MemoryStore, SyncPawnQueue, QueueClosedError, PawnQueue, layout",
        "from airflow_provider_pawnqueue.engine.records import BucketRecord",
        "def threads(): return [t.name for t in threading.enumerate() if t.name.startswith('pawnqueue')]",
        "store = MemoryStore()",
        "store._write(layout.BUCKET_RECORD, BucketRecord(strategy='conditional_write').encode())",
    ]
    program = "\n".join(lines) + "\n" + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", program], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert b"never" not in done.stderr, done.stderr.decode()
    return done.stdout.decode()


def test_it_works_in_a_forked_child() -> None:
    """The child, and a child of its own, begin anew with a loop of their own; the parent goes on as if nothing was."""
    printed = run(
        """
        queue = SyncPawnQueue.open(store=store)
        queue.create_topic("t")
        queue.publish("t", [{"n": 1}])
        def child(depth):
            pid = os.fork()
            if pid:
                assert os.waitpid(pid, 0)[1] == 0
                return
            try:
                with queue:
                    claim = queue.claim("t", f"c{depth}")
                    assert len(claim) == 1 and queue.ack(claim).complete
                    queue.publish("t", [{"n": depth}])
                    with queue.keep_alive(queue.claim("t", "k", ttl=60)):
                        pass
                    queue.publish("t", [{"n": depth}])
                    if depth < 2:
                        child(depth + 1)
                    assert len(threads()) == 1, threads()
                assert threads() == []
                try:
                    queue.stats("t")
                except QueueClosedError:
                    os._exit(0)
            finally:
                import traceback; traceback.print_exc()
                os._exit(1)
        child(1)
        assert len(queue.claim("t", "c")) == 1
        queue.close()
        print("parent", threads())
        """
    )
    assert printed.strip() == "parent []"


def test_a_claim_of_before_the_fork_is_refused() -> None:
    """Also while it was being renewed; it is handed over to the child instead, and the parent's renewal goes on."""
    printed = run(
        """
        from airflow_provider_pawnqueue.engine import InvalidArgumentError
        begun, go_on = threading.Event(), threading.Event()
        class Slow(MemoryStore):
            slow = False
            async def put(self, key, *given, **named):
                if self.slow:
                    begun.set()
                    await asyncio.to_thread(go_on.wait, 20)
                return await super().put(key, *given, **named)
        import asyncio
        store = Slow()
        store._write(layout.BUCKET_RECORD, BucketRecord(strategy='conditional_write').encode())
        queue = SyncPawnQueue.open(store=store, registry={"register_consumers": False})
        queue.create_topic("t")
        queue.publish("t", [{"n": 1}])
        claim = queue.claim("t", "c")
        store.slow = True
        renewing = threading.Thread(target=queue.renew, args=[claim])
        renewing.start()
        assert begun.wait(10)
        pid = os.fork()
        if not pid:
            signal.alarm(10)
            store.slow = False
            for use in (queue.ack, queue.nack, queue.renew, lambda claim: queue.keep_alive(claim).__enter__()):
                try:
                    use(claim)
                except InvalidArgumentError as error:
                    assert "forked" in str(error)
                else:
                    os._exit(1)
            os._exit(0 if queue.ack(queue.attach(claim.hand_over())).complete else 2)
        status = os.waitpid(pid, 0)[1]
        store.slow = False
        go_on.set()
        renewing.join(10)
        print(status, queue.ack(claim).complete)
        queue.close()
        """
    )
    assert printed.strip() == "0 True"


def test_closing_in_a_child_that_never_used_it_closes_nothing_of_the_parents() -> None:
    """The child's queue is closed, the parent's is not."""
    printed = run(
        """
        queue = SyncPawnQueue.open(store=store)
        queue.create_topic("t")
        pid = os.fork()
        if not pid:
            queue.close()
            try:
                queue.list_topics()
            except QueueClosedError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        print(queue.list_topics())
        queue.close()
        """
    )
    assert printed.strip() == "['t']"


def test_a_child_that_could_not_begin_may_try_again() -> None:
    """A store that is away when a child first uses the queue is an error then, and none later."""
    printed = run(
        """
        from airflow_provider_pawnqueue.engine import StoreError
        class Away(MemoryStore):
            away = False
            async def get(self, key):
                if self.away:
                    raise StoreError("away")
                return await super().get(key)
        store = Away()
        store._write(layout.BUCKET_RECORD, BucketRecord(strategy='conditional_write').encode())
        queue = SyncPawnQueue.open(store=store)
        queue.create_topic("t")
        pid = os.fork()
        if not pid:
            store.away = True
            for _ in range(2):
                try:
                    queue.list_topics()
                except StoreError:
                    pass
                else:
                    os._exit(1)
            assert threads() == []
            store.away = False
            os._exit(0 if queue.list_topics() == ["t"] else 1)
        assert os.waitpid(pid, 0)[1] == 0
        queue.close()
        print("good")
        """
    )
    assert printed.strip() == "good"


def test_an_interrupt_ends_a_call_and_the_queue_goes_on() -> None:
    """Ctrl-C in the middle of a call is raised in the caller, and the queue works on and closes."""
    printed = run(
        """
        queue = SyncPawnQueue.open(store=store)
        queue.create_topic("t")
        threading.Timer(0.2, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
        try:
            queue.claim("t", "c", wait=3600)
        except KeyboardInterrupt:
            print("interrupted")
        print(queue.list_topics())
        queue.close()
        print(threads())
        """
    )
    assert printed.split("\n")[:3] == ["interrupted", "['t']", "[]"]


def test_an_interrupted_close_leaves_no_thread() -> None:
    """Ctrl-C while the queue is being closed is raised, and its thread ends all the same; closing again is harmless."""
    printed = run(
        """
        import asyncio
        async def opened():
            queue = await PawnQueue.open(store=store)
            async def slow(**_):
                await asyncio.sleep(3600)
            queue.aclose = slow
            return queue
        queue = SyncPawnQueue(opened)
        threading.Timer(0.2, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
        try:
            queue.close()
        except KeyboardInterrupt:
            print("interrupted")
        queue.close()
        print(threads(), queue.closed)
        """
    )
    assert printed.split("\n")[:2] == ["interrupted", "[] True"]
