"""One register of a known kind: read as its record, and changed by compare-and-set.

Leases, claim records, write records and topics' markers are registers. Each kind has a module here that knows its key
and its garbage.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from pawnqueue.domain.record import Record
from pawnqueue.registers.strategy import Step
from pawnqueue.stores.port import Done, Expect, Unknown

if TYPE_CHECKING:
    from pawnqueue.domain.identifiers import Version
    from pawnqueue.registers.strategy import Registers
    from pawnqueue.stores.port import StoredObject

T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T_co]):
    """A value as it is stored in a register. A step that expects the version replaces this value and no other one."""

    value: T_co
    version: Version
    #: The step that wrote it was sent more than once: an attempt without an answer may land later, where its condition
    #: holds again.
    is_repeated: bool = field(default=False, compare=False)


class Register(ABC, Generic[R]):
    """One register, by its key.

    ⚑ §2: an outcome has three values, and so have the two that write: the new version where the write was done, None
    where it was refused, and an error where nobody can tell. The write may land after such an error.
    """

    def __init__(self, registers: Registers, key: str) -> None:
        self._registers = registers
        self._key = key

    async def read(self) -> Versioned[R] | None:
        """Return what the register holds, or None where it does not exist."""
        return self._versioned(await self._registers.read(self._key))

    async def look(self) -> Versioned[R] | None:
        """Return what the register shows at this moment, or None: see :meth:`.strategy.Registers.look`."""
        return self._versioned(await self._registers.look(self._key))

    async def create(self, record: R) -> Versioned[R] | None:
        """Write a register that does not exist; None: somebody else has created it.

        :raises StoreError: it is not known whether it was written.
        """
        return await self._write(record, Expect.NOTHING)

    async def replace(self, found: Versioned[R], record: R) -> Versioned[R] | None:
        """Write another record in place of the one that was found; None: somebody else has changed or deleted it.

        :raises StoreError: it is not known whether it was written.
        """
        return await self._write(record, found.version)

    def _versioned(self, found: StoredObject | None) -> Versioned[R] | None:
        return None if found is None else Versioned(self._understand(found), found.info.version)

    @abstractmethod
    def _understand(self, found: StoredObject) -> R:
        """Return the record in a stored body, which may be garbage or pawn-queue's."""

    async def _prepare(self, record: R) -> R:
        """Return the record as it is to be stored now."""
        return record

    async def _write(self, record: R, expect: Literal[Expect.NOTHING] | str) -> Versioned[R] | None:
        [outcome] = await self._registers.write([Step(self._key, await self._prepare(record), expect)])
        if isinstance(outcome, Unknown):
            raise outcome.fault
        # ⚑ §2: a refusal is an answer; only an answer is returned.
        return Versioned(record, outcome.version, outcome.repeated) if isinstance(outcome, Done) else None
