"""Opening a queue: from settings to a bucket that has agreed on how it is used."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypedDict, TypeVar

from pawnqueue.bucket import agreement
from pawnqueue.context import Context
from pawnqueue.errors import InvalidArgumentError, PawnQueueError, StoreError
from pawnqueue.events import Events, Listener, QueueOpened
from pawnqueue.runtime.clock import Clock, SystemClock
from pawnqueue.settings import Settings
from pawnqueue.spans import Spans
from pawnqueue.stores.connect import connect
from pawnqueue.stores.port import Store
from pawnqueue.stores.retry import ResilientStore
from pawnqueue.stores.server_time import ServerTime

if TYPE_CHECKING:
    from pawnqueue.domain.records import BucketRecord
    from pawnqueue.stores.credentials import Session


class Sections(TypedDict, total=False):
    """Sections of the settings as keyword arguments, each a dict."""

    s3: Mapping[str, Any]
    polling: Mapping[str, Any]
    concurrency: Mapping[str, Any]
    registry: Mapping[str, Any]
    claims: Mapping[str, Any]
    retry: Mapping[str, Any]
    limits: Mapping[str, Any]


class Closeable(Protocol):
    """A queue that can be closed."""

    async def aclose(self) -> None:
        """Close it."""


Q = TypeVar("Q", bound=Closeable)


class ForAsyncWith:
    """For ``async with`` alone: ``with`` raises an error that says so."""

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise TypeError(
                "PawnQueue is for asyncio: write `async with PawnQueue.open(...) as queue`, or `with "
                "SyncPawnQueue.open(...) as queue` where there is no asyncio."
            )

        def __exit__(self, *_: object) -> None:  # without it, Python would only say that it is missing
            pass


class Opening(ForAsyncWith, Generic[Q]):
    """A queue that is about to be opened: await it, or enter it."""

    def __init__(self, open_: Callable[[], Awaitable[Q]]) -> None:
        self._open = open_
        self._queue: Q | None = None

    def __await__(self) -> Generator[Any, None, Q]:
        """Open the queue; its user closes it."""
        return self._open().__await__()

    def __getattr__(self, name: str) -> NoReturn:
        """Raise an error that says to await it."""
        raise AttributeError(
            f"A queue that is not open yet has no {name!r}: write queue = await PawnQueue.open(...), or async with "
            "PawnQueue.open(...) as queue; without asyncio, with SyncPawnQueue.open(...) as queue."
        )

    async def __aenter__(self) -> Q:
        """Open the queue for the length of a block."""
        self._queue = await self._open()
        return self._queue

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the queue."""
        if self._queue is not None:
            await self._queue.aclose()


async def open_bucket(  # noqa: PLR0913 - what a queue is opened with
    settings: Settings | Mapping[str, Any] | str | PathLike[str] | None,
    explicit: Sections,
    *,
    store: Store | None,
    session: Session | None,
    clock: Clock | None,
    on_event: Listener | None,
    tracing: Spans | None,
) -> tuple[Context, BucketRecord]:
    """Connect, agree with the bucket's other processes, and return what every operation needs."""
    events, spans = Events(on_event), _checked_tracing(tracing)
    sections: dict[str, Any] = dict(explicit)
    if store is not None:
        _check_store(store)
        if _has_no_bucket(settings) and "s3" not in sections:
            sections["s3"] = {"bucket_name": "own-store"}  # only the store itself knows where its bucket is
    loaded = Settings.load(settings, **sections)
    own_clock = clock or SystemClock()
    # In a thread: importing a client, reading profiles and connecting would block the event loop.
    made = store if store is not None else await asyncio.to_thread(connect, loaded.store, session)
    resilient = ResilientStore(made, loaded.retry, own_clock, owned=_is_owned(store), events=events)
    try:
        agreed = await agreement.agree(resilient, own_clock, loaded)
    except Exception as error:
        await resilient.aclose()
        if isinstance(error, PawnQueueError):
            raise
        raise StoreError(
            f"{loaded.store.endpoint if store is None else 'The store'} could not be used, for an unknown reason "
            f"({type(error).__name__}: {error}): check the s3 settings, and whether an S3 server answers there.",
            operation="open",
            cause=error,
        ) from error
    except BaseException:
        await resilient.aclose()
        raise
    registers = agreement.registers_for(agreed, resilient, own_clock, loaded)
    time = ServerTime(resilient, own_clock)
    resilient.watch(time.note_date)
    events.tell(QueueOpened(bucket=loaded.store.bucket_name, strategy=agreed.strategy))
    return Context(resilient, registers, own_clock, time, loaded, events, spans), agreed


def _is_owned(store: Store | None) -> bool:
    """Return whether the queue closes its store: a store of its own, or one of the caller's that asks for it."""
    return store is None or bool(getattr(store, "is_closed_with_its_queue", False))


def _has_no_bucket(settings: Settings | Mapping[str, Any] | str | PathLike[str] | None) -> bool:
    if isinstance(settings, Mapping):
        s3 = settings.get("s3")
        return not isinstance(s3, Mapping) or "bucket_name" not in s3
    return settings is None


def _checked_tracing(tracing: object) -> Spans:
    if tracing is None:
        return Spans()
    if isinstance(tracing, Spans):
        return tracing
    raise InvalidArgumentError(
        f"tracing={tracing!r} does not trace: pass Tracing() of pawnqueue.tracing, or leave it out.", operation="open"
    )


def _check_store(store: object) -> None:
    missing = [
        name for name in ("get", "head", "pages", "folders", "put", "copy", "delete") if not hasattr(store, name)
    ]
    if missing or isinstance(store, type):
        raise InvalidArgumentError(
            f"store={store!r} is not a store: pass an object such as MemoryStore(), or leave it out, and the settings "
            "say where the bucket is.",
            operation="open",
        )
