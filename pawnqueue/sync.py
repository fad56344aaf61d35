"""The same front door for synchronous callers: one implementation, on a private event loop in a thread of its own.

For plain scripts, Airflow's hook and Spark drivers. It may be called from any thread, inside a running event loop too
(it blocks that loop then), and in a forked child, where it starts a loop of the child's own.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, Unpack

from pawnqueue.arguments import checked_callback, checked_flag
from pawnqueue.claims import Claim, Message
from pawnqueue.claims.held import HeldClaim
from pawnqueue.decisions import NACK
from pawnqueue.domain import layout
from pawnqueue.errors import PawnQueueError, QueueClosedError
from pawnqueue.publish.publisher import NewMessage, checked_messages
from pawnqueue.queue import PawnQueue
from pawnqueue.runtime.lifetime import CLOSE_SECONDS
from pawnqueue.runtime.private_loop import OWN_THREAD, PrivateLoop

if TYPE_CHECKING:
    from pawnqueue.arguments import Chosen, Reasons
    from pawnqueue.bucket.opening import Sections
    from pawnqueue.bucket.registry import Registration
    from pawnqueue.bucket.topics import Topic, TopicOptions
    from pawnqueue.claims import ClaimReference, KeepAlive, Settlement
    from pawnqueue.claims.looking import LastClaim
    from pawnqueue.errors import LeaseLostError
    from pawnqueue.events import Listener
    from pawnqueue.maintenance import AskOwner, SweepReport
    from pawnqueue.maintenance.redrive import RedriveResult
    from pawnqueue.maintenance.removal import Removed
    from pawnqueue.publish.staging import Staged
    from pawnqueue.publish.write_outcome import Written
    from pawnqueue.reads.counting import Backlog, Stats
    from pawnqueue.reads.dead_letters import DeadLetter, DeadLetterPage
    from pawnqueue.reads.health import Health
    from pawnqueue.reads.inspect_topic import Location
    from pawnqueue.reads.portions import Portion
    from pawnqueue.registers.probe import ProbeResult
    from pawnqueue.runtime.clock import Clock
    from pawnqueue.settings import Settings
    from pawnqueue.stores.credentials import Session
    from pawnqueue.stores.port import Store

A = TypeVar("A")
G = TypeVar("G")
T = TypeVar("T")

#: Ids that need not be drawn, or are none: the queue itself takes or refuses them.
_AS_GIVEN = (str, bytes, dict, list, tuple, set, frozenset, Message, Claim)


class SyncKeepAlive:
    """What the block of :meth:`SyncPawnQueue.keep_alive` is given: any thread may ask ``.lost``, and wait for it.

    ``.error`` says why it was lost.
    """

    def __init__(self, on_lost: Callable[[LeaseLostError], Awaitable[None] | None] | None) -> None:
        self._on_lost = on_lost
        self.lost = threading.Event()
        self.error: LeaseLostError | None = None

    def tell(self, error: LeaseLostError) -> Awaitable[None] | None:
        """Tell of the loss, in the thread of the loop: what is raised here is logged there."""
        self.error = error
        self.lost.set()
        if self._on_lost is None:
            return None
        told = _guarded(self._on_lost, "on_lost")(error)
        return _heard_out(told, "on_lost") if inspect.isawaitable(told) else None


def _guarded(callback: Callable[[A], T], name: str) -> Callable[[A], T]:
    """Have a callback of the user's raise nothing but errors: whoever calls it in the loop's thread logs those."""

    def called(what: A) -> T:
        try:
            return callback(what)
        except Exception:
            raise
        except BaseException as end:
            raise _no_exit(name, end) from end

    return called


async def _heard_out(told: Awaitable[None], name: str) -> None:
    try:
        await told
    except (SystemExit, KeyboardInterrupt) as end:
        raise _no_exit(name, end) from end


def _no_exit(name: str, end: BaseException) -> PawnQueueError:
    return PawnQueueError(
        f"{name} is called in the thread of the queue's own event loop, and cannot end the program from there: let it "
        "tell the thread that works, by an event for example.",
        operation=name,
        cause=end,
    )


class SyncPawnQueue:
    """:class:`~.queue.PawnQueue` without ``await``: ``with SyncPawnQueue.open(...) as queue:``.

    For plain scripts and services, Airflow's hook and Spark drivers, from any thread.
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
        clock: Clock | None = None,
        on_event: Listener | None = None,
        **sections: Unpack[Sections],
    ) -> Self:
        """Open the queue that is in a bucket."""
        listener = on_event
        if callable(on_event) and not inspect.iscoroutinefunction(on_event):  # which is refused
            listener = _guarded(on_event, "on_event")

        async def reopen() -> PawnQueue:
            return await PawnQueue.open(
                settings, store=store, session=session, clock=clock, on_event=listener, **sections
            )

        return cls(reopen)

    def _start(self) -> tuple[PrivateLoop, PawnQueue]:
        loop = PrivateLoop()
        try:
            return loop, loop.run(_call(self._reopen))
        except BaseException:
            loop.stop()
            raise

    def _run(self, work: Callable[[PawnQueue], Awaitable[T]]) -> T:
        queue = self._opened()
        return self._loop.run(_call(lambda: work(queue)))

    async def awaited(self, work: Callable[[PawnQueue], Awaitable[T]]) -> T:
        """Do something with the queue for a caller in another event loop, which is not blocked meanwhile.

        ``claim = await queue.awaited(lambda queue: queue.claim("orders", "billing"))``: what is done runs in this
        queue's own loop, and its result is awaited here. Whoever is cancelled cancels it there, and waits for its end;
        of a claim that was made all the same he never hears, so it is given back, or left to who comes by its id.

        :param work: a coroutine function that is given the queue behind this one.
        :raises QueueClosedError: the queue was closed, before this or meanwhile.
        """
        # In a forked child it is opened anew, in a thread, as that takes a while.
        here = self._loop.pid == os.getpid()
        queue = self._opened() if here or self._closed else await asyncio.to_thread(self._opened)
        return await self._loop.awaited(lambda: work(queue), lambda result: _unheard(queue, result))

    def _opened(self) -> PawnQueue:
        """Return the queue of this process, or refuse what is closed."""
        if self._closed:
            raise QueueClosedError
        if self._loop.pid != os.getpid():
            # Neither the thread nor the connections came along into this forked child: begin anew here.
            loop, queue = self._start()
            if self._loop.pid == os.getpid():
                loop.stop()  # another thread was faster
            else:
                self._queue, self._loop = queue, loop
        return self._queue

    def _drawn(self, given: G) -> G | list[Any]:
        """Return what an iterable gives, drawn in its caller's thread: the loop's has claims to renew meanwhile.

        An iterable may be slow, may call this queue, or may be of use in its own thread alone (a cursor of sqlite).
        """
        self._opened()
        if given is None or isinstance(given, _AS_GIVEN) or not isinstance(given, Iterable):
            return given
        return list(given)

    def run(self, work: Callable[[PawnQueue], Awaitable[T]]) -> T:
        """Have several calls made one after the other in the queue's own loop: ``run(lambda queue: mine(queue))``.

        :param work: a coroutine function that is given the queue behind this one.
        """
        return self._run(work)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def strategy(self) -> str:
        """The lease strategy that all processes of this bucket follow."""
        return self._queue.strategy

    @property
    def settings(self) -> Settings:
        """The settings that it was opened with. Secrets in them do not show."""
        return self._queue.settings

    def probe(self) -> ProbeResult:
        """Ask the store again what it can do."""
        return self._run(lambda queue: queue.probe())

    def health(self) -> Health:
        """Measure how well the store answers, and how far this machine's clock is from its own."""
        return self._run(lambda queue: queue.health())

    def create_topic(self, topic: str, **settings: Unpack[TopicOptions]) -> Topic:
        """Create the topic if it does not exist, and return it."""
        return self._run(lambda queue: queue.create_topic(topic, **settings))

    def update_topic(self, topic: str, **settings: Unpack[TopicOptions]) -> Topic:
        """Change settings of the topic for everyone, and return it."""
        return self._run(lambda queue: queue.update_topic(topic, **settings))

    def topic(self, topic: str) -> Topic:
        """Return a topic, with what is set for it."""
        return self._run(lambda queue: queue.topic(topic))

    def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return self._run(lambda queue: queue.list_topics())

    def delete_topic(self, topic: str, *, force: bool = False, dry_run: bool = False) -> Removed:
        """Delete the topic, if nothing is left in it, or with all that is in it."""
        return self._run(lambda queue: queue.delete_topic(topic, force=force, dry_run=dry_run))

    def purge(self, topic: str, *, messages: bool = True, dead_letters: bool = False, dry_run: bool = False) -> Removed:
        """Remove the messages of a topic, or its dead letters; the topic goes on."""
        return self._run(
            lambda queue: queue.purge(topic, messages=messages, dead_letters=dead_letters, dry_run=dry_run)
        )

    def register_producer(self, name: str) -> Registration:
        """Return the producer's registration."""
        return self._run(lambda queue: queue.register_producer(name))

    def register_consumer(self, name: str) -> Registration:
        """Return the consumer's registration."""
        return self._run(lambda queue: queue.register_consumer(name))

    def list_producers(self) -> list[Registration]:
        """Return every producer that ever registered."""
        return self._run(lambda queue: queue.list_producers())

    def list_consumers(self) -> list[Registration]:
        """Return every consumer that ever registered."""
        return self._run(lambda queue: queue.list_consumers())

    def publish(
        self,
        topic: str,
        payloads: Iterable[Mapping[str, Any] | NewMessage],
        *,
        producer: str | None = None,
        headers: Mapping[str, str] | None = None,
        create: bool = False,
    ) -> list[str]:
        """Publish messages, and return their ids in order."""
        limits = self._opened().settings.limits
        layout.checked_topic(topic)
        checked_flag(create, "create", "publish")
        # In the caller's thread, as in _drawn; each is copied as it is when it is iterated over.
        drawn = [NewMessage(each.payload, each.headers) for each in checked_messages(payloads, headers, limits, topic)]
        return self._run(lambda queue: queue.publish(topic, drawn, producer=producer, create=create))

    def claim(  # noqa: PLR0913 - all but the first two have a default
        self,
        topic: str,
        consumer: str,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        ttl: float | None = None,
        claim_id: str | None = None,
        owner: str | None = None,
        wait: float = 0.0,
        session_ttl: float | None = None,
    ) -> Claim:
        """Claim messages: nobody else is given them until they are settled, or the claim's time is over."""
        return self._run(
            lambda queue: queue.claim(
                topic,
                consumer,
                max_messages=max_messages,
                max_bytes=max_bytes,
                ttl=ttl,
                claim_id=claim_id,
                owner=owner,
                wait=wait,
                session_ttl=session_ttl,
            )
        )

    def attach(
        self,
        reference: ClaimReference | Mapping[str, Any],
        *,
        ttl: float | None = None,
        session_ttl: float | None = None,
        wait: float = 0.0,
        payloads: bool = True,
    ) -> Claim:
        """Go on with a claim that another process handed over."""
        return self._run(
            lambda queue: queue.attach(reference, ttl=ttl, session_ttl=session_ttl, wait=wait, payloads=payloads)
        )

    def held(self, reference: ClaimReference | Mapping[str, Any]) -> Claim | None:
        """Return the claim that a reference names, if this queue works on it already."""
        return self._run(lambda queue: queue.held(reference))

    def messages(self, reference: ClaimReference | Mapping[str, Any]) -> list[Message]:
        """Read what a claim has not settled, without working for it."""
        return self._run(lambda queue: queue.messages(reference))

    def portions(
        self,
        of: ClaimReference | Mapping[str, Any] | str,
        *,
        parts: int | None = None,
        dead: bool = False,
        max_messages: int | None = None,
    ) -> list[Portion]:
        """Cut what a claim has, or what is in a topic, into portions that other processes read."""
        return self._run(lambda queue: queue.portions(of, parts=parts, dead=dead, max_messages=max_messages))

    def read(self, portion: Portion) -> list[Message] | list[DeadLetter]:
        """Read a portion."""
        return self._run(lambda queue: queue.read(portion))

    def look_again(self, portion: Portion) -> Portion:
        """Return a portion of a look at a topic with what is there now."""
        return self._run(lambda queue: queue.look_again(portion))

    def stage(  # noqa: PLR0913 - what is written, and as what; the rest has a default
        self,
        topic: str,
        write_id: str,
        part: int,
        messages: Iterable[Mapping[str, Any] | NewMessage],
        *,
        producer: str | None = None,
        after: Staged | None = None,
    ) -> Staged:
        """Stage messages of a write."""
        drawn = self._drawn(messages)
        return self._run(lambda queue: queue.stage(topic, write_id, part, drawn, producer=producer, after=after))

    def commit_write(
        self, topic: str, write_id: str, staged: Iterable[Staged], *, wait: float = 0.0, allow_empty: bool = False
    ) -> Written:
        """Publish what was staged."""
        drawn = self._drawn(staged)
        return self._run(lambda queue: queue.commit_write(topic, write_id, drawn, wait=wait, allow_empty=allow_empty))

    def abort_write(self, topic: str, write_id: str, staged: Iterable[Staged] | None = None) -> int:
        """Remove what was staged for a write that is not decided."""
        drawn = self._drawn(staged)
        return self._run(lambda queue: queue.abort_write(topic, write_id, drawn))

    def known_claims(self, topic: str, claim_ids: Iterable[str]) -> set[str]:
        """Return those of these claim ids that have a record."""
        drawn = self._drawn(claim_ids)
        return self._run(lambda queue: queue.known_claims(topic, drawn))

    def last_claim(self, topic: str, claim_id: str) -> LastClaim | None:
        """Show the newest claim under an id, as its record shows it."""
        return self._run(lambda queue: queue.last_claim(topic, claim_id))

    def renew(self, claim: Claim, *, ttl: float | None = None, session_ttl: float | None = None) -> None:
        """Keep the claim for as long as it was claimed for, from now on."""
        self._run(lambda queue: queue.renew(claim, ttl=ttl, session_ttl=session_ttl))

    def leave(self, claim: Claim) -> ClaimReference:
        """Work on the claim no more, and have its record say so: whoever comes next need not wait."""
        return self._run(lambda queue: queue.leave(claim))

    @contextmanager
    def keep_alive(
        self,
        claim: Claim,
        *,
        on_lost: Callable[[LeaseLostError], Awaitable[None] | None] | None = None,
        ttl: float | None = None,
        interval: float | None = None,
    ) -> Iterator[SyncKeepAlive]:
        """Renew the claim in the background; ``on_lost`` is called in the thread of the queue's loop."""
        checked_callback(on_lost, "on_lost", "the error", "keep_alive")
        told = SyncKeepAlive(on_lost)

        async def make(queue: PawnQueue) -> KeepAlive:
            return queue.keep_alive(claim, on_lost=told.tell, ttl=ttl, interval=interval)

        keeper = self._run(make)
        loop = self._loop
        try:
            loop.run(keeper.__aenter__())  # in here: an interrupt must not leave renewals behind that nobody ends
            yield told
        finally:
            if loop.pid == os.getpid():
                with suppress(QueueClosedError):  # closed inside the block: it has ended with the queue
                    loop.run(keeper.__aexit__(None, None, None))

    def ack(self, claim: Claim, ids: Chosen | None = None) -> Settlement:
        """Settle messages as done. They are not delivered again."""
        drawn = self._drawn(ids)
        return self._run(lambda queue: queue.ack(claim, drawn))

    def requeue(
        self, claim: Claim, ids: Chosen | None = None, *, delay: float = 0.0, reason: str = "", error: str = ""
    ) -> Settlement:
        """Give messages back to the queue."""
        drawn = self._drawn(ids)
        return self._run(lambda queue: queue.requeue(claim, drawn, delay=delay, reason=reason, error=error))

    def bury(self, claim: Claim, ids: Chosen | None = None, *, reason: str, error: str = "") -> Settlement:
        """Make dead letters of messages."""
        drawn = self._drawn(ids)
        return self._run(lambda queue: queue.bury(claim, drawn, reason=reason, error=error))

    def nack(  # noqa: PLR0913 - all but the claim have a default
        self,
        claim: Claim,
        ids: Chosen | None = None,
        *,
        requeue: bool = False,
        delay: float = 0.0,
        reason: str = NACK,
        error: str = "",
    ) -> Settlement:
        """Bury messages, as pawn-queue's nack does."""
        drawn = self._drawn(ids)
        return self._run(
            lambda queue: queue.nack(claim, drawn, requeue=requeue, delay=delay, reason=reason, error=error)
        )

    def settle(
        self,
        claim: Claim,
        *,
        requeue: Reasons | None = None,
        bury: Reasons | None = None,
        delay: float = 0.0,
    ) -> Settlement:
        """Settle all that a claim has, in one request."""
        return self._run(lambda queue: queue.settle(claim, requeue=requeue, bury=bury, delay=delay))

    def settle_overwritten(self, claim: Claim) -> list[str]:
        """Settle those of a claim's messages that others have overwritten or removed since they were claimed."""
        return self._run(lambda queue: queue.settle_overwritten(claim))

    def release(self, topic: str, claim_id: str, owner: str | Iterable[str], *, reason: str = "") -> list[str]:
        """Give back all that the claim of this id has."""
        drawn = self._drawn(owner)
        return self._run(lambda queue: queue.release(topic, claim_id, drawn, reason=reason))

    def dead_letters(
        self,
        topic: str,
        *,
        max_messages: int = 50,
        newest_first: bool = True,
        after: str | None = None,
        payloads: bool = True,
    ) -> DeadLetterPage:
        """List dead letters by the time at which they were buried, each with why, and the message itself."""
        return self._run(
            lambda queue: queue.dead_letters(
                topic, max_messages=max_messages, newest_first=newest_first, after=after, payloads=payloads
            )
        )

    def redrive(
        self, topic: str, ids: Iterable[str] | str | None = None, *, max_messages: int | None = None
    ) -> RedriveResult:
        """Give dead letters back to the queue, with their count of deliveries at zero."""
        drawn = self._drawn(ids)
        return self._run(lambda queue: queue.redrive(topic, drawn, max_messages=max_messages))

    def sweep(self, topic: str, *, dry_run: bool = False, ask: AskOwner | None = None) -> SweepReport:
        """Let the janitor sweep the topic once."""
        return self._run(lambda queue: queue.sweep(topic, dry_run=dry_run, ask=ask))

    def peek(self, topic: str, max_messages: int = 10) -> list[Message]:
        """Read messages from the head without claiming them."""
        return self._run(lambda queue: queue.peek(topic, max_messages))

    def find(self, topic: str, message_id: str) -> Location | None:
        """Say where a message is."""
        return self._run(lambda queue: queue.find(topic, message_id))

    def stats(self, topic: str) -> Stats:
        """Count the topic's messages."""
        return self._run(lambda queue: queue.stats(topic))

    def backlog(self, topic: str, at_least: int | None = None, *, claims: bool = False) -> Backlog:
        """Count the messages that could be claimed."""
        return self._run(lambda queue: queue.backlog(topic, at_least, claims=claims))

    def close(self, *, keep_claims: bool | None = None, timeout: float = CLOSE_SECONDS) -> None:
        """Close the queue, and end its thread; what other threads are doing with it ends too. May be called twice.

        :param keep_claims: leave the messages of open claims to whoever comes by their claim ids next, who need not
            wait; nobody else has them before the claims' time is over. Without it, ``claims.keep_when_closed``.
        :param timeout: for how many seconds at most it tries to give claims back. The log names what was not.
        """
        if self._loop.pid == os.getpid() and self._loop.is_here():
            raise PawnQueueError(OWN_THREAD, operation="close")
        self._closed = True
        if self._loop.pid != os.getpid():
            return
        try:
            with suppress(QueueClosedError):
                self._loop.run(self._queue.aclose(keep_claims=keep_claims, timeout=timeout))
        finally:
            self._loop.stop()

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


def _document() -> None:
    """Give each method the whole docstring of its twin: its first sentence stands there, its arguments here too."""
    for name, ours in vars(SyncPawnQueue).items():
        theirs = getattr(PawnQueue, name, None)
        if not name.startswith("_") and inspect.isfunction(ours) and theirs is not None:
            ours.__doc__ = theirs.__doc__


_document()


async def _call(function: Callable[[], Awaitable[T]]) -> T:
    return await function()


async def _unheard(queue: PawnQueue, result: object) -> None:
    """See to it that nobody waits for a claim of which its caller did not hear."""
    if not isinstance(result, Claim) or not result:
        return
    with suppress(PawnQueueError):
        if HeldClaim.of(result, "claim").is_fleeting:
            await queue.requeue(result)
        else:
            await queue.leave(result)
