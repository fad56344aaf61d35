"""A store that takes up new keys from its Airflow connection while its queue is open.

A deferred sensor may wait for days, and a task may work for hours: longer than keys last. When the store denies a
request, the connection is read again. If it has other keys by now, the request is sent again with them. Polls,
sessions, renewals and settlements go on without noticing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from airflow.providers.common.compat.connection import get_async_connection
from airflow.providers.common.compat.sdk import BaseHook

from airflow_provider_pawnqueue.hooks import connection
from airflow_provider_pawnqueue.hooks.supervision import is_its_own_supervisor, task_has_ended
from pawnqueue.errors import StoreError
from pawnqueue.stores.port import Expect, Unknown

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.hooks.connection import Address
    from pawnqueue.domain.identifiers import Version
    from pawnqueue.stores.port import Expectation, ObjectInfo, Outcome, Refused, Store, StoredObject

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: How long a connection is not read again after it had the same keys: one object may be denied for ever.
REREAD_SECONDS: Final = 5.0
#: How long Airflow may take to answer.
LOOKUP_SECONDS: Final = 20.0


class KeyFollowingStore:
    """The store of a connection, with the connection's present keys.

    :param address: the content of the connection when it was read.
    :param connect: returns the store of an address. It may block.
    """

    #: The queue closes this store, although it did not open it.
    is_closed_with_its_queue: ClassVar[bool] = True

    def __init__(self, address: Address, connect: Callable[[Address], Store]) -> None:
        self._address = address
        self._connect = connect
        self._store = connect(address)
        #: Stores with former keys: requests may still be under way on them.
        self._former: list[Store] = []
        self._lock = asyncio.Lock()
        self._not_before = 0.0

    async def get(self, key: str, most: int) -> StoredObject | None:
        """See :class:`~pawnqueue.stores.port.Store`."""
        return await self._sent(lambda store: store.get(key, most))

    async def body(self, key: str, size: int, most: int) -> bytes | None:
        """See :class:`~pawnqueue.stores.port.Store`."""
        return await self._sent(lambda store: store.body(key, size, most))

    async def head(self, key: str) -> ObjectInfo | None:
        """See :class:`~pawnqueue.stores.port.Store`."""
        return await self._sent(lambda store: store.head(key))

    async def pages(self, folder: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """See :class:`~pawnqueue.stores.port.Store`."""
        while True:
            store = self._store
            try:
                async for page in store.pages(folder, start_after=start_after):
                    yield page
                    start_after = page[-1].key
            except StoreError as error:
                if not await self._has_other_keys(store, error):
                    raise
            else:
                return

    async def folders(self, folder: str = "") -> list[str]:
        """See :class:`~pawnqueue.stores.port.Store`."""
        return await self._sent(lambda store: store.folders(folder))

    async def put(self, key: str, body: bytes, *, expect: Expectation = Expect.ANYTHING) -> Outcome:
        """See :class:`~pawnqueue.stores.port.Store`."""
        return await self._sent(lambda store: store.put(key, body, expect=expect))

    async def copy(self, source: str, target: str) -> Outcome:
        """See :class:`~pawnqueue.stores.port.Store`."""
        return await self._sent(lambda store: store.copy(source, target))

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """See :class:`~pawnqueue.stores.port.Store`."""
        store = self._store
        failed = dict(await store.delete(keys))
        denied = {key: error for key, error in failed.items() if error.denied}
        if denied and await self._has_other_keys(store, next(iter(denied.values()))):
            again = await self._store.delete(list(denied))
            failed = {key: error for key, error in failed.items() if key not in denied} | dict(again)
        return failed

    async def delete_versions(self, versions: Mapping[str, Version]) -> Mapping[str, Refused | Unknown]:
        """See :class:`~pawnqueue.stores.port.Store`."""
        store = self._store
        answered = dict(await store.delete_versions(versions))
        denied = {
            key: outcome.fault
            for key, outcome in answered.items()
            if isinstance(outcome, Unknown) and outcome.fault.denied
        }
        if denied and await self._has_other_keys(store, next(iter(denied.values()))):
            again = await self._store.delete_versions({key: versions[key] for key in denied})
            answered = {key: outcome for key, outcome in answered.items() if key not in denied} | dict(again)
        return answered

    async def aclose(self) -> None:
        """See :class:`~pawnqueue.stores.port.Store`."""
        for store in (*self._former, self._store):
            await store.aclose()

    async def _sent(self, request: Callable[[Store], Awaitable[T]]) -> T:
        """Send a request, and once more if it was denied and the connection has other keys by now.

        A denied request was not carried out, so a conditional write may be sent again.
        """
        store = self._store
        try:
            answer = await request(store)
        except StoreError as error:
            if not await self._has_other_keys(store, error):
                raise
        else:
            # With expired keys, the outcome of a write is unknown, although it was denied.
            if not isinstance(answer, Unknown) or not await self._has_other_keys(store, answer.fault):
                return answer
        return await request(self._store)

    async def _has_other_keys(self, used: Store, error: StoreError) -> bool:
        """Return whether the store has other keys by now than those with which a request was denied."""
        if not error.denied:
            return False
        async with self._lock:
            if self._store is not used:
                return True  # another request has replaced the keys meanwhile
            if time.monotonic() < self._not_before:
                return False
            address = await self._read_again()
            self._not_before = time.monotonic() + REREAD_SECONDS
            if address is None or address == self._address:
                return False
            if not address.is_same_bucket(self._address):
                logger.warning(
                    "Connection %r names another queue by now. Work that is under way goes on with the former queue, "
                    "whose keys were denied.",
                    address.name,
                )
                return False
            replaced = await asyncio.to_thread(self._connect, address)
            self._former.append(self._store)
            self._store, self._address = replaced, address
            logger.info("The store denied the keys of connection %r. It has new ones, which are used.", address.name)
            return True

    async def _read_again(self) -> Address | None:
        """Return the connection's present content. If it cannot be read, return None: the store's error is raised."""
        if not self._address.name:
            return None
        try:
            return await asyncio.wait_for(_read(self._address.name), LOOKUP_SECONDS)
        except Exception as error:  # noqa: BLE001 - Airflow, a secrets backend, or a wrong connection may raise anything
            # To a task that has ended, Airflow answers that no connection exists, which is not true.
            if not task_has_ended():
                logger.warning("Connection %r could not be read again: %s", self._address.name, error)
            return None


async def _read(conn_id: str) -> Address:
    """Read a connection in the queue's own loop."""
    loop = _Airflow.loop if _Airflow.pid == os.getpid() else None
    if loop is not None and loop.is_running() and not is_its_own_supervisor():
        # The triggerer's loop: some releases of Airflow answer in no other.
        lookup = asyncio.run_coroutine_threadsafe(get_async_connection(conn_id), loop)
        found = await asyncio.wrap_future(lookup)
    else:
        found = await asyncio.to_thread(BaseHook.get_connection, conn_id)
    return await asyncio.to_thread(connection.read, found)


class _Airflow:
    """The loop in which Airflow is asked for connections: the one in which the hook was last awaited."""

    loop: ClassVar[asyncio.AbstractEventLoop | None] = None
    pid: ClassVar[int] = 0


def ask_airflow_here() -> None:
    """Ask Airflow for connections in the running loop from now on."""
    _Airflow.loop, _Airflow.pid = asyncio.get_running_loop(), os.getpid()
