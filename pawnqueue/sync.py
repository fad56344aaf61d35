"""The queue for synchronous callers: plain scripts, Airflow's hook, Spark drivers.

One implementation: each call runs in a private event loop, in a thread of its own. Any thread may make it, also inside
a running event loop (which it blocks), and in a forked child, which starts a loop of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, Unpack

from pawnqueue.arguments import checked_callback, checked_count, checked_flag, checked_pack, checked_seconds
from pawnqueue.claims import Claim, Message
from pawnqueue.claims.held import HeldClaim
from pawnqueue.domain import layout
from pawnqueue.errors import PawnQueueError, QueueClosedError
from pawnqueue.listening.handlers import HandlerThreads, checked_sync_handler
from pawnqueue.listening.signals import on_signals
from pawnqueue.publish.new_messages import check_dedup_keys, checked_messages
from pawnqueue.publish.schedule import checked_schedule
from pawnqueue.queue import PawnQueue
from pawnqueue.runtime.lifetime import CLOSE_SECONDS
from pawnqueue.runtime.private_loop import CALLED_FROM_OWN_THREAD, PrivateLoop
from pawnqueue.sync_callbacks import SyncKeepAlive, guarded
from pawnqueue.sync_calls import SyncCalls

if TYPE_CHECKING:
    from pawnqueue.arguments import OnLost, Payloads, TopicNames
    from pawnqueue.bucket.opening import Sections
    from pawnqueue.claims import KeepAlive
    from pawnqueue.events import Listener
    from pawnqueue.listening.handlers import SyncHandler
    from pawnqueue.listening.report import Listened
    from pawnqueue.publish.new_messages import DedupKey
    from pawnqueue.publish.packing import PackChoice
    from pawnqueue.runtime.clock import Clock
    from pawnqueue.settings import Settings
    from pawnqueue.spans import Spans
    from pawnqueue.stores.credentials import Session
    from pawnqueue.stores.port import Store

G = TypeVar("G")
T = TypeVar("T")

#: Iterables that nothing is iterated of: the queue itself takes or refuses them.
_AS_GIVEN = (str, bytes, dict, list, tuple, set, frozenset, Message, Claim)


class SyncPawnQueue(SyncCalls):
    """:class:`~.queue.PawnQueue` without ``await``: ``with SyncPawnQueue.open(...) as queue:``.

    For plain scripts and services, Airflow's hook and Spark drivers, from any thread.
    """

    def __init__(self, reopen: Callable[[], Awaitable[PawnQueue]]) -> None:
        self._reopen = reopen
        self._closed = False
        self._loop, self._queue = self._start()

    @classmethod
    def open(  # noqa: PLR0913 - as PawnQueue has them
        cls,
        settings: Settings | Mapping[str, Any] | str | PathLike[str] | None = None,
        *,
        store: Store | None = None,
        session: Session | None = None,
        clock: Clock | None = None,
        on_event: Listener | None = None,
        tracing: Spans | None = None,
        **sections: Unpack[Sections],
    ) -> Self:
        """Open the queue that is in a bucket. The arguments are those of :meth:`PawnQueue.open`."""
        listener = on_event
        if callable(on_event) and not inspect.iscoroutinefunction(on_event):  # PawnQueue.open refuses a coroutine
            listener = guarded(on_event, "on_event")

        async def reopen() -> PawnQueue:
            return await PawnQueue.open(
                settings, store=store, session=session, clock=clock, on_event=listener, tracing=tracing, **sections
            )

        return cls(reopen)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def is_draining(self) -> bool:
        """Whether it claims nothing more, as :meth:`drain` or the closing of it has begun."""
        return self._closed or self._queue.is_draining

    @property
    def strategy(self) -> str:
        """The lease strategy that all processes of this bucket follow."""
        return self._queue.strategy

    @property
    def settings(self) -> Settings:
        """The settings that it was opened with. They show no secrets."""
        return self._queue.settings

    def run(self, work: Callable[[PawnQueue], Awaitable[T]]) -> T:
        """Have several calls made one after the other in the queue's own loop: ``run(lambda queue: mine(queue))``.

        :param work: a coroutine function that is given the queue behind this one.
        """
        queue = self._opened()
        return self._loop.run(_call(lambda: work(queue)))

    async def awaited(self, work: Callable[[PawnQueue], Awaitable[T]]) -> T:
        """Do something with the queue for a caller in another event loop, without blocking that loop.

        ``claim = await queue.awaited(lambda queue: queue.claim("orders", "billing"))`` runs the lambda in this queue's
        own loop, and awaits its result here. A cancellation cancels the work there, and waits for its end. If the work
        has made a claim all the same, the claim is given back, or left for the next claim by its id.

        :param work: a coroutine function that is given the queue behind this one.
        :raises QueueClosedError: the queue was closed, before this or meanwhile.
        """
        # In a forked child it is opened anew, in a thread, as that takes a while.
        here = self._loop.pid == os.getpid()
        queue = self._opened() if here or self._closed else await asyncio.to_thread(self._opened)
        return await self._loop.awaited(lambda: work(queue), lambda result: _give_back_unheard(queue, result))

    def close(self, *, keep_claims: bool | None = None, timeout: float = CLOSE_SECONDS) -> None:
        """Close the queue, and end its thread. Calls that other threads are making end too. It may be called twice.

        :param keep_claims: keep the messages of open claims for the next claim by the same id, which need not wait.
            Nobody else gets them before the claims' time is over. Without it, ``claims.keep_when_closed``.
        :param timeout: for how many seconds at most it tries to give claims back. The log names what was not.
        """
        if self._loop.pid == os.getpid() and self._loop.is_here():
            raise PawnQueueError(CALLED_FROM_OWN_THREAD, operation="close")
        self._closed = True
        if self._loop.pid != os.getpid():
            return
        try:
            with suppress(QueueClosedError):
                self._loop.run(self._queue.aclose(keep_claims=keep_claims, timeout=timeout))
        finally:
            self._loop.stop()

    # --- what the calls are made of ---

    def _start(self) -> tuple[PrivateLoop, PawnQueue]:
        loop = PrivateLoop()
        try:
            return loop, loop.run(_call(self._reopen))
        except BaseException:
            loop.stop()
            raise

    def _opened(self) -> PawnQueue:
        """Return the queue of this process; raise if it was closed."""
        if self._closed:
            raise QueueClosedError
        if self._loop.pid != os.getpid():
            # A forked child has neither the thread nor the connections: it opens the queue anew.
            loop, queue = self._start()
            if self._loop.pid == os.getpid():
                loop.stop()  # another thread was faster
            else:
                self._queue, self._loop = queue, loop
        return self._queue

    def _as_list(self, given: G) -> G | list[Any]:
        """Return the items of an iterable, iterated in its caller's thread: the loop's has claims to renew meanwhile.

        An iterable may be slow, may call this queue, or may work only in its own thread (a cursor of sqlite).
        """
        self._opened()
        if given is None or isinstance(given, _AS_GIVEN) or not isinstance(given, Iterable):
            return given
        return list(given)

    def _copied(  # noqa: PLR0913 - as publish has them
        self,
        topic: str,
        payloads: Payloads,
        headers: Mapping[str, str] | None,
        *,
        create: bool,
        dedup_key: DedupKey,
        pack: PackChoice,
        **schedule: Any,
    ) -> Payloads:
        """Return the payloads as they were when the iteration yielded them, in the caller's thread."""
        limits = self._opened().settings.limits
        layout.checked_topic(topic)
        checked_flag(create, "create", "publish")
        checked_pack(pack)
        schedules = checked_schedule(topic, **schedule)
        checked = checked_messages(payloads, headers, limits, topic, schedule=schedules, dedup_key=dedup_key)
        check_dedup_keys(checked, topic, dedup_key)
        return checked

    @contextmanager
    def _kept_alive(
        self, claim: Claim, *, on_lost: OnLost | None, ttl: float | None, interval: float | None
    ) -> Iterator[SyncKeepAlive]:
        checked_callback(on_lost, "on_lost", "the error", "keep_alive")
        kept = SyncKeepAlive(on_lost)

        async def make(queue: PawnQueue) -> KeepAlive:
            return queue.keep_alive(claim, on_lost=kept.note_loss, ttl=ttl, interval=interval)

        keeper = self.run(make)
        loop = self._loop
        try:
            # Inside the try block, so that an interrupt leaves no renewals behind.
            loop.run(keeper.__aenter__())
            yield kept
        finally:
            if loop.pid == os.getpid():
                with suppress(QueueClosedError):  # closed inside the block: it has ended with the queue
                    loop.run(keeper.__aexit__(None, None, None))

    def _listened(
        self,
        topics: TopicNames,
        handler: SyncHandler,
        *,
        concurrency: int,
        handle_signals: bool,
        drain_timeout: float,
        **more: Any,
    ) -> Listened:
        # The queue's own loop is not in the main thread, so signals are heard here.
        called, most = checked_sync_handler(handler), checked_count(concurrency, "concurrency", "listen")
        hears = checked_flag(handle_signals, "handle_signals", "listen")
        seconds = checked_seconds(drain_timeout, "drain_timeout", "", "listen")
        queue, loop = self._opened(), self._loop
        threads = HandlerThreads(called, most)

        def listen(queue: PawnQueue) -> Awaitable[Listened]:
            return queue.listen(
                topics, threads.handle, concurrency=most, handle_signals=False, drain_timeout=seconds, **more
            )

        def heard() -> None:
            loop.call_soon(queue._hear_signal, seconds)  # noqa: SLF001 - its twin

        try:
            with on_signals(queue, heard) if hears else nullcontext():
                return self.run(listen)
        finally:
            threads.end()

    def __repr__(self) -> str:
        return repr(self._queue).replace(PawnQueue.__name__, type(self).__name__, 1)

    def __reduce__(self) -> NoReturn:
        raise PawnQueueError(
            "A SyncPawnQueue cannot be copied or pickled, as its thread and connections cannot: open one in each "
            "process, and hand over claims (claim.hand_over()).",
            operation="pickle",
        )

    def __enter__(self) -> Self:
        if self._closed:
            raise QueueClosedError
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _call(function: Callable[[], Awaitable[T]]) -> T:
    return await function()


async def _give_back_unheard(queue: PawnQueue, result: object) -> None:
    """Give back a claim whose caller was cancelled, or leave it for the next claim by its id."""
    if not isinstance(result, Claim) or not result:
        return
    with suppress(PawnQueueError):
        if HeldClaim.of(result, "claim").is_fleeting:
            await queue.requeue(result)
        else:
            await queue.leave(result)
