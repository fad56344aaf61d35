"""Airflow in this process with its own home, and its parser with our commands."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

if "AIRFLOW_HOME" not in os.environ:  # read when Airflow is imported first, which then writes into it
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="airflow-home-")
    atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)

from airflow_provider_pawnqueue.hooks.clients import CLIENTS
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from pawnqueue import MemoryStore, SyncPawnQueue

#: What no command may print.
SECRET = "a-secret-of-the-connection"


@dataclass(frozen=True)
class Done:
    """What a command has printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows that ``--output json`` printed."""
        rows: list[dict[str, Any]] = json.loads(self.out)
        return rows


Run = Callable[..., Done]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """A store in memory, behind the default connection."""
    extra = {"bucket_name": f"queues-{uuid.uuid4().hex[:12]}"}
    connection = {"conn_type": "pawnqueue", "login": "key", "password": SECRET, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_PAWNQUEUE_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")  # which a command sets, and no test may leave behind
    store = MemoryStore()
    CLIENTS.put(PawnQueueHook().address, store)
    return store


@pytest.fixture
def queue(store: MemoryStore) -> Iterator[SyncPawnQueue]:
    """The queue that the commands see, as another process has it open."""
    with SyncPawnQueue.open(PawnQueueHook().settings, store=store) as queue:
        yield queue


@pytest.fixture
def run(store: MemoryStore, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command as Airflow would, in this process."""
    from airflow.cli.cli_parser import get_parser  # noqa: PLC0415 - a second of imports

    def run(*words: str) -> Done:
        args = get_parser().parse_args(["pawnqueue", *words])
        capsys.readouterr()
        try:
            args.func(args)
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capsys.readouterr()
        assert SECRET not in out + err
        return Done(code, out, err)

    return run
