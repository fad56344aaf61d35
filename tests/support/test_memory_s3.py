"""The in-memory S3 is a proper S3 to boto3 and to obstore, and is improper in the ways it is asked to be."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, PreconditionError

from tests.support.behaviour import Discipline
from tests.support.clients import obstore_at
from tests.support.faults import Behaviour, FaultServer
from tools.kit.servers import S3Server

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from obstore.store import S3Store

BUCKET = "queues"
WRITERS = 16

Results: TypeAlias = "list[BaseException | None]"


def race(server: FaultServer, attempt: Callable[[S3Store, int], Coroutine[None, None, None]]) -> Results:
    """Make the attempts at once, and return what each raised."""
    store = obstore_at(server.s3, BUCKET)

    async def run() -> Results:
        results = await asyncio.gather(*(attempt(store, number) for number in range(WRITERS)), return_exceptions=True)
        return [result if isinstance(result, BaseException) else None for result in results]

    return asyncio.run(run())


async def create(store: S3Store, number: int, key: str = "lease") -> None:
    """Create the key with a body of one's own."""
    await store.put_async(key, b"writer %d" % number, mode="create", use_multipart=False)


def statuses(server: FaultServer) -> list[int | None]:
    """Return the statuses of the PUTs."""
    return [request.status for request in server.requests if request.operation == "PutObject"]


def code_of(caught: pytest.ExceptionInfo[ClientError]) -> str:
    """Return the S3 error code."""
    return caught.value.response["Error"]["Code"]


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """Return a well-behaved store with an empty bucket."""
    with FaultServer(buckets=(BUCKET,)) as started:
        yield started


def test_boto3_does_all_it_needs(server: FaultServer) -> None:
    """boto3 creates, reads, lists, copies and deletes, and each request is recorded by its operation's name."""
    client = server.s3.client()
    etag = client.put_object(Bucket=BUCKET, Key="a/b", Body=b"hello", Metadata={"who": "me"})["ETag"]
    got = client.get_object(Bucket=BUCKET, Key="a/b")
    head = client.head_object(Bucket=BUCKET, Key="a/b")
    listed = client.list_objects_v2(Bucket=BUCKET, Delimiter="/")
    client.copy_object(Bucket=BUCKET, Key="copy", CopySource={"Bucket": BUCKET, "Key": "a/b"})
    deleted = client.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": "a/b"}, {"Key": "none"}]})

    assert (got["Body"].read(), got["ETag"], got["Metadata"]) == (b"hello", etag, {"who": "me"})
    assert (head["ContentLength"], head["ETag"], head["LastModified"]) == (5, etag, got["LastModified"])
    assert [prefix["Prefix"] for prefix in listed["CommonPrefixes"]] == ["a/"]
    assert [entry["Key"] for entry in deleted["Deleted"]] == ["a/b", "none"]
    assert server.objects(BUCKET) == {"copy": b"hello"}
    assert [(request.operation, request.status) for request in server.requests] == [
        ("PutObject", 200),
        ("GetObject", 200),
        ("HeadObject", 200),
        ("ListObjectsV2", 200),
        ("CopyObject", 200),
        ("DeleteObjects", 200),
    ]
    assert server.requests[-1].deleted == ("a/b", "none")
    assert {request.access_key_id for request in server.requests} == {server.s3.access_key}


def test_obstore_does_all_it_needs(server: FaultServer) -> None:
    """An obstore client creates, replaces, reads, lists, copies and deletes."""
    store = obstore_at(server.s3, BUCKET)
    version = store.put("a/b", b"1", mode="create", use_multipart=False)["e_tag"]
    store.put("a/b", b"2", mode={"e_tag": version}, use_multipart=False)
    store.copy("a/b", "a/c")

    with pytest.raises(AlreadyExistsError):
        store.put("a/b", b"3", mode="create", use_multipart=False)
    with pytest.raises(PreconditionError):
        store.put("a/b", b"3", mode={"e_tag": version}, use_multipart=False)
    assert bytes(store.get("a/b").bytes()) == b"2"
    assert [meta["path"] for page in store.list() for meta in page] == ["a/b", "a/c"]
    assert store.list_with_delimiter()["common_prefixes"] == ["a"]
    store.delete(["a/b", "a/c"])
    assert server.objects(BUCKET) == {}
    with pytest.raises(FileNotFoundError):
        store.head("a/b")


