"""Opening a bucket: one agreement for all, and one sentence for whatever is wrong."""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import pickle
import random
import socket
import threading
import traceback
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider_pawnqueue.engine import (
    CompatibilityError,
    ConfigError,
    InvalidTopicError,
    PawnQueue,
    PawnQueueError,
    QueueClosedError,
    Settings,
    StoreError,
)
from airflow_provider_pawnqueue.engine.store.port import Done
from tests.support.faults import (
    AppliedThenDropped,
    AppliedThenStatus,
    Behaviour,
    Dropped,
    Fault,
    FaultServer,
    NeverAnswers,
    Status,
)
from tools.kit.ports import free_port
from tools.kit.stores import Answer, CarryOut, HookedStore, Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from multiprocessing.queues import SimpleQueue
    from pathlib import Path

    from tools.kit.servers import S3Server

BUCKET = "queues"
RECORD = "_registry/bucket.json"
SECRET, TOKEN = "secret-that-nobody-may-see", "token-that-nobody-may-see"
QUICK = {"initial_delay_seconds": 0.001, "max_delay_seconds": 0.02}

both_clients = pytest.mark.parametrize("client", ["obstore", "boto3"])


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """A well-behaved store with an empty bucket."""
    with FaultServer(buckets=(BUCKET,)) as started:
        yield started


def settings_at(endpoint: str, client: str = "obstore", **s3: Any) -> dict[str, Any]:
    """Return settings for the bucket behind the endpoint."""
    chosen = {
        "bucket_name": BUCKET,
        "endpoint_url": endpoint,
        "aws_access_key_id": "AKTEST",
        "aws_secret_access_key": SECRET,
        "client": client,
        **s3,
    }
    return {"s3": {name: value for name, value in chosen.items() if value is not None}, "retry": QUICK}


def operations(server: FaultServer) -> list[tuple[str, str]]:
    """Return what was asked of the server."""
    return [(request.operation, request.key) for request in server.requests]


class Watched(HookedStore):
    """A bucket in memory that takes turns by chance, counts its calls, and remembers its writes of the record."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._chance = random.Random(seed)  # noqa: S311
        self.calls = 0
        self.records: list[bytes] = []

    async def answer(self, request: Request, carry_out: CarryOut) -> Answer:
        """Take some turns first."""
        if not request.page:
            self.calls += 1
            for _ in range(self._chance.randrange(4)):
                await asyncio.sleep(0)
        answer = await carry_out()
        if (request.call, request.key) == ("put", RECORD) and isinstance(answer, Done):
            self.records.append(request.body)
        return answer


# --- the first one, and those that follow ---


@both_clients
async def test_the_first_opener_writes_the_record(server: FaultServer, client: str) -> None:
    """What all processes agree on stands in the bucket after the first opening, and nothing else does."""
    async with PawnQueue.open(settings_at(server.endpoint, client)) as queue:
        assert queue.strategy == "conditional_write"
    assert list(server.objects(BUCKET)) == [RECORD]
    record = json.loads(server.objects(BUCKET)[RECORD])
    assert record["v"] == 1
    assert record["strategy"] == "conditional_write"
    assert record["unquoted_if_match"] is False
    assert record["nonce"]
    assert abs(datetime.fromisoformat(record["created_at"]) - datetime.now(UTC)) < timedelta(minutes=1)


@both_clients
async def test_a_second_opener_follows(server: FaultServer, client: str) -> None:
    """It makes exactly one request, a GET of the record, and changes nothing; closing makes none."""
    async with PawnQueue.open(settings_at(server.endpoint)):
        pass
    before = server.objects(BUCKET)
    server.forget_requests()
    async with PawnQueue.open(settings_at(server.endpoint, client)) as queue:
        assert queue.strategy == "conditional_write"
    assert operations(server) == [("GetObject", RECORD)]
    assert server.objects(BUCKET) == before


async def test_a_store_that_wants_bare_etags_is_remembered() -> None:
    """What the probe found of the ETags is in the record, and who follows it can update registers."""
    with FaultServer(Behaviour(etag_form="unquoted_if_match"), buckets=(BUCKET,)) as server:
        async with PawnQueue.open(settings_at(server.endpoint)) as queue:
            await queue.create_topic("orders")
        async with PawnQueue.open(settings_at(server.endpoint)) as queue:
            assert (await queue.update_topic("orders", max_deliveries=3)).max_deliveries == 3
        assert json.loads(server.objects(BUCKET)[RECORD])["unquoted_if_match"] is True


async def test_opening_may_be_awaited() -> None:
    """Awaited, a queue is its user's to close; closed twice is closed, and used after that it says so."""
    store = Watched()
    queue = await PawnQueue.open(store=store)
    await queue.create_topic("orders")
    await queue.aclose()
    await queue.aclose()
    assert store.closed == 0  # whoever brings a store keeps it
    with pytest.raises(QueueClosedError):
        await queue.list_topics()
    async with PawnQueue.open(Settings(s3={"bucket_name": BUCKET}), store=store) as queue:
        assert await queue.list_topics() == ["orders"]


