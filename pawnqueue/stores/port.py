"""The port: the ten calls by which the queue uses an object store.

A store of your own (``PawnQueue.open(..., store=mine)``) implements :class:`Store`. The conformance suite in
``tests/pawnqueue/stores/conformance.py`` says in code what each call must do.

Every write has one of three outcomes. The adapter decides which:

* :class:`Done`: it happened, and this is the object's new version;
* :class:`Refused`: it did not happen, because the condition did not hold (or the store does not do conditions);
* :class:`Unknown`: it may have happened, may still happen, or never will. It is never taken for one of the other two:
  only a look at the object can tell.

A request that the store rejected for good (wrong secret, missing bucket) raises :class:`~..errors.StoreError`, and so
does a read that fails; ``error.transient`` says whether a retry can help. An adapter makes one attempt. Retries are
made by :class:`~.retry.ResilientStore`.
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
    """What a PUT expects at its key, other than a version."""

    ANYTHING = "anything"
    NOTHING = "nothing"


#: ``Expect.ANYTHING`` overwrites, ``Expect.NOTHING`` creates (``If-None-Match: *``), a version replaces (``If-Match``).
Expectation: TypeAlias = Expect | str


class Refusal(Enum):
    """Why a write did not happen."""

    CONDITION = "condition"  # 412: the object is not what the request expected
    CONFLICT = "conflict"  # 409: another write was in flight; either may have won
    UNSUPPORTED = "unsupported"  # 501: this store does not do conditions
    MISSING = "missing"  # the source of a COPY does not exist


@dataclass(frozen=True, slots=True)
class Done:
    """The write happened. ``version`` is the object's ETag, quoted, as PUT, GET, HEAD and LIST all report it."""

    version: Version
    #: It was sent more than once: an attempt without an answer may still land, if its condition holds again.
    repeated: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Refused:
    """The write did not happen."""

    why: Refusal


@dataclass(frozen=True, slots=True)
class Unknown:
    """The write may or may not have happened, or may still happen."""

    fault: StoreError
    #: The store answered, if only that it had failed: the request is not in flight any more.
    answered: bool = False
    #: Reading the object failed afterwards, and not the write itself.
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
    """Raise, before the body is downloaded, if an object is larger than its reader accepts.

    :raises ObjectTooLargeError: it is. The error concerns this object alone, and a retry does not help.
    """
    if info.size > most:
        raise ObjectTooLargeError(
            f"{info.key} has {info.size:,} bytes, and this process reads at most {most:,} of such an object: it is "
            "left as it is.",
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

        :param most: how many bytes the caller accepts. A larger body is not downloaded: it may be a forgery.
        :raises ObjectTooLargeError: the body is larger: see :func:`refuse_if_larger`.
        """

    async def body(self, key: str, size: int, most: int) -> bytes | None:
        """Return an object's body alone, or None where there is no object.

        :param size: its size when it was listed. It may speed up the request; the body is complete in any case.
        :param most: as with :meth:`get`.
        """

    async def head(self, key: str) -> ObjectInfo | None:
        """Return the object's size, version and date, or None where there is no object."""

    def pages(self, folder: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """List all below ``folder`` in key order, from behind ``start_after``; each page is one request.

        Keys of other writers are listed too, however strange they are: they must not end a listing.
        """

    async def folders(self, folder: str = "") -> list[str]:
        """List the folders directly below ``folder``, by their full names (``a/b/``), without walking them."""

    async def put(self, key: str, body: bytes, *, expect: Expectation = Expect.ANYTHING) -> Outcome:
        """Write the object in a single PUT, never in parts. A version in ``expect`` is sent as it is given."""

    async def copy(self, source: str, target: str) -> Outcome:
        """Copy inside the bucket, in the store, overwriting ``target``."""

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """Delete the objects, in bulk, and return the keys that may still exist. An absent object counts as deleted."""

    async def delete_versions(self, versions: Mapping[str, Version]) -> Mapping[str, Refused | Unknown]:
        """Delete the objects, in bulk, each if its version is the expected one; "" expects any version.

        Returned are the keys that were not deleted: *refused*, as another version is stored, or *unknown*. An object
        that does not exist counts as deleted. It is called only where a probe has seen that the store honours it
        (``ProbeResult.conditional_deletes``).
        """

    async def aclose(self) -> None:
        """Release connections and threads. May be called twice."""
