"""The port of a strategy: compare-and-set of many registers at once.

A register changes by compare-and-set only: leases, claim records, topics' markers and registrations are registers. A
strategy is a way to carry them; :mod:`.strategies` lists each by its name. All access to registers goes through this
port, so a new strategy changes no other module.

A register need not be one object. Both present strategies keep it in the object that has its key, and list, look and
delete by the store's own calls. Another strategy may keep several objects below that key, and read them by a LIST.
Callers know keys, bodies and versions only.

One register is always an object, and is read from the store: the bucket's record (``layout.BUCKET_RECORD``), which
tells a process the strategy.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from pawnqueue.domain.identifiers import Version
from pawnqueue.domain.record import Record
from pawnqueue.errors import StoreError
from pawnqueue.stores.port import Expect, ObjectInfo, Outcome, Refused, StoredObject, Unknown

if TYPE_CHECKING:
    from pawnqueue.domain.records import BucketRecord
    from pawnqueue.runtime.clock import Clock
    from pawnqueue.settings import Settings
    from pawnqueue.stores.retry import ResilientStore


@dataclass(frozen=True, slots=True)
class Step:
    """One compare-and-set: write this record if the register does not exist (create) or has this version (update)."""

    key: str
    record: Record
    expect: Literal[Expect.NOTHING] | str = Expect.NOTHING


class Registers(Protocol):
    """A way to carry registers."""

    @property
    def is_certain(self) -> bool:
        """Whether a write that was done can be overwritten by no request of a writer that has not seen it."""

    async def read(self, key: str) -> StoredObject | None:
        """Return what a register holds, or None where it does not exist.

        What is returned was written for good: only a step that expects this version changes it. A caller that decides
        something by a register without changing that register must use this, and not :meth:`look`.
        """

    async def look(self, key: str) -> StoredObject | None:
        """Return what a register shows at this moment, or None where it does not exist: no slower than a GET.

        A writer that has not seen it may still overwrite it. That is enough for a caller that then changes this very
        register by the version that it saw, or that may be wrong now and then.
        """

    async def head(self, key: str) -> ObjectInfo | None:
        """Return what is known of a register without its body, as it shows at this moment, or None."""

    def pages(self, folder: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo]]:
        """List the registers below a folder as :meth:`~..store.port.Store.pages` lists objects, each once.

        Each has its own key, the size of the body that it holds, its version, and the time when that was written.
        Objects that are not registers (a stranger's; the messages, where a whole topic is listed) are shown as they
        are.
        """

    async def write(self, steps: Sequence[Step]) -> list[Outcome]:
        """Take all the steps, concurrently; return their outcomes in the same order.

        - *Done*: the register had the expected state, and was changed once.
        - *Refused*: it did not have the expected state, and our write will not land any more. Or our write landed, its
          answer was lost, and another writer has changed the register since. Either way, it holds another writer's
          record.
        - *Unknown*: the outcome could not be found out within the retry budget. The write may still land.

        Each write gets a write id of its own here, in place of the record's ``nonce``.
        """

    async def overwrite(self, key: str, record: Record) -> Version:
        """Write a record over whatever is stored, until the write is known to be done, and return its version.

        Only for records where concurrent writers mean the same, such as the time when a consumer was last seen.
        """

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """Delete registers, whatever they hold, in bulk, as :meth:`~pawnqueue.stores.port.Store.delete` does.

        Returns what was not confirmed as gone, by key. Keys of :meth:`pages` that are not registers' are deleted as
        objects, so a folder can be cleared as it was listed.
        """

    async def delete_versions(self, versions: Mapping[str, Version]) -> Mapping[str, Refused | Unknown]:
        """Delete registers if they have these versions, where the store can do that; elsewhere as :meth:`delete` does.

        ⚑ §2: nothing relies on it. Where the store can, a DELETE that lands late spares what was written since.

        :param versions: the version of each that was seen; "" is any.
        """

    def through(self, store: ResilientStore) -> Registers:
        """Return the same registers over another view of the same store: one that retries for less time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What a store was seen to do with conditions. Each violation is a sentence; "" means no violation."""

    creates: str = ""
    """How it breaks ``If-None-Match: *``, in sequence or in a race."""

    updates: str = ""
    """How it breaks ``If-Match``. Without creates this is of no use, and not probed."""

    conditional_deletes: bool = False
    """A bulk DELETE with ETags keeps an object that has another ETag, and says so."""

    unquoted_if_match: bool = False
    """It wants the ETag of ``If-Match`` without its quotes, and honours it then."""


@dataclass(frozen=True, slots=True)
class FormField:
    """A setting of one strategy, as a form shows it that asks for a queue's settings."""

    setting: str
    label: str
    description: str


@dataclass(frozen=True, slots=True)
class Strategy:
    """How a strategy describes itself: see :mod:`.strategies`."""

    name: str
    """As settings and buckets' records spell it. It never changes."""

    build: Callable[[BucketRecord, ResilientStore, Clock, Settings], Registers]
    """Make its registers for a bucket whose record names it."""

    refusal: Callable[[Abilities], str]
    """Return why a store cannot carry it, or "" if it can."""

    check: Callable[[Settings], None] = lambda _: None
    """Raise ConfigError if it cannot work with the settings."""

    advice: Callable[[float, Settings], str] | None = None
    """Where its pauses have to fit the store: return a sentence on how they fit, for a write that takes this long from
    its look to its answer, in seconds."""

    form: tuple[FormField, ...] = ()
    """Those of its own settings that a form asks for. Airflow's is compared with this by a test."""

    is_one_object: bool = True
    """Whether each register is the one object that has its key."""
