"""A bucket in which time passes only when everybody waits, whose requests are counted, and where they go wrong.

For tests of single behaviours: a schedule is what the test writes down. Nothing here sleeps for real.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, cast

from pawnqueue import MemoryStore, PawnQueue, Settings
from pawnqueue.catalog import units
from pawnqueue.domain import layout, pack
from pawnqueue.domain.claim_record import ClaimRecord
from pawnqueue.domain.lease import Lease
from pawnqueue.domain.record import canonical
from pawnqueue.domain.records import BucketRecord, TopicRecord
from pawnqueue.domain.times import iso
from pawnqueue.errors import StoreError
from pawnqueue.stores.port import Unknown
from tests.support.clock import VirtualClock
from tools.kit.stores import Answer, CarryOut, HookedStore, Kind, Request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pawnqueue import Claim

TOPIC = "orders"
#: What the settings say unless a test says otherwise: a claim's time, and what a taker waits after it.
TTL = 30.0
MARGIN = 2.0
#: After this long nobody can doubt that a claim of TTL is over, whatever its estimate of the store's time.
OVERDUE = TTL + MARGIN + 2


class Died(Exception):  # noqa: N818 - no error of anybody's: the process is gone
    """The process ended in the middle of what it did."""


class Bucket(MemoryStore):
    """What is stored; its ``last_modified`` follows the clock. Processes reach it through a :class:`Client` each."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock = clock

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
        """The body of an existing object."""
        return self._objects[key].body

    def date(self, key: str) -> datetime:
        """When an existing object was written, as a LIST shows it."""
        return self._objects[key].info.last_modified

    def record(self, stem: str, *, topic: str = TOPIC) -> ClaimRecord:
        """An existing claim record."""
        key = layout.claim(topic, stem)
        return ClaimRecord.decode(self.body(key), key)

    def lease(self, uuid: str, *, topic: str = TOPIC) -> Lease:
        """An existing lease."""
        key = layout.lease(topic, uuid)
        return Lease.decode(self.body(key), key)

    def snapshot(self) -> dict[str, tuple[str, bytes]]:
        """Everything that is stored, with its versions."""
        return {key: (found.info.version, found.body) for key, found in self._objects.items()}

    def remove(self, *keys: str) -> None:
        """Take objects away, unseen by any client."""
        self._remove(keys)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(int(self.clock.server()), UTC)


#: What becomes of a request. *lost*: it never arrived. *answer lost*: it was done, and its answer never arrived.
#: *denied*: the
#: store rejects it for good. *dies*: its process ends just before it would be sent; *dies after*: just after.
Effect: TypeAlias = Literal["lost", "answer lost", "denied", "dies", "dies after"]


@dataclass(slots=True)
class Fault:
    """What befalls some requests: the first ones that match are let through, then some meet the effect."""

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


class Client(HookedStore):
    """One process's way to the bucket: it counts requests by kind, and they meet the faults they are given."""

    def __init__(self, bucket: Bucket, *, latency: float = 0.0) -> None:
        super().__init__(bucket)
        self.bucket = bucket
        self.requests: list[tuple[Kind, str]] = []
        self.faults: list[Fault] = []
        #: Called before a request is carried out, with its kind and first key: somebody else does something meanwhile.
        self.meanwhile: Callable[[Kind, str], Any] | None = None
        #: How long a request takes, of virtual time.
        self.latency = latency
        self.dead = False

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

    async def answer(self, request: Request, carry_out: CarryOut) -> Answer:
        """Count it, and let it meet a fault; where it is carried out, the hook has its turn."""
        if request.surplus:  # the page before it was the last
            return await carry_out()
        fault = await self._send(request)
        if request.call == "delete":
            return await self._delete_but(request, fault)
        unanswered = _error(request.kind, request.key)
        writes = request.call in ("put", "copy")
        if writes and fault is not None and fault.effect == "lost":
            return Unknown(unanswered)
        answer = await super().answer(request, carry_out)
        self._live_on(fault)
        if fault is None:
            return answer
        if writes:
            return Unknown(unanswered)
        raise unanswered

    async def _delete_but(self, request: Request, fault: Fault | None) -> Mapping[str, Any]:
        """A fault befalls the keys that it names."""
        met = [key for key in request.keys if fault is not None and fnmatchcase(key, fault.key)]
        spared = fault is not None and fault.effect in ("lost", "denied")
        keys = [key for key in request.keys if not (spared and key in met)]
        versions = {key: request.versions[key] for key in keys if key in request.versions}

        async def carry_out() -> Answer:
            return await (self.bucket.delete_versions(versions) if versions else self.bucket.delete(keys))

        refused = await super().answer(replace(request, keys=keys, versions=versions), carry_out)
        self._live_on(fault)
        denied = fault is not None and fault.effect == "denied"
        errors = {key: _error("DELETE", key, transient=not denied) for key in met}
        return {**cast("Mapping[str, Any]", refused), **errors}

    async def _send(self, request: Request) -> Fault | None:
        if self.dead:
            raise Died
        kind, key = request.kind, request.key
        self.requests.append((kind, key))
        if self.latency:
            await self.bucket.clock.sleep(self.latency)
        if self.meanwhile is not None:
            told = self.meanwhile(kind, key)
            if asyncio.iscoroutine(told):
                await told
        fault = next((one for one in self.faults if one.meets(kind, request.keys)), None)
        if fault is not None and fault.effect == "dies":
            self.dead = True
            raise Died
        if fault is not None and fault.effect == "denied" and kind != "DELETE":
            raise _error(kind, key, transient=False)
        return fault

    def _live_on(self, fault: Fault | None) -> None:
        if fault is not None and fault.effect == "dies after":
            self.dead = True
            raise Died


