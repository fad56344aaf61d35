"""A synchronous worker: its handlers run in threads of their own, and ask whether their work is still wanted."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import (
    BuryMessage,
    HandedMessage,
    InvalidArgumentError,
    Listened,
    MemoryStore,
    Message,
    QueueDrainedError,
    SyncPawnQueue,
)
from pawnqueue.listening.handlers import HandlerThreads
from tests.pawnqueue.virtual import TOPIC, numbered

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 30.0


@pytest.fixture
def store() -> MemoryStore:
    """What the queue is on."""
    return MemoryStore()


@pytest.fixture
def queue(store: MemoryStore) -> Iterator[SyncPawnQueue]:
    """A queue with a topic."""
    with SyncPawnQueue.open(store=store) as queue:
        queue.create_topic(TOPIC)
        yield queue


class Beside(threading.Thread):
    """A worker in a thread of its own."""

    def __init__(self, queue: SyncPawnQueue, handler: Callable[[HandedMessage], object], **more: Any) -> None:
        super().__init__(daemon=True)
        self._listen = lambda: queue.listen(TOPIC, handler, consumer="c", **more)
        self.report: Listened | None = None
        self.start()

    def run(self) -> None:
        """Listen."""
        self.report = self._listen()

    def ended(self) -> Listened:
        """Wait for its end, and return its report."""
        self.join(SECONDS)
        assert self.report is not None
        return self.report


def test_handlers_run_in_a_bounded_number_of_threads(queue: SyncPawnQueue) -> None:
    """And not in the one of the queue's event loop."""
    queue.publish(TOPIC, numbered(12))
    names: set[str] = set()
    together, done = threading.Barrier(3), threading.Semaphore(0)

    def handle(message: Message) -> None:
        names.add(threading.current_thread().name)
        together.wait(SECONDS)  # three run at the same time
        done.release()

    worker = Beside(queue, handle, concurrency=3)
    for _ in range(12):
        assert done.acquire(timeout=SECONDS)
    assert queue.drain(SECONDS).complete
    report = worker.ended()
    assert report.acked == 12
    assert len(names) == 3
    assert queue.is_draining
    assert queue.stats(TOPIC).pending == 0


def test_a_handler_has_the_context_variables_of_its_worker(queue: SyncPawnQueue) -> None:
    """Each handler has a copy: what one sets, no other one sees."""
    variable: ContextVar[str] = ContextVar("variable", default="none")
    queue.publish(TOPIC, numbered(2))
    seen: list[str] = []
    done = threading.Semaphore(0)

    def handle(_message: Message) -> None:
        seen.append(variable.get())
        variable.set("a handler's")
        done.release()

    class InContext(Beside):
        def run(self) -> None:
            variable.set("the worker's")
            super().run()

    worker = InContext(queue, handle, concurrency=1)
    for _ in range(2):
        assert done.acquire(timeout=SECONDS)
    queue.drain(SECONDS)
    worker.ended()
    assert seen == ["the worker's"] * 2


def test_a_handler_may_use_the_queue(queue: SyncPawnQueue) -> None:
    """It publishes from its thread, and what it raises decides about its message."""
    queue.create_topic("answers")
    queue.publish(TOPIC, numbered(3))
    done = threading.Semaphore(0)

    def handle(message: Message) -> None:
        try:
            if message.payload["n"] == 0:
                raise BuryMessage("no answer")
            if message.payload["n"] == 1 and message.deliveries == 1:
                raise ValueError("once more")
            queue.publish("answers", [message.payload])
        finally:
            done.release()

    worker = Beside(queue, handle, retry=0)
    for _ in range(4):
        assert done.acquire(timeout=SECONDS)
    queue.drain(SECONDS)
    report = worker.ended()
    assert (report.acked, report.requeued, report.buried) == (2, 1, 1)
    assert queue.stats("answers").pending == 2
    assert [letter.reason for letter in queue.dead_letters(TOPIC)] == ["no answer"]


