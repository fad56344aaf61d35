"""What a cancellation must not cut off: a write that was sent, and work that must not be left half done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from pawnqueue.runtime.concurrency import wait_at_most

if TYPE_CHECKING:
    from pawnqueue.runtime.clock import Clock

B = TypeVar("B")

#: How long a cancelled caller, or a closing queue, waits for the answer to a request that it has sent: it may land.
LAST_ANSWER_SECONDS = 5.0
#: How often work is started. An event loop that ends cancels the work itself, and not its caller alone.
MAX_STARTS = 3
#: How often work is cancelled that has to end now. Each of its levels may wait for one request more.
MAX_CANCELLATIONS = 50


async def shield_and_wait(work: Awaitable[B], clock: Clock, seconds: float = LAST_ANSWER_SECONDS) -> B:
    """Await the work to its end, even if the caller is cancelled meanwhile, and raise the cancellation afterwards.

    A write that was sent may land although its caller was cancelled, and only its answer says what it did. A cancelled
    caller waits for that for at most these seconds. A second cancellation cancels the work too.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await wait_at_most(task, clock, seconds)
        elif not task.cancelled():
            task.exception()  # marks it as retrieved: the cancellation is raised instead
        raise


async def cancel_after(work: Coroutine[Any, Any, None], clock: Clock, seconds: float) -> bool:
    """Await the work for at most this many seconds, then cancel it until it ends; return whether it was finished.

    A cancellation of the caller cancels it at once.
    """
    task = asyncio.ensure_future(work)
    try:
        if await wait_at_most(asyncio.shield(task), clock, seconds):
            task.result()
            return True
        return False
    finally:
        # Work that is cancelled once may wait for what it has sent (:func:`shield_and_wait`): the next one cuts that.
        for _ in range(MAX_CANCELLATIONS):
            if task.done():
                break
            task.cancel()
            await asyncio.sleep(0)
        if task.done() and not task.cancelled():
            task.exception()  # marks it as retrieved


async def finish_despite_cancellation(work: Callable[[], Coroutine[Any, Any, B]], *, max_starts: int = MAX_STARTS) -> B:
    """Do the work to its end, however often the caller is cancelled meanwhile, and raise the cancellation afterwards.

    For what must not be left half done. An event loop that ends cancels the work itself too: it is started again then.

    :param max_starts: how often it is started at most: 1 for a request that must not be sent twice.
    """
    cancelled = False
    starts = 0
    while True:
        task = asyncio.ensure_future(work())
        starts += 1
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError:
                cancelled = True
        if not task.cancelled() or starts == max_starts:
            break
    if cancelled and not task.cancelled():
        task.exception()  # marks it as retrieved: the cancellation is raised instead
        raise asyncio.CancelledError
    return task.result()
