"""One process's way to the simulated bucket: requests take their time, and some of them go wrong."""

from __future__ import annotations

import asyncio
import math
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pawnqueue.domain import layout
from pawnqueue.errors import StoreError
from pawnqueue.stores.port import (
    Expect,
    Expectation,
    ObjectInfo,
    Outcome,
    Refusal,
    Refused,
    StoredObject,
    refuse_if_larger,
)
from pawnqueue.stores.port import Unknown as UnknownOutcome
from tests.sim.weather import Fate

if TYPE_CHECKING:
    import random

    from pawnqueue.domain.identifiers import Version
    from tests.sim.processes import Process

#: After this many seconds without an answer the client gives up.
TIMEOUT = 5.0
#: How many keys one bulk delete takes.
BULK = 1000
#: How many pages of a folder are remembered for each process; a process that relies on an older one has not looked.
PAGES = 64
#: Behind every key.
LAST = chr(0x10FFFF)


class Request:
    """One request under way."""

    __slots__ = (
        "after",
        "apply",
        "fate",
        "future",
        "key",
        "kind",
        "landed",
        "number",
        "process",
        "sent",
        "travel_back",
    )

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of one request
        self, process: Process, kind: str, key: str, apply: Callable[..., Any], number: int, after: str = ""
    ) -> None:
        loop = process.world.loop
        self.after = after  # a listing's: behind which key it begins
        self.process = process
        self.kind = kind
        self.key = key
        self.apply = apply
        self.number = number
        self.sent = loop.now
        self.landed = math.inf
        self.fate = Fate.ANSWERED
        self.travel_back = 0.0
        self.future: asyncio.Future[Any] = loop.create_future()

    def land(self, heard: bool) -> None:  # noqa: FBT001 - as the loop hands it on
        """Have its effect, and if its client still listens, send the answer."""
        world = self.process.world
        world.landing = self
        answer = self.apply()
        self.landed = world.loop.now
        world.log(self.process.name, self, answer)
        if heard:
            world.loop.at(world.loop.now + self.travel_back, self.answer, answer)

    def answer(self, answer: Any) -> None:  # noqa: ANN401 - whatever the request gives
        """Tell the client. What it makes of it waits if the process is paused, and never happens if it is dead."""
        future = self.future
        if future.done():
            return
        loop = self.process.world.loop
        until = loop.held.get(self.process)
        if (
            until is not None
            and self.sent + TIMEOUT < until < math.inf
            and not isinstance(answer, StoreError)
            and self.process.network.random() < 0.5
        ):
            # When the process wakes up, the answer is there and the time-out is over: either may be seen first.
            answer = self.error("did not answer in time")
        if isinstance(answer, StoreError):
            self.process.world.log(self.process.name, f"#{self.number} hears: {answer}")
        else:
            self.process.store.looked(self, answer)
            for listener in self.process.world.listeners:
                listener(self.process.name, self.kind, self.key, answer)
        future.set_result(answer)

    def describe(self, answer: Any) -> str:  # noqa: ANN401 - as above
        """Write a line of the event log: when it was sent, what it was, and what it came to."""
        fate = "" if self.fate is Fate.ANSWERED else f" ({self.fate.value})"
        return f"#{self.number} sent {self.sent:.4f}{fate} {self.kind} {self.key}: {_shown(answer)}"

    def error(self, what: str) -> StoreError:
        """Return the answer of a client that does not learn the outcome."""
        return StoreError(f"The simulated store {what}: {self.kind} {self.key}.", transient=True, operation=self.kind)


