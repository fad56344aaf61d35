"""Faults that stay for ever on one object, whatever the weather: nobody may read it, copy it, or delete it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pawnqueue.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True, slots=True)
class Fault:
    """What is answered to some kinds of requests about one key.

    :param denied: 403, which no repetition mends; otherwise 500.
    """

    kinds: frozenset[str]
    denied: bool

    def error(self, kind: str, key: str) -> StoreError:
        """Return the client's answer."""
        answer = "403 AccessDenied" if self.denied else "500 InternalError"
        return StoreError(
            f"The simulated store always answers {answer} to {kind} {key}.",
            transient=not self.denied,
            denied=self.denied,
            operation=kind,
        )


@dataclass(slots=True)
class StickyFaults:
    """The faults of one bucket, by key."""

    by_key: dict[str, Fault] = field(default_factory=dict)
    told: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often each of them was denied, by kind of request and key."""

    def put(self, key: str, kinds: Collection[str], *, denied: bool) -> None:
        """Let these kinds of requests about the key fail from now on."""
        self.by_key[key] = Fault(frozenset(kinds), denied)

    def of(self, kind: str, key: str) -> StoreError | None:
        """Return what is answered to this request in its place, or None."""
        fault = self.by_key.get(key)
        if fault is None or kind not in fault.kinds:
            return None
        if fault.denied:
            self.told[kind, key] += 1
        return fault.error(kind, key)
