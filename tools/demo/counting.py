"""A store that counts the requests that go through it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import cast

from airflow_provider_pawnqueue.engine.errors import StoreError
from airflow_provider_pawnqueue.engine.store.port import (
    Expect,
    Expectation,
    ObjectInfo,
    Outcome,
    Store,
    StoredObject,
)

#: S3 deletes so many keys a request.
BULK = 1000


class Counting:
    """See :class:`~airflow_provider_pawnqueue.engine.store.port.Store`. It stands where retries are already done."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.requests = 0

    async def get(self, key: str) -> StoredObject | None:
        """Count one."""
        self.requests += 1
        return await self._store.get(key)

    async def head(self, key: str) -> ObjectInfo | None:
        """Count one."""
        self.requests += 1
        return await self._store.head(key)

    async def pages(self, folder: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo]]:
        """Count one for each page, and one for finding that there is none."""
        self.requests += 1
        first = True
        pages = cast("AsyncGenerator[Sequence[ObjectInfo]]", self._store.pages(folder, start_after=start_after))
        async with aclosing(pages):
            async for page in pages:
                self.requests += not first
                first = False
                yield page

    async def folders(self, folder: str = "") -> list[str]:
        """Count one."""
        self.requests += 1
        return await self._store.folders(folder)

    async def put(self, key: str, body: bytes, *, expect: Expectation = Expect.ANYTHING) -> Outcome:
        """Count one."""
        self.requests += 1
        return await self._store.put(key, body, expect=expect)

    async def copy(self, source: str, target: str) -> Outcome:
        """Count one."""
        self.requests += 1
        return await self._store.copy(source, target)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """Count one for each thousand keys."""
        self.requests += -(-len(keys) // BULK)
        return await self._store.delete(keys)

    async def aclose(self) -> None:
        """Close the store; that is no request."""
        await self._store.aclose()
