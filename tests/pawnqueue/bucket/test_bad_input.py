"""One sentence for whatever is wrong: with the settings, with the store, or with a topic's name."""

from __future__ import annotations

import asyncio
import pickle
import socket
import threading
import traceback
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import (
    ConfigError,
    InvalidArgumentError,
    InvalidTopicError,
    PawnQueue,
    PawnQueueError,
    PublishError,
    Settings,
    StoreError,
)
from tests.pawnqueue.opened import BUCKET, QUICK, SECRET, TOKEN, Watched, both_clients, settings_at
from tests.support.faults import Behaviour, Fault, FaultServer, NeverAnswers, Status
from tools.kit.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from tools.kit.servers import S3Server


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process that has no AWS identity from anywhere."""
    for name in (
        "ACCESS_KEY_ID",
        "SECRET_ACCESS_KEY",
        "SESSION_TOKEN",
        "PROFILE",
        "ROLE_ARN",
        "WEB_IDENTITY_TOKEN_FILE",
    ):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@contextmanager
def silence() -> Iterator[str]:
    """An endpoint that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def places(nobody: None) -> Iterator[dict[str, str]]:
    """Endpoints by what is the matter with them."""
    keys = {"AKTEST": None, "AKOLD": datetime.now(UTC) - timedelta(hours=1)}
    with (
        FaultServer(Behaviour(credentials=keys), buckets=(BUCKET,)) as strict,
        FaultServer(Behaviour(region="eu-test-1"), buckets=(BUCKET,)) as regional,
        silence() as silent,
    ):
        yield {
            "strict": strict.endpoint,
            "plain": strict.endpoint.replace("http://", "https://"),
            "regional": regional.endpoint,
            "silent": silent,
            "closed": f"http://127.0.0.1:{free_port()}",
            "nowhere": "http://no-such-host.invalid",
        }


#: By name: which endpoint, what is set otherwise, and what the sentence must name.
BAD: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "unknown access key": ("strict", {"aws_access_key_id": "AKNOBODY"}, ["AKNO…", "s3.aws_access_key_id"]),
    "expired token": (
        "strict",
        {"aws_access_key_id": "AKOLD", "aws_session_token": TOKEN},
        ["expired", "s3.aws_session_token"],
    ),
    "no credentials": (
        "strict",
        {"aws_access_key_id": None, "aws_secret_access_key": None},
        ["s3.aws_access_key_id", "s3.aws_secret_access_key"],
    ),
    "missing bucket": ("strict", {"bucket_name": "no-such-bucket"}, ["'no-such-bucket'", "s3.bucket_name"]),
    "wrong region": ("regional", {}, ["'us-east-1'", f"'{BUCKET}'", "s3.region_name"]),
    "closed port": ("closed", {}, ["s3.endpoint_url"]),
    "unresolvable host": ("nowhere", {}, ["no-such-host.invalid", "s3.endpoint_url"]),
    "silent endpoint": ("silent", {"request_timeout_seconds": 0.2}, ["s3.request_timeout_seconds"]),
    "TLS to a plain endpoint": ("plain", {}, ["s3.use_ssl"]),
}


