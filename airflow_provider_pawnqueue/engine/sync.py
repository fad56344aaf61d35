"""The same front door for synchronous callers: one implementation, on a private event loop in a thread of its own.

For plain scripts, Airflow's hook and Spark drivers. It may be called from any thread, inside a running event loop too
(it blocks that loop then), and in a forked child, where it starts a loop of the child's own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from airflow_provider_pawnqueue.engine.errors import PawnQueueError, QueueClosedError
from airflow_provider_pawnqueue.engine.queue import PawnQueue

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.claims import Claim, ClaimReference, KeepAlive, Message, Settlement
    from airflow_provider_pawnqueue.engine.errors import LeaseLostError
    from airflow_provider_pawnqueue.engine.inspect_topic import Found, Stats
    from airflow_provider_pawnqueue.engine.janitor import Ask, Report
    from airflow_provider_pawnqueue.engine.probe import Finding
    from airflow_provider_pawnqueue.engine.records import Registration, TopicRecord, TopicSettings
    from airflow_provider_pawnqueue.engine.redrive import Redriven
    from airflow_provider_pawnqueue.engine.settings import Settings
    from airflow_provider_pawnqueue.engine.store.credentials import Session
    from airflow_provider_pawnqueue.engine.store.port import Store

T = TypeVar("T")


class _Loop:
    """An event loop that runs in a daemon thread of this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._end = asyncio.Event()
        self._ending = False
        self._lock = threading.Lock()  # nothing is begun once the end has begun: nobody would finish it
        self._thread = threading.Thread(target=self._run, name="pawnqueue-loop", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work to its end, and return its result; an interrupt of the caller cancels it."""
        with self._lock:
            if self._ending or threading.current_thread() is self._thread:
                work.close()
                raise QueueClosedError if self._ending else PawnQueueError(_OWN_THREAD)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise QueueClosedError from None  # another thread has closed the queue in the middle of it
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End all that still runs, the loop and its thread. May be called twice; an interrupt leaves nothing behind."""
        with self._lock:
            self._ending = True
        with suppress(RuntimeError):  # it has ended before
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def _run(self) -> None:
        with self._runner:  # which ends what is left
            self._runner.run(self._end.wait())


_OWN_THREAD = (
    "A method of SyncPawnQueue was called from the thread of its own event loop (by on_lost, say), and would wait for "
    "itself: call it from another thread."
)


class SyncKeepAlive:
    """What the block of :meth:`SyncPawnQueue.keep_alive` is given: any thread may ask ``.lost``, and wait for it.

    ``.error`` says why it was lost.
    """

    def __init__(self, on_lost: Callable[[LeaseLostError], Awaitable[None] | None] | None) -> None:
        self._on_lost = on_lost
        self.lost = threading.Event()
        self.error: LeaseLostError | None = None

    def _tell(self, error: LeaseLostError) -> Awaitable[None] | None:
        """Tell of the loss, in the thread of the loop: what is raised here is logged there."""
        self.error = error
        self.lost.set()
        try:
            return None if self._on_lost is None else self._on_lost(error)
        except (SystemExit, KeyboardInterrupt) as end:
            raise PawnQueueError(_NO_EXIT, operation="on_lost", cause=end) from end


_NO_EXIT = (
    "on_lost is called in the thread of the queue's own event loop, and cannot end the program from there: let it tell "
    "the thread that works, by an event for example."
)


class SyncPawnQueue:
    """:class:`~.queue.PawnQueue` without ``await``: ``with SyncPawnQueue.open(...) as queue:``.

    Its methods are those of PawnQueue, by the same names and arguments, and are documented there.
    """

    def __init__(self, reopen: Callable[[], Awaitable[PawnQueue]]) -> None:
        self._reopen = reopen
        self._closed = False
        self._loop, self._queue = self._start()

    @classmethod
    def open(
        cls,
        settings: Settings | Mapping[str, Any] | str | PathLike[str] | None = None,
        *,
        store: Store | None = None,
        session: Session | None = None,
        **explicit: Any,
    ) -> Self:
        """See :meth:`.queue.PawnQueue.open`."""

        async def reopen() -> PawnQueue:
            return await PawnQueue.open(settings, store=store, session=session, **explicit)

        return cls(reopen)

    def _start(self) -> tuple[_Loop, PawnQueue]:
        loop = _Loop()
        try:
            return loop, loop.run(_call(self._reopen))
        except BaseException:
            loop.stop()
            raise

    def _run(self, work: Callable[[PawnQueue], Awaitable[T]]) -> T:
        if self._closed:
            raise QueueClosedError
        if self._loop.pid != os.getpid():
            # Neither the thread nor the connections came along into this forked child: begin anew here.
            loop, queue = self._start()
            if self._loop.pid == os.getpid():
                loop.stop()  # another thread was faster
            else:
                self._queue, self._loop = queue, loop
        return self._loop.run(_call(lambda: work(self._queue)))

    @property
    def closed(self) -> bool:
        """See :attr:`.queue.PawnQueue.closed`."""
        return self._closed

    @property
    def strategy(self) -> str:
        """See :attr:`.queue.PawnQueue.strategy`."""
        return self._queue.strategy

    def probe(self) -> Finding:
        """See :meth:`.queue.PawnQueue.probe`."""
        return self._run(lambda queue: queue.probe())

    def create_topic(self, topic: str, **settings: Any) -> TopicSettings:
        """See :meth:`.queue.PawnQueue.create_topic`."""
        return self._run(lambda queue: queue.create_topic(topic, **settings))

    def update_topic(self, topic: str, **settings: Any) -> TopicSettings:
        """See :meth:`.queue.PawnQueue.update_topic`."""
        return self._run(lambda queue: queue.update_topic(topic, **settings))

    def topic(self, topic: str) -> TopicRecord:
        """See :meth:`.queue.PawnQueue.topic`."""
        return self._run(lambda queue: queue.topic(topic))

    def list_topics(self) -> list[str]:
        """See :meth:`.queue.PawnQueue.list_topics`."""
        return self._run(lambda queue: queue.list_topics())

    def delete_topic(self, topic: str, *, force: bool = False) -> None:
        """See :meth:`.queue.PawnQueue.delete_topic`."""
        self._run(lambda queue: queue.delete_topic(topic, force=force))

    def register_producer(self, name: str) -> Registration:
        """See :meth:`.queue.PawnQueue.register_producer`."""
        return self._run(lambda queue: queue.register_producer(name))

    def register_consumer(self, name: str) -> Registration:
        """See :meth:`.queue.PawnQueue.register_consumer`."""
        return self._run(lambda queue: queue.register_consumer(name))

    def list_producers(self) -> list[Registration]:
        """See :meth:`.queue.PawnQueue.list_producers`."""
        return self._run(lambda queue: queue.list_producers())

    def list_consumers(self) -> list[Registration]:
        """See :meth:`.queue.PawnQueue.list_consumers`."""
        return self._run(lambda queue: queue.list_consumers())

    def publish(self, topic: str, payloads: Iterable[Mapping[str, Any]], **options: Any) -> list[str]:
        """See :meth:`.queue.PawnQueue.publish`."""
        return self._run(lambda queue: queue.publish(topic, payloads, **options))

    def claim(self, topic: str, consumer: str, **options: Any) -> Claim:
        """See :meth:`.queue.PawnQueue.claim`."""
        return self._run(lambda queue: queue.claim(topic, consumer, **options))

    def attach(
        self,
        reference: ClaimReference | Mapping[str, Any],
        *,
        ttl: float | None = None,
        session_ttl: float | None = None,
        wait: float = 0.0,
    ) -> Claim:
        """See :meth:`.queue.PawnQueue.attach`."""
        return self._run(lambda queue: queue.attach(reference, ttl=ttl, session_ttl=session_ttl, wait=wait))

    def renew(self, claim: Claim, *, ttl: float | None = None, session_ttl: float | None = None) -> None:
        """See :meth:`.queue.PawnQueue.renew`."""
        self._run(lambda queue: queue.renew(claim, ttl=ttl, session_ttl=session_ttl))

    @contextmanager
    def keep_alive(
        self,
        claim: Claim,
        *,
        on_lost: Callable[[LeaseLostError], Awaitable[None] | None] | None = None,
        ttl: float | None = None,
        interval: float | None = None,
    ) -> Iterator[SyncKeepAlive]:
        """See :meth:`.queue.PawnQueue.keep_alive`; ``on_lost`` is called in the thread of the loop."""
        told = SyncKeepAlive(on_lost)

        async def make(queue: PawnQueue) -> KeepAlive:
            return queue.keep_alive(claim, on_lost=told._tell, ttl=ttl, interval=interval)  # noqa: SLF001 - this file's own

        keeper = self._run(make)
        loop = self._loop
        try:
            loop.run(keeper.__aenter__())  # in here: an interrupt must not leave renewals behind that nobody ends
            yield told
        finally:
            if loop.pid == os.getpid():
                with suppress(QueueClosedError):  # closed inside the block: it has ended with the queue
                    loop.run(keeper.__aexit__(None, None, None))

    def ack(self, claim: Claim, ids: Iterable[str] | None = None) -> Settlement:
        """See :meth:`.queue.PawnQueue.ack`."""
        return self._run(lambda queue: queue.ack(claim, ids))

    def nack(self, claim: Claim, ids: Iterable[str] | None = None, **options: Any) -> Settlement:
        """See :meth:`.queue.PawnQueue.nack`."""
        return self._run(lambda queue: queue.nack(claim, ids, **options))

    def redrive(self, topic: str, ids: Iterable[str] | None = None, *, max_messages: int | None = None) -> Redriven:
        """See :meth:`.queue.PawnQueue.redrive`."""
        return self._run(lambda queue: queue.redrive(topic, ids, max_messages=max_messages))

    def sweep(self, topic: str, *, dry_run: bool = False, ask: Ask | None = None) -> Report:
        """See :meth:`.queue.PawnQueue.sweep`; ``ask`` is awaited in the thread of the loop."""
        return self._run(lambda queue: queue.sweep(topic, dry_run=dry_run, ask=ask))

    def peek(self, topic: str, max_messages: int = 10) -> list[Message]:
        """See :meth:`.queue.PawnQueue.peek`."""
        return self._run(lambda queue: queue.peek(topic, max_messages))

    def find(self, topic: str, message_id: str) -> Found | None:
        """See :meth:`.queue.PawnQueue.find`."""
        return self._run(lambda queue: queue.find(topic, message_id))

    def stats(self, topic: str) -> Stats:
        """See :meth:`.queue.PawnQueue.stats`."""
        return self._run(lambda queue: queue.stats(topic))

    def close(self, *, keep_claims: bool | None = None) -> None:
        """Close the queue, and end its thread; what other threads are doing with it ends too. May be called twice.

        :param keep_claims: see :meth:`.queue.PawnQueue.aclose`.
        """
        self._closed = True
        if self._loop.pid != os.getpid():
            return
        try:
            with suppress(QueueClosedError):
                self._loop.run(self._queue.aclose(keep_claims=keep_claims))
        finally:
            self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _call(function: Callable[[], Awaitable[T]]) -> T:
    return await function()
