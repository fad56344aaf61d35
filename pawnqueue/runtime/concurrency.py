"""Run many requests at once, within a bound; none outlives its caller, and none is made twice at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Hashable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from pawnqueue.runtime.clock import Clock

A = TypeVar("A")
B = TypeVar("B")


async def for_each(function: Callable[[A], Awaitable[B]], items: Iterable[A], *, at_once: int) -> list[B]:
    """Call the function for every item, ``at_once`` of them at a time, and return the results in the items' order.

    The first error ends the others and is raised.
    """
    waiting = list(enumerate(items))
    if len(waiting) == 1:  # common, and not worth a task
        return [await function(waiting[0][1])]
    waiting.reverse()
    results: dict[int, B] = {}

    async def work() -> None:
        while waiting:
            position, item = waiting.pop()
            results[position] = await function(item)

    await all_of(*(work() for _ in range(min(at_once, len(waiting)))))
    return [results[position] for position in range(len(results))]


async def for_each_within(  # noqa: PLR0913 - what is done, and for how long
    function: Callable[[A], Awaitable[B]],
    items: Iterable[A],
    *,
    at_once: int,
    clock: Clock,
    seconds: float,
    late: Callable[[A], B],
) -> list[B]:
    """Do as :func:`for_each`, but for at most these seconds: what is not done by then is cancelled.

    :param late: gives the result of an item that was cancelled.
    """
    wanted = list(items)
    results: dict[int, B] = {}

    async def keep(position: int) -> None:
        results[position] = await function(wanted[position])

    work = asyncio.ensure_future(for_each(keep, range(len(wanted)), at_once=at_once))
    if await wait_at_most(work, clock, seconds):
        work.result()
    return [results[position] if position in results else late(item) for position, item in enumerate(wanted)]


async def all_of(*work: Awaitable[Any]) -> list[Any]:
    """Await all of them at once, and return their results in order. The first error ends the others and is raised.

    When this returns or raises, none of them runs any more: that is what ``asyncio.gather`` does not promise.
    """
    tasks = [asyncio.ensure_future(awaitable) for awaitable in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def wait_at_most(work: Awaitable[Any], clock: Clock, seconds: float) -> bool:
    """Wait for the work for at most these seconds, and return whether it is done. Otherwise it is cancelled."""
    task = asyncio.ensure_future(work)
    alarm = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait((task, alarm), return_when=asyncio.FIRST_COMPLETED)
        return task.done()
    finally:
        task.cancel()
        alarm.cancel()
        await asyncio.gather(task, alarm, return_exceptions=True)


class ByteBudget:
    """Bounds how many bytes are in flight at once. An object larger than the bound is in flight alone."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = 0
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def reserve(self, size: int) -> AsyncGenerator[None]:
        """Wait until there is room for this many bytes, and keep it for the block."""
        if not size:
            yield
            return
        while self._used and self._used + size > self._most:
            self._freed.clear()
            await self._freed.wait()
        self._used += size
        try:
            yield
        finally:
            self._used -= size
            self._freed.set()


class _SharedTask(Generic[B]):
    def __init__(self, task: asyncio.Task[B]) -> None:
        self.task = task
        self.waiters = 0


class SharedWork(Generic[A, B]):
    """Does work that many callers ask for at the same time once, for all of them, by its key.

    A caller that is cancelled leaves the work to the others. When nobody waits for it any more, it is cancelled.
    """

    def __init__(self) -> None:
        self._tasks: dict[Hashable, _SharedTask[B]] = {}

    def is_running(self, key: A) -> bool:
        """Say whether the work with this key is being done at the moment."""
        return key in self._tasks

    async def do(self, key: A, work: Callable[[], Coroutine[Any, Any, B]]) -> B:
        """Start the work, or wait for the same work of another caller. Return what it returns, or raise its error."""
        shared = self._tasks.get(key)
        if shared is None:
            shared = self._tasks[key] = _SharedTask(asyncio.ensure_future(work()))
            shared.task.add_done_callback(lambda _: self._remove(key, shared))
        shared.waiters += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiters -= 1
            if not shared.waiters and not shared.task.done():
                self._remove(key, shared)
                shared.task.cancel()
                await asyncio.wait((shared.task,))

    def stop_sharing(self, key: A) -> None:
        """Start the work anew for the next caller, beside the work that is running now."""
        self._tasks.pop(key, None)

    def _remove(self, key: A, shared: _SharedTask[B] | None) -> None:
        if self._tasks.get(key) is shared:
            del self._tasks[key]
