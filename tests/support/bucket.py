"""One bucket in memory: its objects in order, pages of them, and the way back to what it was some writes ago."""

from __future__ import annotations

import base64
import hashlib
from bisect import bisect_left, bisect_right, insort
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# No key has it: behind a folder's name it sorts after everything in the folder.
_LAST = "\U0010ffff"


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


@dataclass(slots=True)
class Page:
    """One page: keys, folders (S3's common prefixes), and where the next page goes on."""

    keys: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    next_token: str | None = None

    @property
    def count(self) -> int:
        """How many keys and folders there are."""
        return len(self.keys) + len(self.folders)


def page_of(ordered: Sequence[str], *, prefix: str, delimiter: str, after: str, limit: int) -> Page:
    """Return the first ``limit`` keys and folders behind ``after``; code points sort as UTF-8 does."""
    page = Page()
    index = max(bisect_left(ordered, prefix), bisect_right(ordered, after) if after else 0)
    last = after
    while limit and index < len(ordered) and ordered[index].startswith(prefix):
        if page.count == limit:
            page.next_token = token_for(last)
            break
        key = ordered[index]
        name, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
        if found:
            folder = prefix + name + delimiter
            page.folders.append(folder)
            last = folder + _LAST
            index = bisect_right(ordered, last)
        else:
            page.keys.append(key)
            last = key
            index += 1
    return page


def token_for(last: str) -> str:
    """Return the opaque continuation token."""
    return base64.urlsafe_b64encode(last.encode("utf-8", "surrogatepass")).decode("ascii")


def resume(token: str) -> str:
    """Return the key behind which the token goes on; raises ValueError for an invalid token."""
    return base64.urlsafe_b64decode(token.encode("ascii")).decode("utf-8", "surrogatepass")
