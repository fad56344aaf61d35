"""The open queues of this process: one for each connection, closed when the process ends.

Airflow forks: the LocalExecutor forks its workers, and each worker its tasks. So a queue belongs to the process that
opened it, by pid, and a child process opens its own.
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
        """Return the queue at this address, and open it if need be. It may block on requests and token services."""
        with self._lock:
            if self._pid != os.getpid():
                self._begin()
            opening = self._opening.setdefault(address, threading.Lock())
        with opening:
            queue = self._queues.get(address)
            if queue is None or queue.closed:
                queue = self._with_former_keys(address) or open_queue(address, store=self._stores.get(address))
                self._queues[address] = queue
            return queue

    def _with_former_keys(self, address: Address) -> SyncPawnQueue | None:
        """Return the queue that was opened with former keys of this connection.

        It takes up the new keys by itself (:mod:`.key_rotation`). A second queue would not know its sessions.
        """
        if address in self._stores:
            return None  # a store that a test has put there shares no queue
        for former, queue in list(self._queues.items()):
            if former.name == address.name and not queue.closed and former.is_same_but_for_keys(address):
                return queue
        return None

    def find(self, address: Address) -> SyncPawnQueue | None:
        """Return the queue at this address if this process has it open, and None otherwise."""
        queue = self._queues.get(address) if self._pid == os.getpid() else None
        return None if queue is None or queue.closed else queue

    def put(self, address: Address, store: Store) -> None:
        """Open the queue at an address in this store from now on. Users' tests run on a MemoryStore."""
        self._stores[address] = store

    def remove(self, address: Address) -> None:
        """Close the queue at an address, and forget the store that :meth:`put` set."""
        self._stores.pop(address, None)
        queue = self._queues.pop(address, None)
        if queue is not None:
            SESSIONS.stop_renewing(queue)
            queue.close(keep_claims=True)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Close all queues. The next process can take up their open claims at once, by the claims' ids.

        :param timeout: how many seconds this may take for all queues together.
        """
        if self._pid != os.getpid():
            return
        SESSIONS.stop_renewing()  # or they would take the end of their queue for a lost claim, and stop the task
        give_up = time.monotonic() + timeout
        for queue in list(self._queues.values()):
            try:
                queue.close(keep_claims=True, timeout=max(0.0, give_up - time.monotonic()))
            except PawnQueueError as error:
                logger.warning("A queue could not be closed cleanly: %s", error)
        self._queues.clear()

    def _begin(self) -> None:
        """Begin anew in this process. The queues that its parent opened stay the parent's."""
        self._queues = {}
        self._opening = {}
        self._pid = os.getpid()  # last: a thread that looks without the lock sees nothing of the parent's
        atexit.register(self.close)
        _before_the_threads_end(self.close)

    def forget(self) -> None:
        """Forget a lock that another thread of the parent process may have held at the fork.

        Forget the stores as well: nobody reads what is published into a copy of the parent's memory.
        """
        self._lock = threading.Lock()
        self._stores = {}


def open_queue(address: Address, store: Store | None = None) -> SyncPawnQueue:
    """Open a queue. The caller closes it."""
    found = KeyFollowingStore(address, _connect) if store is None else store
    return SyncPawnQueue.open(address.settings, store=found, on_event=telemetry.count)


def _connect(address: Address) -> Store:
    _refuse_memory_of_others(address)
    session = _session(address.aws_conn_id, address.settings.s3.region_name) if address.aws_conn_id else None
    return connect(address.settings.s3, session)


def settings_for_others(address: Address) -> Settings:
    """Return settings with which another program on this machine opens the queue without Airflow.

    They contain the present keys of an AWS connection that the queue's connection names. Temporary keys expire. If that
    connection uses the machine's own identity (its role, its environment), the other program finds the same identity.
    """
    _refuse_memory_of_others(address)
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
            "The keys of the AWS connection %r are temporary and expire at %s. A longer job needs an identity that "
            "renews itself (role_arn in the connection of the queue, or the machine's own).",
            address.aws_conn_id,
            getattr(credentials, "_expiry_time", None) or "an unknown time",
        )
    hide(found)
    return address.settings.model_copy(update=nest_by_path(found))


#: The end of the address of a queue in memory, which :mod:`airflow_provider_pawnqueue.testing` makes. No host has such
#: a name (RFC 2606).
IN_MEMORY: Final = ".memory.invalid"


def _refuse_memory_of_others(address: Address) -> None:
    if (address.settings.s3.endpoint_url or "").endswith(IN_MEMORY):
        raise ConfigError(
            "This queue is in the memory of the process that made it (memory_queue). Run the task in that process, as "
            "dag.test() does without use_executor, or use a store that is a server.",
            operation="open",
        )


#: Kinds of identity, by boto3's names, that every program on a machine finds by itself, and that renew themselves.
_OF_THE_MACHINE: Final = frozenset({"iam-role", "container-role", "env"})


def _session(aws_conn_id: str, region: str) -> Session:
    try:
        session: Session = aws_hook(aws_conn_id).get_session(region_name=region)
    except Exception as error:  # noqa: BLE001 - a token service, a file or a plug-in may raise anything
        raise ConfigError(
            f"The AWS connection {aws_conn_id!r} gives no identity ({type(error).__name__}: {error}): correct it, or "
            "remove aws_conn_id from the connection that names it.",
            operation="open",
            cause=error,
        ) from None
    return session


def _before_the_threads_end(work: Callable[[], None]) -> None:
    """Call something at the end of the process, while thread pools still take work, which requests need.

    When a script ends, Python shuts its thread pools down before it calls what ``atexit`` has. A task of Airflow's only
    calls what ``atexit`` has.
    """
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        with suppress(RuntimeError):  # the process is ending already
            register(work)


#: The queues of this process.
CLIENTS = Clients()
os.register_at_fork(after_in_child=CLIENTS.forget)
