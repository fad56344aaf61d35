"""Use boto3 in a process that was forked from one that had used obstore.

There obstore hangs for good, also in a store that the child makes itself. Airflow's LocalExecutor and PySpark's daemon
fork, so a child changes to boto3 by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from pawnqueue.stores.port import Store

_first_request_pid: int | None = None


def obstore_hangs_here() -> bool:
    """Say whether this process, or an ancestor of it, was forked from one that had used obstore."""
    return _first_request_pid is not None and _first_request_pid != os.getpid()


class ForkAwareStore:
    """The store that works in the current process: obstore's, or boto3's in a forked child.

    It has all calls of :class:`~.port.Store`.

    :param safe: makes the boto3 adapter; called again in each child, so that it inherits neither threads nor
    connections.
    :param fast: makes the obstore adapter; None where boto3 was asked for.
    """

    def __init__(self, safe: Callable[[], Store], fast: Callable[[], Store] | None) -> None:
        self._safe = safe
        self._fast = fast
        self._make()

    def __getattr__(self, call: str) -> Any:  # noqa: ANN401 - one of the calls of :class:`~.port.Store`
        """Return a call of the store that works in the current process."""
        if call.startswith("_"):
            raise AttributeError(call)  # a copy of this object is asked for its own attributes before it has them
        return getattr(self._current(), call)

    async def aclose(self) -> None:
        """See :class:`~.port.Store`. A store that the parent opened is closed by the parent."""
        if self._pid == os.getpid():
            await self._store.aclose()

    def _current(self) -> Store:
        if self._pid != os.getpid():
            self._make()
        if self._is_fast:
            _note_request()
        return self._store

    def _make(self) -> None:
        self._is_fast = self._fast is not None and not obstore_hangs_here()
        self._store = self._fast() if self._fast is not None and self._is_fast else self._safe()
        self._pid = os.getpid()


def _note_request() -> None:
    global _first_request_pid  # noqa: PLW0603 - the hazard is the process's, not one store's
    _first_request_pid = os.getpid()
