"""A store that counts, between the queue and its adapter: how many requests, of which kind, and what they came to."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from airflow_provider_pawnqueue.engine.store.port import Done, Expect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from airflow_provider_pawnqueue.engine.errors import StoreError
    from airflow_provider_pawnqueue.engine.store.port import (
        Expectation,
        ObjectInfo,
        Outcome,
        Store,
        StoredObject,
    )

#: The most keys that S3 deletes in one request.
BULK = 1000


class Counting:
    """See :class:`~airflow_provider_pawnqueue.engine.store.port.Store`. The adapter below makes one attempt a call."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.requests: Counter[str] = Counter()
        #: PUTs that were not carried out, as the key had been written by somebody else.
        self.refused = 0

    @property
    def total(self) -> int:
        """How many requests were made."""
        return self.requests.total()

    def told(self) -> str:
        """Say what was requested, by kind."""
        return ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.requests.items())) or "none"

    def forget(self) -> None:
        """Begin to count anew."""
        self.requests.clear()
        self.refused = 0

    async def get(self, key: str) -> StoredObject | None:
        """See the port."""
        self.requests["GET"] += 1
        return await self._store.get(key)

    async def head(self, key: str) -> ObjectInfo | None:
        """See the port."""
        self.requests["HEAD"] += 1
        return await self._store.head(key)

    async def pages(self, folder: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """See the port. The first page is a request also where it is empty."""
        kind = f"LIST {folder.rstrip('/').rpartition('/')[2]}"
        self.requests[kind] += 1
        first = True
        async for page in self._store.pages(folder, start_after=start_after):
            self.requests[kind] += not first
            first = False
            yield page

    async def folders(self, folder: str = "") -> list[str]:
        """See the port."""
        self.requests["LIST folders"] += 1
        return await self._store.folders(folder)

    async def put(self, key: str, body: bytes, *, expect: Expectation = Expect.ANYTHING) -> Outcome:
        """See the port."""
        self.requests["PUT"] += 1
        outcome = await self._store.put(key, body, expect=expect)
        self.refused += not isinstance(outcome, Done)
        return outcome

    async def copy(self, source: str, target: str) -> Outcome:
        """See the port."""
        self.requests["COPY"] += 1
        return await self._store.copy(source, target)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """See the port."""
        self.requests["DELETE"] += -(-len(keys) // BULK)
        return await self._store.delete(keys)

    async def aclose(self) -> None:
        """See the port."""
        await self._store.aclose()
