"""Connections as Airflow finds them in its environment, and a process that has opened nothing yet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_provider_pawnqueue.hooks import clients, identity, pawnqueue, sessions, supervision
from airflow_provider_pawnqueue.hooks.clients import Clients
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.hooks.sessions import Sessions
from airflow_provider_pawnqueue.hooks.supervision import Supervision
from pawnqueue import MemoryStore

CONN_ID = "queue_here"


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Make a connection, and return its id."""

    def make(conn_id: str = CONN_ID, extra: dict[str, Any] | None = None, **fields: Any) -> str:
        said = {"conn_type": "pawnqueue", **fields, "extra": extra or {}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(said))
        return conn_id

    return make


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clients]:
    """The clients of a process that has none yet, no session and no watch; they are closed at the end."""
    fresh, held, watch = Clients(), Sessions(), Supervision()
    monkeypatch.setattr(sessions, "SUPERVISION", watch)
    monkeypatch.setattr(pawnqueue, "SUPERVISION", watch)
    monkeypatch.setattr(clients, "CLIENTS", fresh)
    monkeypatch.setattr(pawnqueue, "CLIENTS", fresh)
    monkeypatch.setattr(clients, "SESSIONS", held)
    monkeypatch.setattr(pawnqueue, "SESSIONS", held)
    yield fresh
    fresh.close()
    watch._to_the_end = False  # its thread ends at its next look


@pytest.fixture
def store() -> MemoryStore:
    """An empty bucket."""
    return MemoryStore()


@pytest.fixture
def hook(here: Clients, connection: Callable[..., str], store: MemoryStore) -> PawnQueueHook:
    """A hook on a bucket in memory, with a topic in it."""
    made = PawnQueueHook(connection(extra={"bucket_name": "queues"}))
    here.put(made.address, store)
    made.create_topic("orders")
    return made


@pytest.fixture
def in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task runs here, as far as the hook can tell; its sessions are short."""
    monkeypatch.setattr(pawnqueue, "in_a_task", lambda: True)
    monkeypatch.setattr(identity, "in_a_task", lambda: True)
    monkeypatch.setattr(supervision, "WATCH_SECONDS", 0.05)
