"""Keys that are replaced while a queue is open: what is under way goes on with those that the connection has by now."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_pawnqueue.hooks import connection as connections
from airflow_provider_pawnqueue.hooks import key_rotation, references
from airflow_provider_pawnqueue.hooks.clients import Clients
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from airflow_provider_pawnqueue.operators.base import failure_of
from airflow_provider_pawnqueue.triggers.trigger_runs import error_event
from pawnqueue import PublishError, StoreError
from tests.hooks.test_supervision import TASK_RUNNER
from tests.support.faults import Behaviour, FaultServer

OLD, NEW = "AKOLD", "AKNEW"


class Rotation:
    """A store that knows some keys, and a connection that has one of them."""

    def __init__(self, server: FaultServer, keys: dict[str, datetime | None], connection: Callable[..., str]) -> None:
        self.server = server
        self.keys = keys
        self._connection = connection

    def connect(self, key: str, **extra: Any) -> PawnQueueHook:
        """Let the connection have a key."""
        fields = {"host": self.server.endpoint, "login": key, "password": f"secret of {key}"}
        extra = {"bucket_name": "queues", "retry.budget_seconds": 1.0, **extra}
        return PawnQueueHook(self._connection(extra=extra, **fields))

    def revoke(self, *, expired: bool = False) -> None:
        """Let the store accept the new key alone."""
        self.keys[NEW] = None
        if expired:
            self.keys[OLD] = datetime.now(UTC) - timedelta(days=1)
        else:
            del self.keys[OLD]


@pytest.fixture
def rotation(here: Clients, connection: Callable[..., str]) -> Iterator[Rotation]:
    """It, with the old key."""
    keys: dict[str, datetime | None] = {OLD: None}
    with FaultServer(Behaviour(credentials=keys, conditional_deletes=True), buckets=("queues",)) as server:
        yield Rotation(server, keys, connection)
        here.close()


@pytest.mark.parametrize("client", ["obstore", "boto3"])
@pytest.mark.parametrize("expired", [False, True], ids=["revoked", "expired"])
def test_all_goes_on_with_the_new_keys(rotation: Rotation, in_a_task: None, client: str, *, expired: bool) -> None:
    """Sessions, reads, listings, conditional writes, copies and bulk deletes go on."""
    hook = rotation.connect(OLD, client=client)
    hook.create_topic("orders")
    hook.publish("orders", [{"n": n} for n in range(3)])
    held = hook.claim("orders", "c", claim_id="mine")
    claim = references.to_xcom(hook.leave(held), hook.settings, count=3, size=10)
    first, second, third = hook.messages(claim)
    queue = hook.queue
    rotation.connect(NEW, client=client)
    rotation.revoke(expired=expired)
    hook.renew(claim)
    assert hook.bury(claim, first, reason="no").buried == [first.id]
    assert hook.ack(claim, second).acked == [second.id]
    assert hook.queue is queue
    assert PawnQueueHook(hook.pawnqueue_conn_id).ack(claim, third).acked == [third.id], "the session is not known to it"
    assert [letter.id for letter in hook.dead_letters("orders")] == [first.id]


def test_an_error_of_keys_leaves_a_task_its_other_tries() -> None:
    """The error is transient, as keys are mended while the task waits for its next try."""
    for error in (StoreError("so", denied=True), StoreError("so", transient=True)):
        assert not isinstance(failure_of(error), AirflowFailException)
        assert error_event(error)["transient"] is True
        nothing_published = PublishError("so", ids=["a"], failed={"a": error})
        assert not isinstance(failure_of(nothing_published), AirflowFailException)
    assert isinstance(failure_of(StoreError("so")), AirflowFailException)


def test_a_hook_that_reads_the_new_keys_first_shares_the_queue(rotation: Rotation) -> None:
    """The queue goes on with the old keys while the store accepts them. Other settings are another queue."""
    old = rotation.connect(OLD)
    old.create_topic("orders")
    new = rotation.connect(NEW)
    assert new.queue is old.queue
    assert new.list_topics() == ["orders"]
    rotation.revoke()
    assert new.list_topics() == ["orders"]
    assert rotation.connect(NEW, key_prefix="other").queue is not old.queue


def test_a_connection_with_the_same_keys_is_not_asked_all_the_time(
    rotation: Rotation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a denial, a connection with the same keys is read again only after some seconds."""
    hook = rotation.connect(OLD)
    hook.create_topic("orders")
    read, asked = connections.read, []
    monkeypatch.setattr(connections, "read", lambda found: asked.append(found) or read(found))
    monkeypatch.setattr(key_rotation, "REREAD_SECONDS", 600.0)
    rotation.revoke()
    for _ in range(3):
        with pytest.raises(StoreError, match="does not know access key AKOL") as denied:
            hook.list_topics()
        assert denied.value.denied
    assert len(asked) == 1
    rotation.connect(NEW)
    hook.queue._queue._context.store._store._not_before = 0.0  # that time is over
    assert hook.list_topics() == ["orders"]
    assert len(asked) == 2


