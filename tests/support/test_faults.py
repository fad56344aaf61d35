"""Each fault does what it says, in front of the store in memory and of a real one."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError, HTTPClientError
from botocore.parsers import ResponseParserError
from obstore.exceptions import AlreadyExistsError, GenericError

from tests.support.clients import obstore_at
from tests.support.faults import (
    AppliedThenDropped,
    AppliedThenStatus,
    Behaviour,
    Dropped,
    Fault,
    FaultServer,
    LandsLate,
    MalformedBody,
    NeverAnswers,
    PartialDelete,
    Status,
)
from tools.kit.servers import S3Server, seaweedfs

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = "queues"


def statuses(server: FaultServer) -> list[int | None]:
    """Return the statuses of the PUTs."""
    return [request.status for request in server.requests if request.operation == "PutObject"]


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """Return a well-behaved store with an empty bucket."""
    with FaultServer(buckets=(BUCKET,)) as started:
        yield started


def test_status_is_not_applied(server: FaultServer) -> None:
    """A refused request leaves nothing behind; after its number of times the fault is over."""
    client = server.s3.client()
    handle = server.inject(Fault(Status(503, "SlowDown"), operation="PutObject", key="a*", times=1))
    with pytest.raises(ClientError) as caught:
        client.put_object(Bucket=BUCKET, Key="a/b", Body=b"")
    assert caught.value.response["Error"]["Code"] == "SlowDown"
    assert (server.objects(BUCKET), handle.hits) == ({}, 1)
    client.put_object(Bucket=BUCKET, Key="a/b", Body=b"")
    assert handle.hits == 1


def test_applied_then_status(server: FaultServer) -> None:
    """An error is answered although the request was applied."""
    store = obstore_at(server.s3, BUCKET)
    server.inject(Fault(AppliedThenStatus(500), where=lambda request: request.method == "PUT", times=1))
    with pytest.raises(GenericError, match="500"):
        store.put("a", b"1", use_multipart=False)
    assert server.objects(BUCKET) == {"a": b"1"}
    store.put("a", b"2", use_multipart=False)


def test_dropped_and_applied_then_dropped(server: FaultServer) -> None:
    """A lost request is not applied, a lost answer is; the client cannot tell them apart."""
    store = obstore_at(server.s3, BUCKET)
    server.inject(Fault(Dropped(), key="request"))
    server.inject(Fault(AppliedThenDropped(), key="answer"))
    for key in ("request", "answer"):
        with pytest.raises(GenericError):
            store.put(key, b"", use_multipart=False)
        with pytest.raises(HTTPClientError):
            server.s3.client().put_object(Bucket=BUCKET, Key=key, Body=b"")
    assert list(server.objects(BUCKET)) == ["answer"]
    assert set(statuses(server)) == {None}


def test_lands_late(server: FaultServer) -> None:
    """The client gets a failure now, and the request is applied later, with its conditions checked then."""
    server.inject(Fault(LandsLate(0.6, Status(500)), key="a", times=1))
    server.inject(Fault(LandsLate(0.6), key="b", times=1))
    store = obstore_at(server.s3, BUCKET)
    for key in ("a", "b"):
        with pytest.raises(GenericError):
            store.put(key, b"late", mode="create", use_multipart=False)
    assert server.objects(BUCKET) == {}
    store.put("b", b"in between", mode="create", use_multipart=False)
    server.wait_until(lambda: "a" in server.objects(BUCKET))
    assert server.objects(BUCKET) == {"a": b"late", "b": b"in between"}


def test_never_answers() -> None:
    """The connection is held until the client gives up; the server stops all the same."""
    with FaultServer(buckets=(BUCKET,)) as server:
        server.inject(Fault(NeverAnswers()))
        with pytest.raises(GenericError):
            obstore_at(server.s3, BUCKET, timeout="100ms").put("a", b"", use_multipart=False)
        assert server.objects(BUCKET) == {}


def test_a_request_is_applied_after_its_client_gave_up(server: FaultServer) -> None:
    """The client closes its connection before it gets an answer, and the request is applied all the same."""
    server.latency = 1.0
    with pytest.raises(GenericError):
        obstore_at(server.s3, BUCKET, timeout="100ms").put("a", b"1", use_multipart=False)
    server.wait_until(lambda: "a" in server.objects(BUCKET))


def test_partial_delete(server: FaultServer) -> None:
    """Some keys of a bulk delete stay, each with its error."""
    for key in ("a/1", "a/2", "b/1"):
        server.put_object(BUCKET, key, b"")
    server.inject(Fault(PartialDelete("a/*", "SlowDown"), operation="DeleteObjects", key="a/2"))
    answer = server.s3.client().delete_objects(
        Bucket=BUCKET, Delete={"Objects": [{"Key": key} for key in server.objects(BUCKET)], "Quiet": True}
    )
    assert [(entry["Key"], entry["Code"]) for entry in answer["Errors"]] == [("a/1", "SlowDown"), ("a/2", "SlowDown")]
    assert list(server.objects(BUCKET)) == ["a/1", "a/2"]


def test_malformed_body(server: FaultServer) -> None:
    """A listing that is cut off, or that is no XML at all, is answered with 200."""
    server.put_object(BUCKET, "a", b"")
    store = obstore_at(server.s3, BUCKET)
    for body in (None, b"<html>"):
        server.inject(Fault(MalformedBody(body), operation="ListObjectsV2", times=2))
        with pytest.raises((ResponseParserError, ClientError)):  # botocore makes a 500 of what it cannot parse
            server.s3.client().list_objects_v2(Bucket=BUCKET)
        with pytest.raises(GenericError):
            list(store.list())
    assert {request.status for request in server.requests} == {200}


def test_probability_is_seeded() -> None:
    """The same seed gives the same faults."""

    def outcomes(seed: int) -> list[int | None]:
        with FaultServer(Behaviour(seed=seed), buckets=(BUCKET,)) as server:
            server.inject(Fault(Status(503), probability=0.5))
            store = obstore_at(server.s3, BUCKET)
            for number in range(40):
                try:
                    store.put(str(number), b"", use_multipart=False)
                except GenericError:
                    continue
            return statuses(server)

    assert outcomes(1) == outcomes(1) != outcomes(2)
    assert set(outcomes(1)) == {200, 503}


def test_hundreds_at_once(server: FaultServer) -> None:
    """300 concurrent requests of a second each overlap: in a queue, they would take longer than a test may."""
    server.put_object(BUCKET, "a", b"")
    server.latency = 1.0
    store = obstore_at(server.s3, BUCKET)

    async def run() -> None:
        await asyncio.gather(*(store.get_async("a") for _ in range(300)))

    asyncio.run(run())
    assert len(server.requests) == 300


def test_in_front_of_a_real_server() -> None:
    """In front of SeaweedFS, signed requests pass unchanged, and every fault is the real store's."""
    with seaweedfs() as real, FaultServer(upstream=real.endpoint, latency=0.002) as server:
        bucket = real.make_bucket()
        proxied = S3Server("proxied", server.endpoint, real.access_key, real.secret_key)
        client, store = proxied.client(), obstore_at(proxied, bucket)

        def matches(expected: list[str]) -> bool:
            listed = real.client().list_objects_v2(Bucket=bucket).get("Contents", [])
            return [entry["Key"] for entry in listed] == expected

        store.put("a b/ü", b"1" * 100_000, mode="create", use_multipart=False)
        with pytest.raises(AlreadyExistsError):
            store.put("a b/ü", b"2", mode="create", use_multipart=False)
        client.put_object(Bucket=bucket, Key="boto", Body=b"2")
        assert client.head_object(Bucket=bucket, Key="a b/ü")["ContentLength"] == 100_000
        assert client.get_object(Bucket=bucket, Key="boto")["Body"].read() == b"2"
        assert client.get_paginator("list_objects_v2").paginate(Bucket=bucket).build_full_result()["Contents"]
        assert (server.requests[0].operation, server.requests[0].key) == ("PutObject", "a b/ü")
        store.delete(["a b/ü", "boto"])
        assert matches([])

        expected: list[str] = []
        for effect, applied in (
            (Status(503), False),
            (Dropped(), False),
            (NeverAnswers(), False),
            (AppliedThenStatus(500), True),
            (AppliedThenDropped(), True),
            (LandsLate(0.1), True),
        ):
            name = type(effect).__name__
            handle = server.inject(Fault(effect, key=name, times=1))
            with pytest.raises(GenericError):
                obstore_at(proxied, bucket, timeout="200ms").put(name, b"", use_multipart=False)
            assert handle.hits == 1
            expected += [name] if applied else []
            server.wait_until(partial(matches, sorted(expected)))
        with pytest.raises(ValueError, match="memory"):
            server.inject(Fault(PartialDelete()))


def test_real_server_gone() -> None:
    """Where the real server has gone, the connection is reset."""
    with seaweedfs() as real:
        endpoint = real.endpoint
    with FaultServer(upstream=endpoint) as server, pytest.raises(GenericError):
        obstore_at(server.s3, BUCKET).head("a")
