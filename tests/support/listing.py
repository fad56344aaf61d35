"""LIST: which keys and folders make up one page."""

from __future__ import annotations

import base64
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# No key has it: behind a folder's name it sorts after everything in the folder.
_LAST = "\U0010ffff"


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
