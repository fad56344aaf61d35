"""Airflow's REST API, as far as tests and benchmarks use it. States and fields are Airflow's own."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode

from tools.kit.processes import loopback

#: An object of the API, as its reference describes it.
Json: TypeAlias = dict[str, Any]

_MAX_ROWS = 10_000
_TIMEOUT_SECONDS = 30.0


class ApiError(RuntimeError):
    """The API refused a request. ``status`` is HTTP's."""

    def __init__(self, what: str, status: int, body: str) -> None:
        super().__init__(f"{what}: {status} {body}")
        self.status = status


class Api:
    """The REST API, version 2, of an Airflow whose users are all admins.

    A server that cannot be reached raises ``OSError``; what it refuses, :class:`ApiError`.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def request(self, method: str, path: str, body: object = None, **query: Any) -> Any:  # noqa: ANN401 - JSON
        """Make a request: ``request("GET", "/dags", limit=5)``. Values of the query that are None are left out."""
        given = {name: value for name, value in query.items() if value is not None}
        address = f"{self.url}/api/v2{path}" + (f"?{urlencode(given, doseq=True)}" if given else "")
        request = urllib.request.Request(  # noqa: S310 - the address is this Airflow's own
            address,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Accept": "application/json"},
        )
        try:
            with loopback.open(request, timeout=_TIMEOUT_SECONDS) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                answer = error.read().decode("utf-8", errors="replace")
            raise ApiError(f"{method} {path}", error.code, answer) from None
        return json.loads(text) if text else None

    # ---- the installation

    def health(self) -> Json:
        """Return each component's health, from its heartbeats in the database."""
        return self.request("GET", "/monitor/health")

    def jobs(self, job_type: str | None = None) -> list[Json]:
        """Return the jobs, newest first: each start of a scheduler, triggerer or DAG processor is one."""
        return self.request("GET", "/jobs", job_type=job_type, order_by="-id", limit=_MAX_ROWS)["jobs"]

    def import_errors(self) -> list[Json]:
        """Return the errors in DAG files: ``filename``, ``stack_trace``, ``timestamp``."""
        return self.request("GET", "/importErrors", limit=_MAX_ROWS)["import_errors"]

    # ---- DAGs

    def dags(self) -> list[Json]:
        """Return all DAGs."""
        return self.request("GET", "/dags", limit=_MAX_ROWS)["dags"]

    def dag(self, dag_id: str) -> Json:
        """Return a DAG."""
        return self.request("GET", f"/dags/{dag_id}")

    def pause(self, dag_id: str) -> None:
        """Pause a DAG."""
        self.request("PATCH", f"/dags/{dag_id}", {"is_paused": True}, update_mask="is_paused")

    def unpause(self, dag_id: str) -> None:
        """Unpause a DAG."""
        self.request("PATCH", f"/dags/{dag_id}", {"is_paused": False}, update_mask="is_paused")

    # ---- runs

    def trigger(
        self, dag_id: str, conf: Mapping[str, Any] | None = None, *, run_id: str | None = None, **more: Any
    ) -> str:
        """Start a run, and return its id. ``more`` goes into the request: ``partition_key``, ``logical_date``.

        SQLite refuses a write while another process writes for long, and Airflow answers 500 then: it is tried again.
        """
        given = run_id or f"manual__{uuid.uuid4()}"
        body = {"logical_date": None, "conf": dict(conf or {}), "dag_run_id": given, **more}
        for is_last in (False, False, True):
            try:
                return self.request("POST", f"/dags/{dag_id}/dagRuns", body)["dag_run_id"]
            except ApiError as error:
                if error.status == HTTPStatus.CONFLICT and run_id is None:
                    return given  # an attempt before has started it
                if is_last or error.status != HTTPStatus.INTERNAL_SERVER_ERROR or "Database error" not in str(error):
                    raise
        raise AssertionError

    def run(self, dag_id: str, run_id: str) -> Json:
        """Return a run: ``state``, ``conf``, ``partition_key``, ``start_date`` and so on."""
        return self.request("GET", _run(dag_id, run_id))

    def runs(self, dag_id: str, **query: Any) -> list[Json]:
        """Return a DAG's runs, the oldest first."""
        return self.request("GET", f"/dags/{dag_id}/dagRuns", order_by="id", limit=_MAX_ROWS, **query)["dag_runs"]

    def mark_run(self, dag_id: str, run_id: str, state: str) -> None:
        """Mark a run as ``success``, ``failed`` or ``queued``."""
        self.request("PATCH", _run(dag_id, run_id), {"state": state}, update_mask="state")

    def clear_run(self, dag_id: str, run_id: str) -> None:
        """Clear a run: its tasks run again."""
        self.request("POST", f"{_run(dag_id, run_id)}/clear", {"dry_run": False})

    # ---- tasks

    def task_instances(self, dag_id: str, run_id: str, *, task_id: str | None = None) -> list[Json]:
        """Return a run's task instances, each mapped one by itself."""
        found = self.request("GET", f"{_run(dag_id, run_id)}/taskInstances", limit=_MAX_ROWS)["task_instances"]
        return [each for each in found if task_id in (None, each["task_id"])]

    def task_instance(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> Json:
        """Return a task instance: ``state``, ``try_number``, ``pid``, ``id`` and so on."""
        return self.request("GET", _task(dag_id, run_id, task_id, map_index))

    def tries(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> list[Json]:
        """Return a task instance's tries, the first one first."""
        path = f"{_task(dag_id, run_id, task_id, map_index)}/tries"
        return sorted(self.request("GET", path)["task_instances"], key=lambda each: each["try_number"])

    def clear_tasks(
        self, dag_id: str, run_id: str, task_ids: Sequence[str | tuple[str, int]] | None = None, **more: Any
    ) -> list[Json]:
        """Clear tasks of a run, all of them or some (an id, or an id and a map index). Return those that were cleared.

        ``more`` goes into the request: ``only_failed``, ``include_downstream``, ``include_upstream``.
        """
        body = {"dry_run": False, "only_failed": False, "dag_run_id": run_id, **more}
        if task_ids is not None:
            body["task_ids"] = list(task_ids)
        return self.request("POST", f"/dags/{dag_id}/clearTaskInstances", body)["task_instances"]

    def xcom(self, dag_id: str, run_id: str, task_id: str, *, key: str = "return_value", map_index: int = -1) -> Any:  # noqa: ANN401 - JSON
        """Return the value of an XCom."""
        path = f"{_task(dag_id, run_id, task_id)}/xcomEntries/{quote(key)}"
        return self.request("GET", path, map_index=map_index, stringify="false")["value"]

    # ---- assets

    def asset_events(self, **query: Any) -> list[Json]:
        """Return asset events, the oldest first, with the runs that each of them made (``created_dagruns``).

        :param query: ``asset_id``, ``source_dag_id``, ``source_run_id`` and so on.
        """
        return self.request("GET", "/assets/events", order_by="timestamp", limit=_MAX_ROWS, **query)["asset_events"]

    # ---- connections

    def create_connection(self, connection_id: str, conn_type: str, **fields: Any) -> None:
        """Create a connection in the database. An ``extra`` may be given as a mapping."""
        self.request("POST", "/connections", _connection(connection_id, conn_type, fields))

    def update_connection(self, connection_id: str, conn_type: str, **fields: Any) -> None:
        """Replace the fields of a connection in the database."""
        self.request("PATCH", f"/connections/{connection_id}", _connection(connection_id, conn_type, fields))


def _run(dag_id: str, run_id: str) -> str:
    return f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}"


def _task(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str:
    path = f"{_run(dag_id, run_id)}/taskInstances/{task_id}"
    return path if map_index < 0 else f"{path}/{map_index}"


def _connection(connection_id: str, conn_type: str, fields: Mapping[str, Any]) -> Json:
    body = {"connection_id": connection_id, "conn_type": conn_type, **fields}
    if isinstance(body.get("extra"), Mapping):
        body["extra"] = json.dumps(body["extra"])
    return body
