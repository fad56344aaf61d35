"""Many requests at once, but not too many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


async def each(function: Callable[[A], Awaitable[B]], items: Iterable[A], *, at_once: int) -> list[B]:
    """Call the function for every item, ``at_once`` of them at a time, and return the results in the items' order.

    The first error ends the others and is raised.
    """
    waiting = list(enumerate(items))
    waiting.reverse()
    results: dict[int, B] = {}

    async def work() -> None:
        while waiting:
            position, item = waiting.pop()
            results[position] = await function(item)

    workers = [asyncio.ensure_future(work()) for _ in range(min(at_once, len(waiting)))]
    try:
        await asyncio.gather(*workers)
    except BaseException:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        raise
    return [results[position] for position in range(len(results))]
