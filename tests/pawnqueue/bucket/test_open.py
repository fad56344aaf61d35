"""Opening a bucket: one agreement for all, and what this process cannot follow is refused."""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from pawnqueue import CompatibilityError, ConfigError, PawnQueue, QueueClosedError, Settings
from tests.pawnqueue.opened import BUCKET, QUICK, RECORD, Watched, both_clients, operations, settings_at
from tests.support.faults import AppliedThenDropped, AppliedThenStatus, Behaviour, Dropped, Fault, FaultServer, Status

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue


# --- the first one, and those that follow ---


@both_clients
async def test_the_first_opener_writes_the_record(server: FaultServer, client: str) -> None:
    """After the first opening the bucket has the record that all processes agree on, and nothing else."""
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
    """The record has what the probe found about ETags, and a process that follows it can update registers."""
    with FaultServer(Behaviour(etag_form="unquoted_if_match"), buckets=(BUCKET,)) as server:
        async with PawnQueue.open(settings_at(server.endpoint)) as queue:
            await queue.create_topic("orders")
        async with PawnQueue.open(settings_at(server.endpoint)) as queue:
            assert (await queue.update_topic("orders", max_deliveries=3)).settings.max_deliveries == 3
        assert json.loads(server.objects(BUCKET)[RECORD])["unquoted_if_match"] is True


async def test_opening_may_be_awaited() -> None:
    """Awaited, a queue is its user's to close; closed twice is closed, and used after that it says so."""
    store = Watched()
    queue = await PawnQueue.open(store=store)
    await queue.create_topic("orders")
    await queue.aclose()
    await queue.aclose()
    assert store.closed == 0  # a caller that passes a store keeps it
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
    """The same over HTTP and through a storm: one record, which every one of them returned."""
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
        b'{"v":1,"strategy":""}',
        b'{"v":1,"strategy":1}',
        b'{"v":null,"strategy":"conditional_write"}',
        b"[" * 100_000,
        b'{"v":1,"strategy":"conditional_write"',
        b'{"v":1,"strategy":"conditional_write"}' + b" " * 200_000,
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


@pytest.mark.parametrize("wanted", ["auto", "conditional_write"])
async def test_a_strategy_of_a_newer_version_is_refused(wanted: str) -> None:
    """Where a newer version has agreed on a strategy of its own, the error names it, and those that there are."""
    store = await with_record({"v": 1, "strategy": "blocks"})
    with pytest.raises(CompatibilityError) as caught:
        await PawnQueue.open({"concurrency": {"strategy": wanted}}, store=store)
    for part in ("'blocks'", RECORD, "conditional_write", "csprng_verify", "upgrade"):
        assert part in str(caught.value)
    assert store.calls == 1


async def test_a_strategy_that_there_is_not_is_refused_at_once() -> None:
    """The error says which there are, and no request was made."""
    store = Watched()
    with pytest.raises(ConfigError) as caught:
        await PawnQueue.open({"concurrency": {"strategy": "conditional_writes"}}, store=store)
    for part in ("'conditional_writes'", "concurrency.strategy", "auto, conditional_write or csprng_verify"):
        assert part in str(caught.value)
    assert store.calls == 0


async def test_unknown_fields_are_no_garbage() -> None:
    """A record with more in it than we know is followed."""
    store = await with_record({"v": 1, "strategy": "conditional_write", "more": {"of": "it"}})
    async with PawnQueue.open(store=store) as queue:
        assert queue.strategy == "conditional_write"
