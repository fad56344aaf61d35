"""Workers in tests: handlers whose ends the test decides, and workers that run beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pawnqueue import Listened, Message
from tests.pawnqueue.virtual import TOPIC

if TYPE_CHECKING:
    from pawnqueue.listening.handlers import Handler
    from tests.pawnqueue.virtual import Process


@dataclass
class Handling:
    """A handler that notes what it is given, and ends a message's work when the test says so."""

    given: list[Message] = field(default_factory=list)
    running: dict[int, asyncio.Future[None]] = field(default_factory=dict)
    cancelled: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    most: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, message: Message) -> None:
        """Work until the test ends it."""
        number = message.payload["n"]
        self.given.append(message)
        end = self.running[number] = asyncio.get_running_loop().create_future()
        self.most = max(self.most, len(self.running))
        self._changed.set()
        try:
            await end
            self.ended.append(number)
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        finally:
            del self.running[number]
            self._changed.set()

    @property
    def numbers(self) -> list[int]:
        """What it was given, in order."""
        return [message.payload["n"] for message in self.given]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until this is true, asked whenever a handler begins or ends."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def end(self, *numbers: int, error: Exception | None = None) -> None:
        """End the work on these messages, or on all; with an error if one is given."""
        for number in numbers or list(self.running):
            if error is None:
                self.running[number].set_result(None)
            else:
                self.running[number].set_exception(error)


@dataclass
class Beside:
    """A worker that runs beside the test."""

    task: asyncio.Task[Listened]

    async def report(self) -> Listened:
        """Wait for its end, and return its report."""
        return await self.task


@asynccontextmanager
async def listening(
    process: Process, handler: Handler, topics: str | list[str] = TOPIC, **more: Any
) -> AsyncGenerator[Beside]:
    """Have a process listen for the length of the block, and drain it at the end."""
    task = asyncio.ensure_future(process.queue.listen(topics, handler, consumer="worker", **more))
    try:
        yield Beside(task)
        if not task.done() and not process.queue.closed:
            await process.queue.drain(10)
            await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    """Wait until this is true, for what no event of the loop announces: a signal, or what another thread does."""
    while not condition():  # noqa: ASYNC110 - see above
        await asyncio.sleep(0)
