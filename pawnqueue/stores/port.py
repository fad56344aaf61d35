"""The port: the ten calls by which the engine knows an object store.

Whoever brings a store of their own (``PawnQueue.open(..., store=mine)``) implements :class:`Store`; the conformance
suite in ``tests/pawnqueue/stores/conformance.py`` says in code what each call must do.

Every write has one of three outcomes, and they are decided here, below everything else:

* :class:`Done`: it happened, and this is the object's new version;
* :class:`Refused`: it did not happen, because the condition did not hold (or the store does not do conditions);
* :class:`Unknown`: nobody can tell. The request may have happened, may happen later, or never. It is never read as
  one of the other two: whoever needs to know looks at the object.

A request that the store rejected for good (wrong secret, missing bucket) raises :class:`~..errors.StoreError`, as do
reads that fail; ``error.transient`` says whether trying again can help. An adapter makes one attempt; trying again is
the business of :class:`~.retry.ResilientStore`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Protocol, TypeAlias

from pawnqueue.domain.identifiers import Version
from pawnqueue.errors import ObjectTooLargeError, StoreError


class Expect(Enum):
    """What a PUT expects to find at its key, where that is not a version."""

    ANYTHING = "anything"
    NOTHING = "nothing"


#: ``Expect.ANYTHING`` overwrites, ``Expect.NOTHING`` creates (``If-None-Match: *``), a version replaces (``If-Match``).
Expectation: TypeAlias = Expect | str


class Refusal(Enum):
    """Why a write did not happen."""

    CONDITION = "condition"  # 412: the object is not what the request expected
    CONFLICT = "conflict"  # 409: another write was under way; says nothing about who has the key
    UNSUPPORTED = "unsupported"  # 501: this store does not do conditions
    MISSING = "missing"  # a COPY whose source is not there


@dataclass(frozen=True, slots=True)
class Done:
    """The write happened. ``version`` is the object's ETag, quoted, as PUT, GET, HEAD and LIST all report it."""

    version: Version
    #: It was sent more than once: an attempt that nobody answered may land yet, where its condition holds again.
    repeated: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """The write did not happen."""

    why: Refusal


@dataclass(frozen=True, slots=True)
class Unknown:
    """The write may or may not have happened, or may still happen."""

    fault: StoreError
    #: The store answered, if only that it had failed: nothing of the request is under way any more.
    answered: bool = False
    #: The store does not show what is stored there: it is that which failed, and not the write.
    unseen: bool = False


Outcome: TypeAlias = Done | Refused | Unknown


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What LIST and HEAD tell of an object."""

    key: str
    size: int
    version: Version
    last_modified: datetime


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object with its body."""

    info: ObjectInfo
    body: bytes


def refuse_if_larger(info: ObjectInfo, most: int) -> None:
    """Raise, before the body is downloaded, if an object is larger than its reader takes.

    :raises ObjectTooLargeError: it is. The error concerns this object alone, and no repetition of the request helps.
    """
    if info.size > most:
        raise ObjectTooLargeError(
            f"{info.key} has {info.size:,} bytes, and at most {most:,} are read of such an object here: it is left as "
            "it is.",
            operation="GetObject",
            size=info.size,
            version=info.version,
            last_modified=info.last_modified,
        )


#: The version of an object of which the store tells none.
NO_VERSION = Version('""')


class Store(Protocol):
    """One bucket, below an optional key prefix that its users never see.

    Keys are ``/``-separated, without a leading slash. A *folder* is ``""`` or ends with ``/``.
    """

    async def get(self, key: str, most: int) -> StoredObject | None:
        """Return the object, or None where there is none.

        :param most: how many bytes the caller takes. A larger body is not downloaded: anybody may have put it there.
        :raises ObjectTooLargeError: the body is larger: see :func:`refuse_if_larger`.
        """

    async def body(self, key: str, size: int, most: int) -> bytes | None:
        """Return an object's body, and nothing else that is known of it, or None where there is none.

        :param size: what it was when it was listed. It may help to get it sooner; the body is whole, whatever it is.
        :param most: as with :meth:`get`.
        """

    async def head(self, key: str) -> ObjectInfo | None:
        """Return what is known of the object without its body, or None where there is none."""

    def pages(self, folder: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """List all below ``folder`` in key order, from behind ``start_after``; each page is one request.

        Keys are given as they are, strange ones too: what nobody here wrote must not end a listing.
        """

    async def folders(self, folder: str = "") -> list[str]:
        """List the folders directly below ``folder``, by their full names (``a/b/``), without walking them."""

    async def put(self, key: str, body: bytes, *, expect: Expectation = Expect.ANYTHING) -> Outcome:
        """Write the object in a single PUT, never in parts. A version in ``expect`` is sent as it is given."""

    async def copy(self, source: str, target: str) -> Outcome:
        """Copy inside the bucket, in the store, overwriting ``target``."""

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """Delete the objects, in bulk. What is returned could not be confirmed as gone; no object counts as gone."""

    async def delete_versions(self, versions: Mapping[str, Version]) -> Mapping[str, Refused | Unknown]:
        """Delete the objects, in bulk, as far as each of them is the version that is expected; "" expects any.

        What is returned was not done: *refused*, as another version is stored, or *unknown*. No object counts as gone.
        It is called only where a probe has seen that the store keeps to it (``ProbeResult.conditional_deletes``).
        """

    async def aclose(self) -> None:
        """Give back connections and threads. May be called twice."""
