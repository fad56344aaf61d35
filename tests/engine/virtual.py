"""A bucket in which time passes only when everybody waits, whose requests are counted, and where they go wrong.

For tests of single behaviours: a schedule is what the test writes down. Nothing here sleeps for real.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import random
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from airflow_provider_pawnqueue.engine import MemoryStore, PawnQueue, Settings, layout
from airflow_provider_pawnqueue.engine.errors import StoreError
from airflow_provider_pawnqueue.engine.records import BucketRecord, ClaimRecord, Lease, TopicRecord
from airflow_provider_pawnqueue.engine.store.port import (
    Expect,
    Expectation,
    ObjectInfo,
    Outcome,
    StoredObject,
    Unknown,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

Kind: TypeAlias = Literal["GET", "HEAD", "LIST", "PUT", "COPY", "DELETE"]

#: The store's time when a world begins. Machines' dates are three hours off.
EPOCH = 1_767_225_600.25
TOPIC = "orders"
#: What the settings say unless a test says otherwise: a claim's time, and what a taker waits after it.
TTL = 30.0
MARGIN = 2.0
#: After so long nobody can doubt that a claim of TTL is over, whatever its estimate of the store's time.
OVERDUE = TTL + MARGIN + 2


class Died(Exception):  # noqa: N818 - no error of anybody's: the process is gone
    """The process ended in the middle of what it did."""


class VirtualClock:
    """Time stands still while anybody has something to do, and then goes on at once to the next who sleeps."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._random = random.Random(7)  # noqa: S311 - repeatable on purpose
        self._order = 0
        self._ticking = False

    def elapsed(self) -> float:
        """See :class:`~airflow_provider_pawnqueue.engine.clock.Clock`."""
        return 1000.0 + self._now

    def wall(self) -> float:
        """See :class:`~airflow_provider_pawnqueue.engine.clock.Clock`."""
        return self.server() + 3 * 3600

    def server(self) -> float:
        """The store's time, which the engine can only estimate."""
        return EPOCH + self._now

    async def sleep(self, seconds: float) -> None:
        """See :class:`~airflow_provider_pawnqueue.engine.clock.Clock`."""
        loop = asyncio.get_running_loop()
        waker = loop.create_future()
        self._order += 1
        heapq.heappush(self._sleepers, (self._now + max(seconds, 0.0), self._order, waker))
        self._tick_later(loop)
        await waker

    def uniform(self, low: float, high: float) -> float:
        """See :class:`~airflow_provider_pawnqueue.engine.clock.Clock`."""
        return self._random.uniform(low, high)

    def nonce(self) -> str:
        """See :class:`~airflow_provider_pawnqueue.engine.clock.Clock`."""
        return f"{self._random.getrandbits(256):064x}"

    def uuid(self) -> str:
        """See :class:`~airflow_provider_pawnqueue.engine.clock.Clock`."""
        digits = f"{self._random.getrandbits(128):032x}"
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"

    def _tick_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._ticking and self._sleepers:
            self._ticking = True
            loop.call_soon(self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._ticking = False
        while self._sleepers and self._sleepers[0][2].done():  # cancelled
            heapq.heappop(self._sleepers)
        if self._sleepers and not loop._ready:  # type: ignore[attr-defined]
            at, _, waker = heapq.heappop(self._sleepers)
            self._now = max(self._now, at)
            waker.set_result(None)
        self._tick_later(loop)


class Bucket(MemoryStore):
    """What is stored; its ``last_modified`` follows the clock. Processes reach it through a :class:`Client` each."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock = clock
        self._keys: list[str] = []

    def plant(self, key: str, body: bytes | str | Mapping[str, Any]) -> str:
        """Put an object there, unseen by any client, and return its version."""
        if isinstance(body, Mapping):
            body = json.dumps(body)
        return self._write(key, body.encode() if isinstance(body, str) else body)

    def below(self, folder: str = "", *, topic: str = TOPIC) -> list[str]:
        """The names in a folder of the topic (``messages/``); without one, all keys."""
        prefix = f"{topic}/{folder}" if folder else ""
        return [key.removeprefix(prefix) for key in self._keys if key.startswith(prefix)]

    def body(self, key: str) -> bytes:
        """The body of an object that is there."""
        return self._objects[key].body

    def record(self, stem: str, *, topic: str = TOPIC) -> ClaimRecord:
        """A claim record that is there."""
        key = layout.claim(topic, stem)
        return ClaimRecord.decode(self.body(key), key)

    def lease(self, uuid: str, *, topic: str = TOPIC) -> Lease:
        """A lease that is there."""
        key = layout.lease(topic, uuid)
        return Lease.decode(self.body(key), key)

    def snapshot(self) -> dict[str, tuple[str, bytes]]:
        """Everything that is stored, with its versions."""
        return {key: (found.info.version, found.body) for key, found in self._objects.items()}

    def remove(self, *keys: str) -> None:
        """Take objects away, unseen by any client."""
        for key in keys:
            del self._objects[key]
            self._keys.remove(key)

    async def page(self, folder: str, start_after: str) -> tuple[list[ObjectInfo], bool]:
        """One page of a listing, and whether there is another."""
        await asyncio.sleep(0)
        first = bisect_right(self._keys, max(start_after, folder[:-1]))
        found = []
        for key in self._keys[first:]:
            if not key.startswith(folder):
                if key > folder:
                    break
                continue
            if len(found) == 1000:
                return found, True
            found.append(self._objects[key].info)
        return found, False

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """See :class:`~airflow_provider_pawnqueue.engine.store.port.Store`."""
        there = self._objects.keys() & set(keys)
        failed = await super().delete(keys)
        if there:
            self._keys = [key for key in self._keys if key not in there or key in self._objects]
        return failed

    def _write(self, key: str, body: bytes) -> str:
        if key not in self._objects:
            insort(self._keys, key)
        version = super()._write(key, body)
        stamp = datetime.fromtimestamp(int(self.clock.server()), UTC)
        self._objects[key] = StoredObject(ObjectInfo(key, len(body), version, stamp), bytes(body))
        return version


#: What becomes of a request. *lost*: it never arrived. *answer lost*: it was done, and nobody was told. *denied*: the
#: store rejects it for good. *dies*: its process ends just before it would be sent; *dies after*: just after.
Effect: TypeAlias = Literal["lost", "answer lost", "denied", "dies", "dies after"]


@dataclass(slots=True)
class Fault:
    """What befalls some requests: the first ones that match are let through, then so many meet the effect."""

    effect: Effect
    kind: Kind | None = None
    key: str = "*"
    times: float = float("inf")
    passed: int = 0
    hits: int = 0

    def meets(self, kind: Kind, keys: Sequence[str]) -> bool:
        """Say whether it befalls this request, and count it."""
        if self.kind not in (None, kind) or not any(fnmatchcase(key, self.key) for key in keys):
            return False
        if self.passed:
            self.passed -= 1
            return False
        if self.hits >= self.times:
            return False
        self.hits += 1
        return True


@dataclass(slots=True)
class Client:
    """One process's way to the bucket: it counts requests by kind, and they meet the faults they are given."""

    bucket: Bucket
    requests: list[tuple[Kind, str]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    #: Called before a request is carried out, with its kind and its first key: somebody else does something meanwhile.
    meanwhile: Callable[[Kind, str], Any] | None = None
    #: How long a request takes, of virtual time.
    latency: float = 0.0
    dead: bool = False
    closed: bool = False

    def inject(
        self, effect: Effect, kind: Kind | None = None, key: str = "*", *, times: float = float("inf"), passed: int = 0
    ) -> Fault:
        """Let requests go wrong from now on, after ``passed`` of them."""
        fault = Fault(effect, kind, key, times, passed)
        self.faults.append(fault)
        return fault

    def heal(self) -> None:
        """Let nothing go wrong any more."""
        self.faults.clear()
        self.meanwhile = None

    @contextmanager
    def counting(self) -> Iterator[Counter[Kind]]:
        """Count the requests of a block, by kind."""
        before = len(self.requests)
        counted: Counter[Kind] = Counter()
        yield counted
        counted.update(kind for kind, _ in self.requests[before:])

    async def get(self, key: str) -> StoredObject | None:
        """See :class:`~airflow_provider_pawnqueue.engine.store.port.Store`."""
        fault = await self._send("GET", key)
        found = await self.bucket.get(key)
        self._answer_read(fault, "GET", key)
        return found

    async def head(self, key: str) -> ObjectInfo | None:
        """See :class:`~airflow_provider_pawnqueue.engine.store.port.Store`."""
        fault = await self._send("HEAD", key)
        found = await self.bucket.head(key)
        self._answer_read(fault, "HEAD", key)
        return found

    async def pages(self, folder: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """See :class:`~airflow_provider_pawnqueue.engine.store.port.Store`."""
        more = True
        while more:
            fault = await self._send("LIST", folder)
            page, more = await self.bucket.page(folder, start_after)
            self._answer_read(fault, "LIST", folder)
            if page:
                yield page
                start_after = page[-1].key

    async def folders(self, folder: str = "") -> list[str]:
        """See :class:`~airflow_provider_pawnqueue.engine.store.port.Store`."""
        fault = await self._send("LIST", folder)
        found = await self.bucket.folders(folder)
        self._answer_read(fault, "LIST", folder)
        return found

    async def put(self, key: str, body: bytes, *, expect: Expectation = Expect.ANYTHING) -> Outcome:
        """See :class:`~airflow_provider_pawnqueue.engine.store.port.Store`."""
        return await self._write("PUT", key, lambda: self.bucket.put(key, body, expect=expect))

    async def copy(self, source: str, target: str) -> Outcome:
        """See :class:`~airflow_provider_pawnqueue.engine.store.port.Store`."""
        return await self._write("COPY", target, lambda: self.bucket.copy(source, target))

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """See :class:`~airflow_provider_pawnqueue.engine.store.port.Store`. A fault befalls the keys that it names."""
        failed: dict[str, StoreError] = {}
        for start in range(0, len(keys), 1000):
            some = keys[start : start + 1000]
            fault = await self._send("DELETE", *some)
            met = [key for key in some if fault is not None and fnmatchcase(key, fault.key)]
            spared = fault is not None and fault.effect in ("lost", "denied")
            await self.bucket.delete([key for key in some if not (spared and key in met)])
            self._live_on(fault)
            denied = fault is not None and fault.effect == "denied"
            failed.update({key: _error("DELETE", key, transient=not denied) for key in met})
        return failed

    async def aclose(self) -> None:
        """See :class:`~airflow_provider_pawnqueue.engine.store.port.Store`."""
        self.closed = True

    async def _send(self, kind: Kind, *keys: str) -> Fault | None:
        if self.dead:
            raise Died
        self.requests.append((kind, keys[0] if keys else ""))
        if self.latency:
            await self.bucket.clock.sleep(self.latency)
        if self.meanwhile is not None:
            told = self.meanwhile(kind, keys[0] if keys else "")
            if asyncio.iscoroutine(told):
                await told
        fault = next((one for one in self.faults if one.meets(kind, keys)), None)
        if fault is not None and fault.effect == "dies":
            self.dead = True
            raise Died
        if fault is not None and fault.effect == "denied" and kind != "DELETE":
            raise _error(kind, keys[0], transient=False)
        return fault

    def _answer_read(self, fault: Fault | None, kind: Kind, key: str) -> None:
        self._live_on(fault)
        if fault is not None:
            raise _error(kind, key)

    async def _write(self, kind: Kind, key: str, write: Callable[[], Awaitable[Outcome]]) -> Outcome:
        fault = await self._send(kind, key)
        if fault is not None and fault.effect == "lost":
            return Unknown(_error(kind, key))
        outcome = await write()
        self._live_on(fault)
        return outcome if fault is None else Unknown(_error(kind, key))

    def _live_on(self, fault: Fault | None) -> None:
        if fault is not None and fault.effect == "dies after":
            self.dead = True
            raise Died


def _error(kind: Kind, key: str, *, transient: bool = True) -> StoreError:
    what = "lost its answer to" if transient else "denied"
    return StoreError(f"The virtual store {what} {kind} {key}.", transient=transient, operation=kind)


@dataclass(slots=True)
class Process:
    """A process that has opened the queue."""

    queue: PawnQueue
    client: Client


class World:
    """A bucket that was opened before, with a topic in it, and the processes that use it."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.bucket = Bucket(self.clock)
        self._processes: list[Process] = []
        self.bucket.plant(layout.BUCKET_RECORD, BucketRecord(strategy="conditional_write").encode())
        self.topic(TOPIC)

    def topic(self, name: str = TOPIC, **settings: Any) -> None:
        """Make a topic, or make it anew with these settings; nobody may have looked at it yet."""
        self.bucket.plant(layout.topic_marker(name), TopicRecord(topic=name, settings=settings).encode())

    async def process(self, **sections: Mapping[str, Any]) -> Process:
        """Open the queue in another process, which has seen the topic and asked for the time."""
        client = Client(self.bucket)
        settings = Settings(s3={"bucket_name": "virtual"}, **sections)
        queue = await PawnQueue.open(settings, store=client, clock=self.clock)
        await queue._topic(TOPIC, "test")
        await queue._context.now()
        made = Process(queue, client)
        self._processes.append(made)
        return made

    @cached_property
    def _publisher_names(self) -> Iterator[str]:
        return (layout.message_name(self.clock.server() + n * 1e-3, self.clock.uuid()) for n in range(1_000_000))

    def fill(self, bodies: Iterable[bytes | str | Mapping[str, Any]], *, topic: str = TOPIC) -> list[str]:
        """Put message objects with these bodies there, in order, and return the uuids in their keys."""
        uuids = []
        for body in bodies:
            name = next(self._publisher_names)
            self.bucket.plant(layout.message(topic, name), body)
            parsed = layout.parse_message(name)
            assert parsed is not None
            uuids.append(parsed.uuid)
        return uuids

    async def later(self, seconds: float = OVERDUE) -> None:
        """Let the time pass; by default so long that nobody can doubt that a claim is over."""
        await self.clock.sleep(seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            await process.queue.aclose()


def numbered(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Payloads that tell which one they are."""
    return [{"n": number} for number in range(start, start + count)]


def numbers(messages: Iterable[Any]) -> list[int]:
    """Which ones they are."""
    return [message.payload["n"] for message in messages]
