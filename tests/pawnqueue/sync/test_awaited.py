"""SyncPawnQueue for callers in another event loop: they await, their loop goes on, and a cancellation cancels."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from pawnqueue import LeaseLostError, MemoryStore, PawnQueue, QueueClosedError, SyncPawnQueue
from pawnqueue.domain import layout
from pawnqueue.domain.records import BucketRecord
from tests.pawnqueue.virtual import numbered, numbers
from tools.kit.stores import Answer, CarryOut, HookedStore, Request

TOPIC = "orders"


class Slow(HookedStore):
    """A store whose requests can be made to wait, in the loop that makes them."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.seconds = 0.0
        self.waiting = threading.Event()

    async def answer(self, request: Request, carry_out: CarryOut) -> Answer:
        """Wait first."""
        if self.seconds:
            self.waiting.set()
            await asyncio.sleep(self.seconds)
        return await carry_out()


@pytest.fixture
def slow() -> Slow:
    """A bucket that was opened before."""
    made = MemoryStore()
    made._write(layout.BUCKET_RECORD, BucketRecord(strategy="conditional_write").encode())
    return Slow(made)


@pytest.fixture
async def queue(slow: Slow) -> AsyncIterator[SyncPawnQueue]:
    """A queue with a topic."""
    queue = await asyncio.to_thread(SyncPawnQueue.open, store=slow, registry={"register_consumers": False})
    await queue.awaited(lambda queue: queue.create_topic(TOPIC))
    yield queue
    slow.seconds = 0.0
    await asyncio.to_thread(queue.close)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pawnqueue")]


async def ticks(seconds: float, task: asyncio.Future[Any]) -> int:
    """Count how often this loop has its turn until the task is done."""
    count = 0
    while not task.done():
        await asyncio.sleep(seconds)
        count += 1
    return count


async def test_what_is_done_comes_back(queue: SyncPawnQueue) -> None:
    """Results and errors are those of the queue; several may be under way at once."""
    ids = await queue.awaited(lambda queue: queue.publish(TOPIC, numbered(3)))
    claim = await queue.awaited(lambda queue: queue.claim(TOPIC, "c"))
    assert (claim.ids, numbers(claim)) == (ids, [0, 1, 2])
    with pytest.raises(LeaseLostError):
        await queue.awaited(lambda queue: queue.attach({**claim.hand_over().to_dict(), "claim_id": "nobody"}))
    found = await asyncio.gather(*(queue.awaited(lambda queue: queue.stats(TOPIC)) for _ in range(20)))
    assert {stats.in_flight for stats in found} == {3}
    assert await queue.awaited(_twice) == 2


async def _twice(queue: PawnQueue) -> int:
    return len([await queue.list_topics(), await queue.list_topics()])


async def test_the_callers_loop_goes_on(queue: SyncPawnQueue, slow: Slow) -> None:
    """However long the store takes."""
    slow.seconds = 0.3
    task = asyncio.ensure_future(queue.awaited(lambda queue: queue.list_topics()))
    assert await ticks(0.01, task) >= 10
    assert task.result() == [TOPIC]


async def test_a_cancellation_cancels_the_work(queue: SyncPawnQueue, slow: Slow) -> None:
    """It is raised when the work has ended, and what a claim had won by then is given back."""
    await queue.awaited(lambda queue: queue.publish(TOPIC, numbered(2)))
    slow.seconds = 0.1
    task = asyncio.ensure_future(queue.awaited(lambda queue: queue.claim(TOPIC, "c", wait=60)))
    await asyncio.to_thread(slow.waiting.wait, 5)
    await asyncio.sleep(0.15)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    slow.seconds = 0.0
    assert len(asyncio.all_tasks(queue._loop._loop)) == 1
    assert len(await queue.awaited(lambda queue: queue.claim(TOPIC, "d", wait=15))) == 2


