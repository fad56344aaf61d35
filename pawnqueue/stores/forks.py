"""Use boto3 in a process that was forked from one that had used obstore.

There obstore hangs for good, also in a store that the child makes itself. Airflow's LocalExecutor and PySpark's daemon
fork, so a child changes to boto3 by itself.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from pawnqueue.domain.identifiers import Version
from pawnqueue.errors import StoreError
from pawnqueue.stores.port import (
    Expect,
    Expectation,
    ObjectInfo,
    Outcome,
    Refused,
    Store,
    StoredObject,
    Unknown,
)

_first_request_pid: int | None = None


def obstore_hangs_here() -> bool:
    """Say whether this process, or an ancestor of it, was forked from one that had used obstore."""
    return _first_request_pid is not None and _first_request_pid != os.getpid()


class ForkAwareStore:
    """The store that works in the current process: obstore's, or boto3's in a forked child.

    :param safe: makes the boto3 adapter; called again in each child, so that it inherits neither threads nor
    connections.
    :param fast: makes the obstore adapter; None where boto3 was asked for.
    """

    def __init__(self, safe: Callable[[], Store], fast: Callable[[], Store] | None) -> None:
        self._safe = safe
        self._fast = fast
        self._make()

    async def get(self, key: str, most: int) -> StoredObject | None:
        """See :class:`~.port.Store`."""
        return await self._current().get(key, most)

    async def body(self, key: str, size: int, most: int) -> bytes | None:
        """See :class:`~.port.Store`."""
        return await self._current().body(key, size, most)

    async def head(self, key: str) -> ObjectInfo | None:
        """See :class:`~.port.Store`."""
        return await self._current().head(key)

    def pages(self, folder: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """See :class:`~.port.Store`."""
        return self._current().pages(folder, start_after=start_after)

    async def folders(self, folder: str = "") -> list[str]:
        """See :class:`~.port.Store`."""
        return await self._current().folders(folder)

    async def put(self, key: str, body: bytes, *, expect: Expectation = Expect.ANYTHING) -> Outcome:
        """See :class:`~.port.Store`."""
        return await self._current().put(key, body, expect=expect)

    async def copy(self, source: str, target: str) -> Outcome:
        """See :class:`~.port.Store`."""
        return await self._current().copy(source, target)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """See :class:`~.port.Store`."""
        return await self._current().delete(keys)

    async def delete_versions(self, versions: Mapping[str, Version]) -> Mapping[str, Refused | Unknown]:
        """See :class:`~.port.Store`."""
        return await self._current().delete_versions(versions)

    async def aclose(self) -> None:
        """See :class:`~.port.Store`. A store that the parent opened is closed by the parent."""
        if self._pid == os.getpid():
            await self._store.aclose()

    def _current(self) -> Store:
        if self._pid != os.getpid():
            self._make()
        if self._is_fast:
            _note_request()
        return self._store

    def _make(self) -> None:
        self._is_fast = self._fast is not None and not obstore_hangs_here()
        self._store = self._fast() if self._fast is not None and self._is_fast else self._safe()
        self._pid = os.getpid()


def _note_request() -> None:
    global _first_request_pid  # noqa: PLW0603 - the hazard is the process's, not one store's
    _first_request_pid = os.getpid()