class SimStore:
    """See :class:`pawnqueue.stores.port.Store`.

    A request is delayed on its way to the bucket and on its way back, and drawn a fate from the weather. It has its
    effect, if it has one, at the moment it lands, whatever its client has heard or become by then.
    """

    def __init__(self, process: Process, network: random.Random) -> None:
        self._process = process
        self._world = process.world
        self._bucket = process.world.bucket
        self._random = network.random
        #: How many of the next PUTs fail with an error that the library below never raises.
        self.bugs = 0
        #: PUTs of keys with this in them are answered with 503, and not carried out.
        self.refused = ""
        self._looks: dict[str, float] = {}  # when a key was last seen by GET or HEAD, at the bucket
        self._listed: dict[str, deque[tuple[str, str, float]]] = {}  # of a folder: behind which key, up to which, when

    async def get(self, key: str, most: int = sys.maxsize) -> StoredObject | None:
        """See :class:`~pawnqueue.stores.port.Store`. Scenarios need not say how much."""
        found: StoredObject | None = _read(await self._send("GET", key, partial(self._bucket.get, key)))
        if found is not None:
            refuse_if_larger(found.info, most)
        return found

    async def body(self, key: str, size: int, most: int) -> bytes | None:
        """See :class:`~pawnqueue.stores.port.Store`."""
        del size
        found = await self.get(key, most)
        return None if found is None else found.body

    async def head(self, key: str) -> ObjectInfo | None:
        """See :class:`~pawnqueue.stores.port.Store`."""
        found: ObjectInfo | None = _read(await self._send("HEAD", key, partial(self._bucket.head, key)))
        return found

    async def pages(self, folder: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """See :class:`~pawnqueue.stores.port.Store`."""
        more = True
        while more:
            page, more = _read(
                await self._send("LIST", folder, partial(self._bucket.page, folder, start_after), after=start_after)
            )
            if page:
                yield page
                start_after = page[-1].key

    async def folders(self, folder: str = "") -> list[str]:
        """See :class:`~pawnqueue.stores.port.Store`."""
        found: list[str] = _read(await self._send("LIST", folder, partial(self._bucket.folders, folder)))
        return found

    async def put(self, key: str, body: bytes, *, expect: Expectation = Expect.ANYTHING) -> Outcome:
        """See :class:`~pawnqueue.stores.port.Store`."""
        if self.bugs:
            self.bugs -= 1
            raise RuntimeError("The simulated client library has a bug.")
        if self.refused and self.refused in key:
            return UnknownOutcome(StoreError(f"503 SlowDown to PUT {key}.", transient=True, operation="PUT"))
        write = partial(self._bucket.put, self._process.name, key, body, expect)
        return _written(await self._send("PUT", key, write, conditional=expect is not Expect.ANYTHING))

    async def copy(self, source: str, target: str) -> Outcome:
        """See :class:`~pawnqueue.stores.port.Store`."""
        copy = partial(self._bucket.copy, self._process.name, source, target)
        return _written(await self._send("COPY", f"{source} -> {target}", copy))

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """See :class:`~pawnqueue.stores.port.Store`.

        Of a request that failed as a whole every key is unconfirmed.
        """
        failed: dict[str, StoreError] = {}
        for start in range(0, len(keys), BULK):
            some = list(keys[start : start + BULK])
            answer = await self._send("DELETE", f"{some[0]} and {len(some) - 1} more", partial(self._delete, some))
            failed.update(dict.fromkeys(some, answer) if isinstance(answer, StoreError) else answer)
        return failed

    async def delete_versions(self, versions: Mapping[str, Version]) -> Mapping[str, Refused | UnknownOutcome]:
        """See :class:`~pawnqueue.stores.port.Store`."""
        answered: dict[str, Refused | UnknownOutcome] = {}
        keys = list(versions)
        for start in range(0, len(keys), BULK):
            some = keys[start : start + BULK]
            carry_out = partial(self._delete, some, versions=versions)
            answer = await self._send("DELETE", f"{some[0]} and {len(some) - 1} more", carry_out)
            told = dict.fromkeys(some, answer) if isinstance(answer, StoreError) else answer
            answered |= {
                key: UnknownOutcome(what) if isinstance(what, StoreError) else what for key, what in told.items()
            }
        return answered

    async def aclose(self) -> None:
        """See :class:`~pawnqueue.stores.port.Store`."""

    def looked(self, request: Request, answer: Any) -> None:  # noqa: ANN401 - whatever the request gives
        """Remember when the process has seen which keys, as the moment at which the bucket was asked."""
        if self._world.within is None:
            return  # nobody asks
        if request.kind in {"GET", "HEAD"}:
            self._looks[request.key] = max(request.landed, self._looks.get(request.key, 0.0))
        elif request.kind == "LIST" and isinstance(answer, tuple):
            page, more = answer
            pages = self._listed.setdefault(request.key, deque(maxlen=PAGES))
            pages.append((request.after, page[-1].key if more else LAST, request.landed))

    def _last_look(self, key: str) -> float:
        """Return when the process has last seen a key, or its absence."""
        pages = self._listed.get(f"{key.rpartition('/')[0]}/", ())
        listed = (when for after, upto, when in pages if after < key <= upto)
        return max(self._looks.get(key, -math.inf), *listed, -math.inf)

    def _rests_on_an_old_look(self, request: Request, landing: float) -> bool:
        """Say whether a PUT of a register lands later after its look than this world's assumption has it."""
        within = self._world.within
        if within is None or request.kind != "PUT" or not is_register(request.key):
            return False
        return landing > self._last_look(request.key) + within

    def _delete(
        self, keys: list[str], *, partial: bool = False, versions: Mapping[str, Version] = MappingProxyType({})
    ) -> Mapping[str, StoreError | Refused]:
        if not partial:
            return self._bucket.delete(self._process.name, keys, versions)
        chances = [self._random() for _ in keys]
        stuck = self._bucket.delete(
            self._process.name, [key for key, chance in zip(keys, chances, strict=True) if chance > 0.3], versions
        )
        error = StoreError("The simulated store could not delete this key.", transient=True, operation="DELETE")
        # Some of them are gone all the same; and now and then a client calls all of them unconfirmed.
        all_of_them = self._random() < 0.3
        failed = {key: error for key, chance in zip(keys, chances, strict=True) if all_of_them or chance < 0.6}
        return {**failed, **stuck}

    def _send(
        self, kind: str, key: str, apply: Callable[..., Any], *, conditional: bool = False, after: str = ""
    ) -> asyncio.Future[Any]:
        process, world, random = self._process, self._world, self._random
        process.check_in()
        request = Request(process, kind, key, apply, world.next_number(), after)
        if not process.may_send():
            return request.future
        self._bucket.requests[process.name, kind] += 1
        weather = world.weather
        loop = world.loop
        now = loop.now
        landing = now - weather.latency * math.log(1.0 - random())
        request.travel_back = -weather.latency * math.log(1.0 - random())
        draw = random()
        if draw < weather.trouble:
            landing = self._go_wrong(request, weather.fate(draw), landing, conditional=conditional)
        elif self._rests_on_an_old_look(request, landing):
            landing = self._go_wrong(request, Fate.VANISHED, landing, conditional=conditional)
        elif landing + request.travel_back < now + TIMEOUT:
            loop.at(landing, request.land, True)  # noqa: FBT003 - heard
        else:
            landing = self._go_wrong(request, Fate.LATE, landing, conditional=conditional)
        world.last_landing = max(world.last_landing, landing)
        process.has_sent()
        return request.future

    def _go_wrong(self, request: Request, fate: Fate, landing: float, *, conditional: bool) -> float:
        """Bring the request's fate about, and return when it lands."""
        loop, random = self._world.loop, self._random
        if (fate is Fate.CONFLICT and not conditional) or (fate is Fate.PARTIAL and request.kind != "DELETE"):
            fate = Fate.ANSWERED
        request.fate = fate
        if fate is Fate.LATE or (fate is Fate.DROPPED and random() < 0.5):
            landing += random() * self._world.weather.lateness
        if self._rests_on_an_old_look(request, landing):
            request.fate = fate = Fate.VANISHED
        elif fate is Fate.BUSY:
            request.apply = partial(request.error, "answered 503 SlowDown")
        elif fate is Fate.CONFLICT:
            request.apply = _conflict
        elif fate is Fate.PARTIAL:
            request.apply = partial(request.apply, partial=True)
        heard = fate not in _UNHEARD and landing + request.travel_back < request.sent + TIMEOUT
        if fate is not Fate.VANISHED:
            loop.at(landing, request.land, heard)
        if not heard:
            self._tell_nothing(request, landing)
        return landing

    def _tell_nothing(self, request: Request, landing: float) -> None:
        """Let the client hear of the failure, and not of the outcome, at the latest when its patience ends."""
        end, what = math.inf, ""
        if request.fate is Fate.ERROR:
            end, what = landing + request.travel_back, "answered 500 InternalError"
        elif request.fate is Fate.DROPPED or (request.fate is Fate.VANISHED and self._random() < 0.5):
            end, what = request.sent + request.travel_back, "hung up"
        if end >= request.sent + TIMEOUT:
            end, what = request.sent + TIMEOUT, "did not answer in time"
        self._world.loop.at(end, request.answer, request.error(what))


def is_register(key: str) -> bool:
    """Say whether an object changes by compare-and-set: a lease, a claim record, a topic's or the bucket's own."""
    return key.endswith((".lease", "/.topic")) or "/claims/" in key or "/dedup/" in key or key == layout.BUCKET_RECORD


#: The client hears no outcome of these.
_UNHEARD = frozenset({Fate.LOST, Fate.DROPPED, Fate.VANISHED, Fate.ERROR})


def _read(answer: Any) -> Any:  # noqa: ANN401 - whatever was read
    if isinstance(answer, StoreError):
        raise answer
    return answer


def _written(answer: Outcome | StoreError) -> Outcome:
    if isinstance(answer, StoreError):
        if not answer.transient:
            raise answer  # as the adapters do it: what is denied is neither refused nor unknown
        return UnknownOutcome(answer)
    return answer


def _conflict() -> Outcome:
    return Refused(Refusal.CONFLICT)


def _shown(answer: Any) -> str:  # noqa: ANN401 - whatever came of a request
    match answer:
        case StoredObject():
            return f"{answer.info.version} {answer.body[:240]!r}"
        case ObjectInfo():
            return f"{answer.version} {answer.last_modified:%H:%M:%S}"
        case (list() as page, bool() as more):
            keys = [f"{info.key.rpartition('/')[2]} {info.version[:7]}" for info in page]
            return f"{len(page)} keys{' and more' if more else ''} {keys}"
        case Refused():
            return f"refused, {answer.why.value}"
        case _:
            return str(answer)
