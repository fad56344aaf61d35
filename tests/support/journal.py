"""The record of every request a fault server was sent, readable from any thread."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request, and the status it was answered with."""

    method: str
    #: ``PutObject``, ``GetObject``, ``HeadObject``, ``ListObjectsV2``, ``DeleteObjects``, ``DeleteObject``,
    #: ``CopyObject``, ``CreateBucket``, ``HeadBucket``, ``ListBuckets``; of others, the method and the subresource.
    operation: str
    bucket: str
    #: Empty where the request is about the bucket.
    key: str
    #: By lower-case names.
    headers: Mapping[str, str]
    query: Mapping[str, str]
    #: The keys of a ``DeleteObjects``.
    deleted: tuple[str, ...]
    access_key_id: str | None
    #: The region it was signed for.
    region: str | None
    #: When it had arrived with its body, by ``time.monotonic()``.
    at: float
    #: None while it has no answer, and for good if its connection was dropped.
    status: int | None = None

    @property
    def touches(self) -> tuple[str, ...]:
        """The keys it is about: the deleted ones, the prefix of a listing, or the key."""
        if self.operation == "DeleteObjects":
            return self.deleted
        if self.operation == "ListObjectsV2":
            return (self.query.get("prefix", ""),)
        return (self.key,)


class Journal:
    """Requests in the order of their arrival."""

    def __init__(self) -> None:
        """Start empty."""
        self._requests: list[RecordedRequest] = []
        self._changed = threading.Condition()
        self._forgotten = 0
        self._events = 0

    def arrived(self, request: RecordedRequest) -> int:
        """Record the request and return its place."""
        with self._changed:
            self._requests.append(request)
            self._happened()
            return self._forgotten + len(self._requests) - 1

    def answered(self, place: int, status: int) -> None:
        """Record the request's status."""
        with self._changed:
            index = place - self._forgotten
            if index >= 0:
                self._requests[index] = replace(self._requests[index], status=status)
            self._happened()

    def snapshot(self) -> list[RecordedRequest]:
        """Return the requests so far."""
        with self._changed:
            return list(self._requests)

    def forget(self) -> None:
        """Start anew."""
        with self._changed:
            self._forgotten += len(self._requests)
            self._requests.clear()

    def notify(self) -> None:
        """Let the waiters look again."""
        with self._changed:
            self._happened()

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Return True once the condition holds, which is looked at whenever something happens; False after the time."""
        deadline = time.monotonic() + timeout
        while True:
            with self._changed:
                seen = self._events
            # Outside the lock: the condition may ask the server, whose thread may be about to record something.
            if condition():
                return True
            with self._changed:
                if self._events == seen and not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    return condition()

    def _happened(self) -> None:
        self._events += 1
        self._changed.notify_all()
