"""The port of a strategy: compare-and-set of many registers at once.

A register is an object that changes by compare-and-set only. A strategy is a way to carry it:
:mod:`.conditional_write` for stores whose conditional PUT is atomic; another one must fit without touching anything
else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from airflow_provider_pawnqueue.engine.records import Record
from airflow_provider_pawnqueue.engine.store.port import Expect, Outcome, StoredObject

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

    async def write(self, steps: Sequence[Step]) -> list[Outcome]:
        """Take all the steps, concurrently; the outcomes are in their order.

        *Done* means that the register was ours to change and was changed, once. *Refused*: it was not in the expected
        state, and our write will not land any more; or it did land, its answer was lost, and somebody has changed the
        register since. Either way, what stands there is not ours. *Unknown*: it could not be found out within the
        retry budget; the write may still land. Each write is given a write id of its own here; whatever ``nonce`` a
        record brings is replaced.
        """

    def through(self, store: ResilientStore) -> Registers:
        """Return the same way over another view of the same store: one with less patience."""
