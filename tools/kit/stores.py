"""A store with a hook, by which tests count, delay or spoil its requests."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias, TypeVar, cast

from pawnqueue import MemoryStore
from pawnqueue.domain.identifiers import Version
from pawnqueue.errors import StoreError
from pawnqueue.stores.port import (
    Done,
    Expect,
    Expectation,
    ObjectInfo,
    Outcome,
    Refused,
    Store,
    StoredObject,
    Unknown,
)

T = TypeVar("T")
#: The port's calls that make requests.
Call: TypeAlias = Literal["get", "head", "pages", "folders", "put", "copy", "delete"]
#: The kinds of requests that they make.
Kind: TypeAlias = Literal["GET", "HEAD", "LIST", "PUT", "COPY", "DELETE"]
#: What the call returns; for ``pages``, the next page, or None after the last one.
Answer: TypeAlias = object
CarryOut: TypeAlias = Callable[[], Awaitable[Answer]]
Hook: TypeAlias = Callable[["Request", CarryOut], Awaitable[Answer]]

_KINDS: Mapping[Call, Kind] = {
    "get": "GET",
    "head": "HEAD",
    "pages": "LIST",
    "folders": "LIST",
    "put": "PUT",
    "copy": "COPY",
    "delete": "DELETE",
}
#: A size limit that no object exceeds.
ALL = sys.maxsize
#: The most keys that S3 lists, or deletes, in one request.
BULK = 1000


@dataclass(frozen=True, slots=True)
class Request:
    """A call of the port, or one page of a listing."""

    call: Call
    #: The keys that it is about: the folder of a listing, the target of a copy.
    keys: Sequence[str]
    body: bytes = b""
    expect: Expectation = Expect.ANYTHING
    source: str = ""
    #: The number of a listing's page, from 0.
    page: int = 0
    #: The versions that a DELETE expects, if it expects any.
    versions: Mapping[str, Version] = field(default_factory=dict)
    #: Whether the page before it was not full. Then it is empty, and most stores need no request to know that.
    surplus: bool = False

    @property
    def kind(self) -> Kind:
        """The kind of the request."""
        return _KINDS[self.call]

    @property
    def key(self) -> str:
        """The first key."""
        return self.keys[0] if self.keys else ""


class HookedStore:
    """A :class:`~pawnqueue.stores.port.Store` that passes each request to a hook, and then to the store below.

    :param below: the store that carries requests out; by default one in memory.
    :param hook: receives each request and a function that carries it out, and returns the answer. It may wait, raise,
        carry the request out or not, and return another answer. A subclass overrides :meth:`answer` instead.
    """

    def __init__(self, below: Store | None = None, hook: Hook | None = None) -> None:
        self.below: Store = below or MemoryStore()
        self.hook = hook
        #: How many times it was closed.
        self.closed = 0

    async def answer(self, request: Request, carry_out: CarryOut) -> Answer:
        """Answer a request."""
        return await (self.hook(request, carry_out) if self.hook else carry_out())

    async def get(self, key: str, most: int = ALL) -> StoredObject | None:
        """See the port. Without a bound it reads all, for tests that read an object by themselves."""
        return await self._ask(Request("get", (key,)), lambda: self.below.get(key, most))

    async def body(self, key: str, size: int, most: int) -> bytes | None:
        """See the port: a GET like others."""
        del size
        found = await self.get(key, most)
        return None if found is None else found.body

    async def head(self, key: str) -> ObjectInfo | None:
        """See the port."""
        return await self._ask(Request("head", (key,)), lambda: self.below.head(key))

    async def pages(self, folder: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo]]:
        """See the port. Each page is a request."""
        pages = cast("AsyncGenerator[Sequence[ObjectInfo]]", self.below.pages(folder, start_after=start_after))
        number, surplus = 0, False

        async def following() -> Sequence[ObjectInfo] | None:
            return await anext(pages, None)

        async with aclosing(pages):
            while (
                page := await self._ask(Request("pages", (folder,), page=number, surplus=surplus), following)
            ) is not None:
                yield page
                number, surplus = number + 1, len(page) < BULK

    async def folders(self, folder: str = "") -> list[str]:
        """See the port."""
        return await self._ask(Request("folders", (folder,)), lambda: self.below.folders(folder))

    async def put(self, key: str, body: bytes, *, expect: Expectation = Expect.ANYTHING) -> Outcome:
        """See the port."""
        request = Request("put", (key,), body, expect)
        return await self._ask(request, lambda: self.below.put(key, body, expect=expect))

    async def copy(self, source: str, target: str) -> Outcome:
        """See the port."""
        return await self._ask(Request("copy", (target,), source=source), lambda: self.below.copy(source, target))

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """See the port. Each thousand keys are a request."""
        failed: dict[str, StoreError] = {}
        for start in range(0, len(keys), BULK):
            some = keys[start : start + BULK]
            failed.update(await self._ask(Request("delete", some), lambda keys=some: self.below.delete(keys)))
        return failed

    async def delete_versions(self, versions: Mapping[str, Version]) -> Mapping[str, Refused | Unknown]:
        """See the port. Each thousand keys are a request; a hook may answer as to any other DELETE."""
        answered: dict[str, Refused | Unknown] = {}
        keys = list(versions)
        for start in range(0, len(keys), BULK):
            some = {key: versions[key] for key in keys[start : start + BULK]}
            request = Request("delete", list(some), versions=some)
            found = await self._ask(request, partial(self.below.delete_versions, some))
            answered |= {key: Unknown(what) if isinstance(what, StoreError) else what for key, what in found.items()}
        return answered

    async def aclose(self) -> None:
        """See the port."""
        self.closed += 1
        await self.below.aclose()

    async def _ask(self, request: Request, carry_out: Callable[[], Awaitable[T]]) -> T:
        return cast("T", await self.answer(request, carry_out))


class CountingStore(HookedStore):
    """Counts requests by kind, and refused PUTs. Each retry counts."""

    def __init__(self, below: Store) -> None:
        super().__init__(below)
        #: By kind; of listings with the last part of the folder's name.
        self.requests: Counter[str] = Counter()
        #: PUTs that were refused, as another process had written the key.
        self.refused = 0

    @property
    def total(self) -> int:
        """How many requests were made."""
        return self.requests.total()

    def told(self) -> str:
        """Return the counts as a text."""
        return ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.requests.items())) or "none"

    def forget(self) -> None:
        """Set all counts to zero."""
        self.requests.clear()
        self.refused = 0

    async def answer(self, request: Request, carry_out: CarryOut) -> Answer:
        """Count the request. The first page of a listing is a request even if it is empty."""
        if not request.page:
            self.requests[_name_of(request)] += 1
        answer = await carry_out()
        if request.page and answer is not None:
            self.requests[_name_of(request)] += 1
        if request.call == "put":
            self.refused += not isinstance(answer, Done)
        return answer


def _name_of(request: Request) -> str:
    if request.kind != "LIST":
        return request.kind
    folder = "folders" if request.call == "folders" else request.key.rstrip("/").rpartition("/")[2]
    return f"LIST {folder}"
