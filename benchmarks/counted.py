"""A store whose requests are counted on their way: when each was made, of which kind, and for which key.

It sits between a store and clients in other processes, which need not know of it. It reads only the
first line of each request: a client that has sent one waits for the answer, so a request begins where data does.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from benchmarks.far_away import HOST, Near

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.kit.servers import S3Server

_FIRST_LINE = re.compile(rb"(GET|HEAD|PUT|POST|DELETE) (\S+) HTTP/1\.1\r\n")


@dataclass(frozen=True, slots=True)
class Request:
    """One request. ``at`` is of the machine's clock; the key is without the bucket, of a listing its prefix."""

    at: float
    kind: str
    key: str


@dataclass
class Counted:
    """The store as its clients see it, and what they have requested."""

    server: S3Server
    requests: list[Request] = field(default_factory=list)

    def between(self, begin: float, end: float) -> list[Request]:
        """Return what was requested in a span of time."""
        return [request for request in self.requests if begin <= request.at < end]

    def kinds(self, begin: float, end: float) -> Counter[str]:
        """Count what was requested in a span of time by kind; listings by the last part of the folder's name."""
        return Counter(
            request.kind if request.kind != "LIST" else f"LIST {request.key.rstrip('/').rpartition('/')[2] or 'topics'}"
            for request in self.between(begin, end)
        )


@contextmanager
def counted(server: S3Server) -> Iterator[Counted]:
    """Stand between a store and its clients, in a thread of this process."""
    loop = asyncio.new_event_loop()
    place = urlsplit(server.endpoint)
    found = Counted(server)
    connected = partial(_Counting, str(place.hostname), place.port or 80, found)
    listening = loop.run_until_complete(loop.create_server(connected, HOST, 0, backlog=2048))
    found.server = replace(server, endpoint=f"http://{HOST}:{listening.sockets[0].getsockname()[1]}")
    thread = threading.Thread(target=loop.run_forever, name="counted", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        listening.close()


class _Counting(Near):
    def __init__(self, host: str, port: int, found: Counted) -> None:
        super().__init__(host, port, 0.0)
        self._found = found

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if line := _FIRST_LINE.match(data):
            self._found.requests.append(_request(line[1].decode(), line[2].decode()))
        super().data_received(data)


def _request(method: str, target: str) -> Request:
    parts = urlsplit(target)
    query = parse_qs(parts.query, keep_blank_values=True)
    key = unquote(parts.path).lstrip("/").partition("/")[2]
    kind = "DELETE" if "delete" in query else method
    if method == "GET" and not key:
        kind, key = "LIST", query.get("prefix", [""])[0]
    return Request(time.time(), kind, key)
