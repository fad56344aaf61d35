"""The hook: a queue in a bucket, by an Airflow connection."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar, cast

from airflow.providers.common.compat.connection import get_async_connection
from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook, Connection, redact

from airflow_provider_pawnqueue.hooks import connection, diagnosis, references, reports
from airflow_provider_pawnqueue.hooks.arguments import DEFAULT_CONN_ID
from airflow_provider_pawnqueue.hooks.clients import CLIENTS, open_queue
from airflow_provider_pawnqueue.hooks.connection import Address
from airflow_provider_pawnqueue.hooks.identity import in_a_task
from airflow_provider_pawnqueue.hooks.key_rotation import ask_airflow_here
from airflow_provider_pawnqueue.hooks.references import Given
from airflow_provider_pawnqueue.hooks.retries import retry_store
from airflow_provider_pawnqueue.hooks.sessions import SESSIONS, final_if_lost
from airflow_provider_pawnqueue.hooks.stopping import WorkStoppedError, let_stop
from airflow_provider_pawnqueue.hooks.supervision import SUPERVISION, is_its_own_supervisor
from pawnqueue import Claim, ClaimReference, ConfigError, Message, PawnQueue, PawnQueueError, Settings, SyncPawnQueue

P = ParamSpec("P")
T = TypeVar("T")

#: How long *Test connection* repeats failing requests: a person waits for its answer.
_FORM_RETRY_SECONDS = 5.0


def _call(method: Callable[Concatenate[SyncPawnQueue, P], T]) -> Callable[Concatenate[PawnQueueHook, P], T]:
    """Make a call of the queue a call of the hook."""

    @functools.wraps(method)
    def called(hook: PawnQueueHook, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(hook.queue, *args, **kwargs)

    return called


def _call_on_claim(
    method: Callable[Concatenate[SyncPawnQueue, Claim, P], T],
) -> Callable[Concatenate[PawnQueueHook, Given, P], T]:
    """Make a call on a claim a call of the hook, which takes what the sensor returned as well."""

    @functools.wraps(method)
    def called(hook: PawnQueueHook, claim: Given, *args: P.args, **kwargs: P.kwargs) -> T:
        with hook._attached(claim) as held:  # noqa: SLF001 - the hook is ours
            return method(hook.queue, held, *args, **kwargs)

    return cast("Callable[Concatenate[PawnQueueHook, Given, P], T]", called)


def _block_on_claim(
    method: Callable[Concatenate[SyncPawnQueue, Claim, P], AbstractContextManager[T]],
) -> Callable[Concatenate[PawnQueueHook, Given, P], AbstractContextManager[T]]:
    """Make a block on a claim a block of the hook, which takes what the sensor returned as well."""

    @functools.wraps(method)
    @contextmanager
    def entered(hook: PawnQueueHook, claim: Given, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        _is_watched_task()
        with hook._attached(claim) as held, method(hook.queue, held, *args, **kwargs) as inside:  # noqa: SLF001 - the hook is ours
            yield inside

    return cast("Callable[Concatenate[PawnQueueHook, Given, P], AbstractContextManager[T]]", entered)


def _call_on_reference(
    method: Callable[Concatenate[SyncPawnQueue, ClaimReference, P], T], operation: str
) -> Callable[Concatenate[PawnQueueHook, Given, P], T]:
    """Make a call on a reference a call of the hook, which takes what the sensor returned as well."""

    @functools.wraps(method)
    def called(hook: PawnQueueHook, reference: Given, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(hook.queue, references.from_xcom(reference, hook.settings, operation), *args, **kwargs)

    return cast("Callable[Concatenate[PawnQueueHook, Given, P], T]", called)


class PawnQueueHook(BaseHook):
    """A queue in a bucket: all calls of :class:`~pawnqueue.SyncPawnQueue`, by their names.

    Code in an event loop calls :meth:`awaited`. A process has one client for each connection, which is closed when the
    process ends.

    A task that knows what became of single messages notes it by :meth:`report`, which the settlement follows.

    A call that takes a claim also takes what the sensor returned, and attaches to that claim.

    :param pawnqueue_conn_id: the connection with the bucket's address and the credentials.
    """

    conn_name_attr: ClassVar[str] = "pawnqueue_conn_id"
    default_conn_name: ClassVar[str] = DEFAULT_CONN_ID
    conn_type: ClassVar[str] = connection.CONN_TYPE
    hook_name: ClassVar[str] = "PawnQueue (S3 bucket)"

    def __init__(self, pawnqueue_conn_id: str = DEFAULT_CONN_ID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pawnqueue_conn_id = pawnqueue_conn_id
        self._address: Address | None = None

    # --- the queue itself ---

    @property
    def address(self) -> Address:
        """The bucket's address and the credentials, from the connection."""
        if self._address is None:
            self._address = self._read(self._found())
        return self._address

    def _found(self) -> Connection:
        try:
            return self.get_connection(self.pawnqueue_conn_id)
        except AirflowNotFoundException:
            raise AirflowNotFoundException(connection.missing(self.pawnqueue_conn_id)) from None

    def _read(self, found: Connection) -> Address:
        try:
            return connection.read(found)
        except ConfigError as error:
            error.args = (diagnosis.connection_error(error, self.pawnqueue_conn_id),)
            raise

    @property
    def settings(self) -> Settings:
        """The settings that the connection makes. They show no secrets."""
        return self.address.settings

    @property
    def queue(self) -> SyncPawnQueue:
        """The open queue of this process."""
        return self._opened(self.address)

    def _opened(self, address: Address) -> SyncPawnQueue:
        try:
            return CLIENTS.get(address)
        except PawnQueueError as error:
            error.args = (diagnosis.connection_error(error, self.pawnqueue_conn_id, address),)
            raise

    def get_conn(self) -> SyncPawnQueue:
        """Return the open queue of this process."""
        return self.queue

    async def awaited(self, work: Callable[[PawnQueue], Awaitable[T]]) -> T:
        """Run a coroutine with the queue in the queue's own loop, and await it in the caller's.

        ``claim = await hook.awaited(lambda queue: queue.claim("orders", "billing"))``

        :param work: a coroutine function that is given the asynchronous queue behind this one.
        """
        return await (await self.client()).awaited(work)

    async def client(self) -> SyncPawnQueue:
        """Return the open queue of this process. Opening it does not block the caller's loop."""
        ask_airflow_here()
        if self._address is None:
            self._address = await self._address_awaited()
        found_queue = CLIENTS.find(self._address)
        return found_queue if found_queue is not None else await asyncio.to_thread(self._opened, self._address)

    async def _address_awaited(self) -> Address:
        """Read the connection without blocking the caller's loop."""
        try:
            # dag.test() runs triggers in the task's process, where Airflow asks its database synchronously alone.
            lookup = asyncio.to_thread(self.get_connection, self.pawnqueue_conn_id) if is_its_own_supervisor() else None
            found = await (lookup or get_async_connection(self.pawnqueue_conn_id, self))
        except AirflowNotFoundException:
            raise AirflowNotFoundException(connection.missing(self.pawnqueue_conn_id)) from None
        return await asyncio.to_thread(self._read, found)

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the queue can be used, and what its store can do. The button in Airflow's form calls this."""
        try:
            queue = open_queue(self._impatient(connection.read(self._found())))  # its errors name the form's labels
        except (PawnQueueError, AirflowNotFoundException) as error:
            return False, diagnosis.form_error(error, self.pawnqueue_conn_id)
        except Exception as error:  # noqa: BLE001 - of Airflow's or of the amazon provider's: the form shows it
            return False, " ".join(str(redact(f"{type(error).__name__}: {error}")).split())
        try:
            return True, diagnosis.describe(queue)
        except PawnQueueError as error:
            return False, diagnosis.form_error(error, self.pawnqueue_conn_id)
        finally:
            queue.close()

    @staticmethod
    def _impatient(address: Address) -> Address:
        retry = address.settings.retry
        less = {"budget_seconds": min(retry.budget_seconds, _FORM_RETRY_SECONDS)}
        # Without a name: Airflow tests a form under a random id, and no connection of that id is stored.
        return replace(address, settings=address.settings.model_copy(update={"retry": less}), name="")

    # --- claims, by what the sensor returned ---

    def messages(self, claim: Given, *, shared: bool = False) -> list[Message]:
        """Return the messages of a claim that are not settled.

        A task that calls this holds the claim until it ends, and renews it in the background. If the claim is lost, a
        ``WorkStoppedError`` stops the task; ``except Exception`` does not catch it. While another task holds the claim,
        this one waits, for ten minutes at most.

        :param shared: only read the messages, for tasks that work side by side on one claim (mapped ones, for example).
            Then no task holds the claim: its time to live and the janitor keep it.
        """
        queue = retry_store(lambda: self.queue, "Opening the queue")
        reference = references.from_xcom(claim, self.settings, "messages")
        inline = references.inline_messages(claim)
        if not _is_watched_task() or shared:
            with final_if_lost():
                return queue.messages(reference)
        held = SESSIONS.begin(queue, reference, payloads=inline is None).claim  # this session ends with the process
        if held.has_payloads:
            return [message for message in held if message.id not in held.decided]
        if inline is not None and len(inline) == len(held) and not held.decided:
            return inline
        # A claim without payloads knows only the names of messages, which differ from their ids if they were redriven.
        return queue.messages(reference)

    @contextmanager
    def working_on(self, claim: Given, *, ttl: float | None = None, payloads: bool = True) -> Iterator[Claim]:
        """Hold a claim for the length of a block: it is renewed in the background, and left for others at the end.

        If it is lost, the block is stopped wherever it is, and raises a ``LeaseLostError``.

        :param ttl: for how many seconds a renewal keeps it; without it, as it was claimed for.
        :param payloads: whether its messages are read. False is enough to settle it.
        """
        queue = retry_store(lambda: self.queue, "Opening the queue")
        reference = references.from_xcom(claim, self.settings, "working_on")
        if not _is_watched_task():
            let_stop()
        session = SESSIONS.begin(queue, reference, ttl=ttl, payloads=payloads)
        try:
            yield session.claim
        except WorkStoppedError as stopped:
            if stopped.is_orphan or not isinstance(stopped.__cause__, PawnQueueError):
                raise
            raise stopped.__cause__ from None  # the work has stopped: from here on an ordinary error is right
        finally:
            SESSIONS.end(session)

    @staticmethod
    def report(*, failed: Mapping[str, object] | None = None, done: Iterable[str] = ()) -> None:
        """Note in a task what became of single messages, for the settlement of the claim.

        Without a report, a task that fails has done none of its messages, and a task that succeeds has done all of
        them. It may be called several times; the last report of a message counts.

        :param failed: the ids of messages that are not done, each with the reason: a text, or an exception.
            They are given back or buried, as ``on_reported`` of the settlement says.
        :param done: the ids of messages that are done, although this task fails.
        :raises InvalidArgumentError: an argument is wrong, or no task runs here.
        """
        reports.add(failed or {}, done)

    ack = _call_on_claim(SyncPawnQueue.ack)
    requeue = _call_on_claim(SyncPawnQueue.requeue)
    bury = _call_on_claim(SyncPawnQueue.bury)
    nack = _call_on_claim(SyncPawnQueue.nack)
    settle = _call_on_claim(SyncPawnQueue.settle)
    settle_overwritten = _call_on_claim(SyncPawnQueue.settle_overwritten)
    renew = _call_on_claim(SyncPawnQueue.renew)
    keep_alive = _block_on_claim(SyncPawnQueue.keep_alive)
    attach = _call_on_reference(SyncPawnQueue.attach, "attach")

    @contextmanager
    def _attached(self, claim: Given) -> Iterator[Claim]:
        if isinstance(claim, Claim):
            yield claim
        else:
            with self.working_on(claim, payloads=False) as held:
                yield held

    # --- everything else, as the queue has it ---

    create_topic = _call(SyncPawnQueue.create_topic)
    update_topic = _call(SyncPawnQueue.update_topic)
    pause = _call(SyncPawnQueue.pause)
    resume = _call(SyncPawnQueue.resume)
    topic = _call(SyncPawnQueue.topic)
    list_topics = _call(SyncPawnQueue.list_topics)
    delete_topic = _call(SyncPawnQueue.delete_topic)
    purge = _call(SyncPawnQueue.purge)
    register_producer = _call(SyncPawnQueue.register_producer)
    register_consumer = _call(SyncPawnQueue.register_consumer)
    list_producers = _call(SyncPawnQueue.list_producers)
    list_consumers = _call(SyncPawnQueue.list_consumers)
    publish = _call(SyncPawnQueue.publish)
    claim = _call(SyncPawnQueue.claim)
    leave = _call(SyncPawnQueue.leave)
    known_claims = _call(SyncPawnQueue.known_claims)
    release = _call(SyncPawnQueue.release)
    held = _call(SyncPawnQueue.held)
    portions = _call(SyncPawnQueue.portions)
    read = _call(SyncPawnQueue.read)
    fetch = _call(SyncPawnQueue.fetch)
    look_again = _call(SyncPawnQueue.look_again)
    stage = _call(SyncPawnQueue.stage)
    commit_write = _call(SyncPawnQueue.commit_write)
    abort_write = _call(SyncPawnQueue.abort_write)
    last_claim = _call(SyncPawnQueue.last_claim)
    completed = _call(SyncPawnQueue.completed)
    dead_letters = _call(SyncPawnQueue.dead_letters)
    redrive = _call(SyncPawnQueue.redrive)
    sweep = _call(SyncPawnQueue.sweep)
    peek = _call(SyncPawnQueue.peek)
    find = _call(SyncPawnQueue.find)
    stats = _call(SyncPawnQueue.stats)
    backlog = _call(SyncPawnQueue.backlog)
    probe = _call(SyncPawnQueue.probe)
    health = _call(SyncPawnQueue.health)


def _is_watched_task() -> bool:
    """Return whether an Airflow task runs here. If so, have it stop with its supervisor, for it holds messages."""
    if not in_a_task():
        return False
    SUPERVISION.watch_this_task()
    return True
