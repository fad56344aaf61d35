"""What a cancellation must not cut: a write that was sent, work that must not be left half done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from pawnqueue.runtime.concurrency import first_of

if TYPE_CHECKING:
    from pawnqueue.runtime.clock import Clock

B = TypeVar("B")

#: How often work is begun that a loop, as it ends, cancels over its caller's head.
BEGINNINGS = 3
#: How often work is cancelled that is to end now: each level of it may wait for another one.
CUTS = 50


async def uncut(work: Awaitable[B], clock: Clock, at_most: float) -> B:
    """Await the work to its end, also where the caller is cancelled meanwhile: the cancellation is raised after it.

    A write that was sent may land, whether or not somebody waits for it: who is to know what it did has to hear its
    answer. Whoever is cancelled waits for that no longer than ``at_most`` seconds, and a second cancellation cuts it.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await first_of(task, clock, at_most)
        elif not task.cancelled():
            task.exception()  # it was heard of: the cancellation is what is raised
        raise


async def cut_after(work: Coroutine[Any, Any, None], clock: Clock, seconds: float) -> bool:
    """Await the work for at most this many seconds, and then cut it off, whatever it waits for.

    Returns whether it came to its end. A cancellation of the caller cuts it off at once.
    """
    task = asyncio.ensure_future(work)
    try:
        if await first_of(asyncio.shield(task), clock, seconds):
            task.result()
            return True
        return False
    finally:
        # Work that is cancelled once may wait for what it has sent (:func:`uncut`), and is cut by another one.
        for _ in range(CUTS):
            if task.done():
                break
            task.cancel()
            await asyncio.sleep(0)
        if task.done() and not task.cancelled():
            task.exception()  # it is heard of


async def in_full(work: Callable[[], Coroutine[Any, Any, B]]) -> B:
    """Do the work to its end, however often the caller is cancelled meanwhile: the cancellation is raised after it.

    For what must not be left half done. A loop that ends cancels the work itself too: it is begun once more then.
    """
    cancelled = False
    begun = 0
    while True:
        task = asyncio.ensure_future(work())
        begun += 1
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError:
                cancelled = True
        if not task.cancelled() or begun == BEGINNINGS:
            break
    if cancelled and not task.cancelled():
        task.exception()  # it is heard of: the cancellation is what is raised
        raise asyncio.CancelledError
    return task.result()
