"""A store that is away for a minute fails nobody: who works, waits and settles asks again, and says so in the log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeVar

from pawnqueue import StoreError

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: For so long a task that works on a claim, or settles it, waits for the store; then it fails, and is tried again.
OF_A_TASK: Final = 180.0
#: The same of a trigger, which needs no worker for it.
OF_A_TRIGGER: Final = 600.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 10.0


def patiently(work: Callable[[], T], what: str, seconds: float | None = None) -> T:
    """Do something that needs the store; again, while it does not answer.

    :raises StoreError: it does not answer for so long, or answers that only a person can mend it.
    """
    pauses = _Pauses(what, OF_A_TASK if seconds is None else seconds)
    while True:
        try:
            return work()
        except StoreError as error:
            time.sleep(pauses.after(error))


async def awaited_patiently(work: Callable[[], Awaitable[T]], what: str, seconds: float | None = None) -> T:
    """Do the same in an event loop."""
    pauses = _Pauses(what, OF_A_TRIGGER if seconds is None else seconds)
    while True:
        try:
            return await work()
        except StoreError as error:
            await asyncio.sleep(pauses.after(error))


def may_pass(error: StoreError) -> bool:
    """Return whether another try of a task may meet a store that does what this one refused.

    Keys and rights are mended outside of Airflow, or in the connection, while the task waits for its next try.
    """
    return error.transient or error.denied


class _Pauses:
    def __init__(self, what: str, seconds: float) -> None:
        self._what = what
        self._give_up = time.monotonic() + seconds
        self._pauses = _growing()

    def after(self, error: StoreError) -> float:
        """Return how long to wait before the next attempt, or raise what the last one met."""
        if not error.transient or time.monotonic() > self._give_up:
            raise error
        pause = next(self._pauses)
        logger.warning("%s: the store did not answer, and is asked again in %.0f seconds: %s", self._what, pause, error)
        return pause


def _growing() -> Iterator[float]:
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(pause * 2, _LONGEST_PAUSE)
