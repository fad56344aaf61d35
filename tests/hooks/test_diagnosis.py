"""What *Test connection* answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from airflow.providers.common.compat.sdk import AirflowNotFoundException

from airflow_provider_pawnqueue.hooks import diagnosis
from airflow_provider_pawnqueue.hooks.connection import Address
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from pawnqueue import ConfigError, MemoryStore, Settings, StoreError, SyncPawnQueue
from pawnqueue.reads.health import Health
from tests.support.faults import Behaviour, FaultServer
from tools.kit.ports import free_port

SECRET = "s3cr3t-of-the-bucket"


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """A store that knows one key."""
    with FaultServer(Behaviour(credentials={"key": None}), buckets=("queues",)) as server:
        yield server


def asked(connection: Callable[..., str], host: str, login: str = "key", bucket: str = "queues") -> tuple[bool, str]:
    """What the button answers."""
    extra = {"bucket_name": bucket, "aws_session_token": "t0k3n-t0k3n"}
    return PawnQueueHook(connection(extra=extra, host=host, login=login, password=SECRET)).test_connection()


def test_a_queue_that_can_be_used(connection: Callable[..., str], server: FaultServer) -> None:
    """The answer names the place, the strategy and why, what the store promises, its clock and its response time."""
    good, said = asked(connection, server.endpoint)
    assert good, said
    assert f"Reached {server.endpoint}, bucket 'queues'" in said
    assert " ms." in said
    assert "The lease strategy of this queue is conditional_write: " in said
    assert "Reads and listings show a write at once." in said
    assert "agree within a second" in said
    assert SECRET not in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("login", "bucket", "says"), [("stranger", "queues", "key"), ("key", "nowhere", "nowhere"), ("key", "no", "bucket")]
)
def test_what_is_wrong_is_told_in_a_sentence(
    connection: Callable[..., str], server: FaultServer, login: str, bucket: str, says: str
) -> None:
    """The answer has no traceback and no secret."""
    good, said = asked(connection, server.endpoint, login, bucket)
    assert not good
    assert says in said
    assert "Traceback" not in said
    assert "\n" not in said
    assert SECRET not in said
    assert "t0k3n" not in said


def test_a_store_that_reads_what_was(connection: Callable[..., str]) -> None:
    """The answer says that a store with stale reads cannot carry a queue."""
    with FaultServer(Behaviour(read_after_write=False), buckets=("queues",)) as server:
        good, said = asked(connection, server.endpoint)
    assert not good
    assert "\n" not in said


def test_nobody_there_is_told(connection: Callable[..., str]) -> None:
    """The answer names the address at which no server answered."""
    good, said = asked(connection, f"http://127.0.0.1:{free_port()}")
    assert not good
    assert "127.0.0.1" in said


def test_a_form_waits_for_less_time_than_a_task(connection: Callable[..., str]) -> None:
    """The retry budget of a form is five seconds, as a person waits for it."""
    address = PawnQueueHook(connection(extra={"bucket_name": "queues"})).address
    assert PawnQueueHook._impatient(address).settings.retry.budget_seconds == 5
    assert address.settings.retry.budget_seconds == 30


def test_no_connection_and_a_wrong_one(connection: Callable[..., str]) -> None:
    """Each answer says what to do."""
    good, said = PawnQueueHook("nowhere").test_connection()
    assert not good
    assert said == (
        "There is no connection 'nowhere': make one of type 'pawnqueue' (Admin, Connections), or set the environment "
        "variable AIRFLOW_CONN_NOWHERE."
    )
    good, said = PawnQueueHook(connection(extra={"bucket": "queues"})).test_connection()
    assert not good
    assert "bucket_name" in said


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({}, "The settings do not hold: 'Bucket' is missing."),
        ({"bucket_name": "queues", "max_messages_per_poll": -3}, "'Batch size' must be a whole number"),
        ({"bucket_name": "queues", "verify_tls": 3}, "s3.verify_tls must be"),
        ({"bucket_name": "queues", "visibility_timout": 3}, "This connection has 'visibility_timout' in its extra"),
    ],
)
def test_it_speaks_of_the_form(connection: Callable[..., str], extra: dict[str, object], says: str) -> None:
    """Errors have the form's labels, and not the id that Airflow has drawn for the test."""
    name = connection("mo4TNf0I", extra=extra)
    good, said = PawnQueueHook(name).test_connection()
    assert not good
    assert says in said
    assert name not in said


