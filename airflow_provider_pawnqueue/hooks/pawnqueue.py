"""The hook: a queue in a bucket, by an Airflow connection."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, TypeVar

from airflow.providers.common.compat.connection import get_async_connection
from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook, redact

from airflow_provider_pawnqueue.hooks import connection, diagnosis, references, reports, sessions
from airflow_provider_pawnqueue.hooks.arguments import DEFAULT_CONN_ID
from airflow_provider_pawnqueue.hooks.clients import CLIENTS, opened
from airflow_provider_pawnqueue.hooks.identity import in_a_task
from airflow_provider_pawnqueue.hooks.key_rotation import ask_airflow_here
from airflow_provider_pawnqueue.hooks.retries import retry_store
from airflow_provider_pawnqueue.hooks.sessions import SESSIONS, final_if_lost
from airflow_provider_pawnqueue.hooks.stopping import WorkStoppedError, let_stop
from airflow_provider_pawnqueue.hooks.supervision import SUPERVISION, is_its_own_supervisor
from pawnqueue import Claim, ConfigError, PawnQueue, PawnQueueError, Settings, SyncPawnQueue

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Connection

    from airflow_provider_pawnqueue.hooks.connection import Address
    from airflow_provider_pawnqueue.hooks.references import Given
    from pawnqueue import Message, Settlement, SyncKeepAlive

P = ParamSpec("P")
T = TypeVar("T")

#: So long *Test connection* tries, in seconds: somebody waits for it before a form.
_PATIENCE_OF_A_FORM = 5.0


def _sync(method: Callable[Concatenate[SyncPawnQueue, P], T]) -> Callable[Concatenate[PawnQueueHook, P], T]:
    """Make a call of the queue a call of the hook."""

    @functools.wraps(method)
    def called(hook: PawnQueueHook, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(hook.queue, *args, **kwargs)

    return called


def _async(
    method: Callable[Concatenate[PawnQueue, P], Awaitable[T]],
) -> Callable[Concatenate[PawnQueueHook, P], Awaitable[T]]:
    """Make a call of the queue a call of the hook that is awaited: in any loop, and blocking none."""

    @functools.wraps(method)
    async def called(hook: PawnQueueHook, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await hook.awaited(lambda queue: method(queue, *args, **kwargs))

    return called


class PawnQueueHook(BaseHook):
    """A queue in a bucket: all calls of :class:`~pawnqueue.SyncPawnQueue`, by their names.

    Each has a twin for callers in an event loop, whose name begins with ``a``: ``publish`` and ``apublish``. A process
    has one client for each connection, which is closed when the process ends.

    A task that knows what became of single messages says so by :meth:`report`; who settles the claim goes by that.

    Where a call takes a claim, it takes what the sensor returned as well: it attaches to it then.

    :param pawnqueue_conn_id: the connection that says where the queue is, and who we are to it.
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
        """Where the queue is, and who we are to it, as the connection says."""
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
            error.args = (diagnosis.of_connection(error, self.pawnqueue_conn_id),)
            raise

    @property
    def settings(self) -> Settings:
        """The settings that the connection makes. Secrets in them do not show."""
        return self.address.settings

    @property
    def queue(self) -> SyncPawnQueue:
        """The open queue of this process."""
        return self._opened(self.address)

    def _opened(self, address: Address) -> SyncPawnQueue:
        try:
            return CLIENTS.get(address)
        except PawnQueueError as error:
            error.args = (diagnosis.of_connection(error, self.pawnqueue_conn_id, address),)
            raise

    def get_conn(self) -> SyncPawnQueue:
        """Return the open queue of this process."""
        return self.queue

    async def awaited(self, work: Callable[[PawnQueue], Awaitable[T]]) -> T:
        """Have something done with the queue, in its own loop, and await it in the caller's."""
        return await (await self.client()).awaited(work)

    async def client(self) -> SyncPawnQueue:
        """Return the open queue of this process. Opening one blocks no loop, and neither does AWS's token service."""
        ask_airflow_here()
        if self._address is None:
            self._address = await self._address_awaited()
        found_queue = CLIENTS.found(self._address)
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
        """Say whether the queue can be used, and what its store can do: what the button in Airflow's form calls."""
        try:
            queue = opened(self._impatient(connection.read(self._found())))  # its errors speak of the form's labels
        except (PawnQueueError, AirflowNotFoundException) as error:
            return False, diagnosis.failure(error, self.pawnqueue_conn_id)
        except Exception as error:  # noqa: BLE001 - of Airflow's or of the amazon provider's: the form shows it
            return False, " ".join(str(redact(f"{type(error).__name__}: {error}")).split())
        try:
            return True, diagnosis.connection(queue)
        except PawnQueueError as error:
            return False, diagnosis.failure(error, self.pawnqueue_conn_id)
        finally:
            queue.close()

    @staticmethod
    def _impatient(address: Address) -> Address:
        retry = address.settings.retry
        less = {"budget_seconds": min(retry.budget_seconds, _PATIENCE_OF_A_FORM)}
        # Without a name, as no connection of that id is stored: a form is tested by an id that Airflow has drawn.
        return replace(address, settings=address.settings.model_copy(update={"retry": less}), name="")

    # --- claims, by what the sensor returned ---

    def messages(self, claim: Given, *, shared: bool = False) -> list[Message]:
        """Return the messages of a claim that are not settled.

        In a task, this task works on the claim from now on, until it ends: nobody else has it meanwhile, it is kept in
        the background, and the task is stopped where it is lost all the same: by a ``WorkStoppedError``, which no
        ``except Exception`` catches. A task that comes while another one works on it waits, for ten minutes at most.

        :param shared: look only. For tasks that work side by side on one claim, mapped ones for example: nobody is kept
            from it then, and what keeps it are its time to live and the janitor.
        """
        queue = retry_store(lambda: self.queue, "Opening the queue")
        reference = references.from_xcom(claim, self.settings, "messages")
        inline = references.inline_messages(claim)
        if not _is_watched_task() or shared:
            with final_if_lost():
                return queue.messages(reference)
        held = SESSIONS.begin(queue, reference, payloads=inline is None).claim  # which nobody ends but the process
        if held.has_payloads:
            return [message for message in held if message.id not in held.decided]
        if inline is not None and len(inline) == len(held) and not held.decided:
            return inline
        # Without payloads it knows the names under which messages are kept, which of redriven ones are not their ids.
        return queue.messages(reference)

    @contextmanager
    def working_on(self, claim: Given, *, ttl: float | None = None, payloads: bool = True) -> Iterator[Claim]:
        """Work on a claim for the length of a block: it is kept in the background, and left for others at the end.

        If it is lost all the same, the block is stopped wherever it is, and ends by a ``LeaseLostError``.

        :param ttl: for how many seconds a renewal keeps it; without it, as it was claimed for.
        :param payloads: whether its messages are read; False: by who settles it only.
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
            raise stopped.__cause__ from None  # the work has stopped: from here on it is an error like any other
        finally:
            SESSIONS.end(session)

    @staticmethod
    def report(*, failed: Mapping[str, object] | None = None, done: Iterable[str] = ()) -> None:
        """Say in a task what became of single messages: whoever settles the claim goes by that.

        Without a report, a task that has failed has done none of the messages that it was given, and one that has
        succeeded has done all of them. May be called several times; what is said last of a message counts.

        :param failed: the ids of messages that are not done, and why: a text, or an exception.
            They are given back or buried, as ``on_reported`` of the settlement says.
        :param done: the ids of messages that are done, although this task fails.
        :raises InvalidArgumentError: that is not what was passed, or no task runs here.
        """
        reports.add(failed or {}, done)

    def ack(self, claim: Given, ids: Any = None) -> Settlement:  # noqa: ANN401 - as the queue takes them
        """Settle messages as done: see :meth:`SyncPawnQueue.ack`."""
        with self._attached(claim) as held:
            return self.queue.ack(held, ids)

    def requeue(self, claim: Given, ids: Any = None, **how: Any) -> Settlement:  # noqa: ANN401 - as the queue takes them
        """Give messages back, to be delivered again: see :meth:`SyncPawnQueue.requeue`."""
        with self._attached(claim) as held:
            return self.queue.requeue(held, ids, **how)

    def bury(self, claim: Given, ids: Any = None, *, reason: str, error: str = "") -> Settlement:  # noqa: ANN401 - as the queue takes them
        """Make dead letters of messages: see :meth:`SyncPawnQueue.bury`."""
        with self._attached(claim) as held:
            return self.queue.bury(held, ids, reason=reason, error=error)

    def nack(self, claim: Given, ids: Any = None, **how: Any) -> Settlement:  # noqa: ANN401 - as the queue takes them
        """Bury messages, as pawn-queue's nack does, or with ``requeue=True`` give them back.

        :meth:`bury` and :meth:`requeue` say in their name what they do.
        """
        with self._attached(claim) as held:
            return self.queue.nack(held, ids, **how)

    def settle(self, claim: Given, **how: Any) -> Settlement:
        """Settle all that a claim has, in one request: see :meth:`SyncPawnQueue.settle`."""
        with self._attached(claim) as held:
            return self.queue.settle(held, **how)

    def settle_overwritten(self, claim: Given) -> list[str]:
        """Settle messages that others have overwritten: see :meth:`SyncPawnQueue.settle_overwritten`."""
        with self._attached(claim) as held:
            return self.queue.settle_overwritten(held)

    def renew(self, claim: Given, *, ttl: float | None = None, session_ttl: float | None = None) -> None:
        """Keep the claim from now on: see :meth:`SyncPawnQueue.renew`."""
        with self._attached(claim) as held:
            self.queue.renew(held, ttl=ttl, session_ttl=session_ttl)

    @contextmanager
    def keep_alive(self, claim: Given, **how: Any) -> Iterator[SyncKeepAlive]:
        """Renew the claim in the background: see :meth:`SyncPawnQueue.keep_alive`."""
        _is_watched_task()
        with self._attached(claim) as held, self.queue.keep_alive(held, **how) as told:
            yield told

    def attach(self, reference: Given, **how: Any) -> Claim:
        """Go on with a claim: see :meth:`SyncPawnQueue.attach`."""
        return self.queue.attach(references.from_xcom(reference, self.settings, "attach"), **how)

    @contextmanager
    def _attached(self, claim: Given) -> Iterator[Claim]:
        if isinstance(claim, Claim):
            yield claim
        else:
            with self.working_on(claim, payloads=False) as held:
                yield held

    async def aack(self, claim: Given, ids: Any = None) -> Settlement:  # noqa: ANN401 - as the queue takes them
        """Settle messages as done: see :meth:`PawnQueue.ack`."""
        return await self._awaited_on(claim, lambda queue, held: queue.ack(held, ids))

    async def arequeue(self, claim: Given, ids: Any = None, **how: Any) -> Settlement:  # noqa: ANN401 - as the queue takes them
        """Give messages back, to be delivered again: see :meth:`PawnQueue.requeue`."""
        return await self._awaited_on(claim, lambda queue, held: queue.requeue(held, ids, **how))

    async def abury(self, claim: Given, ids: Any = None, *, reason: str, error: str = "") -> Settlement:  # noqa: ANN401 - as the queue takes them
        """Make dead letters of messages: see :meth:`PawnQueue.bury`."""
        return await self._awaited_on(claim, lambda queue, held: queue.bury(held, ids, reason=reason, error=error))

    async def anack(self, claim: Given, ids: Any = None, **how: Any) -> Settlement:  # noqa: ANN401 - as the queue takes them
        """Bury messages, as pawn-queue's nack does, or with ``requeue=True`` give them back."""
        return await self._awaited_on(claim, lambda queue, held: queue.nack(held, ids, **how))

    async def asettle(self, claim: Given, **how: Any) -> Settlement:
        """Settle all that a claim has, in one request: see :meth:`PawnQueue.settle`."""
        return await self._awaited_on(claim, lambda queue, held: queue.settle(held, **how))

    async def asettle_overwritten(self, claim: Given) -> list[str]:
        """Settle messages that others have overwritten: see :meth:`PawnQueue.settle_overwritten`."""
        return await self._awaited_on(claim, lambda queue, held: queue.settle_overwritten(held))

    async def arenew(self, claim: Given, *, ttl: float | None = None, session_ttl: float | None = None) -> None:
        """Keep the claim from now on: see :meth:`PawnQueue.renew`."""
        await self._awaited_on(claim, lambda queue, held: queue.renew(held, ttl=ttl, session_ttl=session_ttl))

    async def aattach(self, reference: Given, **how: Any) -> Claim:
        """Go on with a claim: see :meth:`PawnQueue.attach`."""
        await self.client()
        given = references.from_xcom(reference, self.settings, "attach")
        return await self.awaited(lambda queue: queue.attach(given, **how))

    async def amessages(self, claim: Given) -> list[Message]:
        """Return the messages of a claim that are not settled: a look, which keeps nobody from it."""
        _is_watched_task()
        await self.client()
        given = references.from_xcom(claim, self.settings, "messages")
        with final_if_lost():
            return await self.awaited(lambda queue: queue.messages(given))

    @asynccontextmanager
    async def akeep_alive(self, claim: Claim, **how: Any) -> AsyncIterator[SyncKeepAlive]:
        """Renew the claim in the background: see :meth:`SyncPawnQueue.keep_alive`."""
        _is_watched_task()
        kept = (await self.client()).keep_alive(claim, **how)
        entering = asyncio.ensure_future(asyncio.to_thread(kept.__enter__))
        try:
            yield await asyncio.shield(entering)
        finally:  # whoever is cancelled while it begins leaves no renewals behind either
            await asyncio.shield(asyncio.ensure_future(_left(entering, kept)))

    async def _awaited_on(self, claim: Given, work: Callable[[PawnQueue, Claim], Awaitable[T]]) -> T:
        client = await self.client()

        async def done(queue: PawnQueue) -> T:
            if isinstance(claim, Claim):
                return await work(queue, claim)
            given = references.from_xcom(claim, self.settings, "attach")
            session = SESSIONS.held(client, given)
            if session is not None:  # of this very queue, and so of its loop
                return await work(queue, session.claim)
            own = await queue.held(given)
            if own is not None:  # which this process has by `attach` or `claim`, and goes on with
                return await work(queue, own)
            with final_if_lost():
                held = await queue.attach(
                    given, session_ttl=sessions.session_ttl(client.settings, None), payloads=False
                )
            try:
                return await work(queue, held)
            finally:
                with suppress(PawnQueueError):  # whoever comes next waits for its time, then
                    await queue.leave(held)

        return await client.awaited(done)

    # --- everything else, as the queue has it ---

    create_topic, acreate_topic = _sync(SyncPawnQueue.create_topic), _async(PawnQueue.create_topic)
    update_topic, aupdate_topic = _sync(SyncPawnQueue.update_topic), _async(PawnQueue.update_topic)
    topic, atopic = _sync(SyncPawnQueue.topic), _async(PawnQueue.topic)
    list_topics, alist_topics = _sync(SyncPawnQueue.list_topics), _async(PawnQueue.list_topics)
    delete_topic, adelete_topic = _sync(SyncPawnQueue.delete_topic), _async(PawnQueue.delete_topic)
    purge, apurge = _sync(SyncPawnQueue.purge), _async(PawnQueue.purge)
    register_producer, aregister_producer = _sync(SyncPawnQueue.register_producer), _async(PawnQueue.register_producer)
    register_consumer, aregister_consumer = _sync(SyncPawnQueue.register_consumer), _async(PawnQueue.register_consumer)
    list_producers, alist_producers = _sync(SyncPawnQueue.list_producers), _async(PawnQueue.list_producers)
    list_consumers, alist_consumers = _sync(SyncPawnQueue.list_consumers), _async(PawnQueue.list_consumers)
    publish, apublish = _sync(SyncPawnQueue.publish), _async(PawnQueue.publish)
    claim, aclaim = _sync(SyncPawnQueue.claim), _async(PawnQueue.claim)
    leave, aleave = _sync(SyncPawnQueue.leave), _async(PawnQueue.leave)
    known_claims, aknown_claims = _sync(SyncPawnQueue.known_claims), _async(PawnQueue.known_claims)
    release, arelease = _sync(SyncPawnQueue.release), _async(PawnQueue.release)
    held, aheld = _sync(SyncPawnQueue.held), _async(PawnQueue.held)
    portions, aportions = _sync(SyncPawnQueue.portions), _async(PawnQueue.portions)
    read, aread = _sync(SyncPawnQueue.read), _async(PawnQueue.read)
    look_again, alook_again = _sync(SyncPawnQueue.look_again), _async(PawnQueue.look_again)
    stage, astage = _sync(SyncPawnQueue.stage), _async(PawnQueue.stage)
    commit_write, acommit_write = _sync(SyncPawnQueue.commit_write), _async(PawnQueue.commit_write)
    abort_write, aabort_write = _sync(SyncPawnQueue.abort_write), _async(PawnQueue.abort_write)
    last_claim, alast_claim = _sync(SyncPawnQueue.last_claim), _async(PawnQueue.last_claim)
    dead_letters, adead_letters = _sync(SyncPawnQueue.dead_letters), _async(PawnQueue.dead_letters)
    redrive, aredrive = _sync(SyncPawnQueue.redrive), _async(PawnQueue.redrive)
    sweep, asweep = _sync(SyncPawnQueue.sweep), _async(PawnQueue.sweep)
    peek, apeek = _sync(SyncPawnQueue.peek), _async(PawnQueue.peek)
    find, afind = _sync(SyncPawnQueue.find), _async(PawnQueue.find)
    stats, astats = _sync(SyncPawnQueue.stats), _async(PawnQueue.stats)
    backlog, abacklog = _sync(SyncPawnQueue.backlog), _async(PawnQueue.backlog)
    probe, aprobe = _sync(SyncPawnQueue.probe), _async(PawnQueue.probe)
    health, ahealth = _sync(SyncPawnQueue.health), _async(PawnQueue.health)


def _is_watched_task() -> bool:
    """Return whether a task of Airflow's runs here: it works on claimed messages, so it stops with its supervisor."""
    if not in_a_task():
        return False
    SUPERVISION.watch_this_task()
    return True


async def _left(entering: asyncio.Future[Any], kept: AbstractContextManager[Any]) -> None:
    await asyncio.wait([entering])
    if entering.exception() is None:
        await asyncio.to_thread(kept.__exit__, None, None, None)
