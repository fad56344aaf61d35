"""Many requests at once, but not too many; none that runs on behind its caller; none that is made twice at once."""

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


async def for_each_in_time(  # noqa: PLR0913 - what is done, and for how long
    function: Callable[[A], Awaitable[B]],
    items: Iterable[A],
    *,
    at_once: int,
    clock: Clock,
    seconds: float,
    late: Callable[[A], B],
) -> list[B]:
    """Do as :func:`each`, but for no longer than this: what has not come by then is cut off, and called late."""
    wanted = list(items)
    results: dict[int, B] = {}

    async def keep(position: int) -> None:
        results[position] = await function(wanted[position])

    work = asyncio.ensure_future(for_each(keep, range(len(wanted)), at_once=at_once))
    if await first_of(work, clock, seconds):
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


async def first_of(work: Awaitable[Any], clock: Clock, at_most: float) -> bool:
    """Wait until the work is done, but no longer than this, and return whether it is. What is not is cancelled."""
    task = asyncio.ensure_future(work)
    alarm = asyncio.ensure_future(clock.sleep(at_most))
    try:
        await asyncio.wait((task, alarm), return_when=asyncio.FIRST_COMPLETED)
        return task.done()
    finally:
        task.cancel()
        alarm.cancel()
        await asyncio.gather(task, alarm, return_exceptions=True)


class ByteBudget:
    """Bounds how many bytes are under way at once. What is larger by itself is under way alone."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._used = 0
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncGenerator[None]:
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


class _Errand(Generic[B]):
    def __init__(self, task: asyncio.Task[B]) -> None:
        self.task = task
        self.waiting = 0


class Shared(Generic[A, B]):
    """Work that many ask for at once is done once, for all of them: whoever comes while it is under way shares it.

    Who is cancelled leaves the others to it; when nobody waits for it any more, it is ended.
    """

    def __init__(self) -> None:
        self._errands: dict[Hashable, _Errand[B]] = {}

    def is_under_way(self, key: A) -> bool:
        """Say whether somebody does it at the moment."""
        return key in self._errands

    async def do(self, key: A, work: Callable[[], Coroutine[Any, Any, B]]) -> B:
        """Do the work that has this key, or wait for who does it; return what it returns, or raise what it raises."""
        errand = self._errands.get(key)
        if errand is None:
            errand = self._errands[key] = _Errand(asyncio.ensure_future(work()))
            errand.task.add_done_callback(lambda _: self._forget(key, errand))
        errand.waiting += 1
        try:
            return await asyncio.shield(errand.task)
        finally:
            errand.waiting -= 1
            if not errand.waiting and not errand.task.done():
                self._forget(key, errand)
                errand.task.cancel()
                await asyncio.wait((errand.task,))

    def begin_anew(self, key: A) -> None:
        """Have who asks from now on not share what has begun."""
        self._errands.pop(key, None)

    def _forget(self, key: A, errand: _Errand[B] | None) -> None:
        if self._errands.get(key) is errand:
            del self._errands[key]