async def test_a_timeout_of_the_caller_ends_the_call(queue: SyncPawnQueue) -> None:
    """``asyncio.timeout`` around a claim that waits raises TimeoutError."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await queue.awaited(lambda queue: queue.claim(TOPIC, "c", wait=60))
    assert len(asyncio.all_tasks(queue._loop._loop)) == 1


async def test_a_second_cancellation_does_not_wait(queue: SyncPawnQueue) -> None:
    """Work that ignores its cancellation goes on alone, and its result is dropped."""
    begun, go_on = threading.Event(), threading.Event()

    async def stubborn(_: PawnQueue) -> None:
        begun.set()
        while not go_on.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    task = asyncio.ensure_future(queue.awaited(stubborn))
    await asyncio.to_thread(begun.wait, 5)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0.05)
    assert task.cancelled()
    go_on.set()


@pytest.mark.parametrize("by_id", [True, False])
@pytest.mark.parametrize("twice", [True, False])
async def test_a_claim_whose_caller_was_cancelled_is_given_back(
    queue: SyncPawnQueue,
    *,
    by_id: bool,
    twice: bool,
) -> None:
    """The claim was made although its caller was cancelled: the next call, by its id or not, need not wait for it."""
    await queue.awaited(lambda queue: queue.publish(TOPIC, numbered(2)))
    named: dict[str, Any] = {"claim_id": "run"} if by_id else {}
    made = threading.Event()

    async def claim(queue: PawnQueue) -> object:
        claim = await queue.claim(TOPIC, "c", **named)
        made.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(5)
        return claim

    task = asyncio.ensure_future(queue.awaited(claim))
    await asyncio.to_thread(made.wait, 5)
    task.cancel()
    if twice:
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    if twice:
        await asyncio.sleep(0.3)
    again = await queue.awaited(lambda queue: queue.claim(TOPIC, "c", **named))
    assert numbers(again) == [0, 1]


async def test_a_closed_queue_says_so(slow: Slow) -> None:
    """It raises before the work starts."""
    queue = await asyncio.to_thread(SyncPawnQueue.open, store=slow)
    await asyncio.to_thread(queue.close)
    with pytest.raises(QueueClosedError):
        await queue.awaited(lambda queue: queue.list_topics())


async def test_closing_ends_what_is_awaited(slow: Slow) -> None:
    """A caller that awaits a call gets QueueClosedError, not a cancellation."""
    queue = await asyncio.to_thread(SyncPawnQueue.open, store=slow)
    slow.seconds = 30
    task = asyncio.ensure_future(queue.awaited(lambda queue: queue.list_topics()))
    await asyncio.to_thread(slow.waiting.wait, 5)
    await asyncio.to_thread(queue.close)
    with pytest.raises(QueueClosedError):
        await task


async def test_what_ends_the_program_there_is_raised_here(queue: SyncPawnQueue) -> None:
    """And the queue goes on for others."""

    async def end(_: PawnQueue) -> None:
        raise SystemExit(3)

    async def caught() -> object:
        try:
            await queue.awaited(end)
        except SystemExit as error:
            return error.code
        return None

    assert await caught() == 3
    assert await queue.awaited(lambda queue: queue.list_topics()) == [TOPIC]


async def test_its_own_loop_may_await_it_too(queue: SyncPawnQueue) -> None:
    """It does not wait for itself."""

    async def inside(_: PawnQueue) -> list[str]:
        return await queue.awaited(lambda queue: queue.list_topics())

    assert await queue.awaited(inside) == [TOPIC]


def test_loops_of_several_threads_share_it(slow: Slow) -> None:
    """Each has its own results."""

    async def use(number: int) -> list[str]:
        return await queue.awaited(lambda queue: queue.publish(TOPIC, numbered(1, number), create=True))

    with SyncPawnQueue.open(store=slow) as queue:
        threads = [threading.Thread(target=lambda n=n: asyncio.run(use(n))) for n in range(8)]  # type: ignore[misc]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert sorted(numbers(queue.peek(TOPIC))) == list(range(8))


async def test_it_is_opened_anew_without_blocking_the_caller(queue: SyncPawnQueue, slow: Slow) -> None:
    """In a forked child a new loop is started in a thread, while the caller's loop goes on."""
    old = queue._loop
    old.pid = os.getpid() + 1
    slow.seconds = 0.2
    task = asyncio.ensure_future(queue.awaited(lambda queue: queue.list_topics()))
    assert await ticks(0.01, task) >= 10
    assert task.result() == [TOPIC]
    assert queue._loop is not old
    await asyncio.to_thread(old.stop)


@pytest.mark.slow
def test_a_forked_child_has_a_loop_of_its_own() -> None:
    """It awaits in a loop of its own what its parent opened."""
    program = """
        import asyncio, os, sys
        from pawnqueue import MemoryStore, SyncPawnQueue
        queue = SyncPawnQueue.open(store=MemoryStore())
        queue.create_topic("orders")
        child = os.fork()
        if child == 0:
            made = asyncio.run(queue.awaited(lambda queue: queue.publish("orders", [{"n": 1}])))
            queue.close()
            os._exit(0 if len(made) == 1 else 1)
        _, status = os.waitpid(child, 0)
        queue.close()
        sys.exit(os.waitstatus_to_exitcode(status))
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