def test_a_handler_asks_whether_its_message_was_lost(queue: SyncPawnQueue) -> None:
    """Its result does not count then: the message is given back, although it returns."""
    queue.publish(TOPIC, numbered(1))
    begun, lost = threading.Event(), threading.Event()

    def handle(message: HandedMessage) -> None:
        begun.set()
        if message.lost.wait(SECONDS):
            lost.set()

    worker = Beside(queue, handle)
    assert begun.wait(SECONDS)
    drained = queue.drain(1.0)
    assert lost.wait(SECONDS)
    report = worker.ended()
    assert report.acked == 0
    assert drained.given_back == report.given_back
    assert len(report.given_back) == 1
    assert queue.stats(TOPIC).pending == 1


def test_a_handler_that_hangs_does_not_keep_the_program(queue: SyncPawnQueue) -> None:
    """The call returns in time, and its thread is a daemon's."""
    queue.publish(TOPIC, numbered(1))
    begun, end = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def handle(message: Message) -> None:
        threads.append(threading.current_thread())
        begun.set()
        end.wait()

    worker = Beside(queue, handle)
    assert begun.wait(SECONDS)
    drained = queue.drain(1.0)
    assert len(worker.ended().given_back) == len(drained.given_back) == 1
    assert threads[0].is_alive()
    assert threads[0].daemon
    end.set()


def test_an_exit_in_a_handler_is_its_failure(queue: SyncPawnQueue) -> None:
    """SystemExit in a thread ends neither the queue nor the program."""
    queue.publish(TOPIC, numbered(1))
    done = threading.Semaphore(0)

    def handle(message: Message) -> None:
        done.release()
        if message.deliveries == 1:
            raise SystemExit(3)

    worker = Beside(queue, handle, retry=0)
    for _ in range(2):
        assert done.acquire(timeout=SECONDS)
    queue.drain(SECONDS)
    report = worker.ended()
    assert (report.acked, report.requeued) == (1, 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_it_in_the_main_thread(queue: SyncPawnQueue, number: signal.Signals) -> None:
    """The handler finishes, the rest is given back, and the handlers of signals are restored."""
    queue.publish(TOPIC, numbered(4))
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    begun: list[int] = []

    def handle(message: Message) -> None:
        if not begun:
            os.kill(os.getpid(), number)
            while not queue.is_draining:
                threading.Event().wait(0.001)
        begun.append(message.payload["n"])

    report = queue.listen(TOPIC, handle, consumer="c", concurrency=1)
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before
    assert report.acked == len(begun) == 1
    stats = queue.stats(TOPIC)
    assert (stats.pending, stats.in_flight) == (3, 0)


def test_a_drained_queue_claims_nothing(queue: SyncPawnQueue) -> None:
    """Nor listens. It can be closed, and used for all else."""
    queue.publish(TOPIC, numbered(1))
    assert not queue.is_draining
    assert queue.drain(0).complete
    with pytest.raises(QueueDrainedError):
        queue.claim([TOPIC], "c")
    with pytest.raises(QueueDrainedError):
        queue.listen(TOPIC, print, consumer="c")
    assert queue.stats(TOPIC).pending == 1


async def _asynchronous(message: Message) -> None:
    """Do nothing."""


def _yields(message: Message) -> Iterator[Message]:
    """Be a generator."""
    yield message


async def _yields_later(message: Message) -> AsyncIterator[Message]:
    """Be an asynchronous generator."""
    yield message


class _Yielding:
    """An object that can be called, with a generator as its function."""

    def __call__(self, message: Message) -> Iterator[Message]:
        """Be a generator."""
        yield message


class _Awaitable:
    """An object that can be awaited, and is no coroutine."""

    def __init__(self, _message: Message) -> None:
        pass

    def __await__(self) -> Iterator[None]:
        """Wait for nothing."""
        return iter(())


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"handler": _asynchronous}, "takes a plain function of one message, not the async function _asynchronous"),
        ({"handler": _yields}, "_yields has a `yield` in it"),
        ({"handler": _Yielding()}, "of type _Yielding has a `yield` in it"),
        ({"handler": None}, "takes a plain function"),
        ({"handler": lambda: None}, "is called with one message, and does not take that"),
        ({"topics": ()}, "was given no topic"),
        ({"concurrency": 0}, "concurrency is a whole number"),
        ({"handle_signals": "yes"}, "handle_signals is True or False"),
        ({"drain_timeout": "soon"}, "drain_timeout is a number of seconds"),
        ({"ttl": 0}, "ttl=0"),
    ],
)
def test_wrong_arguments_are_refused(queue: SyncPawnQueue, wrong: dict[str, Any], sentence: str) -> None:
    """In one sentence, before anything is claimed."""
    queue.publish(TOPIC, numbered(1))
    given: dict[str, Any] = {"topics": TOPIC, "handler": print, "consumer": "c", **wrong}
    with pytest.raises(InvalidArgumentError, match=sentence):
        queue.listen(given.pop("topics"), given.pop("handler"), **given)
    assert queue.stats(TOPIC).in_flight == 0