@pytest.mark.parametrize("openers", [2, 5])
async def test_openers_at_the_same_instant_agree(openers: int) -> None:
    """Of several that find an empty bucket, one writes the record, all follow it, and no probe object is left."""
    for seed in range(60):
        store = Watched(seed)
        queues = await asyncio.gather(*(PawnQueue.open({"retry": QUICK}, store=store) for _ in range(openers)))
        assert len(store.records) == 1, f"seed {seed}"
        assert {queue.strategy for queue in queues} == {"conditional_write"}
        assert {queue._agreed.created_at for queue in queues} == {json.loads(store.records[0])["created_at"]}
        assert list(store.below._objects) == [RECORD]
        for queue in queues:
            await queue.aclose()


@pytest.mark.parametrize("seed", range(4))
async def test_openers_in_a_storm_agree(seed: int) -> None:
    """The same over HTTP and through a storm: one record, which is what every one of them was told."""
    with FaultServer(Behaviour(seed=seed, etag_form="unquoted_if_match"), buckets=(BUCKET,)) as server:
        for effect in (Status(503, "SlowDown"), Dropped(), AppliedThenDropped(), AppliedThenStatus(500)):
            server.inject(Fault(effect, probability=0.1))
        opening = (PawnQueue.open(settings_at(server.endpoint, client)) for client in ("obstore", "boto3", "obstore"))
        queues = await asyncio.gather(*opening)
        record = json.loads(server.objects(BUCKET)[RECORD])
        for queue in queues:
            assert (queue.strategy, queue._agreed.unquoted_if_match) == ("conditional_write", True)
            assert queue._agreed.created_at == record["created_at"]
            await queue.aclose()
        assert list(server.objects(BUCKET)) == [RECORD]


def _open_elsewhere(endpoint: str, ready: threading.Barrier, told: SimpleQueue[str]) -> None:
    """Open the bucket in a process of its own, when all are ready."""

    async def run() -> str:
        async with PawnQueue.open(settings_at(endpoint)) as queue:
            return str(queue._agreed.created_at)

    ready.wait()
    told.put(asyncio.run(run()))


