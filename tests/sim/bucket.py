"""The shared truth: what is in the simulated bucket. Every change is one step, at one moment of virtual time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import md5
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from pawnqueue.errors import StoreError
from pawnqueue.stores.port import (
    Done,
    Expect,
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

    #: Called with (who, key, what stood there, what stands there now) for every object that changes.
    Observer: TypeAlias = Callable[[str, str, StoredObject | None, StoredObject | None], object]

#: The store's time at virtual time 0. Every machine's own idea of the date is wrong.
EPOCH = 1_767_225_600.0


class SimBucket:
    """Objects by key.

    An ETag is the MD5 of the body, as plain S3 has it: equal bodies have equal ETags, and who trusts in ETags without a
    write id in the body suffers ABA here.

    :param page_size: so many keys has a page of a listing; small, so that paging is exercised.
    :param conditional: False lets every PUT succeed, whatever it expects: a store where the last write wins.
    :param conditional_deletes: a DELETE that expects another version than is stored is refused.
    """

    def __init__(
        self, loop: SimLoop, *, page_size: int = 1000, conditional: bool = True, conditional_deletes: bool = False
    ) -> None:
        self._loop = loop
        self.page_size = page_size
        self.conditional = conditional
        self.conditional_deletes = conditional_deletes
        self.objects: dict[str, StoredObject] = {}
        #: How many requests of a kind a process has sent: ``requests["A", "PUT"]``.
        self.requests: Counter[tuple[str, str]] = Counter()
        self.observers: list[Observer] = []
        #: What fails for ever, of which object: nothing, until a scenario says so.
        self.sticky = StickyFaults()
        self._keys: list[str] = []
        self._second = -1
        self._stamp = datetime.fromtimestamp(EPOCH, UTC)

    # --- for scenarios and checks; nothing goes wrong here ---

    def plant(self, key: str, body: bytes, *, written: float | None = None) -> str:
        """Put an object there, as if it had always been, and return its version.

        :param written: the server time at which it was written; without it, now.
        """
        version = self._write("", key, body)
        if written is not None:
            found = self.objects[key]
            stamp = datetime.fromtimestamp(written, UTC).replace(microsecond=0)
            self.objects[key] = replace(found, info=replace(found.info, last_modified=stamp))
        return version

    def below(self, folder: str = "") -> list[str]:
        """Return the keys that begin so, in order."""
        keys = self._keys
        first = bisect_left(keys, folder)
        last = first
        while last < len(keys) and keys[last].startswith(folder):
            last += 1
        return keys[first:last]

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
        keys, objects = self._keys, self.objects
        position = bisect_left(keys, folder)
        if start_after >= folder:
            position = max(position, bisect_right(keys, start_after))
        chunk = keys[position : position + self.page_size + 1]
        below = [key for key in chunk if key.startswith(folder)]
        return [objects[key].info for key in below[: self.page_size]], len(below) > self.page_size

    def folders(self, folder: str) -> list[str]:
        """Read the folders directly below."""
        rests = (key[len(folder) :] for key in self.below(folder))
        return sorted({f"{folder}{rest.partition('/')[0]}/" for rest in rests if "/" in rest})

    def put(self, who: str, key: str, body: bytes, expect: Expectation) -> Outcome:
        """Write an object, if what is expected is there."""
        if expect is not Expect.ANYTHING and self.conditional:
            found = self.objects.get(key)
            if expect is Expect.NOTHING:
                if found is not None:
                    return _CONDITION
            elif found is None or found.info.version != expect:
                return _CONDITION
        return Done(self._write(who, key, body))

    def copy(self, who: str, source: str, target: str) -> Outcome | StoreError:
        """Copy an object. No version is told: not every client gets to know one."""
        if fault := self.sticky.of("COPY", source):
            return fault
        found = self.objects.get(source)
        if found is None:
            return _MISSING
        self._write(who, target, found.body)
        return Done("")

    def delete(
        self, who: str, keys: Iterable[str], versions: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, StoreError | Refused]:
        """Delete objects, whether they are there or not, and return those that cannot be.

        :param versions: which version of each is expected, where the store minds that of a DELETE.
        """
        failed: dict[str, StoreError | Refused] = {}
        for key in keys:
            if fault := self.sticky.of("DELETE", key):
                failed[key] = fault
                continue
            stored = self.objects.get(key)
            is_expected = versions.get(key) in {None, "", stored.info.version if stored else ""}
            if self.conditional_deletes and stored is not None and not is_expected:
                failed[key] = _CONDITION
                continue
            before = self.objects.pop(key, None)
            if before is not None:
                del self._keys[bisect_left(self._keys, key)]
                for observer in self.observers:
                    observer(who, key, before, None)
        return failed

    def _write(self, who: str, key: str, body: bytes) -> str:
        second = int(self._loop.now)
        if second != self._second:
            self._second, self._stamp = second, datetime.fromtimestamp(EPOCH + second, UTC)
        before = self.objects.get(key)
        if before is None:
            insort(self._keys, key)
        version = f'"{md5(body, usedforsecurity=False).hexdigest()}"'
        after = StoredObject(ObjectInfo(key, len(body), version, self._stamp), bytes(body))
        self.objects[key] = after
        for observer in self.observers:
            observer(who, key, before, after)
        return version


_CONDITION = Refused(Refusal.CONDITION)
_MISSING = Refused(Refusal.MISSING)
