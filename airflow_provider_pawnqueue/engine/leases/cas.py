"""The port of a strategy: compare-and-set of many registers at once.

A register is what changes by compare-and-set only: leases, claim records, topics' markers, registrations. A strategy is
a way to carry it, and :mod:`.strategies` is where each has its name. Everything that is done to a register goes through
here, so another strategy fits without touching anything else.

A register need not be one object. The two strategies that there are keep it in the object that has its key, and list,
look and delete by the store's own calls; another one may keep several objects below that key, and a LIST is its read.
Who uses registers knows keys, bodies and versions, and nothing of that.

One register is always an object, and is read from the store: the bucket's record (``layout.BUCKET_RECORD``), by which
a process learns the strategy.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from airflow_provider_pawnqueue.engine.errors import StoreError
from airflow_provider_pawnqueue.engine.records import Record
from airflow_provider_pawnqueue.engine.store.port import Expect, ObjectInfo, Outcome, StoredObject

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.store.retry import ResilientStore


@dataclass(frozen=True, slots=True)
class Step:
    """One compare-and-set: write this record where nothing (create) or this version (update) stands."""

    key: str
    record: Record
    expect: Literal[Expect.NOTHING] | str = Expect.NOTHING


class Registers(Protocol):
    """A way to carry registers."""

    @property
    def is_certain(self) -> bool:
        """Whether what was won cannot have been overwritten since, whatever becomes of other writers' requests."""

    async def read(self, key: str) -> StoredObject | None:
        """Return what a register holds, or None where there is none.

        What is returned was written for good: it stands there until a step changes it that expected it. Whoever
        decides by what a register holds, and does not change that very register, must have read it so.
        """

    async def look(self, key: str) -> StoredObject | None:
        """Return what a register shows at this moment, or None where there is none.

        Enough for who changes that very register by the version that was seen, or who is seldom wrong and can bear it;
        it may be overwritten by somebody who has not seen it, and is no slower than a GET.
        """

    async def head(self, key: str) -> ObjectInfo | None:
        """Return what is known of a register without its body, as it shows at this moment, or None."""

    def pages(self, folder: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo]]:
        """List the registers below a folder as :meth:`~..store.port.Store.pages` lists objects, each once.

        Each has its own key, the size of the body that it holds, its version, and the time when that was written.
        What is no register (a stranger's object; the messages, where a whole topic is listed) is shown as it is.
        """

    async def write(self, steps: Sequence[Step]) -> list[Outcome]:
        """Take all the steps, concurrently; the outcomes are in their order.

        *Done* means that the register was ours to change and was changed, once. *Refused*: it was not in the expected
        state, and our write will not land any more; or it did land, its answer was lost, and somebody has changed the
        register since. Either way, what stands there is not ours. *Unknown*: it could not be found out within the
        retry budget; the write may still land. Each write is given a write id of its own here; whatever ``nonce`` a
        record brings is replaced.
        """

    async def overwrite(self, key: str, record: Record) -> str:
        """Write a record until it is known to be done, whatever stands there, and return its version.

        Only where all who write it at one time mean the same, as with the time when somebody was last seen.
        """

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """Delete registers, whatever they hold, as :meth:`~..store.port.Store.delete` deletes objects: all in one go.

        What was not confirmed as gone is returned by its key. A key of :meth:`pages` that is no register's is the
        object's own, and is deleted as well: a folder is cleared as it was listed.
        """

    def through(self, store: ResilientStore) -> Registers:
        """Return the same way over another view of the same store: one with less patience."""


class OneObjectEach:
    """What is common to the strategies whose register is the object that has its key: the store's own calls."""

    def __init__(self, store: ResilientStore) -> None:
        self._store = store

    async def look(self, key: str) -> StoredObject | None:
        """See :class:`Registers`."""
        return await self._store.get(key)

    async def head(self, key: str) -> ObjectInfo | None:
        """See :class:`Registers`."""
        return await self._store.head(key)

    def pages(self, folder: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo]]:
        """See :class:`Registers`."""
        return self._store.pages(folder, start_after=start_after)

    async def overwrite(self, key: str, record: Record) -> str:
        """See :class:`Registers`: one PUT, which asks nothing."""
        return await self._store.overwrite(key, record.encode())

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """See :class:`Registers`."""
        return await self._store.delete(keys)