def test_listing_pages(server: FaultServer) -> None:
    """Pages follow each other in key order, folders are counted once, and start-after starts after."""
    keys = [f"{folder}/{number}" for folder in "abc" for number in range(3)] + ["top"]
    for key in keys:
        server.put_object(BUCKET, key, b"")
    client = server.s3.client()
    pages = list(client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, PaginationConfig={"PageSize": 4}))
    folders = list(
        client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Delimiter="/", PaginationConfig={"PageSize": 2})
    )

    assert [[entry["Key"] for entry in page["Contents"]] for page in pages] == [keys[:4], keys[4:8], keys[8:]]
    assert [prefix["Prefix"] for page in folders for prefix in page.get("CommonPrefixes", [])] == ["a/", "b/", "c/"]
    after = client.list_objects_v2(Bucket=BUCKET, Prefix="b/", StartAfter="b/0")
    assert [entry["Key"] for entry in after["Contents"]] == ["b/1", "b/2"]


def test_strangers_keys(server: FaultServer) -> None:
    """Keys that no good client writes can be planted, with any date, and are listed as they are."""
    keys = ["\x01", "a%2Fb", "a+b", "a//b", "x/", "é <&>"]
    for key in keys:
        server.put_object(BUCKET, key, b"", last_modified=datetime(2020, 1, 1, tzinfo=UTC))
    listed = server.s3.client().list_objects_v2(Bucket=BUCKET)["Contents"]

    assert [entry["Key"] for entry in listed] == keys
    assert {entry["LastModified"].year for entry in listed} == {2020}


def test_missing_things(server: FaultServer) -> None:
    """A missing key and a missing bucket give different errors."""
    client = server.s3.client()
    with pytest.raises(ClientError) as no_key:
        client.get_object(Bucket=BUCKET, Key="none")
    with pytest.raises(ClientError) as no_bucket:
        client.get_object(Bucket="nowhere", Key="none")
    assert (code_of(no_key), code_of(no_bucket)) == ("NoSuchKey", "NoSuchBucket")
    assert server.s3.make_bucket().startswith("faults-")


def test_virtual_host_and_chunks(server: FaultServer) -> None:
    """The bucket may come in the Host header, and a body in aws-chunked framing is taken out of it."""
    headers = {"Host": f"{BUCKET}.localhost:1", "Content-Encoding": "aws-chunked"}
    body = b"5;chunk-signature=0\r\nhello\r\n6\r\n\r\nworl\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"
    with contextlib.closing(http.client.HTTPConnection(urlsplit(server.endpoint).netloc)) as connection:
        connection.request("PUT", "/a%20b", body=body, headers=headers)
        assert connection.getresponse().status == 200
    assert server.objects(BUCKET) == {"a b": b"hello\r\nworl"}


def test_atomic_has_one_winner(server: FaultServer) -> None:
    """Of concurrent creates, one wins and all others are refused."""
    raised = race(server, create)
    assert raised.count(None) == 1
    assert sorted(status for status in statuses(server) if status) == [200] + [412] * (WRITERS - 1)


def test_racy_create_lets_two_through() -> None:
    """A racy store refuses in sequence, and lets several concurrent creates through."""
    with FaultServer(Behaviour(if_none_match="racy", race_window=0.1), buckets=(BUCKET,)) as server:
        store = obstore_at(server.s3, BUCKET)
        store.put("old", b"1", mode="create", use_multipart=False)
        with pytest.raises(AlreadyExistsError):
            store.put("old", b"2", mode="create", use_multipart=False)
        assert race(server, create).count(None) >= 2


def test_racy_replace_lets_two_through() -> None:
    """A racy store lets several concurrent replacements of one version through."""
    with FaultServer(Behaviour(if_match="racy", race_window=0.1), buckets=(BUCKET,)) as server:
        version = server.put_object(BUCKET, "lease", b"old")

        async def replace(store: S3Store, number: int) -> None:
            await store.put_async("lease", b"%d" % number, mode={"e_tag": version}, use_multipart=False)

        assert race(server, replace).count(None) >= 2
        with pytest.raises(PreconditionError):
            asyncio.run(replace(obstore_at(server.s3, BUCKET), 0))


