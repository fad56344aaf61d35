"""Group commit: calls of publish that wait at the same time share what is put into their topic (§7)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from pawnqueue.errors import QueueClosedError
from pawnqueue.runtime.concurrency import wait_at_most

if TYPE_CHECKING:
    from pawnqueue.publish.new_messages import Checked
    from pawnqueue.runtime.clock import Clock

#: How long the next group waits for the one that is being put. A request that hangs must not hold up all others.
MAX_WAIT_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of publish, and its own outcome."""

    messages: Sequence[Checked]
    producer_id: str
    outcome: asyncio.Future[list[str]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


#: Puts the messages of some calls into the topic, and sets the outcome of each call.
Commit: TypeAlias = Callable[[str, Sequence[Call]], Awaitable[None]]


class GroupCommit:
    """Puts calls into a topic, one group after the other: what comes while a group is being put is in the next one."""

    def __init__(self, clock: Clock, linger_seconds: float, commit: Commit) -> None:
        self._clock = clock
        self._linger_seconds = linger_seconds
        self._commit = commit
        #: The calls of the next group of each topic for which a task is at work.
        self._waiting: dict[str, list[Call]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls: set[Call] = set()  # whose callers wait

    async def publish(self, topic: str, messages: Sequence[Checked], producer_id: str) -> list[str]:
        """Publish the messages with others that wait, and return their ids, or raise their own error.

        If a caller is cancelled while its messages wait, they are not published. Those of other callers are.
        """
        call = Call(messages, producer_id)
        waiting = self._waiting.get(topic)
        if waiting is not None:
            waiting.append(call)
        else:
            self._waiting[topic] = [call]
            self._start(self._put_groups(topic))
        self._calls.add(call)
        try:
            return await call.outcome
        finally:
            self._calls.discard(call)

    async def aclose(self) -> None:
        """End all that is under way. Calls that have no outcome yet raise :class:`.QueueClosedError`."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        _end(self._calls, QueueClosedError())  # a task that was cancelled before it began has ended none

    async def _put_groups(self, topic: str) -> None:
        try:
            while self._waiting[topic]:
                if self._linger_seconds:
                    await self._clock.sleep(self._linger_seconds)
                calls = [call for call in self._waiting[topic] if not call.outcome.done()]
                self._waiting[topic] = []
                if calls:
                    put = self._start(self._put(topic, calls))
                    await wait_at_most(asyncio.shield(put), self._clock, MAX_WAIT_SECONDS)
        finally:
            _end(self._waiting.pop(topic), QueueClosedError())

    async def _put(self, topic: str, calls: Sequence[Call]) -> None:
        try:
            await self._commit(topic, calls)
        except Exception as error:  # noqa: BLE001 - each caller raises it
            _end(calls, error)
        finally:
            _end(calls, QueueClosedError())

    def _start(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _end(calls: Iterable[Call], error: Exception) -> None:
    for call in calls:
        if not call.outcome.done():
            call.outcome.set_exception(error)
