"""Trying again: a jittered back-off under a budget, for what may be repeated.

Reads, listings, deletes and copies are repeated: doing them twice is doing them once. A conditional write never is, as
its refusal would then say nothing (it may be our own first attempt that stands there), and neither is a plain PUT,
except by :meth:`ResilientStore.overwrite`: whoever sends those again has to look first.
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

#: No request is cut off before this.
MIN_REQUEST_TIMEOUT_SECONDS = 1.0
#: After so many failed GETs of one object it is looked at whether it can be read at all.
ATTEMPTS_BEFORE_TORN_CHECK = 3


class Backoff:
    """The pauses of one operation: random, growing, and ending with the budget.

    Anything that repeats a request asks it for leave, the compare-and-set of a register too: ``if await
    backoff.pause(): …``.
    """

    def __init__(self, settings: RetrySettings, clock: Clock, events: Events | None = None) -> None:
        self._settings = settings
        self._clock = clock
        self._events = events
        self._started = clock.elapsed()
        self._ceiling = settings.initial_delay_seconds
        self.attempts = 1

    async def pause(self, why: StoreError | None = None) -> bool:
        """Wait before another attempt and return True; or return False, at once, if there is to be none.

        :param why: what went wrong with the last one, for the log.
        """
        delay = self._clock.uniform(0, self._ceiling)
        if self._clock.elapsed() - self._started + delay >= self._settings.budget_seconds:
            return False
        if why is not None and self._events is not None:
            self._events.tell(RequestRepeated(operation=why.operation or "", why=str(why)))
        await self._clock.sleep(delay)
        self._ceiling = min(self._ceiling * 2, self._settings.max_delay_seconds)
        self.attempts += 1
        return True

    def exceeded(self, last: StoreError) -> StoreError:
        """Return the error to raise when there is to be no other attempt: the last one, with what was tried."""
        if self._settings.budget_seconds == 0:
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
    """A store whose repeatable calls are repeated. It is itself a :class:`~.port.Store`.

    :param owned: whether the store below is closed with this one.
    """

    def __init__(
        self, store: Store, settings: RetrySettings, clock: Clock, *, owned: bool = True, events: Events | None = None
    ) -> None:
        self._events = events
        self._store = store
        self._settings = settings
        self._clock = clock
        self._owned = owned
        self._watchers: list[Callable[[datetime], object]] = []
        self._cut: float | None = None

    def watch(self, watcher: Callable[[datetime], object]) -> None:
        """Tell somebody, from now on, the dates of objects that GET and HEAD show, and of each LIST's page the latest.

        Copies with another budget tell them too.
        """
        self._watchers.append(watcher)

    def with_budget(self, seconds: float, *, cut: bool = False) -> ResilientStore:
        """Return the same store with at most so much patience.

        :param cut: for a single GET or HEAD too, which is cut off then: one that hangs must not delay what is beside.
        """
        budget = min(seconds, self._settings.budget_seconds)
        settings = self._settings.model_copy(update={"budget_seconds": budget})
        copy = ResilientStore(self._store, settings, self._clock, owned=False, events=self._events)
        copy._watchers = self._watchers
        copy._cut = budget if cut else None
        return copy

    def backoff(self) -> Backoff:
        """Start the pauses of one operation that its caller repeats."""
        return Backoff(self._settings, self._clock, self._events)

    async def get(self, key: str, most: int) -> StoredObject | None:
        """See :class:`~.port.Store`. The body of an object that two writers have torn is nothing."""
        backoff = self.backoff()
        while True:
            try:
                found = await self._in_time(self._store.get(key, most), "GetObject", key)
            except StoreError as error:
                if not error.transient:
                    raise
                torn = await self._torn(key) if backoff.attempts == ATTEMPTS_BEFORE_TORN_CHECK else None
                if torn is not None:
                    return StoredObject(torn, b"")
                if not await backoff.pause(error):
                    raise backoff.exceeded(error) from None
            else:
                if found is not None:
                    self._show(found.info.last_modified)
                return found

    async def body(self, key: str, size: int, most: int) -> bytes | None:
        """See :class:`~.port.Store`. Its date is shown to nobody; what goes wrong is tried again as a GET."""
        try:
            return await self._in_time(self._store.body(key, size, most), "GetObject", key)
        except StoreError as error:
            if not error.transient:
                raise
        found = await self.get(key, most)
        return None if found is None else found.body

    async def head(self, key: str) -> ObjectInfo | None:
        """See :class:`~.port.Store`."""
        found = await self._repeat(lambda: self._in_time(self._store.head(key), "HeadObject", key))
        if found is not None:
            self._show(found.last_modified)
        return found

    async def pages(self, folder: str, *, start_after: str = "") -> AsyncGenerator[Sequence[ObjectInfo]]:
        """See :class:`~.port.Store`. A listing that breaks off goes on behind the last key that was given."""
        backoff = self.backoff()
        while True:
            try:
                async for page in self._store.pages(folder, start_after=start_after):
                    self._show(max(info.last_modified for info in page))
                    yield page
                    start_after = page[-1].key
                    # Progress was made: the budget is for standing still, and none of it for what the caller did.
                    backoff = self.backoff()
            except StoreError as error:
                if not error.transient:
                    raise
                if not await backoff.pause(error):
                    raise backoff.exceeded(error) from None
            else:
                return

    async def folders(self, folder: str = "") -> list[str]:
        """See :class:`~.port.Store`."""
        return await self._repeat(lambda: self._store.folders(folder))

    async def put(self, key: str, body: bytes, *, expect: Expectation = Expect.ANYTHING) -> Outcome:
        """See :class:`~.port.Store`. One attempt, always."""
        return await self._store.put(key, body, expect=expect)

    async def overwrite(self, key: str, body: bytes) -> Version:
        """PUT until it is known to be done, and return the version: for objects of which the last write may win."""
        backoff = self.backoff()
        while True:
            outcome = await self._store.put(key, body)
            if isinstance(outcome, Done):
                return outcome.version
            fault = outcome.fault if isinstance(outcome, Unknown) else StoreError(f"PutObject {key} was refused.")
            if not await backoff.pause(fault):
                raise backoff.exceeded(fault) from None

    async def copy(self, source: str, target: str) -> Outcome:
        """See :class:`~.port.Store`. Repeated while unknown; what is still unknown after that is said."""
        backoff = self.backoff()
        while True:
            outcome = await self._store.copy(source, target)
            if not isinstance(outcome, Unknown) or not await backoff.pause(outcome.fault):
                return outcome

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """See :class:`~.port.Store`. What failed is repeated; what is returned failed to the end."""
        backoff = self.backoff()
        left = list(keys)
        hopeless: dict[str, StoreError] = {}
        while left:
            failed = await self._store.delete(left)
            hopeless.update({key: error for key, error in failed.items() if not error.transient})
            left = [key for key, error in failed.items() if error.transient]
            if left and not await backoff.pause(failed[left[0]]):
                return {**hopeless, **{key: backoff.exceeded(failed[key]) for key in left}}
        return hopeless

    async def delete_versions(self, versions: Mapping[str, Version]) -> Mapping[str, Refused | Unknown]:
        """See :class:`~.port.Store`. What is unknown is repeated: a version that is gone never comes again."""
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

    async def _in_time(self, request: Coroutine[Any, Any, T], operation: str, key: str) -> T:
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

    def _show(self, last_modified: datetime) -> None:
        for watcher in self._watchers:
            watcher(last_modified)

    async def _torn(self, key: str) -> ObjectInfo | None:
        """Return what is known of an object that no GET will ever read, or None if it is not such a one.

        Where ``rclone serve s3`` has let two writers into one object at once, it shows the object without an ETag and
        answers 500 to every GET, until somebody writes it anew. Its readers judge it as garbage, and replace it.
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
                if not error.transient:
                    raise
                if not await backoff.pause(error):
                    raise backoff.exceeded(error) from None