@pytest.mark.parametrize(("discipline", "status"), [("ignored", 200), ("not_implemented", 501)])
def test_no_conditions(discipline: Discipline, status: int) -> None:
    """A store without conditions writes regardless, or says that it has none."""
    with FaultServer(Behaviour(if_none_match=discipline), buckets=(BUCKET,)) as server:
        server.put_object(BUCKET, "lease", b"old")
        race(server, create)
        assert set(statuses(server)) == {status}


def test_unquoted_if_match() -> None:
    """Where ETags must be unquoted, the right one passes without its quotes only."""
    with FaultServer(Behaviour(etag_form="unquoted_if_match"), buckets=(BUCKET,)) as server:
        version = server.put_object(BUCKET, "lease", b"old")
        store = obstore_at(server.s3, BUCKET)
        with pytest.raises(PreconditionError):
            store.put("lease", b"new", mode={"e_tag": version}, use_multipart=False)
        store.put("lease", b"new", mode={"e_tag": version.strip('"')}, use_multipart=False)
        with pytest.raises(PreconditionError):
            store.put("lease", b"newer", mode={"e_tag": version.strip('"')}, use_multipart=False)


def test_if_match_of_nothing() -> None:
    """What a replacement of a missing object gets is a matter of the store."""
    for status in (404, 412):
        with FaultServer(Behaviour(if_match_missing=status), buckets=(BUCKET,)) as server:
            with pytest.raises(BaseError):
                obstore_at(server.s3, BUCKET).put("none", b"", mode={"e_tag": '"0"'}, use_multipart=False)
            assert statuses(server) == [status]


def test_losers_of_a_race() -> None:
    """Losers that overlap the winner get 500 or 409 where the store is like that; later ones get 412."""
    for behaviour, expected in (
        (Behaviour(losers_get_500=True, race_window=0.1), {200, 412, 500}),
        (Behaviour(conflict_409=True, race_window=0.1), {200, 409}),
    ):
        with FaultServer(behaviour, buckets=(BUCKET,)) as server:
            assert race(server, create).count(None) == 1
            # The slowest writers of a busy machine may come too late to overlap.
            assert expected <= set(statuses(server)) <= expected | {412}
            with pytest.raises(AlreadyExistsError):
                asyncio.run(create(obstore_at(server.s3, BUCKET), 0))
            assert statuses(server)[-1] == 412


def test_stale_reads() -> None:
    """Without read-after-write, GET and LIST show the state of some writes ago."""
    with FaultServer(Behaviour(read_after_write=False, stale_writes=2), buckets=(BUCKET,)) as server:
        store = obstore_at(server.s3, BUCKET)
        for body in (b"1", b"2", b"3"):
            store.put("lease", body, use_multipart=False)
        assert bytes(store.get("lease").bytes()) == b"1"
        store.put("x", b"", use_multipart=False)
        store.delete("lease")
        assert [meta["path"] for page in store.list() for meta in page] == ["lease"]
        assert server.objects(BUCKET) == {"x": b""}


def test_region() -> None:
    """A request signed for another region gets the right one in its answer, and boto3 follows it."""
    with FaultServer(Behaviour(region="eu-west-1"), buckets=(BUCKET,)) as server:
        wrong = S3Server("wrong", server.endpoint, "AK", "SK", "us-east-1")
        with pytest.raises(GenericError, match="<Region>eu-west-1</Region>"):
            obstore_at(wrong, BUCKET).put("a", b"", use_multipart=False)
        assert server.requests[-1].region == "us-east-1"
        obstore_at(server.s3, BUCKET).put("a", b"", use_multipart=False)


def test_credentials() -> None:
    """Unknown, expired and missing credentials are refused each in their way, and their use is recorded."""
    now = datetime.now(UTC)
    known = {"GOOD": now + timedelta(hours=1), "FOREVER": None, "OLD": now - timedelta(seconds=1)}
    with FaultServer(Behaviour(credentials=known), buckets=(BUCKET,)) as server:
        codes = {}
        for access_key in (*known, "UNKNOWN"):
            client = S3Server("any", server.endpoint, access_key, "SK").client()
            try:
                client.put_object(Bucket=BUCKET, Key="a", Body=b"")
            except ClientError as problem:
                codes[access_key] = problem.response["Error"]["Code"]
        assert codes == {"OLD": "ExpiredToken", "UNKNOWN": "InvalidAccessKeyId"}
        assert [request.access_key_id for request in server.requests] == [*known, "UNKNOWN"]
