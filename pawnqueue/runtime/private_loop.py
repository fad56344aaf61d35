"""An event loop in a thread of its own, which does work for callers that wait for it, or await it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from pawnqueue.errors import PawnQueueError, QueueClosedError
from pawnqueue.events import logger_of

T = TypeVar("T")

logger = logger_of("queue")

CALLED_FROM_OWN_THREAD = (
    "A method of SyncPawnQueue was called from the thread of its own event loop (by on_lost, for example), and would "
    "wait for itself: call it from another thread."
)
_LOOP_ENDED = (
    "The thread of this SyncPawnQueue's event loop has ended, although the queue was not closed; the log says why. "
    "Open another queue. The claims of this one can be taken over when their time is over."
)


class PrivateLoop:
    """An event loop that runs in a daemon thread of this process.

    No exception in that thread ends it, as KeyboardInterrupt ends a loop in the main thread: callers would wait for
    ever for a loop that has ended, and the program would not end.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._end = asyncio.Event()
        self._ending = False
        self._is_over = False  # true also if it ended without stop()
        self._waited_for: set[concurrent.futures.Future[Any]] = set()
        self._lock = threading.Lock()  # no work is started after stop(): nobody would finish it
        self._thread = threading.Thread(target=self._run, name="pawnqueue-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work to its end, and return its result; an interrupt of the caller cancels it.

        Its exceptions are raised here, also those that end a program.
        """
        if self.is_here():
            work.close()
            raise PawnQueueError(CALLED_FROM_OWN_THREAD)
        future = self._begin(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise self._ended_error() from None  # another thread has closed the queue meanwhile
        except BaseException:
            future.cancel()
            raise

    async def awaited(self, work: Callable[[], Awaitable[T]], discard: Callable[[T], Coroutine[Any, Any, None]]) -> T:
        """Run the work here, and await its result in the event loop of the caller.

        A cancellation of the caller cancels the work, and is raised when the work has ended; a second cancellation does
        not wait for that.

        :param discard: called here with the result of work that succeeded although its caller was cancelled.
        """
        stop = asyncio.Event()
        heard = asyncio.wrap_future(self._begin(_stoppable(stop, work)))
        try:
            await asyncio.wait((heard,))
        except asyncio.CancelledError:
            # In a task of its own, which a second cancellation leaves alone.
            await asyncio.wait((asyncio.ensure_future(self._wind_up(stop, heard, discard)),))
            raise
        if heard.cancelled():
            raise self._ended_error()
        return heard.result()

    async def _wind_up(
        self, stop: asyncio.Event, heard: asyncio.Future[T], discard: Callable[[T], Coroutine[Any, Any, None]]
    ) -> None:
        with suppress(RuntimeError):  # the loop has ended, and the work with it
            self._loop.call_soon_threadsafe(stop.set)
        await asyncio.wait((heard,))
        if heard.cancelled() or heard.exception() is not None:
            return
        with suppress(PawnQueueError):  # it is being closed, which gives back what it has
            await asyncio.wait((asyncio.wrap_future(self._begin(discard(heard.result()))),))

    def _begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        with self._lock:
            if self._ending or self._is_over:
                work.close()
                raise self._ended_error()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._waited_for.add(future)
        future.add_done_callback(self._waited_for.discard)
        return future

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call back in the loop's thread, and wait for nothing: also from a handler of signals."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(callback, *arguments)

    def is_here(self) -> bool:
        """Say whether the caller is the loop's own thread, which cannot wait for itself."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """Cancel all running work, and end the loop and its thread. May be called twice."""
        with self._lock:
            self._ending = True
        with suppress(RuntimeError):  # it has already ended
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            with self._runner:  # it cancels what is still running
                self._run_until_stopped()
        except BaseException:
            logger.exception("The event loop of a SyncPawnQueue did not end in good order.")
        finally:
            for future in list(self._waited_for):  # wakes the callers that still wait
                with suppress(concurrent.futures.InvalidStateError):
                    future.set_exception(self._ended_error())

    def _run_until_stopped(self) -> None:
        try:
            while not self._end.is_set():
                try:
                    self._runner.run(self._end.wait())
                except BaseException as error:
                    if self._loop.is_closed():
                        raise
                    # It has interrupted the loop. The caller whose work raised it gets it from its own future.
                    logger.warning("%r was raised in the thread of SyncPawnQueue's event loop, which goes on.", error)
        finally:
            with self._lock:
                self._is_over = True

    def _ended_error(self) -> PawnQueueError:
        return PawnQueueError(_LOOP_ENDED) if self._is_over and not self._ending else QueueClosedError()


async def _stoppable(stop: asyncio.Event, work: Callable[[], Awaitable[T]]) -> T:
    """Do the work to its end, or cancel it when it is stopped; return or raise what comes of it."""
    task = asyncio.ensure_future(work())
    stopped = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
        return await task
    finally:
        stopped.cancel()
        task.cancel()  # needed if this coroutine was cancelled itself, as the loop ends
