"""What a register holds, with the version under which it was read or written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from pawnqueue.domain.identifiers import Version

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Versioned(Generic[T_co]):
    """A value as it is stored in a register. A step that expects the version replaces this value and no other one."""

    value: T_co
    version: Version
