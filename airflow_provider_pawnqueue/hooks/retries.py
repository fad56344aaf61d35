"""Trying again: while the store does not answer, and while another process works on a claim."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from pawnqueue import ClaimBusyError, PawnQueueError, StoreError

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: How long a task that works on a claim, or settles it, waits for the store before Airflow tries the task again.
TASK_OUTAGE_SECONDS: Final = 180.0
#: How long a trigger waits for the store. It needs no worker meanwhile.
TRIGGER_OUTAGE_SECONDS: Final = 600.0

MIN_OUTAGE_PAUSE_SECONDS, MAX_OUTAGE_PAUSE_SECONDS = 1.0, 10.0
MIN_BUSY_PAUSE_SECONDS, MAX_BUSY_PAUSE_SECONDS = 0.5, 4.0


def retry_store(work: Callable[[], T], what: str, seconds: float | None = None) -> T:
    """Do something that needs the store, and do it again while the store does not answer.

    :param what: what is done, for the log.
    :param seconds: for how long; without it, ``TASK_OUTAGE_SECONDS``.
    :raises StoreError: the store did not answer for this time, or it refused the request.
    """
    return retry(work, Outage(what, TASK_OUTAGE_SECONDS if seconds is None else seconds))


def may_succeed_later(error: StoreError) -> bool:
    """Return whether another try of a task may succeed.

    Keys and rights are mended outside of Airflow, or in the connection, while the task waits for its next try.
    """
    return error.transient or error.denied


def retry(work: Callable[[], T], wait: Outage | BusyClaim) -> T:
    """Do something until it succeeds, or until ``wait`` raises its error."""
    while True:
        try:
            return work()
        except PawnQueueError as error:
            time.sleep(wait.pause_after(error))


async def retry_async(work: Callable[[], Awaitable[T]], wait: Outage | BusyClaim) -> T:
    """Await something until it succeeds, or until ``wait`` raises its error."""
    while True:
        try:
            return await work()
        except PawnQueueError as error:
            await asyncio.sleep(wait.pause_after(error))


class Outage:
    """Waits for a store that does not answer."""

    def __init__(self, what: str, seconds: float) -> None:
        self._what = what
        self._give_up = time.monotonic() + seconds
        self._pause = MIN_OUTAGE_PAUSE_SECONDS

    def pause_after(self, error: PawnQueueError) -> float:
        """Return how many seconds to wait before the next try, or raise the error."""
        if not isinstance(error, StoreError) or not error.transient or time.monotonic() > self._give_up:
            raise error
        pause, self._pause = self._pause, min(self._pause * 2, MAX_OUTAGE_PAUSE_SECONDS)
        logger.warning("%s: the store did not answer. Next try in %.0f seconds. %s", self._what, pause, error)
        return pause


class BusyClaim:
    """Waits for a claim on which another process works.

    :param clock: the time in seconds; in an event loop, the loop's.
    :param on_first: called with the first error.
    """

    def __init__(
        self,
        seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_first: Callable[[ClaimBusyError], None] = lambda _: None,
    ) -> None:
        self._clock = clock
        self._give_up = clock() + seconds
        self._pause = MIN_BUSY_PAUSE_SECONDS
        self._on_error = on_first

    def pause_after(self, error: PawnQueueError) -> float:
        """Return how many seconds to wait before the next try, or raise the error."""
        left = self._give_up - self._clock()
        if not isinstance(error, ClaimBusyError) or left <= 0:
            raise error
        self._on_error(error)
        self._on_error = lambda _: None
        pause, self._pause = self._pause, min(self._pause * 2, MAX_BUSY_PAUSE_SECONDS)
        return min(pause, max(error.retry_after, MIN_BUSY_PAUSE_SECONDS), left)