def _error(kind: Kind, key: str, *, transient: bool = True) -> StoreError:
    what = "lost its answer to" if transient else "denied"
    return StoreError(
        f"The virtual store {what} {kind} {key}.", transient=transient, denied=not transient, operation=kind
    )


@dataclass(slots=True)
class Process:
    """A process that has opened the queue."""

    queue: PawnQueue
    client: Client


class World:
    """A bucket that was opened before, with a topic in it, and the processes that use it."""

    def __init__(self, strategy: str = "conditional_write") -> None:
        self.clock = VirtualClock()
        self.bucket = Bucket(self.clock)
        self._processes: list[Process] = []
        self.bucket.plant(layout.BUCKET_RECORD, BucketRecord(strategy=strategy).encode())
        self.topic(TOPIC)

    def topic(self, name: str = TOPIC, **settings: Any) -> None:
        """Make a topic, or make it anew with these settings; nobody may have looked at it yet."""
        self.bucket.plant(layout.topic_marker(name), TopicRecord(topic=name, settings=settings).encode())

    async def process(self, **sections: Mapping[str, Any]) -> Process:
        """Open the queue in another process, which has seen the topic and asked for the time."""
        client = Client(self.bucket)
        sections.setdefault("registry", {"register_consumers": False})  # a test's requests are those of what it does
        settings = Settings(s3={"bucket_name": "virtual"}, **sections)
        queue = await PawnQueue.open(settings, store=client, clock=self.clock)
        await queue._topic(TOPIC, "test")
        await queue._context.now()
        made = Process(queue, client)
        self._processes.append(made)
        return made

    @cached_property
    def _publisher_names(self) -> Iterator[str]:
        return (units.name_at(self.clock.server() + n * 1e-3, self.clock.uuid()) for n in range(1_000_000))

    def fill(self, bodies: Iterable[bytes | str | Mapping[str, Any]], *, topic: str = TOPIC) -> list[str]:
        """Put message objects with these bodies there, in order, and return the uuids in their keys."""
        uuids = []
        for body in bodies:
            name = next(self._publisher_names)
            self.bucket.plant(units.key_of(topic, name), body)
            parsed = units.parse(name)
            assert parsed is not None
            uuids.append(parsed.id)
        return uuids

    def plant_pack(self, count: int, first: int = 0, *, topic: str = TOPIC) -> str:
        """Put a pack of numbered payloads into the topic, behind all others, and return the id of its unit."""
        seconds = self.clock.server() + len(self._processes) * 1e-3 + first * 1e-6
        lines = [
            pack.entry_line(
                id=self.clock.uuid(),
                topic=topic,
                producer_id="",
                created_at=iso(seconds),
                payload_json=canonical(payload),
                headers={},
            )
            for payload in numbered(count, first)
        ]
        return self.plant_lines(lines, seconds=seconds, topic=topic)

    def plant_lines(self, lines: Sequence[bytes], *, seconds: float | None = None, topic: str = TOPIC) -> str:
        """Put a pack of these lines into the topic, now or with this time in its name; return the id of its unit."""
        name = units.pack_name_at(self.clock.server() if seconds is None else seconds, self.clock.uuid(), len(lines))
        self.bucket.plant(units.key_of(topic, name), pack.pack_body(lines))
        planted = units.parse(name)
        assert planted is not None
        return planted.id

    def alter(self, stem: str, **fields: Any) -> ClaimRecord:
        """Write a claim record anew with these fields."""
        record = self.bucket.record(stem).model_copy(update=fields)
        self.bucket.plant(layout.claim(TOPIC, stem), record.encode())
        return record

    def fence(self, claim: Claim, **more: Any) -> None:
        """Let somebody end a claim; its record may say more than that."""
        self.alter(f"{claim.claim_id}.{claim.generation}", state="expired", **more)

    def stagger(self, processes: Iterable[Process], seed: int, *, at_most: float) -> None:
        """Let each request of these processes wait first, for up to ``most`` seconds, by the seed's chance."""
        self.clock._random.seed(seed)

        async def wait(_kind: str, _key: str) -> None:
            await self.clock.sleep(self.clock.uniform(0, at_most))

        for process in processes:
            process.client.meanwhile = wait

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
