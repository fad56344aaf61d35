"""A bucket in memory, for tests and for trying things out: a real adapter that keeps nothing when the process ends."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile

from pawnqueue.domain.identifiers import Version
from pawnqueue.errors import StoreError
from pawnqueue.stores.port import (
    Done,
    Expect,
    Expectation,
    ObjectInfo,
    Outcome,
    Refusal,
    Refused,
    StoredObject,
    Unknown,
    refuse_if_larger,
)


class MemoryObjects:
    """The objects of one bucket, in the order of their keys. Each call is one step: nothing is awaited in it."""

    def __init__(self, page_size: int = 1000) -> None:
        self.page_size = page_size
        self._objects: dict[str, StoredObject] = {}
        self._keys: list[str] = []  # in order
        self._numbers = itertools.count(1)

    def _below(self, folder: str, start_after: str = "", most: int | None = None) -> list[str]:
        """Return the keys below a folder, from behind one of them, and at most this many."""
        first = bisect_left(self._keys, folder)
        if start_after >= folder:
            first = max(first, bisect_right(self._keys, start_after))
        chunk = self._keys[first : None if most is None else first + most]
        if chunk and chunk[-1].startswith(folder):
            return chunk
        return list(takewhile(lambda key: key.startswith(folder), chunk))

    def _page(self, folder: str, start_after: str) -> tuple[list[ObjectInfo], bool]:
        """Return one page of a listing, and whether there is another."""
        keys = self._below(folder, start_after, self.page_size + 1)
        return [self._objects[key].info for key in keys[: self.page_size]], len(keys) > self.page_size

    def _folders(self, folder: str) -> list[str]:
        rests = (key[len(folder) :] for key in self._below(folder))
        return sorted({f"{folder}{rest.partition('/')[0]}/" for rest in rests if "/" in rest})

    def _is_expected(self, key: str, expect: Expectation) -> bool:
        found = self._objects.get(key)
        if found is None:
            return not isinstance(expect, str)
        return expect in {Expect.ANYTHING, found.info.version}

    def _may_delete(self, key: str, version: str) -> bool:
        found = self._objects.get(key)
        return found is None or version in {"", found.info.version}

    def _write(self, key: str, body: bytes) -> Version:
        if key not in self._objects:
            insort(self._keys, key)
        info = ObjectInfo(key, len(body), self._next_version(body), self._now())
        self._objects[key] = StoredObject(info, bytes(body))
        return info.version

    def _remove(self, keys: Iterable[str]) -> None:
        for key in keys:
            if self._objects.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]

    def _next_version(self, body: bytes) -> Version:
        del body
        return Version(f'"{next(self._numbers):x}"')

    def _now(self) -> datetime:
        return datetime.now(UTC).replace(microsecond=0)


class MemoryStore(MemoryObjects):
    """One bucket of this process, for queues in any of its threads. Every call is atomic."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()  # nothing is awaited while it is held

    async def get(self, key: str, most: int = sys.maxsize) -> StoredObject | None:
        """See :class:`~.port.Store`. Without a bound, as tests that look by hand call it, it reads all."""
        await _yield()
        found = self._objects.get(key)
        if found is not None:
            refuse_if_larger(found.info, most)
        return found

    async def body(self, key: str, size: int, most: int) -> bytes | None:
        """See :class:`~.port.Store`."""
        del size
        found = await self.get(key, most)
        return None if found is None else found.body

    async def head(self, key: str) -> ObjectInfo | None:
        """See :class:`~.port.Store`."""
        await _yield()
        found = self._objects.get(key)
        return found.info if found else None

    async def pages(self, folder: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """See :class:`~.port.Store`."""
        more = True
        while more:
            await _yield()
            with self._lock:
                page, more = self._page(folder, start_after)
            if page:
                yield page
                start_after = page[-1].key

    async def folders(self, folder: str = "") -> list[str]:
        """See :class:`~.port.Store`."""
        await _yield()
        with self._lock:
            return self._folders(folder)

    async def put(self, key: str, body: bytes, *, expect: Expectation = Expect.ANYTHING) -> Outcome:
        """See :class:`~.port.Store`. A version may lack its quotes, as with S3."""
        await _yield()
        quoted = f'"{expect.strip(chr(34))}"' if isinstance(expect, str) else expect
        with self._lock:
            if not self._is_expected(key, quoted):
                return Refused(Refusal.CONDITION)
            return Done(self._write(key, body))

    async def copy(self, source: str, target: str) -> Outcome:
        """See :class:`~.port.Store`."""
        await _yield()
        with self._lock:
            found = self._objects.get(source)
            if found is None:
                return Refused(Refusal.MISSING)
            return Done(self._write(target, found.body))

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """See :class:`~.port.Store`."""
        await _yield()
        with self._lock:
            self._remove(keys)
        return {}

    async def delete_versions(self, versions: Mapping[str, Version]) -> Mapping[str, Refused | Unknown]:
        """See :class:`~.port.Store`."""
        await _yield()
        with self._lock:
            refused = [key for key, version in versions.items() if not self._may_delete(key, version)]
            self._remove(versions.keys() - refused)
        return dict.fromkeys(refused, Refused(Refusal.CONDITION))

    async def aclose(self) -> None:
        """See :class:`~.port.Store`. The objects stay: a test may open the bucket again."""


def connect(*_: object) -> MemoryStore:
    """See :func:`pawnqueue.stores.connect.connect`: a new bucket, whatever the settings are."""
    return MemoryStore()


async def _yield() -> None:
    # Other tasks run during every request: code that relies on the contrary should fail here too.
    await asyncio.sleep(0)
