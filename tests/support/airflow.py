"""Airflow's own surroundings of a task: a connection whose queue is in memory, and a context that is made up."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from airflow_provider_pawnqueue.hooks.clients import CLIENTS
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from pawnqueue import MemoryStore, SyncPawnQueue

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

    from pawnqueue.stores.port import Store

TOPIC = "orders"


def connected(
    monkeypatch: pytest.MonkeyPatch, conn_id: str = "pawnqueue_default", *, store: Store | None = None, **extra: Any
) -> Iterator[SyncPawnQueue]:
    """Make a connection to a bucket of its own, with a topic in it; its queue, as another process has it."""
    given = {"bucket_name": f"bucket-{conn_id.replace('_', '-')}", "interval_seconds": 0.5, **extra}
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps({"conn_type": "pawnqueue", "extra": given}))
    monkeypatch.setenv("AIRFLOW__PAWNQUEUE__INSTALLATION", "here")
    kept = MemoryStore() if store is None else store
    hook = PawnQueueHook(conn_id)
    CLIENTS.close()
    CLIENTS.put(hook.address, kept)
    with SyncPawnQueue.open(hook.settings, store=kept) as queue:
        queue.create_topic(TOPIC)
        try:
            yield queue
        finally:
            CLIENTS.close()


class FakeTask:
    """The task instance that Airflow gives to a task: what other tasks made of themselves, and their XComs."""

    def __init__(
        self, task_id: str, *, states: dict[str, str | None] | None = None, run_id: str = "run", map_index: int = -1
    ) -> None:
        self.dag_id, self.run_id, self.task_id, self.map_index = "dag", run_id, task_id, map_index
        self.start_date: Any = None
        self.try_number = 1
        self.clear_number = 0
        self.states = states or {}
        #: The states of tasks whose names are those of other tasks' indexes too: of those ``states`` has but one.
        self.alone: dict[str, dict[str, str | None]] = {}
        #: Rows of tasks that were deleted from the DAG since the run began, by the names that Airflow gives them.
        self.deleted: dict[str, str] = {}
        self.xcoms: dict[tuple[str, str, int], Any] = {}

    def get_task_states(
        self, dag_id: str, run_ids: list[str], task_ids: list[str] | None = None
    ) -> dict[str, dict[str, str | None]]:
        """See Airflow's."""
        assert dag_id == self.dag_id
        if task_ids is None:
            return {run_ids[0]: self.states | self.deleted}
        if len(task_ids) == 1 and task_ids[0] in self.alone:
            return {run_ids[0]: self.alone[task_ids[0]]}
        asked = re.compile(rf"(?:{'|'.join(map(re.escape, task_ids))})(?:_\d+)?")
        return {run_ids[0]: {name: state for name, state in self.states.items() if asked.fullmatch(name)}}

    def get_template_context(self) -> Any:
        """See Airflow's."""
        return context_of(self, clear_number=self.clear_number)

    def xcom_push(self, key: str, value: Any, task_id: str | None = None, map_index: int | None = None) -> None:
        """See Airflow's; on behalf of any task."""
        index = self.map_index if map_index is None else map_index
        self.xcoms[task_id or self.task_id, key, index] = json.loads(json.dumps(value))

    def xcom_pull(self, task_ids: str, key: str = "return_value", *, map_indexes: Any = mock.sentinel.unset) -> Any:
        """See Airflow's: without indexes all that there are, and one alone as it is."""
        if map_indexes is mock.sentinel.unset:
            found = [value for (task, name, _), value in sorted(self.xcoms.items()) if (task, name) == (task_ids, key)]
            return found[0] if len(found) == 1 else found or None
        if isinstance(map_indexes, int):
            return self.xcoms.get((task_ids, key, map_indexes))
        return [self.xcoms.get((task_ids, key, index)) for index in map_indexes]


def context_of(ti: FakeTask, *, clear_number: int = 0) -> Any:
    """Return what a task is executed with."""
    return {"ti": ti, "task_instance": ti, "dag_run": SimpleNamespace(clear_number=clear_number, run_id=ti.run_id)}
