"""SIGTERM and SIGINT while a worker runs: the first drains, the second ends it at once, and handlers are restored."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest

from pawnqueue import MemoryStore, Message, PawnQueue
from tests.pawnqueue.listening.working import until
from tests.pawnqueue.virtual import TOPIC, numbered

BOTH = (signal.SIGTERM, signal.SIGINT)


def _of_the_program(_number: int, _frame: object) -> None:
    """Stand in for a handler that the program has set itself."""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[list[Any]]:
    """The program has handlers of its own, which are there afterwards too."""
    before = [signal.signal(number, _of_the_program) for number in BOTH]
    yield before
    assert [signal.getsignal(number) for number in BOTH] == [_of_the_program, _of_the_program]
    for number, handler in zip(BOTH, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture
async def queue() -> AsyncGenerator[PawnQueue]:
    """A queue with three messages in it."""
    async with PawnQueue.open(store=MemoryStore()) as queue:
        await queue.publish(TOPIC, numbered(3), create=True)
        yield queue


@pytest.mark.parametrize("number", BOTH)
async def test_the_first_signal_drains(queue: PawnQueue, number: int) -> None:
    """The handler that runs finishes; the rest is given back, and the call returns."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        begun.set()
        await go_on.wait()

    listening = asyncio.create_task(queue.listen(TOPIC, handle, consumer="c", concurrency=1))
    await begun.wait()
    assert signal.getsignal(number) is not _of_the_program
    signal.raise_signal(number)
    await until(lambda: queue.is_draining)
    go_on.set()
    report = await listening
    assert report.acked == 1
    stats = await queue.stats(TOPIC)
    assert (stats.pending, stats.in_flight) == (2, 0)
    assert set(report.given_back) <= {message.id for message in await queue.peek(TOPIC)}


async def test_a_second_signal_ends_it_at_once(queue: PawnQueue) -> None:
    """The handler that runs is cancelled, and its message given back."""
    begun = asyncio.Event()

    async def handle(message: Message) -> None:
        begun.set()
        await asyncio.Event().wait()

    listening = asyncio.create_task(queue.listen(TOPIC, handle, consumer="c", concurrency=1, drain_timeout=3600))
    await begun.wait()
    signal.raise_signal(signal.SIGTERM)
    await until(lambda: queue.is_draining)
    signal.raise_signal(signal.SIGTERM)
    report = await listening
    assert report.acked == 0
    assert len(report.given_back) >= 1
    assert (await queue.stats(TOPIC)).in_flight == 0


async def test_one_signal_ends_all_workers_of_a_process(queue: PawnQueue) -> None:
    """Two of one queue, and one of another: none of them takes it for a second one."""
    async with PawnQueue.open(store=MemoryStore()) as other:
        await other.create_topic(TOPIC)
        handled: list[str] = []

        async def handle(message: Message) -> None:
            handled.append(message.id)

        tasks = [
            asyncio.create_task(each.listen(TOPIC, handle, consumer="c", drain_timeout=3600))
            for each in (queue, queue, other)
        ]
        await until(lambda: len(handled) == 3)
        signal.raise_signal(signal.SIGTERM)
        reports = await asyncio.gather(*tasks)
        assert sum(report.acked for report in reports) == 3
        assert queue._signals == other._signals == 1


async def test_handlers_may_be_left_alone(queue: PawnQueue) -> None:
    """handle_signals=False installs nothing."""
    begun = asyncio.Event()

    async def handle(message: Message) -> None:
        begun.set()

    listening = asyncio.create_task(queue.listen(TOPIC, handle, consumer="c", handle_signals=False))
    await begun.wait()
    assert [signal.getsignal(number) for number in BOTH] == [_of_the_program, _of_the_program]
    await queue.drain(5)
    await listening


async def test_nothing_is_installed_beside_the_main_thread() -> None:
    """Python handles signals in the main thread alone."""
    seen: list[object] = []

    async def listen() -> None:
        async with PawnQueue.open(store=MemoryStore()) as queue:
            await queue.publish(TOPIC, numbered(1), create=True)

            async def handle(message: Message) -> None:
                seen.extend(signal.getsignal(number) for number in BOTH)
                asyncio.get_running_loop().call_soon(lambda: drains.append(asyncio.ensure_future(queue.drain(5))))

            drains: list[object] = []
            assert (await queue.listen(TOPIC, handle, consumer="c")).acked == 1

    thread = threading.Thread(target=lambda: asyncio.run(listen()))
    thread.start()
    await asyncio.to_thread(thread.join)
    assert seen == [_of_the_program, _of_the_program]


async def test_a_handler_that_is_set_meanwhile_stays(queue: PawnQueue) -> None:
    """Only the worker's own handler is replaced at the end."""

    def later(_number: int, _frame: object) -> None:
        """Be set while the worker runs."""

    async def handle(message: Message) -> None:
        signal.signal(signal.SIGTERM, later)
        draining.append(asyncio.ensure_future(queue.drain(5)))

    draining: list[object] = []
    await queue.listen(TOPIC, handle, consumer="c", concurrency=1)
    assert signal.getsignal(signal.SIGTERM) is later
    signal.signal(signal.SIGTERM, _of_the_program)


def test_on_another_event_loop() -> None:
    """A signal drains on uvloop too."""
    uvloop = pytest.importorskip("uvloop")

    async def listen() -> int:
        async with PawnQueue.open(store=MemoryStore()) as queue:
            await queue.publish(TOPIC, numbered(1), create=True)

            async def handle(message: Message) -> None:
                signal.raise_signal(signal.SIGTERM)

            return (await queue.listen(TOPIC, handle, consumer="c")).acked

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(listen()) == 1