@pytest.mark.parametrize(
    ("work", "problem"),
    [
        (_asynchronous, "nobody awaits"),
        (_Awaitable, "nobody awaits"),
        (_yields, "nobody iterates over"),
        (_yields_later, "nobody iterates over"),
    ],
)
def test_a_function_that_returns_its_work_undone_is_no_handler(
    queue: SyncPawnQueue, store: MemoryStore, work: Callable[[Message], object], problem: str
) -> None:
    """Its messages fail, with a sentence that says why."""
    queue.update_topic(TOPIC, max_deliveries=1)
    queue.publish(TOPIC, numbered(1))
    called = threading.Semaphore(0)

    def handle(message: Message) -> object:
        called.release()
        return work(message)

    worker = Beside(queue, handle, retry=0)
    assert called.acquire(timeout=SECONDS)
    queue.drain(SECONDS)
    assert worker.ended().requeued == 1
    with SyncPawnQueue.open(store=store) as other:  # it has no deliveries left
        assert not other.claim(TOPIC, "c")
        [letter] = other.dead_letters(TOPIC)
    assert problem in letter.error


def test_a_handed_message_is_a_message() -> None:
    """A copy of it for another process or thread is a plain one."""
    plain = Message("id", TOPIC, "", datetime.now(UTC), {"n": 1}, headers={"h": "x"}, deliveries=2, unit="u")
    handed = HandedMessage.of(plain)
    assert isinstance(handed, Message)
    assert not handed.lost.is_set()
    assert (handed.id, handed.payload, handed.deliveries, handed.unit) == ("id", {"n": 1}, 2, "u")
    assert pickle.loads(pickle.dumps(handed)) == copy.copy(handed) == copy.deepcopy(handed) == plain  # noqa: S301


def test_threads_end_with_the_worker() -> None:
    """None of them is left."""
    threads = HandlerThreads(print, 3)
    threads._threads = [threading.Thread(target=threads._run, daemon=True) for _ in range(3)]
    for thread in threads._threads:
        thread.start()
    threads.end()
    for thread in threads._threads:
        thread.join(SECONDS)
        assert not thread.is_alive()


class _Unshowable(SystemExit):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize("error", [StopIteration, _Unshowable])
def test_whatever_a_handler_raises_is_a_failure(
    queue: SyncPawnQueue, store: MemoryStore, error: type[BaseException]
) -> None:
    """Its message comes again, and becomes a dead letter at its limit: no exception leaves the worker waiting."""
    queue.update_topic(TOPIC, max_deliveries=2)
    queue.publish(TOPIC, numbered(1))
    raised = threading.Semaphore(0)

    def handle(_message: Message) -> None:
        raised.release()
        raise error

    worker = Beside(queue, handle, retry=0.0)
    for _ in range(2):
        assert raised.acquire(timeout=SECONDS)
    assert queue.drain(SECONDS).complete
    assert worker.ended().requeued == 2
    with SyncPawnQueue.open(store=store) as other:
        assert not other.claim(TOPIC, "c")
    [letter] = queue.dead_letters(TOPIC)
    assert letter.reason == "HandlerExitError"
    assert letter.error.startswith(error.__name__)
