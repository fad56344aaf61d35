"""Many requests at once, but not too many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")


async def each(function: Callable[[A], Awaitable[B]], items: Iterable[A], *, at_once: int) -> list[B]:
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

    await together(*(work() for _ in range(min(at_once, len(waiting)))))
    return [results[position] for position in range(len(results))]


async def together(*work: Awaitable[Any]) -> list[Any]:
    """Await all of them at once, and return their results in order. The first error ends the others and is raised.

    When this returns or raises, none of them runs any more: that is what ``asyncio.gather`` does not promise.
    """
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
