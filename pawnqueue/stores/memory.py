"""A bucket in memory: a real adapter, for tests and for trying things out. It keeps nothing."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime

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
    version_of,
)

PAGE = 1000


class MemoryStore:
    """One bucket of this process, for queues in any of its threads. Every call is atomic."""

    def __init__(self) -> None:
        self._objects: dict[str, StoredObject] = {}
        self._versions = itertools.count(1)
        self._lock = threading.Lock()  # nothing is awaited with it in hand

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
        while True:
            await _yield()
            with self._lock:
                keys = sorted(key for key in self._objects if key.startswith(folder) and key > start_after)
                page = [self._objects[key].info for key in keys[:PAGE]]
            if page:
                yield page
            if len(keys) <= PAGE:
                return
            start_after = page[-1].key

    async def folders(self, folder: str = "") -> list[str]:
        """See :class:`~.port.Store`."""
        await _yield()
        with self._lock:
            rests = [key[len(folder) :] for key in self._objects if key.startswith(folder)]
        return sorted({f"{folder}{rest.partition('/')[0]}/" for rest in rests if "/" in rest})

    async def put(self, key: str, body: bytes, *, expect: Expectation = Expect.ANYTHING) -> Outcome:
        """See :class:`~.port.Store`."""
        await _yield()
        with self._lock:
            found = self._objects.get(key)
            if expect is Expect.NOTHING and found is not None:
                return Refused(Refusal.CONDITION)
            if isinstance(expect, str) and (found is None or found.info.version.strip('"') != expect.strip('"')):
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
            refused = {key for key, version in versions.items() if not self._is_version(key, version)}
            self._remove([key for key in versions if key not in refused])
        return dict.fromkeys(refused, Refused(Refusal.CONDITION))

    async def aclose(self) -> None:
        """See :class:`~.port.Store`. What is in the bucket stays: a test may open it again."""

    def _is_version(self, key: str, version: Version) -> bool:
        found = self._objects.get(key)
        return not version or found is None or found.info.version == version

    def _remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._objects.pop(key, None)

    def _write(self, key: str, body: bytes) -> Version:
        version = version_of(f"{next(self._versions):x}")
        info = ObjectInfo(key, len(body), version, datetime.now(UTC).replace(microsecond=0))
        self._objects[key] = StoredObject(info, bytes(body))
        return version


async def _yield() -> None:
    # A request never completes without others having had a turn: code that relies on it should fail here too.
    await asyncio.sleep(0)
