"""What the strategies share whose register is the object that has its key."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING

from pawnqueue.domain.identifiers import Version
from pawnqueue.domain.object_sizes import max_register_bytes
from pawnqueue.domain.record import Record
from pawnqueue.errors import ObjectTooLargeError, StoreError
from pawnqueue.stores.port import ObjectInfo, Refused, StoredObject, Unknown

if TYPE_CHECKING:
    from pawnqueue.stores.retry import ResilientStore


def check_size(key: str, body: bytes) -> None:
    """Raise if a register's body is larger than its readers take: they would judge it as garbage.

    :raises ObjectTooLargeError: it is.
    """
    most = max_register_bytes(key)
    if len(body) > most:
        raise ObjectTooLargeError(
            f"{key} would have {len(body):,} bytes, and at most {most:,} are ever read of such a record, so it was not "
            "written: claim, or commit, fewer messages at once.",
            operation="PutObject",
            size=len(body),
        )


async def stored(store: ResilientStore, key: str) -> StoredObject | None:
    """Read a register's object. One that is larger than any of ours is returned with an empty body.

    So readers judge it as any other garbage under a register's key, and may replace the version that they saw.
    """
    try:
        return await store.get(key, max_register_bytes(key))
    except ObjectTooLargeError as error:
        return StoredObject(ObjectInfo(key, error.size, Version(error.version), error.last_modified), b"")


class OneObjectEach:
    """Looking, listing and deleting are the store's own calls: see :class:`~.strategy.Registers`."""

    #: Whether the bucket's record says that the store honours ETags in a bulk DELETE.
    _conditional_deletes = False

    def __init__(self, store: ResilientStore) -> None:
        self._store = store

    async def look(self, key: str) -> StoredObject | None:
        """See :class:`~.strategy.Registers`."""
        return await stored(self._store, key)

    async def head(self, key: str) -> ObjectInfo | None:
        """See :class:`~.strategy.Registers`."""
        return await self._store.head(key)

    def pages(self, folder: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo]]:
        """See :class:`~.strategy.Registers`."""
        return self._store.pages(folder, start_after=start_after)

    async def overwrite(self, key: str, record: Record) -> Version:
        """See :class:`~.strategy.Registers`: one PUT, which asks nothing."""
        return await self._store.overwrite(key, record.encode())

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """See :class:`~.strategy.Registers`."""
        return await self._store.delete(keys)

    async def delete_versions(self, versions: Mapping[str, Version]) -> Mapping[str, Refused | Unknown]:
        """See :class:`~.strategy.Registers`."""
        if self._conditional_deletes and any(versions.values()):
            return await self._store.delete_versions(versions)
        return {key: Unknown(error) for key, error in (await self._store.delete(list(versions))).items()}
