"""The open queues of this process: one for each connection, closed when the process ends.

Airflow forks: the LocalExecutor its workers, and each worker its tasks. So a queue belongs to the process that opened
it, by pid, and a child opens its own.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from airflow_provider_pawnqueue.hooks import telemetry
from airflow_provider_pawnqueue.hooks.connection import Address, aws_hook, hide
from airflow_provider_pawnqueue.hooks.key_rotation import KeyFollowingStore
from airflow_provider_pawnqueue.hooks.sessions import SESSIONS
from pawnqueue import ConfigError, PawnQueueError, Settings, SyncPawnQueue
from pawnqueue.runtime.lifetime import CLOSE_SECONDS
from pawnqueue.settings.short_names import nest_by_path
from pawnqueue.stores.connect import connect

if TYPE_CHECKING:
    from pawnqueue.stores.credentials import Session
    from pawnqueue.stores.port import Store

logger = logging.getLogger(__name__)


class Clients:
    """Queues by their addresses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opening: dict[Address, threading.Lock] = {}
        self._queues: dict[Address, SyncPawnQueue] = {}
        self._stores: dict[Address, Store] = {}
        self._pid = 0

    def get(self, address: Address) -> SyncPawnQueue:
        """Return the queue at this address, opened if it is not. May block: by requests, and by token services."""
        with self._lock:
            if self._pid != os.getpid():
                self._begin()
            opening = self._opening.setdefault(address, threading.Lock())
        with opening:
            queue = self._queues.get(address)
            if queue is None or queue.closed:
                queue = self._with_former_keys(address) or opened(address, store=self._stores.get(address))
                self._queues[address] = queue
            return queue

    def _with_former_keys(self, address: Address) -> SyncPawnQueue | None:
        """Return the queue that was opened before the keys of this connection were replaced.

        It changes over to the new ones by itself (:mod:`.key_rotation`). A second queue would not know its sessions.
        """
        if address in self._stores:
            return None
        for former, queue in list(self._queues.items()):
            if former.name == address.name and not queue.closed and former.is_same_but_for_keys(address):
                return queue
        return None

    def found(self, address: Address) -> SyncPawnQueue | None:
        """Return the queue at this address, if this process has it open."""
        queue = self._queues.get(address) if self._pid == os.getpid() else None
        return None if queue is None or queue.closed else queue

    def put(self, address: Address, store: Store) -> None:
        """Have the queue at an address be kept in a store of the caller's: a user's own tests run on a MemoryStore."""
        self._stores[address] = store

    def take_away(self, address: Address) -> None:
        """Close the queue at an address, which is kept in the caller's store no longer."""
        self._stores.pop(address, None)
        queue = self._queues.pop(address, None)
        if queue is not None:
            SESSIONS.stop_renewing(queue)
            queue.close(keep_claims=True)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Close them all. What is not settled is left to the next process, which has it at once by the claim's id.

        :param timeout: for how many seconds at most, all of them together.
        """
        if self._pid != os.getpid():
            return
        SESSIONS.stop_renewing()  # or they would take the end of their queue for a lost claim, and stop the task
        give_up = time.monotonic() + timeout
        for queue in list(self._queues.values()):
            try:
                queue.close(keep_claims=True, timeout=max(0.0, give_up - time.monotonic()))
            except PawnQueueError as error:
                logger.warning("A queue was not closed in good order: %s", error)
        self._queues.clear()

    def _begin(self) -> None:
        """Begin anew in this process: what its parent had open is the parent's."""
        self._queues = {}
        self._opening = {}
        self._pid = os.getpid()  # last: whoever looks without the lock sees nothing of the parent's
        atexit.register(self.close)
        _before_the_threads_end(self.close)

    def forget(self) -> None:
        """Forget a lock that another thread of the parent may have held at the moment of the fork.

        And the stores: what is published into a copy of the parent's memory, nobody gets.
        """
        self._lock = threading.Lock()
        self._stores = {}


def opened(address: Address, store: Store | None = None) -> SyncPawnQueue:
    """Open a queue; who calls closes it."""
    found = KeyFollowingStore(address, _connected) if store is None else store
    return SyncPawnQueue.open(address.settings, store=found, on_event=telemetry.record)


def _connected(address: Address) -> Store:
    _check_is_somewhere(address)
    session = _session(address.aws_conn_id, address.settings.s3.region_name) if address.aws_conn_id else None
    return connect(address.settings.s3, session)


def settings_for_others(address: Address) -> Settings:
    """Return settings by which another program on this machine opens the queue, without Airflow.

    The keys of an AWS connection that is borrowed are in them, as they are now: temporary ones end when they end. Where
    it has none, and the machine itself has an identity (its role, its environment), that program finds it too.
    """
    _check_is_somewhere(address)
    if not address.aws_conn_id:
        return address.settings
    credentials = _session(address.aws_conn_id, address.settings.s3.region_name).get_credentials()
    if credentials is None or credentials.method in _OF_THE_MACHINE:
        return address.settings
    keys = credentials.get_frozen_credentials()
    found = {"s3.aws_access_key_id": keys.access_key, "s3.aws_secret_access_key": keys.secret_key}
    if keys.token:
        found["s3.aws_session_token"] = keys.token
        logger.info(
            "The keys of the AWS connection %r that are handed on are temporary, and end at %s: what works for longer "
            "needs an identity that renews itself (role_arn in the connection of the queue, or the machine's own).",
            address.aws_conn_id,
            getattr(credentials, "_expiry_time", None) or "a time that is not known",
        )
    hide(found)
    return address.settings.model_copy(update=nest_by_path(found))


#: So ends the address of a queue in the memory of a process, which :mod:`airflow_provider_pawnqueue.testing` makes.
#: No host is ever called so (RFC 2606).
IN_MEMORY: Final = ".memory.invalid"


def _check_is_somewhere(address: Address) -> None:
    if (address.settings.s3.endpoint_url or "").endswith(IN_MEMORY):
        raise ConfigError(
            "This queue is in the memory of the process that made it (memory_queue), and of no other: let the task run "
            "in that process, as dag.test() does without use_executor; or use a store that is a server.",
            operation="open",
        )


#: What boto3 calls identities that every program on a machine finds by itself, and that renew themselves.
_OF_THE_MACHINE: Final = frozenset({"iam-role", "container-role", "env"})


def _session(aws_conn_id: str, region: str) -> Session:
    try:
        session: Session = aws_hook(aws_conn_id).get_session(region_name=region)
    except Exception as error:  # noqa: BLE001 - whatever the token service, the file or the plug-in says that it asks
        raise ConfigError(
            f"The AWS connection {aws_conn_id!r} gives no identity ({type(error).__name__}: {error}): correct it, or "
            "take aws_conn_id out of the connection that borrows it.",
            operation="open",
            cause=error,
        ) from None
    return session


def _before_the_threads_end(work: Callable[[], None]) -> None:
    """Have something done at the end of the process while its executors still take work, of which requests are made.

    When a script ends, they are shut down before what ``atexit`` knows is done; a task of Airflow's does that alone.
    """
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        with suppress(RuntimeError):  # it is too late
            register(work)


#: Those of this process.
CLIENTS = Clients()
os.register_at_fork(after_in_child=CLIENTS.forget)
