"""The shared truth: what is in the simulated bucket. Every change is one step, at one moment of virtual time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import md5
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from pawnqueue.domain.identifiers import Version
from pawnqueue.errors import StoreError
from pawnqueue.stores.memory import MemoryObjects
from pawnqueue.stores.port import (
    Done,
    Expectation,
    ObjectInfo,
    Outcome,
    Refusal,
    Refused,
    StoredObject,
)
from tests.sim.sticky import StickyFaults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tests.sim.loop import SimLoop

    #: Called with (who, key, the former object, the present object) for every object that changes.
    Observer: TypeAlias = Callable[[str, str, StoredObject | None, StoredObject | None], object]

#: The store's time at virtual time 0. Every machine's own idea of the date is wrong.
EPOCH = 1_767_225_600.0


class SimBucket(MemoryObjects):
    """Objects by key.

    An ETag is the MD5 of the body, as plain S3 has it: equal bodies have equal ETags, and code that trusts ETags
    without a write id in the body suffers ABA here.

    :param page_size: the number of keys in a page of a listing; small, so that paging is exercised.
    :param conditional: False lets every PUT succeed, whatever it expects: a store where the last write wins.
    :param conditional_deletes: a DELETE that expects another version than is stored is refused.
    """

    def __init__(
        self, loop: SimLoop, *, page_size: int = 1000, conditional: bool = True, conditional_deletes: bool = False
    ) -> None:
        super().__init__(page_size)
        self._loop = loop
        self.conditional = conditional
        self.conditional_deletes = conditional_deletes
        self.objects = self._objects
        #: How many requests of a kind a process has sent: ``requests["A", "PUT"]``.
        self.requests: Counter[tuple[str, str]] = Counter()
        self.observers: list[Observer] = []
        #: What fails for ever, of which object: nothing, until a scenario says so.
        self.sticky = StickyFaults()
        self._who = ""  # whose request is carried out
        self._second = -1
        self._stamp = datetime.fromtimestamp(EPOCH, UTC)

    # --- for scenarios and checks; nothing goes wrong here ---

    def plant(self, key: str, body: bytes, *, written: float | None = None) -> str:
        """Put an object there, as if it had always been, and return its version.

        :param written: the server time at which it was written; without it, now.
        """
        self._who = ""
        version = self._write(key, body)
        if written is not None:
            found = self.objects[key]
            stamp = datetime.fromtimestamp(written, UTC).replace(microsecond=0)
            self.objects[key] = replace(found, info=replace(found.info, last_modified=stamp))
        return version

    def below(self, folder: str = "") -> list[str]:
        """Return the keys that begin so, in order."""
        return self._below(folder)

    def body(self, key: str) -> bytes | None:
        """Return what is stored, or None."""
        found = self.objects.get(key)
        return found.body if found else None

    def snapshot(self) -> Mapping[str, bytes]:
        """Return all bodies, for :meth:`plant` in another world."""
        return {key: self.objects[key].body for key in self._keys}

    def requests_of(self, *processes: str) -> int:
        """Count the requests of these processes, or without a name of all."""
        return sum(number for (who, _), number in self.requests.items() if not processes or who in processes)

    def server_time(self) -> float:
        """Return the time that the store would tell, to the fraction."""
        return EPOCH + self._loop.now

    # --- requests that have arrived ---

    def get(self, key: str) -> StoredObject | StoreError | None:
        """Read an object."""
        return self.sticky.of("GET", key) or self.objects.get(key)

    def head(self, key: str) -> ObjectInfo | StoreError | None:
        """Read about an object."""
        if fault := self.sticky.of("HEAD", key):
            return fault
        found = self.objects.get(key)
        return found.info if found else None

    def page(self, folder: str, start_after: str) -> tuple[list[ObjectInfo], bool]:
        """Read one page of a listing, and whether there is another."""
        return self._page(folder, start_after)

    def folders(self, folder: str) -> list[str]:
        """Read the folders directly below."""
        return self._folders(folder)

    def put(self, who: str, key: str, body: bytes, expect: Expectation) -> Outcome:
        """Write an object, if the stored version is the expected one."""
        if self.conditional and not self._is_expected(key, expect):
            return _CONDITION
        self._who = who
        return Done(self._write(key, body))

    def copy(self, who: str, source: str, target: str) -> Outcome | StoreError:
        """Copy an object. It returns no version: not every client gets one."""
        if fault := self.sticky.of("COPY", source):
            return fault
        found = self.objects.get(source)
        if found is None:
            return _MISSING
        self._who = who
        self._write(target, found.body)
        return Done("")

    def delete(
        self, who: str, keys: Iterable[str], versions: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, StoreError | Refused]:
        """Delete objects, whether they are there or not, and return those that cannot be.

        :param versions: which version of each is expected, where the store minds that of a DELETE.
        """
        self._who = who
        failed: dict[str, StoreError | Refused] = {}
        for key in keys:
            if fault := self.sticky.of("DELETE", key):
                failed[key] = fault
            elif self.conditional_deletes and not self._may_delete(key, versions.get(key, "")):
                failed[key] = _CONDITION
            else:
                self._remove([key])
        return failed

    def _write(self, key: str, body: bytes) -> Version:
        before = self.objects.get(key)
        version = super()._write(key, body)
        for observer in self.observers:
            observer(self._who, key, before, self.objects[key])
        return version

    def _remove(self, keys: Iterable[str]) -> None:
        for key in keys:
            before = self.objects.get(key)
            super()._remove([key])
            if before is not None:
                for observer in self.observers:
                    observer(self._who, key, before, None)

    def _next_version(self, body: bytes) -> Version:
        return Version(f'"{md5(body, usedforsecurity=False).hexdigest()}"')

    def _now(self) -> datetime:
        second = int(self._loop.now)
        if second != self._second:
            self._second, self._stamp = second, datetime.fromtimestamp(EPOCH + second, UTC)
        return self._stamp


_CONDITION = Refused(Refusal.CONDITION)
_MISSING = Refused(Refusal.MISSING)