def test_processes_at_the_same_instant_agree(server: FaultServer) -> None:
    """Two processes that find an empty bucket end with one record, and both follow it."""
    context = multiprocessing.get_context("spawn")
    ready, told = context.Barrier(2), context.SimpleQueue()
    processes = [context.Process(target=_open_elsewhere, args=(server.endpoint, ready, told)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert [told.get(), told.get()] == [json.loads(server.objects(BUCKET)[RECORD])["created_at"]] * 2
    assert list(server.objects(BUCKET)) == [RECORD]


# --- a record that this process cannot follow ---


async def with_record(record: object) -> Watched:
    """Return a bucket with this record."""
    store = Watched()
    store.below._write(RECORD, record if isinstance(record, bytes) else json.dumps(record).encode())
    return store


@pytest.mark.parametrize(
    ("stands", "wanted"),
    [("conditional_write", "csprng_verify"), ("csprng_verify", "conditional_write")],
)
async def test_a_contradicting_strategy_is_refused(stands: str, wanted: str) -> None:
    """The error names both strategies and the record, and says how the bucket's one is changed."""
    store = await with_record({"v": 1, "strategy": stands})
    with pytest.raises(ConfigError) as caught:
        await PawnQueue.open({"concurrency": {"strategy": wanted}}, store=store)
    for part in (wanted, stands, RECORD, "concurrency.strategy", "stop every process", "auto"):
        assert part in str(caught.value)
    assert store.calls == 1


@pytest.mark.parametrize("wanted", ["auto", "conditional_write"])
async def test_a_fitting_strategy_is_followed(wanted: str) -> None:
    """``auto`` and the strategy that the bucket has open it."""
    store = await with_record({"v": 1, "strategy": "conditional_write"})
    async with PawnQueue.open({"concurrency": {"strategy": wanted}}, store=store) as queue:
        assert queue.strategy == "conditional_write"


async def test_a_strategy_that_the_store_cannot_carry_is_refused() -> None:
    """Where the first opener wants more than the store can, the error says what it cannot, and no record is written."""
    with FaultServer(Behaviour(if_match="ignored"), buckets=(BUCKET,)) as server:
        chosen = {**settings_at(server.endpoint), "concurrency": {"strategy": "conditional_write"}}
        with pytest.raises(CompatibilityError, match="wrong If-Match overwrote an object"):
            await PawnQueue.open(chosen)
        assert server.objects(BUCKET) == {}


async def test_a_store_without_conditions_is_used_with_csprng_verify(caplog: pytest.LogCaptureFixture) -> None:
    """The first opener finds out and writes it down, says how its pauses fit the store, and the second one follows."""
    caplog.set_level(logging.INFO)
    with FaultServer(Behaviour(if_none_match="ignored", if_match="ignored"), buckets=(BUCKET,)) as server:
        for _ in range(2):
            async with PawnQueue.open(settings_at(server.endpoint)) as queue:
                assert queue.strategy == "csprng_verify"
        assert [*server.objects(BUCKET)] == ["_registry/bucket.json"]
    assert "from look to answer a write took up to" in caplog.text


@pytest.mark.parametrize("version", [2, 99])
async def test_a_newer_format_is_refused(version: int) -> None:
    """A record of a newer format names both formats and says to upgrade, however little of it can be read."""
    for record in ({"v": version, "strategy": "conditional_write"}, {"v": version, "rules": []}):
        store = await with_record(record)
        with pytest.raises(CompatibilityError) as caught:
            await PawnQueue.open(store=store)
        assert f"format {version}" in str(caught.value)
        assert "up to format 1" in str(caught.value)
        assert "upgrade" in str(caught.value)
        assert store.calls == 1


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"hello",
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b"{}",
        b'{"v":1}',
        b'{"v":1,"strategy":"mine"}',
        b'{"v":null,"strategy":"conditional_write"}',
        b"[" * 100_000,
        b'{"v":1,"strategy":"conditional_write"',
    ],
    ids=lambda record: repr(record[:20]),
)
async def test_garbage_is_no_record(record: bytes) -> None:
    """What this library did not write is neither followed nor overwritten, and the error says what to do."""
    store = await with_record(record)
    with pytest.raises(CompatibilityError, match="was not written by this library") as caught:
        await PawnQueue.open(store=store)
    assert "s3.key_prefix" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert store.below._objects[RECORD].body == record


async def test_unknown_fields_are_no_garbage() -> None:
    """A record with more in it than we know is followed."""
    store = await with_record({"v": 1, "strategy": "conditional_write", "more": {"of": "it"}})
    async with PawnQueue.open(store=store) as queue:
        assert queue.strategy == "conditional_write"


# --- bad input ---


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
        with pytest.raises((StoreError, ConfigError)) as caught:
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
    """What SeaweedFS refuses is told in the same way."""
    error = await failure_of(PawnQueue.open(settings_for(seaweedfs, s3={"client": client, **s3})))
    assert [part for part in [*named, seaweedfs.endpoint] if part not in str(error)] == []
    assert isinstance(error, StoreError)
    assert not error.transient


@pytest.mark.parametrize(
    ("code", "named"), [("SignatureDoesNotMatch", "s3.aws_secret_access_key"), ("AccessDenied", "s3:GetObject")]
)
@both_clients
async def test_a_refused_signature_is_told(server: FaultServer, client: str, code: str, named: str) -> None:
    """A wrong secret, and a right that is lacking, are told apart."""
    server.inject(Fault(Status(403, code)))
    error = await failure_of(PawnQueue.open(settings_at(server.endpoint, client)))
    assert named in str(error)
    assert code in str(error)
    assert len(server.requests) == 1


async def test_settings_that_are_wrong_make_no_request(nobody: None) -> None:
    """A setting that cannot be is told before anything is asked of the store."""
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
            assert "is no topic name" in sentence
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
