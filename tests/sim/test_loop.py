"""The event loop of the simulation: time is a number, order is fixed, and what never ends is an error."""

from __future__ import annotations

import asyncio
import itertools
from contextvars import copy_context
from typing import TYPE_CHECKING

import pytest

from tests.sim import loop as loop_module
from tests.sim.loop import OWNER, DeadlockError, LivelockError, SimLoop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def test_time_passes_by_jumping() -> None:
    """A day of sleeping takes no time, and ends at the very second."""
    loop = SimLoop()
    loop.run_until_complete(asyncio.sleep(86_400))
    assert loop.time() == 86_400


def test_asyncio_works() -> None:
    """Time-outs, locks, events, queues and gather do what they do anywhere."""

    async def everything() -> list[str]:
        told: list[str] = []
        lock, event = asyncio.Lock(), asyncio.Event()

        async def work(name: str, seconds: float) -> None:
            async with lock:
                await asyncio.sleep(seconds)
                told.append(name)
            await event.wait()
            told.append(name)

        async def release() -> None:
            await asyncio.sleep(10)
            event.set()

        await asyncio.gather(work("a", 3), work("b", 1), release())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(6)
        async with asyncio.timeout(5):
            await asyncio.sleep(4)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Queue[int]().get(), 0.5)
        return told

    loop = SimLoop()
    assert loop.run_until_complete(everything()) == ["a", "b", "a", "b"]
    assert loop.time() == 10 + 5 + 4 + 0.5


def test_order_is_by_time_and_then_by_age() -> None:
    """Timers of one moment run as they were set, and a cancelled one moves no time."""
    loop = SimLoop()
    told: list[int] = []
    for number, when in enumerate((2.0, 1.0, 2.0, 1.0)):
        loop.call_at(when, told.append, number)
    loop.call_at(0.5, told.append, 99).cancel()
    loop.run_until_complete(asyncio.sleep(2))
    assert told == [1, 3, 0, 2]


def test_waiting_for_nothing_is_an_error() -> None:
    """A task that waits for something that cannot come gets an error with its name, and is not left waiting."""

    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    loop = SimLoop()
    with pytest.raises(DeadlockError, match="the one"):
        loop.run_until_complete(loop.create_task(wait(), name="the one"))
    loop.abandon()


def test_going_on_for_ever_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop in which no time passes is noticed, and so is one in which it only passes."""

    async def spin(seconds: float) -> None:
        for _ in itertools.repeat(None):
            await asyncio.sleep(seconds)

    monkeypatch.setattr(loop_module, "LIVELOCK", 1000)
    for seconds, error in ((0, LivelockError), (3600, DeadlockError)):
        loop = SimLoop()
        with pytest.raises(error):
            loop.run_until_complete(spin(seconds))
        loop.abandon()


def test_threads_are_refused() -> None:
    """What would run in real time is an error."""
    loop = SimLoop()
    with pytest.raises(RuntimeError, match="no threads"):
        loop.run_until_complete(asyncio.to_thread(print))


def test_who_is_held_stands_still() -> None:
    """Of a held owner nothing runs, its children and timers neither, until its time; then all of it, in order."""
    loop = SimLoop()
    told: list[tuple[float, str]] = []

    async def tick(name: str) -> None:
        for _ in range(4):
            await asyncio.sleep(1)
            told.append((loop.time(), name))

    async def family() -> None:
        await asyncio.gather(tick("parent"), tick("child"))

    async def scenario() -> None:
        owned = copy_context()
        owned.run(OWNER.set, "a")
        loop.create_task(family(), context=owned)
        loop.create_task(tick("other"))
        await asyncio.sleep(1.5)
        loop.hold("a", 3.5)
        await asyncio.sleep(4)
        loop.hold("a")
        await asyncio.sleep(10)

    loop.run_until_complete(scenario())
    loop.abandon()
    assert [when for when, name in told if name == "other"] == [1, 2, 3, 4]
    for member in ("parent", "child"):
        assert [when for when, name in told if name == member] == [1, 3.5, 4.5]


def test_what_is_left_is_abandoned_in_silence() -> None:
    """Tasks that wait, also for what was withheld, end without noise and without time; so do generators."""
    loop = SimLoop()
    told: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            told.append("generator")

    async def leave_a_generator() -> None:
        async for _ in numbers():
            break

    async def wait() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            told.append("task")

    async def scenario() -> None:
        owned = copy_context()
        owned.run(OWNER.set, "a")
        loop.create_task(wait(), context=owned)
        loop.create_task(wait())
        await leave_a_generator()
        await asyncio.sleep(1)
        loop.hold("a")
        await asyncio.sleep(1)

    loop.run_until_complete(scenario())
    loop.abandon()
    assert told == ["generator", "task", "task"]
    assert loop.time() == 2
