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

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from pawnqueue.domain.identifiers import Version
from pawnqueue.domain.records import Record
from pawnqueue.errors import StoreError
from pawnqueue.stores.port import Expect, ObjectInfo, Outcome, Refused, StoredObject, Unknown

if TYPE_CHECKING:
    from pawnqueue.domain.records import BucketRecord
    from pawnqueue.runtime.clock import Clock
    from pawnqueue.settings import Settings
    from pawnqueue.stores.retry import ResilientStore


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

    async def overwrite(self, key: str, record: Record) -> Version:
        """Write a record until it is known to be done, whatever stands there, and return its version.

        Only where all who write it at one time mean the same, as with the time when somebody was last seen.
        """

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """Delete registers, whatever they hold, as :meth:`~..store.port.Store.delete` deletes objects: all in one go.

        What was not confirmed as gone is returned by its key. A key of :meth:`pages` that is no register's is the
        object's own, and is deleted as well: a folder is cleared as it was listed.
        """

    async def delete_versions(self, versions: Mapping[str, Version]) -> Mapping[str, Refused | Unknown]:
        """Delete registers as they were seen, where the store can do that; elsewhere as :meth:`delete` does.

        ⚑ §2: nothing relies on it. Where the store can, a DELETE that lands late spares what was written since.

        :param versions: which version of each was seen; "" is any.
        """

    def through(self, store: ResilientStore) -> Registers:
        """Return the same way over another view of the same store: one with less patience."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What a store was seen to do with conditions. A violation is told in words; "" is none."""

    creates: str = ""
    """How it breaks ``If-None-Match: *``, in sequence or in a race."""

    updates: str = ""
    """How it breaks ``If-Match``; without creates it is of no use, and is not asked."""

    conditional_deletes: bool = False
    """A bulk DELETE with ETags keeps what has another one, and says so."""

    unquoted_if_match: bool = False
    """It wants the ETag of ``If-Match`` without its quotes, and keeps it then."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """What a strategy says of itself: see :mod:`.strategies`."""

    name: str
    """As settings and the bucket's record have it, for ever."""

    build: Callable[[BucketRecord, ResilientStore, Clock, Settings], Registers]
    """Make its registers, for a bucket on which all agreed so."""

    refusal: Callable[[Abilities], str]
    """Say why a store cannot carry it, or "": it can."""

    check: Callable[[Settings], None] = lambda _: None
    """Raise ConfigError if the settings are not as it needs them."""

    advice: Callable[[float, Settings], str] | None = None
    """Where its pauses have to fit the store: say how they do, by how long a write takes from a look to the answer."""

    is_one_object: bool = True
    """Whether a register is the object that has its key."""