def threads_of_ours() -> list[threading.Thread]:
    """Return the threads that requests are made in."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("pawnqueue")]


async def failure_of(opening: Awaitable[PawnQueue]) -> PawnQueueError:
    """Open in vain, and see to it that the error is all that is left: one sentence, soon, and nothing secret."""
    async with asyncio.timeout(10):
        with pytest.raises((StoreError, InvalidArgumentError)) as caught:
            await opening
    error = caught.value
    sentence = str(error)
    assert sentence.endswith(".")
    assert ". " not in sentence
    for unwanted in ("\n", "Debug source", "<", ">", "Traceback", "Exception"):
        assert unwanted not in sentence
    shown = "".join(traceback.format_exception(error))
    assert shown.count("Traceback") == 1
    assert "Debug source" not in shown
    told = (repr(error), repr(error.args), repr(vars(error)), shown, repr(pickle.dumps(error)))
    for secret in (SECRET, TOKEN):
        assert not any(secret in text for text in told)
    assert str(pickle.loads(pickle.dumps(error))) == sentence  # noqa: S301
    return error


@both_clients
@pytest.mark.parametrize("name", BAD)
async def test_bad_input_is_told_in_one_sentence(places: dict[str, str], name: str, client: str) -> None:
    """The sentence names what is wrong and the setting to correct, and nothing goes on behind it."""
    where, s3, named = BAD[name]
    chosen = settings_at(places[where], client, **s3)
    chosen["retry"] = {**QUICK, "budget_seconds": 0.1}
    if (name, client) == ("wrong region", "boto3"):
        async with PawnQueue.open(chosen) as queue:  # botocore reads the right region out of the refusal
            assert queue.strategy == "conditional_write"
        return
    error = await failure_of(PawnQueue.open(chosen))
    assert [part for part in [*named, places[where]] if part not in str(error)] == []
    assert asyncio.all_tasks() == {asyncio.current_task()}
    for thread in threads_of_ours():
        thread.join(5)
    assert threads_of_ours() == []


@pytest.mark.slow
async def test_what_is_tried_again_is_told_soon(places: dict[str, str]) -> None:
    """With all other settings as they come, what may get better is given up within ten seconds, and silence too.

    A request may take longer than that, and boto3's cannot be ended: its thread ends when the request does.
    """
    with silence() as endpoint:
        tried_again = ("expired token", "closed port", "unresolvable host")
        cases = {name: BAD[name] for name in tried_again} | {"silence": ("", {}, [endpoint, "s3.endpoint_url"])}
        opening = {
            (name, client): PawnQueue.open({"s3": settings_at(places.get(where, endpoint), client, **s3)["s3"]})
            for name, (where, s3, _) in cases.items()
            for client in ("obstore", "boto3")
        }
        errors = await asyncio.gather(*map(failure_of, opening.values()))
        for (name, _), error in zip(opening, errors, strict=True):
            assert [part for part in cases[name][2] if part not in str(error)] == []
            assert isinstance(error, StoreError)
            assert error.transient
        assert asyncio.all_tasks() == {asyncio.current_task()}
    for thread in threads_of_ours():
        thread.join(5)
    assert threads_of_ours() == []


@both_clients
@pytest.mark.servers
@pytest.mark.parametrize(
    ("s3", "named"),
    [
        ({"aws_secret_access_key": SECRET}, ["s3.aws_secret_access_key"]),
        ({"aws_access_key_id": "AKNOBODY"}, ["AKNO…", "s3.aws_access_key_id"]),
        ({"bucket_name": "no-such-bucket"}, ["'no-such-bucket'", "s3.bucket_name"]),
    ],
    ids=["wrong secret", "unknown access key", "missing bucket"],
)
async def test_a_real_server_refuses(
    seaweedfs: S3Server, settings_for: Callable[..., Settings], client: str, s3: dict[str, str], named: list[str]
) -> None:
    """A refusal by SeaweedFS raises the same error."""
    error = await failure_of(PawnQueue.open(settings_for(seaweedfs, s3={"client": client, **s3})))
    assert [part for part in [*named, seaweedfs.endpoint] if part not in str(error)] == []
    assert isinstance(error, StoreError)
    assert not error.transient


@pytest.mark.parametrize(
    ("code", "named"), [("SignatureDoesNotMatch", "s3.aws_secret_access_key"), ("AccessDenied", "s3:GetObject")]
)
@both_clients
async def test_a_refused_signature_is_told(server: FaultServer, client: str, code: str, named: str) -> None:
    """A wrong secret and a missing right give different errors."""
    server.inject(Fault(Status(403, code)))
    error = await failure_of(PawnQueue.open(settings_at(server.endpoint, client)))
    assert named in str(error)
    assert code in str(error)
    assert len(server.requests) == 1


async def test_a_key_that_is_revoked_during_a_claim_is_named(server: FaultServer, client: str) -> None:
    """The settlement says why nobody can tell what became of the messages: the store does not know the key any more."""
    async with PawnQueue.open(settings_at(server.endpoint, client)) as queue:
        await queue.create_topic("orders")
        await queue.publish("orders", [{}])
        claim = await queue.claim("orders", "c")
        server.inject(Fault(Status(403, "InvalidAccessKeyId")))
        settlement = await queue.ack(claim)
        assert settlement.unknown == claim.ids
        assert "403 InvalidAccessKeyId" in settlement.fault


async def test_a_bucket_that_is_deleted_is_named(server: FaultServer, client: str) -> None:
    """Publishing into a topic whose bucket is gone names the bucket, and not the topic that is gone with it."""
    async with PawnQueue.open(settings_at(server.endpoint, client), retry=QUICK) as queue:
        await queue.create_topic("orders")
        await queue.publish("orders", [{}])
        server.delete_bucket(BUCKET)
        queue._known_topics._seen.clear()  # what was seen a second ago is not relied upon
        with pytest.raises(PublishError, match="Bucket 'queues' does not exist"):
            await queue.publish("orders", [{}])


async def test_settings_that_are_wrong_make_no_request(nobody: None) -> None:
    """An impossible setting raises an error before any request."""
    store = Watched()
    with pytest.raises(ConfigError, match=r"retry\.budget_seconds"):
        await PawnQueue.open({"retry": {"budget_seconds": "soon"}}, store=store)
    with pytest.raises(ConfigError, match=r"s3\.bucket_name"):
        await PawnQueue.open({"s3": {}})
    with pytest.raises(ConfigError, match=r"s3\.profile_name"):
        await PawnQueue.open({"s3": {"bucket_name": BUCKET, "profile_name": "nobody"}})
    assert store.calls == 0


async def test_an_opening_that_is_cancelled_leaves_nothing(server: FaultServer) -> None:
    """Cancelled while the store keeps silent, an opening ends, and no task of its goes on."""
    server.inject(Fault(NeverAnswers()))
    opening = asyncio.ensure_future(PawnQueue.open(settings_at(server.endpoint))._open())
    await asyncio.to_thread(server.wait_until, lambda: bool(server.requests))
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert asyncio.all_tasks() == {asyncio.current_task()}


# --- names of topics ---

NOT_NAMES: list[Any] = [
    "../x",
    "..",
    ".hidden",
    "_registry",
    "_probe",
    "-x",
    "",
    " ",
    "a" * 129,
    "a/b",
    "a//b",
    "/a",
    "a/",
    "orders\n",
    "\norders",
    "or ders",
    "bücher",
    "日本",
    "a\x00",
    "%2e%2e",
    "१२३",
    None,
    7,
    b"orders",
    ["orders"],
    object(),
]


@pytest.mark.parametrize("name", NOT_NAMES, ids=lambda name: ascii(name)[:20])
async def test_what_is_no_topic_name_makes_no_request(name: object) -> None:
    """Every call that takes a topic refuses the name in one line, before anything is asked of the store."""
    store = Watched()
    async with PawnQueue.open({"retry": QUICK}, store=store) as queue:
        before = store.calls
        for call in (queue.create_topic, queue.update_topic, queue.topic, queue.delete_topic):
            with pytest.raises(InvalidTopicError) as caught:
                await call(name)  # type: ignore[arg-type]
            sentence = str(caught.value)
            assert "is not a valid topic name" in sentence
            assert "\n" not in sentence
            assert len(sentence) < 300
            assert len(caught.value.topic or "") <= 128
        assert store.calls == before


@pytest.mark.parametrize("name", ["a", "A", "0", "a" * 128, "orders.v2", "a_b-c.d", "9-"])
async def test_what_is_a_topic_name_is_taken(name: str) -> None:
    """Names at the edge of what is allowed make topics."""
    async with PawnQueue.open({"retry": QUICK}, store=Watched()) as queue:
        await queue.create_topic(name)
        assert await queue.list_topics() == [name]


async def test_a_bad_name_reaches_no_server(server: FaultServer) -> None:
    """Over HTTP too: not a single request is made with it."""
    async with PawnQueue.open(settings_at(server.endpoint)) as queue:
        server.forget_requests()
        for name in NOT_NAMES:
            with pytest.raises(InvalidTopicError):
                await queue.create_topic(name)
        assert server.requests == []
