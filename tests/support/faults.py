"""The fault server: S3 over HTTP, from memory or from a real server behind it, that fails as a test tells it to.

::

    with FaultServer(Behaviour(if_none_match="racy"), buckets=("queues",)) as server:
        lost = server.inject(Fault(AppliedThenDropped(), operation="PutObject", key="*/leases/*", times=1))
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Self, TypeVar

from aiohttp import web
from multidict import CIMultiDict

from tests.support.behaviour import Behaviour
from tests.support.fault_rules import (
    AppliedThenDropped,
    AppliedThenStatus,
    Dropped,
    Effect,
    Fault,
    Injection,
    LandsLate,
    MalformedBody,
    NeverAnswers,
    PartialDelete,
    RuleBook,
    Status,
)
from tests.support.journal import Journal, RecordedRequest
from tests.support.memory_s3 import MemoryS3
from tests.support.proxy import Proxy, UpstreamGoneError
from tests.support.s3_protocol import Answer, Call, error, read_call
from tools.kit.ports import HOST
from tools.kit.servers import ACCESS_KEY, REGION, SECRET_KEY, S3Server

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from datetime import datetime
    from types import TracebackType

T = TypeVar("T")

_BACKLOG = 2_048


class FaultServer:
    """An S3 server on a free port of 127.0.0.1, in a thread and a loop of its own, for the length of a ``with`` block.

    Without ``upstream`` it is a store in memory, of the given behaviour and with the given buckets. With it, requests
    go on to that endpoint; of the behaviour only the seed counts then. A request that has arrived is carried out
    whether its client waits for the answer or not. ``latency`` seconds, which may be changed meanwhile, are added to
    every request, half of them on the way in.
    """

    def __init__(
        self,
        behaviour: Behaviour | None = None,
        *,
        upstream: str | None = None,
        buckets: Iterable[str] = (),
        latency: float = 0.0,
    ) -> None:
        """Prepare; the server starts with the ``with`` block."""
        behaviour = behaviour or Behaviour()
        if upstream is not None and (buckets or replace(behaviour, seed=0) != Behaviour()):
            message = "behaviour and buckets are the in-memory store's: a server upstream has its own"
            raise ValueError(message)
        self.endpoint = ""
        self.latency = latency
        self._behaviour = behaviour
        self._upstream = upstream
        chance = random.Random(behaviour.seed)  # noqa: S311
        self._memory = None if upstream is not None else MemoryS3(behaviour, buckets, chance)
        self._rules = RuleBook(chance)
        self._journal = Journal()
        self._bugs: list[Exception] = []
        self._work: set[asyncio.Task[Answer | None]] = set()
        self._started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name="fault-server", daemon=True)

    def __enter__(self) -> Self:
        """Start to listen."""
        self._thread.start()
        self._started.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Drop all connections and what has not landed yet. Raises what went wrong in the server itself, if it did."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        if self._bugs and error is None:
            message = "the fault server failed by itself"
            raise ExceptionGroup(message, self._bugs)

    # --- for tests ---

    @property
    def s3(self) -> S3Server:
        """Where it is, as the real servers say it. With ``upstream`` the keys to use are that server's."""
        return S3Server("faults", self.endpoint, ACCESS_KEY, SECRET_KEY, self._behaviour.region or REGION)

    @property
    def requests(self) -> list[RecordedRequest]:
        """Every request so far, in the order of arrival."""
        return self._journal.snapshot()

    def forget_requests(self) -> None:
        """Empty the record."""
        self._journal.forget()

    def inject(self, fault: Fault) -> Injection:
        """Let a fault happen from now on."""
        if self._memory is None and isinstance(fault.effect, PartialDelete):
            message = "PartialDelete needs the store in memory: a signed request cannot be changed on its way"
            raise ValueError(message)
        return self._rules.add(fault)

    def wait_until(self, condition: Callable[[], bool], timeout: float = 10.0) -> None:
        """Return once the condition holds, which is looked at whenever a request comes, is applied or is answered."""
        if not self._journal.wait_until(condition, timeout):
            message = f"it did not happen within {timeout:g} s"
            raise TimeoutError(message)

    def objects(self, bucket: str) -> dict[str, bytes]:
        """Return what is in the bucket now, whatever a stale read would show. Memory only."""
        memory = self._store_in_memory()
        return self._in_loop(lambda: {key: stored.body for key, stored in memory.buckets[bucket].objects.items()})

    def put_object(self, bucket: str, key: str, body: bytes, *, last_modified: datetime | None = None) -> str:
        """Put an object of any key past HTTP, with any date, and return its ETag. Memory only."""
        memory = self._store_in_memory()
        return self._in_loop(lambda: memory.buckets[bucket].write(key, body, {}, last_modified).etag)

    def delete_bucket(self, bucket: str) -> None:
        """Delete a bucket with all that is in it. Memory only."""
        memory = self._store_in_memory()
        self._in_loop(lambda: memory.buckets.pop(bucket))

    def _store_in_memory(self) -> MemoryS3:
        if self._memory is None:
            message = "the objects are in the server upstream"
            raise ValueError(message)
        return self._memory

    def _in_loop(self, function: Callable[[], T]) -> T:
        async def run() -> T:
            return function()

        if not self._thread.is_alive():
            return function()
        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    # --- the server's thread ---

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as problem:  # noqa: BLE001
            if self._started.done():
                self._bugs.append(problem)
            else:
                self._started.set_exception(problem)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._proxy = Proxy(self._upstream) if self._upstream is not None else None
        # A client that gives up ends its handler; what the handler has begun is a task of its own, and goes on.
        server = web.Server(self._handle, handler_cancellation=True, auto_decompress=False, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=0)
        await runner.setup()
        try:
            await web.TCPSite(runner, HOST, 0, backlog=_BACKLOG).start()
            self.endpoint = f"http://{HOST}:{runner.addresses[0][1]}"
            self._started.set_result(None)
            await self._stopping.wait()
        finally:
            for task in self._work:
                task.cancel()
            await runner.cleanup()
            if self._proxy is not None:
                await self._proxy.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        call = await self._read(request)
        place = self._journal.arrived(call.request)
        answer = await asyncio.shield(self._begin(self._carry_out(call)))
        if answer is None:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        self._journal.answered(place, answer.status)
        return web.Response(status=answer.status, headers=CIMultiDict(answer.headers), body=answer.body)

    async def _read(self, request: web.BaseRequest) -> Call:
        if request.headers.get("expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await request.content.read()
        try:
            return read_call(request.method, request.raw_path, tuple(request.headers.items()), body)
        except Exception as problem:
            self._bugs.append(problem)
            raise

    def _begin(self, work: Coroutine[None, None, Answer | None]) -> asyncio.Task[Answer | None]:
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Answer | None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and isinstance(problem := task.exception(), Exception):
            self._bugs.append(problem)
        self._journal.notify()

    async def _carry_out(self, call: Call) -> Answer | None:
        """Return the answer, or None to reset the connection."""
        effect = self._rules.choose(call.request)
        if not self.latency:
            return await self._befall(call, effect)
        await asyncio.sleep(self.latency / 2)
        answer = await self._befall(call, effect)
        await asyncio.sleep(self.latency / 2)
        return answer

    async def _befall(self, call: Call, effect: Effect | None) -> Answer | None:  # noqa: PLR0911 - a case for each effect
        match effect:
            case None:
                return await self._apply(call)
            case Status(code, s3_code):
                return error(code, s3_code)
            case AppliedThenStatus(code, s3_code):
                await self._apply(call)
                return error(code, s3_code)
            case Dropped():
                return None
            case AppliedThenDropped():
                await self._apply(call)
                return None
            case LandsLate(seconds, status):
                self._begin(self._land(call, seconds))
                return None if status is None else error(status.code, status.s3_code)
            case NeverAnswers():
                await self._stopping.wait()
                return None
            case PartialDelete():
                return await self._apply(call, effect.spares)
            case MalformedBody(body):
                right = await self._apply(call)
                return right and _malformed(right, body)

    async def _land(self, call: Call, seconds: float) -> Answer | None:
        await asyncio.sleep(seconds)
        return await self._apply(call)

    async def _apply(self, call: Call, spared: Callable[[str], str | None] = lambda _: None) -> Answer | None:
        if self._memory is not None:
            return await self._memory.answer(call, spared)
        if self._proxy is None:
            return None
        try:
            return await self._proxy.answer(call)
        except UpstreamGoneError:
            return None  # as the client would have seen it


def _malformed(right: Answer, body: bytes | None) -> Answer:
    headers = {name: value for name, value in right.headers.items() if name.lower() != "content-length"}
    return Answer(200, headers, right.body[: len(right.body) // 2] if body is None else body)
