"""What is common to strategies whose register is the object that has its key."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_provider_pawnqueue.engine.errors import StoreError
from airflow_provider_pawnqueue.engine.names import Version
from airflow_provider_pawnqueue.engine.records import Record
from airflow_provider_pawnqueue.engine.store.port import ObjectInfo, StoredObject

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.store.retry import ResilientStore


class OneObjectEach:
    """Looking, listing and deleting are the store's own calls: see :class:`~.cas.Registers`."""

    def __init__(self, store: ResilientStore) -> None:
        self._store = store

    async def look(self, key: str) -> StoredObject | None:
        """See :class:`~.cas.Registers`."""
        return await self._store.get(key)

    async def head(self, key: str) -> ObjectInfo | None:
        """See :class:`~.cas.Registers`."""
        return await self._store.head(key)

    def pages(self, folder: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo]]:
        """See :class:`~.cas.Registers`."""
        return self._store.pages(folder, start_after=start_after)

    async def overwrite(self, key: str, record: Record) -> Version:
        """See :class:`~.cas.Registers`: one PUT, which asks nothing."""
        return await self._store.overwrite(key, record.encode())

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """See :class:`~.cas.Registers`."""
        return await self._store.delete(keys)