def test_a_connection_that_names_another_queue_is_not_followed(
    rotation: Rotation, caplog: pytest.LogCaptureFixture
) -> None:
    """Work that is under way fails, and its next try uses the other queue."""
    hook = rotation.connect(OLD)
    hook.create_topic("orders")
    rotation.connect(NEW, key_prefix="other")
    rotation.revoke()
    with pytest.raises(StoreError, match="does not know"):
        hook.list_topics()
    assert "names another queue by now" in caplog.text
    assert rotation.connect(NEW, key_prefix="other").list_topics() == []


def test_other_settings_may_change_with_the_keys(rotation: Rotation) -> None:
    """An open queue takes the new keys and keeps its settings."""
    hook = rotation.connect(OLD)
    hook.create_topic("orders")
    rotation.connect(NEW, visibility_timeout_seconds=900)
    rotation.revoke()
    assert hook.list_topics() == ["orders"]


def test_a_form_with_wrong_keys_is_not_looked_up(rotation: Rotation, monkeypatch: pytest.MonkeyPatch) -> None:
    """A form's connection is not stored, so it is not read again."""
    asked: list[str] = []

    async def read(conn_id: str) -> None:
        asked.append(conn_id)

    monkeypatch.setattr(key_rotation, "_read", read)
    went_well, said = rotation.connect("AKWRONG").test_connection()
    assert (went_well, "AKWR" in said) == (False, True)
    assert asked == []


def test_a_connection_that_is_gone_leaves_the_stores_own_error(
    rotation: Rotation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store's error is raised, as it says what is wrong."""
    hook = rotation.connect(OLD)
    hook.create_topic("orders")
    rotation.revoke()
    monkeypatch.delenv(f"AIRFLOW_CONN_{hook.pawnqueue_conn_id.upper()}")
    with pytest.raises(StoreError, match="does not know"):
        hook.list_topics()


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_task_that_has_ended_blames_no_connection(
    rotation: Rotation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, has_ended: bool
) -> None:
    """Airflow answers an ended task that no connection exists; the log does not repeat that."""
    here, there = socket.socketpair()
    monkeypatch.setitem(sys.modules, TASK_RUNNER, SimpleNamespace(SUPERVISOR_COMMS=SimpleNamespace(socket=here)))  # type: ignore[arg-type]
    hook = rotation.connect(OLD)
    hook.create_topic("orders")
    rotation.revoke()
    monkeypatch.delenv(f"AIRFLOW_CONN_{hook.pawnqueue_conn_id.upper()}")
    with here, there:
        if has_ended:
            here.close()  # as Airflow's task runner does, before the process leaves its claims
        with pytest.raises(StoreError, match="does not know"):
            hook.list_topics()
    assert ("could not be read again" in caplog.text) is not has_ended


async def test_many_requests_change_over_once(rotation: Rotation) -> None:
    """The connection is read once for all requests that were denied together."""
    hook = rotation.connect(OLD)
    await hook.awaited(lambda queue: queue.create_topic("orders"))
    connected: list[Any] = []
    store = hook.queue._queue._context.store._store
    really = store._connect
    store._connect = lambda address: connected.append(address) or really(address)
    rotation.connect(NEW)
    rotation.revoke()
    found = await asyncio.gather(*(hook.awaited(lambda queue: queue.list_topics()) for _ in range(20)))
    assert found == [["orders"]] * 20
    assert len(connected) == 1
