"""For tests of your own: a connection whose queue is in the memory of this process.

The engine, the hook, the operators and the triggers are those of production; only the bucket is not there.
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
#: Tests do not wait for five seconds between two looks of a sensor.
_INTERVAL: Final = 0.5


@contextmanager
def memory_queue(*topics: str, conn_id: str = DEFAULT_CONN_ID, **extra: Any) -> Iterator[SyncPawnQueue]:
    """Have a connection's queue be in memory for the length of a block; gives the queue, with these topics in it.

    Whatever uses the connection in this process uses that queue: hooks, operators, sensors that poll or defer, and so a
    DAG that runs by ``dag.test()``. Another process, a Spark job for example, is told that the queue is not there.

    :param topics: the topics to make, with the settings that topics have by default.
    :param conn_id: the connection. One of that name in the environment is hidden meanwhile.
    :param extra: what else the connection has in its extra: ``visibility_timeout_seconds``, for example.
    :raises ConfigError: something in ``extra`` is no setting; or a secrets backend, which Airflow asks first, has a
        connection of that name.
    """
    endpoint = f"http://{next(_NUMBERS)}{IN_MEMORY}"
    given = {"bucket_name": "memory", "interval_seconds": _INTERVAL, **extra}
    said = {"conn_type": CONN_TYPE, "host": endpoint, "extra": given}
    with _variable(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(said)):
        hook = PawnQueueHook(conn_id)
        if hook.settings.s3.endpoint_url != endpoint:
            raise ConfigError(
                f"Connection {conn_id!r} is known to a secrets backend, which Airflow asks before the environment: "
                "tests would work on that queue. Turn the backend off for them ([secrets] backend).",
                operation="open",
            )
        CLIENTS.put(hook.address, MemoryStore())
        try:
            for topic in topics:
                hook.create_topic(topic)
            yield hook.queue
        finally:
            CLIENTS.take_away(hook.address)


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
