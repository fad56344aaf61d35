"""One bucket in memory: its objects, in order, and the way back to what it was some writes ago."""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class StoredBody:
    """One version of an object."""

    body: bytes
    headers: Mapping[str, str]
    last_modified: datetime

    @cached_property
    def md5(self) -> str:
        """The ETag without its quotes: of the body alone, so that identical bodies have identical ETags."""
        return hashlib.md5(self.body, usedforsecurity=False).hexdigest()

    @property
    def etag(self) -> str:
        """The ETag with its quotes."""
        return f'"{self.md5}"'


class Bucket:
    """Objects by key. Every change is one step, made in the server's thread."""

    def __init__(self, stale_writes: int) -> None:
        """Start empty, remembering as many writes as stale reads go back."""
        self.objects: dict[str, StoredBody] = {}
        self.ordered: list[str] = []
        self.clock = 0
        self._changed_at: dict[str, int] = {}
        self._undo: deque[tuple[str, StoredBody | None]] = deque(maxlen=stale_writes)

    def write(
        self, key: str, body: bytes, headers: Mapping[str, str], last_modified: datetime | None = None
    ) -> StoredBody:
        """Put an object, over a former one."""
        self._remember(key)
        if key not in self.objects:
            insort(self.ordered, key)
        stored = StoredBody(body, headers, last_modified or datetime.now(UTC))
        self.objects[key] = stored
        return stored

    def remove(self, key: str) -> None:
        """Delete an object, if it exists."""
        if key in self.objects:
            self._remember(key)
            del self.objects[key]
            del self.ordered[bisect_left(self.ordered, key)]

    def changed_since(self, key: str, clock: int) -> bool:
        """Tell whether anything happened to the key since the clock showed that."""
        return self._changed_at.get(key, -1) > clock

    def as_it_was(self) -> tuple[Mapping[str, StoredBody], Sequence[str]]:
        """Return objects and order before the last few writes."""
        objects = dict(self.objects)
        for key, before in reversed(self._undo):
            if before is None:
                objects.pop(key, None)
            else:
                objects[key] = before
        return objects, sorted(objects)

    def _remember(self, key: str) -> None:
        self.clock += 1
        self._changed_at[key] = self.clock
        self._undo.append((key, self.objects.get(key)))
