"""The bodies of packs that this process read a moment ago."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pawnqueue.stores.port import StoredObject

#: How many bytes of bodies are remembered.
MAX_REMEMBERED_BYTES: Final = 16 * 1024**2


class RecentBodies:
    """Remembers objects that are read again and again, such as a pack of which many claims take a few messages.

    What is remembered may be gone: only a HEAD that shows the same version says that it is stored.
    """

    def __init__(self) -> None:
        self._known: dict[str, StoredObject] = {}
        self._bytes = 0

    def get(self, key: str) -> StoredObject | None:
        """Return an object as it was read last, if it is remembered."""
        return self._known.get(key)

    def add(self, key: str, found: StoredObject) -> None:
        """Remember an object, and forget the oldest ones if there are too many bytes."""
        self.forget(key)
        if len(found.body) > MAX_REMEMBERED_BYTES:
            return
        self._known[key] = found
        self._bytes += len(found.body)
        while self._bytes > MAX_REMEMBERED_BYTES:
            self.forget(next(iter(self._known)))

    def forget(self, key: str) -> None:
        """Forget an object."""
        known = self._known.pop(key, None)
        self._bytes -= len(known.body) if known is not None else 0
