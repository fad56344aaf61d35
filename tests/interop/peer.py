"""The published pawn-queue library as a child process. Runs in an environment of its own, and knows nothing of ours.

One JSON object a line comes in, ``{"do": "poll", ...}``, and one goes out, ``{"done": ...}`` or ``{"failed": "..."}``.
In between, a call that has to stop says ``{"stopped": key}`` and goes on after ``{"do": "go"}``. The process ends
with its standard input, in the middle of whatever it does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from datetime import timedelta
from typing import Any

import pawn_queue.lease
from pawn_queue import PawnQueue, PawnQueueBuilder
from pawn_queue.utils import utcnow


class Peer:
    """One queue at a time, its consumers, and the messages that they were given."""

    def __init__(self, commands: asyncio.Queue[dict[str, Any]]) -> None:
        self._commands = commands
        self._queue: Any = None
        self._consumers: dict[tuple[str, str], Any] = {}
        self._messages: dict[str, Any] = {}

    async def serve(self) -> None:
        """Do what is asked, one thing after the other."""
        while True:
            command = await self._commands.get()
            try:
                done = await getattr(self, f"do_{command.pop('do')}")(**command)
            except Exception as error:  # noqa: BLE001 - whatever the library raises is the answer
                say({"failed": f"{type(error).__name__}: {error}"})
            else:
                say({"done": done})

    async def do_open(
        self, config: dict[str, Any] | str | None = None, environment: dict[str, str] | None = None
    ) -> dict[str, Any]:
        """Open a queue by a dict, the path of a file, or the environment alone; return what it is configured with."""
        if self._queue is not None:
            await self._queue.teardown()
        self._consumers, self._messages = {}, {}
        await self.do_set_clock(0)
        os.environ.update(environment or {})
        try:
            self._queue = await (
                PawnQueueBuilder().from_env().build() if config is None else PawnQueue.from_config(config)
            )
        finally:
            for name in environment or {}:
                del os.environ[name]
        await self._queue.setup()
        settings = self._queue._config
        return {**settings.model_dump(), "strategy": settings.effective_strategy()}

    async def do_create_topic(self, topic: str) -> None:
        """Create a topic."""
        await self._queue.create_topic(topic)

    async def do_topics(self) -> list[str]:
        """List all topics."""
        return await self._queue.list_topics()

    async def do_register(self, role: str, name: str) -> str:
        """Register somebody and return the id."""
        return (await self._queue.registry.register(role, name)).entity_id

    async def do_registered(self, role: str) -> list[dict[str, str]]:
        """List everyone who is registered."""
        return [entry.to_dict() for entry in await self._queue.registry.list(role)]

    async def do_publish(self, topic: str, producer: str, payloads: list[dict[str, Any]]) -> list[str]:
        """Publish messages one after the other, and return their ids."""
        registered = await self._queue.register_producer(producer)
        return [await registered.publish(topic, payload) for payload in payloads]

    async def do_poll(
        self, topic: str, consumer: str, most: int = 10, stop_before: tuple[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """Poll once and keep what came. ``stop_before``: which call of the S3 client, on a key with what in it."""
        self._queue._config.polling.max_messages_per_poll = most
        polling = await self._consumer(topic, consumer)
        if stop_before is not None:
            self._stop_once(*stop_before)
        messages = await polling.poll()
        self._messages.update((message.id, message) for message in messages)
        return [message.to_dict() for message in messages]

    async def do_listen(self, topic: str, consumer: str, count: int, *, fail: bool = False) -> list[str]:
        """Listen until this number of messages came, which are acked, or met by an exception; return their ids."""
        came: list[str] = []
        enough = asyncio.Event()

        async def handle(message: Any) -> None:
            came.append(message.id)
            if len(came) >= count:
                enough.set()
            if fail:
                raise RuntimeError("the handler failed")
            await message.ack()

        listener = await self._consumer(topic, consumer)
        listening = asyncio.ensure_future(listener.listen(handle))
        await enough.wait()
        while listener._active_leases:  # noqa: ASYNC110 - the library has no event for it
            await asyncio.sleep(0.01)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        return came

    async def do_ack(self, ids: list[str]) -> None:
        """Ack messages that came before."""
        for one in ids:
            await self._messages.pop(one).ack()

    async def do_nack(self, ids: list[str]) -> None:
        """Nack messages that came before: to the dead letters."""
        for one in ids:
            await self._messages.pop(one).nack()

    async def do_refresh(self, topic: str, consumer: str) -> None:
        """Refresh all leases of the consumer, as its background task does at every interval."""
        refreshing = await self._consumer(topic, consumer)
        for of, lease in list(refreshing._active_leases.values()):
            await refreshing._lease_manager.refresh(of, lease)

    async def do_set_clock(self, ahead: float) -> None:
        """Let the library believe that it is some seconds later."""
        pawn_queue.lease.utcnow = lambda: utcnow() + timedelta(seconds=ahead)

    async def _consumer(self, topic: str, name: str) -> Any:
        known = self._consumers.get((topic, name))
        if known is None:
            known = self._consumers[topic, name] = await self._queue.register_consumer(name, topics=[topic])
        return known

    def _stop_once(self, call: str, fragment: str) -> None:
        client = self._queue._client
        original = getattr(client, call)

        async def stopping(key: str, *arguments: Any, **options: Any) -> Any:
            if fragment in key:
                delattr(client, call)
                say({"stopped": key})
                await self._commands.get()
            return await original(key, *arguments, **options)

        setattr(client, call, stopping)


def say(answer: dict[str, Any]) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def main() -> None:
    """Serve until standard input ends."""
    commands: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(commands.put_nowait, json.loads(line))
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    await Peer(commands).serve()


asyncio.run(main())
