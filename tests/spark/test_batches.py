"""How a task reads its partition: its requests, and all the ways to end. No Spark runs here."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pawnqueue import ClaimReference, Settings, SyncPawnQueue
from pyspark_pawnqueue import PawnQueueSparkError, batch_reader
from pyspark_pawnqueue.batch_reader import PortionPartition, read_partition
from pyspark_pawnqueue.messages_to_rows import RowBuilder, schema_of
from tests.pawnqueue.opened import BUCKET, settings_at
from tests.support.faults import Fault, FaultServer, NeverAnswers, Status

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition

ROWS = RowBuilder(schema_of("n long", dead=False))
BODIES = "*/messages/*"


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """A store with faults."""
    with FaultServer(buckets=(BUCKET,)) as started:
        yield started


@pytest.fixture
def settings(server: FaultServer) -> Settings:
    """Settings with which a hanging request is awaited for longer than the test lasts."""
    given = settings_at(server.endpoint, request_timeout_seconds=3600)
    given["retry"] = {**given["retry"], "budget_seconds": 0}
    return Settings(**given)


@pytest.fixture
def partition(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> InputPartition:
    """A claim of ten messages as one partition, read two messages at a time."""
    monkeypatch.setattr(batch_reader, "FIRST_BATCH_MESSAGES", 2)
    monkeypatch.setattr(batch_reader, "BATCH_MESSAGES", 2)
    with SyncPawnQueue.open(settings) as queue:
        queue.create_topic("orders")
        queue.publish("orders", [{"n": number} for number in range(10)])
        claim = queue.claim("orders", "c", max_messages=10, ttl=600, claim_id="run")
        queue.leave(claim)
        [portion] = queue.portions(ClaimReference("orders", "run", 0, ""), parts=1)
    return PortionPartition(portion)


def running() -> set[str]:
    """Return the names of the threads that read."""
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("pawnqueue")}


def test_one_request_a_message(server: FaultServer, settings: Settings, partition: InputPartition) -> None:
    """One more request reads the bucket's agreement, and one per batch checks the claim. There is no LIST or PUT."""
    server.forget_requests()
    found = list(read_partition(settings, ROWS, partition))

    assert [batch.column("n").to_pylist() for batch in found] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    asked = Counter((request.operation, request.key.split("/")[1]) for request in server.requests)
    assert asked.pop(("GetObject", "messages")) == 10
    assert asked == {("GetObject", "bucket.json"): 1, ("HeadObject", "claims"): 5}


def test_a_batch_is_read_ahead(server: FaultServer, settings: Settings, partition: InputPartition) -> None:
    """While Spark works on a batch, the next one is read, and no more."""
    server.forget_requests()
    rows = read_partition(settings, ROWS, partition)
    next(rows)
    server.wait_until(lambda: sum("/messages/" in request.key for request in server.requests) == 4)
    rows.close()
    assert sum("/messages/" in request.key for request in server.requests) == 4


def test_who_has_enough_does_not_wait_for_what_is_read_ahead(
    server: FaultServer, settings: Settings, partition: InputPartition
) -> None:
    """Even if the store hangs, limit(1) ends, and leaves no thread."""
    rows = read_partition(settings, ROWS, partition)
    names = sorted(key for key in server.objects(BUCKET) if "/messages/" in key)
    server.inject(Fault(NeverAnswers(), operation="GetObject", key=names[2]))
    assert next(rows).column("n").to_pylist() == [0, 1]
    server.wait_until(lambda: any(request.key == names[2] for request in server.requests))
    assert "pawnqueue-ahead_0" in running()
    rows.close()

    assert running() == set()


def test_what_fails_is_told_when_it_is_its_turn(
    server: FaultServer, settings: Settings, partition: InputPartition
) -> None:
    """The batches before a failure are returned. The failure ends the task and its threads."""
    names = sorted(key for key in server.objects(BUCKET) if "/messages/" in key)
    server.inject(Fault(Status(403, "AccessDenied"), operation="GetObject", key=names[3]))
    rows = read_partition(settings, ROWS, partition)

    assert next(rows).column("n").to_pylist() == [0, 1]
    with pytest.raises(PawnQueueSparkError, match=r"^PawnQueue: .* denied GetObject"):
        next(rows)
    assert running() == set()
    assert list(rows) == []


def test_sparks_own_partition_of_nothing_is_nothing(server: FaultServer, settings: Settings) -> None:
    """Spark's partition for an empty plan costs no request."""
    from pyspark.sql.datasource import InputPartition  # noqa: PLC0415 - its name is the annotations' too

    server.forget_requests()
    assert list(read_partition(settings, ROWS, InputPartition(None))) == []
    assert server.requests == []
