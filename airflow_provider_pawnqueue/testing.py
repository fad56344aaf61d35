"""For your own tests: a connection whose queue is in the memory of this process.

The queue, the hook, the operators and the triggers are those of production. Only the bucket is replaced.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from airflow_provider_pawnqueue.hooks.arguments import DEFAULT_CONN_ID
from airflow_provider_pawnqueue.hooks.clients import CLIENTS, IN_MEMORY
from airflow_provider_pawnqueue.hooks.connection import CONN_TYPE
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from pawnqueue import ConfigError, MemoryStore, SyncPawnQueue

_NUMBERS: Final = itertools.count(1)
#: How often a sensor polls in tests.
_POLL_SECONDS: Final = 0.5


@contextmanager
def memory_queue(*topics: str, conn_id: str = DEFAULT_CONN_ID, **extra: Any) -> Iterator[SyncPawnQueue]:
    """Keep a connection's queue in memory for the length of a block; gives the queue, with these topics in it.

    Everything that uses the connection in this process uses that queue: hooks, operators, sensors that poll or defer,
    and so a DAG that runs by ``dag.test()``. In another process, such as a Spark job, the connection raises an error.

    :param topics: the topics to create, with the default settings.
    :param conn_id: the connection's id. A connection with this id in the environment is hidden during the block.
    :param extra: more fields of the connection's extra, such as ``visibility_timeout_seconds``.
    :raises ConfigError: a field of ``extra`` is not a setting, or a secrets backend, which Airflow asks first, has a
        connection with this id.
    """
    endpoint = f"http://{next(_NUMBERS)}{IN_MEMORY}"
    given = {"bucket_name": "memory", "interval_seconds": _POLL_SECONDS, **extra}
    connection = {"conn_type": CONN_TYPE, "host": endpoint, "extra": given}
    with _environment_variable(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection)):
        hook = PawnQueueHook(conn_id)
        if hook.settings.s3.endpoint_url != endpoint:
            raise ConfigError(
                f"Connection {conn_id!r} is known to a secrets backend, which Airflow asks before the environment, so "
                "tests would use its queue. Turn the backend off for tests ([secrets] backend).",
                operation="open",
            )
        CLIENTS.put(hook.address, MemoryStore())
        try:
            for topic in topics:
                hook.create_topic(topic)
            yield hook.queue
        finally:
            CLIENTS.remove(hook.address)


@contextmanager
def _environment_variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
