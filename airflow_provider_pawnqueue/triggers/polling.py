"""One poll for all that wait for a topic in this process, however many they are.

Whoever waits is given its turn in the order in which it came. Only the first is looked for: if there is nothing for it,
there is nothing for those behind it either. An idle topic costs one look every ``polling.interval_seconds``.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from airflow_provider_pawnqueue.engine import ClaimBusyError, PawnQueueError, StoreError
from airflow_provider_pawnqueue.hooks import claiming

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine import Backlog, PawnQueue
    from airflow_provider_pawnqueue.hooks.claiming import Wish

logger = logging.getLogger(__name__)

#: The pause after a look that found something, or after somebody came; it doubles while there is nothing.
FIRST_PAUSE: Final = 0.5
#: The same while the store does not answer, at most.
LONGEST_PAUSE: Final = 30.0


@dataclass(eq=False, slots=True)
class _Waiter:
    """Somebody who waits for a claim."""

    wish: Wish
    given: asyncio.Future[dict[str, Any]]
    is_new: bool = True  # nobody has looked yet whether its claim is there
    is_known: bool = False  # it is: whatever there is, this one is had by its id
    busy_until: float = 0.0  # by the loop's time: somebody else works for its claim


@dataclass(eq=False, slots=True)
class _Bell:
    """Somebody who wants to hear that there is something."""

    at_least: int
    heard: asyncio.Queue[Backlog | PawnQueueError] = field(default_factory=asyncio.Queue)


class Poll:
    """That of a topic. It runs in the loop of its queue, while anybody waits."""

    def __init__(self, queue: PawnQueue, topic: str) -> None:
        self._queue = queue
        self._topic = topic
        self._waiters: list[_Waiter] = []
        self._bells: list[_Bell] = []
        self._came = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def wait_for(self, wish: Wish) -> dict[str, Any]:
        """Wait for a claim, and return its reference as XCom carries it."""
        waiter = _Waiter(wish, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self._wake()
        try:
            return await waiter.given
        finally:
            # ⚑ by identity: of a task that was cleared, two wait for a moment, and the one that goes is the old one
            self._waiters = [other for other in self._waiters if other is not waiter]

    @asynccontextmanager
    async def bell(self, at_least: int = 1) -> AsyncIterator[asyncio.Queue[Backlog | PawnQueueError]]:
        """Hear of each look that finds so many messages."""
        bell = _Bell(at_least)
        self._bells.append(bell)
        self._wake()
        try:
            yield bell.heard
        finally:
            self._bells = [other for other in self._bells if other is not bell]

    def _wake(self) -> None:
        self._came.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=f"pawnqueue-poll-{self._topic}")

    async def _run(self) -> None:
        pause = FIRST_PAUSE
        while self._waiters or self._bells:
            self._came.clear()
            longest = max(self._queue.settings.polling.interval_seconds, FIRST_PAUSE)
            try:
                found = await self._look()
            except StoreError as error:
                if not error.transient:
                    self._fail(error)
                    continue
                logger.warning("Topic %s is looked at again, as the store did not answer: %s", self._topic, error)
                found, longest = False, LONGEST_PAUSE
            except PawnQueueError as error:
                self._fail(error)
                continue
            except Exception as error:
                logger.exception("The poll of topic %s failed.", self._topic)
                self._fail(PawnQueueError(f"The poll of topic {self._topic!r} failed: {error!r}.", topic=self._topic))
                continue
            pause = FIRST_PAUSE if found else min(pause * 2, longest)
            if self._waiters or self._bells:
                pause = await self._rest(pause)

    async def _rest(self, pause: float) -> float:
        """Wait until it is time to look again, and say how long the next pause is to be doubled from."""
        await asyncio.sleep(FIRST_PAUSE / 2)  # those who come together are looked for together
        left = pause - FIRST_PAUSE / 2 + random.uniform(0, 0.1)  # noqa: S311 - against looking in step, no secret
        try:
            await asyncio.wait_for(self._came.wait(), max(0.0, left))
        except TimeoutError:
            return pause
        return FIRST_PAUSE

    async def _look(self) -> bool:
        """Give what there is to whom it belongs; return whether there was anything."""
        await self._find_old_claims()
        backlog: Backlog | None = None
        found = False
        if self._bells or any(waiter.wish.min_messages > 1 for waiter in self._waiters):
            at_least = max([bell.at_least for bell in self._bells] + [one.wish.min_messages for one in self._waiters])
            backlog = await self._queue.backlog(self._topic, at_least=at_least)
            self._ring(backlog)
        now = asyncio.get_running_loop().time()
        for waiter in list(self._waiters):
            if waiter.given.done() or waiter.busy_until > now:
                continue
            if not waiter.is_known and not claiming.is_worth_it(waiter.wish, backlog):
                continue
            given = await self._give(waiter)
            found = found or given
            if not given and not waiter.is_known and not waiter.busy_until:
                break  # there is nothing, for nobody
        return found

    async def _find_old_claims(self) -> None:
        """Find out, by one LIST for all who are new here, whose claim is there from before a restart."""
        new = [waiter for waiter in self._waiters if waiter.is_new]
        if not new:
            return
        known = await self._queue.known_claims(self._topic, {waiter.wish.claim_id for waiter in new})
        for waiter in new:
            waiter.is_new, waiter.is_known = False, waiter.wish.claim_id in known

    async def _give(self, waiter: _Waiter) -> bool:
        try:
            claim = await claiming.claimed(self._queue, waiter.wish)
        except ClaimBusyError as busy:
            logger.info("Task %s waits: %s", waiter.wish.owner, busy)
            waiter.busy_until = asyncio.get_running_loop().time() + min(busy.retry_after, LONGEST_PAUSE) + FIRST_PAUSE
            waiter.is_known = True
            return False
        waiter.busy_until = 0.0
        waiter.is_known = False  # if it had ended, it is one like any other now
        if not claim:
            return False
        if waiter.given.done():  # it was cancelled meanwhile
            await self._queue.nack(claim, requeue=True, reason="nobody waits for it any more")
            return True
        reference = await claiming.handed_over(self._queue, claim)
        if not waiter.given.done():
            waiter.given.set_result(reference)
        return True

    def _ring(self, backlog: Backlog) -> None:
        for bell in self._bells:
            if backlog.pending >= bell.at_least:
                bell.heard.put_nowait(backlog)

    def _fail(self, error: PawnQueueError) -> None:
        """Tell all who wait what only a person can mend."""
        for waiter in self._waiters:
            if not waiter.given.done():
                waiter.given.set_exception(error)
        self._waiters = []
        for bell in self._bells:
            bell.heard.put_nowait(error)
        self._bells = []


#: Those of each queue of this process, by topic.
_POLLS: Final[WeakKeyDictionary[PawnQueue, dict[str, Poll]]] = WeakKeyDictionary()


def poll_of(queue: PawnQueue, topic: str) -> Poll:
    """Return the one poll of a topic. Called in the loop of the queue."""
    return _POLLS.setdefault(queue, {}).setdefault(topic, Poll(queue, topic))
