"""The other back end of a fault server: a real S3 server, to which requests go on as they came."""

from __future__ import annotations

from typing import TYPE_CHECKING

import aiohttp
from yarl import URL

from tests.support.s3_protocol import Answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.s3_protocol import Call

# Those of one connection only (RFC 9110, 7.6.1), and what this side has answered already.
_NOT_FORWARDED = frozenset(
    ("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "expect")
)
# aiohttp repeats a PUT whose idle connection turns out to be closed, and a conditional PUT must not be repeated: let
# connections go long before any server does.
_KEEPALIVE_SECONDS = 3.0


class UpstreamGoneError(Exception):
    """The real server did not answer. Whether it has applied the request is not known."""


class Proxy:
    """Sends each request to the upstream server once, its Host header and its bytes unchanged (SigV4 covers them)."""

    def __init__(self, upstream: str) -> None:
        """Open no connection yet; to be made in the loop that uses it."""
        self._upstream = upstream.rstrip("/")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    async def answer(self, call: Call) -> Answer:
        """Return the upstream server's answer; raises :class:`UpstreamGoneError`."""
        headers = [(name, value) for name, value in call.raw_headers if name.lower() not in _NOT_FORWARDED]
        chunked = "chunked" in call.request.headers.get("transfer-encoding", "").lower()
        try:
            async with self._session.request(
                call.request.method,
                URL(self._upstream + call.target, encoded=True),
                headers=headers,
                data=_in_chunks(call.body) if chunked else call.body or None,
                allow_redirects=False,
            ) as response:
                body = await response.read()
                kept = {name: value for name, value in response.headers.items() if name.lower() not in _NOT_FORWARDED}
                return Answer(response.status, kept, body)
        except aiohttp.ClientError as error:
            raise UpstreamGoneError from error

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


async def _in_chunks(body: bytes) -> AsyncIterator[bytes]:
    yield body
