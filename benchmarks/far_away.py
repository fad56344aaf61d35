"""A store that is far away: what is sent to it, and what it answers, is on its way for a while.

It passes bytes on, and reads none of them: a proxy that understands HTTP spends more on a request than a client does,
and would be what is measured.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from tools.kit.servers import S3Server

HOST = "127.0.0.1"


@contextmanager
def far_away(server: S3Server, seconds: float) -> Iterator[S3Server]:
    """Put this delay between a store and its clients, there and back; in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    relay = context.Process(target=_relay, args=(server.endpoint, seconds / 2, theirs), daemon=True)
    relay.start()
    try:
        if not ours.poll(30):
            message = "the relay did not start"
            raise RuntimeError(message)
        yield replace(server, endpoint=ours.recv())
    finally:
        relay.terminate()
        relay.join()


def _relay(upstream: str, one_way: float, told: Connection) -> None:
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(upstream, one_way, told))


async def _serve(upstream: str, one_way: float, told: Connection) -> None:
    loop = asyncio.get_running_loop()
    place = urlsplit(upstream)
    far = await loop.create_server(lambda: Near(str(place.hostname), place.port or 80, one_way), HOST, 0, backlog=2048)
    told.send(f"http://{HOST}:{far.sockets[0].getsockname()[1]}")
    await far.serve_forever()


class End(asyncio.Protocol):
    """One end of a connection: what comes in here leaves at the other end, later."""

    def __init__(self, one_way: float) -> None:
        self._one_way = one_way
        self._loop = asyncio.get_running_loop()
        self.other: End | None = None
        self.transport: asyncio.Transport | None = None
        self.early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - of a TCP connection
        self.transport = transport
        for data in self.early:
            transport.write(data)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self._loop.call_later(self._one_way, self._pass_on, data)

    def connection_lost(self, _: Exception | None) -> None:
        """See asyncio."""
        self._loop.call_later(self._one_way, self._hang_up)

    def _pass_on(self, data: bytes) -> None:
        if self.other is None:
            return
        if self.other.transport is None:
            self.other.early.append(data)
        else:
            self.other.transport.write(data)

    def _hang_up(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class Near(End):
    """The end of the client; with it the other one begins."""

    def __init__(self, host: str, port: int, one_way: float) -> None:
        super().__init__(one_way)
        self._place = host, port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        super().connection_made(transport)
        self.other = far = End(self._one_way)
        far.other = self
        self._connecting = self._loop.create_task(self._loop.create_connection(lambda: far, *self._place))