@pytest.mark.parametrize(
    ("login", "bucket", "says"),
    [
        ("stranger", "queues", "correct login."),
        ("key", "nowhere", "create it, or correct extra.bucket_name or host."),
    ],
)
async def test_errors_outside_of_the_form_name_the_fields(
    connection: Callable[..., str], server: FaultServer, login: str, bucket: str, says: str
) -> None:
    """Tasks, commands and triggers get errors with the names of the connection's fields."""
    extra = {"bucket_name": bucket}
    name = connection(extra=extra, host=server.endpoint, login=login, password=SECRET)
    for opening in (lambda: PawnQueueHook(name).queue, lambda: PawnQueueHook(name).health()):
        with pytest.raises(StoreError, match=f"^Connection '{name}': ") as raised:
            opening()
        assert says in str(raised.value)
    with pytest.raises(StoreError, match=f"^Connection '{name}': "):
        await PawnQueueHook(name).client()


def test_borrowed_keys_are_those_of_another_connection() -> None:
    """An error of keys names the AWS connection, and other errors stay as they are."""
    error = StoreError("The store does not know 'key': correct s3.aws_access_key_id, or s3.profiles.")
    said = "Connection 'q': The store does not know 'key': correct the keys of AWS connection 'aws', or s3.profiles."
    address = Address(Settings(s3={"bucket_name": "queues"}), "aws")
    assert diagnosis.connection_error(error, "q", address) == said
    assert diagnosis.connection_error(StoreError("It is too busy."), "q", address) == "It is too busy."


async def test_https_was_assumed(connection: Callable[..., str], server: FaultServer) -> None:
    """If the host has no scheme and the server speaks no TLS, the error says so and what to write."""
    host = server.endpoint.removeprefix("http://")
    name = connection(extra={"bucket_name": "queues"}, host=host, login="key", password=SECRET)
    with pytest.raises(
        StoreError, match="host begins with neither http:// nor https://, so https was assumed: write one"
    ):
        await PawnQueueHook(name).client()


@pytest.mark.parametrize(
    ("extra", "says"),
    [({}, "extra.bucket_name is missing"), ({"bucket_name": "no"}, "extra.bucket_name must be a bucket's name")],
)
async def test_settings_that_do_not_hold_are_named_by_their_fields(
    connection: Callable[..., str], extra: dict[str, object], says: str
) -> None:
    """Tasks and triggers get the same error, which names the connection once."""
    name = connection(extra=extra)
    with pytest.raises(ConfigError) as raised:
        _ = PawnQueueHook(name).queue
    with pytest.raises(ConfigError) as raised_too:
        await PawnQueueHook(name).client()
    assert str(raised.value) == str(raised_too.value)
    assert says in str(raised.value)
    assert str(raised.value).count(name) == 1


def test_a_variable_that_is_broken_json_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says where the JSON is broken, and quotes nothing of it."""
    monkeypatch.setenv("AIRFLOW_CONN_BROKEN", '{"conn_type": "pawnqueue", "password": "pa55word", "extra": {')
    with pytest.raises(AirflowNotFoundException, match=r"CONN_BROKEN is not valid JSON \(line 1, column") as told:
        _ = PawnQueueHook("broken").queue
    assert "pa55word" not in str(told.value)


def test_an_endpoint_without_a_scheme(connection: Callable[..., str], server: FaultServer) -> None:
    """It counts as https, and an error says which field of the form to check."""
    good, said = asked(connection, server.endpoint.removeprefix("http://"))
    assert not good
    assert "check whether 'Endpoint' begins with http:// or https://" in said


def test_what_airflow_itself_fails_with_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any exception of Airflow's becomes one line."""

    def fail(_: str) -> None:
        raise RuntimeError("the API server\nis away")

    hook = PawnQueueHook("any")
    monkeypatch.setattr(hook, "get_connection", fail)
    assert hook.test_connection() == (False, "RuntimeError: the API server is away")


@pytest.mark.parametrize(
    ("offset", "says"),
    [
        (0.2, "clock and the store's agree within a second."),
        (-0.3, "clock and the store's agree within a second."),
        (12.4, "clock is 12 s ahead of the store's. The queue uses only the store's."),
        (-70, "clock is 70 s behind the store's. The queue uses only the store's."),
    ],
)
def test_a_clock_that_is_far_off_is_no_trouble(offset: float, says: str) -> None:
    """The answer reports the offset, and the test succeeds."""
    assert diagnosis._clock(Health(0.01, offset, 0.001)).endswith(says)


def test_what_the_store_would_choose_today_is_told() -> None:
    """The answer names the probe's choice if the bucket has agreed on another strategy."""
    with SyncPawnQueue.open(store=MemoryStore(), s3={"bucket_name": "queues", "key_prefix": "team"}) as queue:
        found = queue.probe()
        other = replace(found, strategy="other")
        said = " ".join(diagnosis._sentences(queue, other, queue.health()))
    assert "bucket 'queues' below team/" in said
    assert "The probe would choose other today" in said
