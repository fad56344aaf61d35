"""Retries, with random and growing pauses within a budget, for requests that may be repeated.

Reads, listings, deletes and copies are repeated, as twice has the effect of once. A conditional write is not: a refusal
of the second attempt could come from our own first one. Nor is a plain PUT, except by :meth:`ResilientStore.overwrite`:
its caller has to look at the object before it sends another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from pawnqueue.domain.identifiers import Version
from pawnqueue.errors import RetryBudgetExceededError, StoreError
from pawnqueue.events import RequestRepeated
from pawnqueue.runtime.concurrency import wait_at_most
from pawnqueue.stores.port import (
    NO_VERSION,
    Done,
    Expect,
    Expectation,
    ObjectInfo,
    Outcome,
    Refused,
    Store,
    StoredObject,
    Unknown,
)

if TYPE_CHECKING:
    from pawnqueue.events import Events
    from pawnqueue.runtime.clock import Clock
    from pawnqueue.settings import RetrySettings

T = TypeVar("T")

#: No request is cancelled before this time, however small the budget is.
MIN_REQUEST_TIMEOUT_SECONDS = 1.0
#: How many GETs of one object fail before a HEAD tells whether it can be read at all.
ATTEMPTS_BEFORE_TORN_CHECK = 3


class Backoff:
    """The pauses between the attempts of one operation: random and growing, until the budget is used up.

    Every retry goes through it, also those of a compare-and-set: ``if await backoff.pause(): …``.
    """

    def __init__(
        self, settings: RetrySettings, clock: Clock, events: Events | None = None, *, budget: float | None = None
    ) -> None:
        self._settings = settings
        self._budget = settings.budget_seconds if budget is None else budget
        self._clock = clock
        self._events = events
        self._started = clock.elapsed()
        self._ceiling = settings.initial_delay_seconds
        self.attempts = 1

    async def pause(self, why: StoreError | None = None) -> bool:
        """Wait before the next attempt and return True, or return False at once if the budget is used up.

        :param why: why the last attempt failed, for the log.
        """
        delay = self._clock.uniform(0, self._ceiling)
        if self._clock.elapsed() - self._started + delay >= self._budget:
            return False
        if why is not None and self._events is not None:
            self._events.tell(RequestRepeated(operation=why.operation or "", why=str(why)))
        await self._clock.sleep(delay)
        self._ceiling = min(self._ceiling * 2, self._settings.max_delay_seconds)
        self.attempts += 1
        return True

    async def pause_or_raise(self, why: StoreError) -> None:
        """Wait before the next attempt, or raise: at once if no attempt can help, else when the budget is used up."""
        if not why.transient:
            raise why
        if not await self.pause(why):
            raise self.exceeded(why) from None

    def exceeded(self, last: StoreError) -> StoreError:
        """Return the error for an operation that is given up: the last one, with the number of attempts."""
        if self._budget == 0:
            return last
        tried = f"{self.attempts} attempt{'s' if self.attempts > 1 else ''}"
        sentence = (
            f"{str(last).removesuffix('.')}; given up after {tried} in {self._clock.elapsed() - self._started:.0f} "
            "seconds (at most retry.budget_seconds)."
        )
        return RetryBudgetExceededError(
            sentence,
            transient=True,
            denied=last.denied,
            operation=last.operation,
            cause=last,
            topic=last.topic,
            message=last.message,
        )


class ResilientStore:
    """A store that retries the calls that may be repeated. It is a :class:`~.port.Store` itself.

    :param owned: whether the store below is closed with this one.
    """

    def __init__(
        self, store: Store, settings: RetrySettings, clock: Clock, *, owned: bool = True, events: Events | None = None
    ) -> None:
        self._events = events
        self._store = store
        self._settings = settings
        self._budget = settings.budget_seconds
        self._clock = clock
        self._owned = owned
        self._watchers: list[Callable[[datetime], object]] = []
        self._cut: float | None = None

    def watch(self, watcher: Callable[[datetime], object]) -> None:
        """Call the watcher with the dates that GET and HEAD show, and with the latest date of each page of a LIST.

        The stores that :meth:`with_budget` returns call it too.
        """
        self._watchers.append(watcher)

    def with_budget(self, seconds: float, *, cut: bool = False) -> ResilientStore:
        """Return the same store with a retry budget of at most this many seconds.

        :param cut: a single GET or HEAD is cancelled after that time too: one that hangs must not delay others.
        """
        # Each claim makes dozens of these, so the settings are not copied: that would validate them again.
        copy = ResilientStore(self._store, self._settings, self._clock, owned=False, events=self._events)
        copy._budget = min(seconds, self._budget)
        copy._watchers = self._watchers
        copy._cut = copy._budget if cut else None
        return copy

    def backoff(self) -> Backoff:
        """Return the pauses for an operation that the caller repeats itself."""
        return Backoff(self._settings, self._clock, self._events, budget=self._budget)

    async def get(self, key: str, most: int) -> StoredObject | None:
        """See :class:`~.port.Store`. An object that two writers have torn has an empty body."""
        backoff = self.backoff()
        while True:
            try:
                found = await self._cancel_if_late(self._store.get(key, most), "GetObject", key)
            except StoreError as error:
                if not error.transient:
                    raise
                torn = await self._find_torn(key) if backoff.attempts == ATTEMPTS_BEFORE_TORN_CHECK else None
                if torn is not None:
                    return StoredObject(torn, b"")
                await backoff.pause_or_raise(error)
            else:
                if found is not None:
                    self._notify_watchers(found.info.last_modified)
                return found

    async def body(self, key: str, size: int, most: int) -> bytes | None:
        """See :class:`~.port.Store`. It shows no date to the watchers; it is retried as a GET."""
        try:
            return await self._cancel_if_late(self._store.body(key, size, most), "GetObject", key)
        except StoreError as error:
            if not error.transient:
                raise
        found = await self.get(key, most)
        return None if found is None else found.body

    async def head(self, key: str) -> ObjectInfo | None:
        """See :class:`~.port.Store`."""
        found = await self._repeat(lambda: self._cancel_if_late(self._store.head(key), "HeadObject", key))
        if found is not None:
            self._notify_watchers(found.last_modified)
        return found

    async def pages(self, folder: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo]]:
        """See :class:`~.port.Store`. A listing that breaks off continues behind the last key that was yielded."""
        backoff = self.backoff()
        while True:
            try:
                async for page in self._store.pages(folder, start_after=start_after):
                    self._notify_watchers(max(info.last_modified for info in page))
                    yield page
                    start_after = page[-1].key
                    # The budget is for attempts without progress, and not for the time that the caller takes.
                    backoff = self.backoff()
            except StoreError as error:
                await backoff.pause_or_raise(error)
            else:
                return

    async def folders(self, folder: str = "") -> list[str]:
        """See :class:`~.port.Store`."""
        return await self._repeat(lambda: self._store.folders(folder))

    async def put(self, key: str, body: bytes, *, expect: Expectation = Expect.ANYTHING) -> Outcome:
        """See :class:`~.port.Store`. One attempt, always."""
        return await self._store.put(key, body, expect=expect)

    async def overwrite(self, key: str, body: bytes) -> Version:
        """PUT until it is done, and return the version: for objects where the last write may win."""
        backoff = self.backoff()
        while True:
            outcome = await self._store.put(key, body)
            if isinstance(outcome, Done):
                return outcome.version
            fault = outcome.fault if isinstance(outcome, Unknown) else StoreError(f"PutObject {key} was refused.")
            if not await backoff.pause(fault):
                raise backoff.exceeded(fault) from None

    async def copy(self, source: str, target: str) -> Outcome:
        """See :class:`~.port.Store`. Retried while its outcome is unknown; it may be unknown in the end."""
        backoff = self.backoff()
        while True:
            outcome = await self._store.copy(source, target)
            if not isinstance(outcome, Unknown) or not await backoff.pause(outcome.fault):
                return outcome

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """See :class:`~.port.Store`. Keys that failed are retried; those returned failed to the end."""
        backoff = self.backoff()
        left = list(keys)
        rejected: dict[str, StoreError] = {}
        while left:
            failed = await self._store.delete(left)
            rejected.update({key: error for key, error in failed.items() if not error.transient})
            left = [key for key, error in failed.items() if error.transient]
            if left and not await backoff.pause(failed[left[0]]):
                return {**rejected, **{key: backoff.exceeded(failed[key]) for key in left}}
        return rejected

    async def delete_versions(self, versions: Mapping[str, Version]) -> Mapping[str, Refused | Unknown]:
        """See :class:`~.port.Store`. Unknown ones are retried: a version that is gone never comes back."""
        backoff = self.backoff()
        left = dict(versions)
        answered: dict[str, Refused | Unknown] = {}
        while left:
            unknown: dict[str, StoreError] = {}
            for key, outcome in (await self._store.delete_versions(left)).items():
                if isinstance(outcome, Unknown) and outcome.fault.transient:
                    unknown[key] = outcome.fault
                else:
                    answered[key] = outcome
            left = {key: left[key] for key in unknown}
            if left and not await backoff.pause(next(iter(unknown.values()))):
                return {**answered, **{key: Unknown(backoff.exceeded(fault)) for key, fault in unknown.items()}}
        return answered

    async def aclose(self) -> None:
        """See :class:`~.port.Store`."""
        if self._owned:
            await self._store.aclose()

    async def _cancel_if_late(self, request: Coroutine[Any, Any, T], operation: str, key: str) -> T:
        if self._cut is None:
            return await request
        task = asyncio.ensure_future(request)
        if not await wait_at_most(task, self._clock, max(self._cut, MIN_REQUEST_TIMEOUT_SECONDS)):
            raise StoreError(
                f"{operation} {key} was not answered in {self._cut:g} seconds: try again; if it lasts, look into the "
                "store's own log.",
                transient=True,
                operation=operation,
            )
        return task.result()

    def _notify_watchers(self, last_modified: datetime) -> None:
        for watcher in self._watchers:
            watcher(last_modified)

    async def _find_torn(self, key: str) -> ObjectInfo | None:
        """Return the size and the date of an object that no GET can read, or None if it is not such an object.

        When two clients write one object at once, ``rclone serve s3`` may tear it: it shows the object without an ETag
        and answers 500 to every GET until it is overwritten. Its readers take it for garbage, and replace it.
        """
        try:
            info = await self._store.head(key)
        except StoreError:
            return None
        return info if info is not None and info.version == NO_VERSION else None

    async def _repeat(self, call: Callable[[], Awaitable[T]]) -> T:
        backoff = self.backoff()
        while True:
            try:
                return await call()
            except StoreError as error:
                await backoff.pause_or_raise(error)
