"""One failure, one meaning: whichever client saw it, and in a sentence that says what to do."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from pawnqueue import Settings
from pawnqueue.errors import StoreError
from pawnqueue.settings import environment_variables
from pawnqueue.stores import s3_answers
from pawnqueue.stores.connect import connect
from pawnqueue.stores.port import Done, Expect, Refusal, Refused, Unknown
from pawnqueue.stores.s3_answers import Fault, FaultKind, Place, fault_kind, outcome_of
from tests.pawnqueue.opened import BUCKET
from tests.support import faults as injected
from tests.support.faults import (
    AppliedThenDropped,
    AppliedThenStatus,
    Dropped,
    FaultServer,
    MalformedBody,
    NeverAnswers,
    PartialDelete,
    Status,
)
from tools.kit.stores import ALL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from pawnqueue.stores.port import Outcome, Store
    from tests.support.faults import Effect

AT_HOME = Place("my-bucket", "eu-test-1", "http://store.test:9000", access_key="AKIDENTIFIER")
AT_AWS = Place("my-bucket", "eu-test-1")

# --- reading an answer ---


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "NoSuchKey", FaultKind.MISSING_KEY),
        (404, "NoSuchBucket", FaultKind.MISSING_BUCKET),
        (404, None, FaultKind.MISSING_KEY),
        (412, "PreconditionFailed", FaultKind.CONDITION),
        (412, None, FaultKind.CONDITION),
        (409, "ConditionalRequestConflict", FaultKind.CONFLICT),
        (409, "OperationAborted", FaultKind.CONFLICT),
        (409, None, FaultKind.CONFLICT),
        (501, "NotImplemented", FaultKind.UNSUPPORTED),
        (501, None, FaultKind.UNSUPPORTED),
        (400, "NotImplemented", FaultKind.UNSUPPORTED),
        (403, "InvalidAccessKeyId", FaultKind.WRONG_KEY_ID),
        (403, "SignatureDoesNotMatch", FaultKind.WRONG_SECRET),
        (403, "AccessDenied", FaultKind.DENIED),
        (403, None, FaultKind.DENIED),
        (401, None, FaultKind.DENIED),
        (400, "ExpiredToken", FaultKind.EXPIRED),
        (403, "ExpiredToken", FaultKind.EXPIRED),
        (400, "TokenRefreshRequired", FaultKind.EXPIRED),
        (400, "InvalidToken", FaultKind.EXPIRED),
        (400, "AuthorizationHeaderMalformed", FaultKind.WRONG_REGION),
        (301, "PermanentRedirect", FaultKind.WRONG_REGION),
        (301, None, FaultKind.WRONG_REGION),
        (400, "IllegalLocationConstraintException", FaultKind.WRONG_REGION),
        (403, "RequestTimeTooSkewed", FaultKind.CLOCK_SKEW),
        (400, "RequestTimeout", FaultKind.TIMEOUT),
        (408, None, FaultKind.TIMEOUT),
        (503, "SlowDown", FaultKind.BUSY),
        (503, None, FaultKind.BUSY),
        (429, None, FaultKind.BUSY),
        (200, "SlowDown", FaultKind.BUSY),
        (307, None, FaultKind.BUSY),
        (500, "InternalError", FaultKind.SERVER),
        (200, "InternalError", FaultKind.SERVER),
        (500, None, FaultKind.SERVER),
        (502, None, FaultKind.SERVER),
        (504, "Whatever", FaultKind.SERVER),
        (599, "", FaultKind.SERVER),
        (0, None, FaultKind.SERVER),
        (400, "InvalidArgument", FaultKind.REJECTED),
        (400, None, FaultKind.REJECTED),
        (405, "MethodNotAllowed", FaultKind.REJECTED),
        (411, None, FaultKind.REJECTED),
        (418, "Teapot", FaultKind.REJECTED),
    ],
)
def test_an_answer_is_read_once(status: int, code: str | None, kind: FaultKind) -> None:
    """The store's code decides, else the status; what nobody can place is the server's failure, a 4xx a rejection."""
    assert fault_kind(status, code) is kind


def test_every_error_code_has_a_kind() -> None:
    """The tables name kinds only, and every kind has a sentence."""
    assert all(kind.value.sentence for kind in FaultKind)
    assert set(s3_answers._KIND_BY_CODE.values()) | set(s3_answers._KIND_BY_STATUS.values()) <= set(FaultKind)


# --- outcomes of writes ---


@pytest.mark.parametrize("kind", FaultKind)
@pytest.mark.parametrize("conditional", [False, True], ids=["plain", "conditional"])
def test_a_failed_write_has_one_outcome(kind: FaultKind, *, conditional: bool) -> None:
    """Refused only where the condition was answered, unknown wherever it may have happened, an error for the rest."""
    refusals = {
        FaultKind.CONDITION: Refusal.CONDITION,
        FaultKind.MISSING_KEY: Refusal.CONDITION,
        FaultKind.CONFLICT: Refusal.CONFLICT,
        FaultKind.UNSUPPORTED: Refusal.UNSUPPORTED,
    }
    fault = Fault(kind, "detail")

    def outcome() -> object:
        return outcome_of(fault, AT_HOME, "PutObject", "a/key", conditional=conditional)

    if conditional and kind in refusals:
        assert outcome() == Refused(refusals[kind])
    elif kind.value.is_transient or kind is FaultKind.CONFLICT:
        unknown = outcome()
        assert isinstance(unknown, Unknown)
        assert unknown.fault.transient or kind is FaultKind.CONFLICT
    else:
        with pytest.raises(StoreError) as caught:
            outcome()
        assert not caught.value.transient
        assert caught.value.__suppress_context__


# --- sentences ---


@pytest.mark.parametrize("kind", FaultKind)
@pytest.mark.parametrize("place", [AT_HOME, AT_AWS], ids=["home", "aws"])
@pytest.mark.parametrize("key", ["a/key", None])
def test_every_kind_has_a_sentence(kind: FaultKind, place: Place, key: str | None) -> None:
    """One line without a place left open, which ends with a full stop, names the store or the bucket, and its cause."""
    cause = ValueError("deep down")
    error = Fault(kind, "599 SomeCode", cause).error(place, "PutObject", key)
    sentence = str(error)
    assert not set("{}\n\r") & set(sentence)
    assert sentence.endswith(".")
    assert not sentence.endswith("..")
    assert ". " not in sentence
    assert "599 SomeCode" in sentence
    assert place.endpoint in sentence or "my-bucket" in sentence
    assert "deep down" not in sentence
    assert (error.operation, error.cause, error.transient) == ("PutObject", cause, kind.value.is_transient)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (FaultKind.MISSING_BUCKET, ["'my-bucket'", "http://store.test:9000", "s3.bucket_name", "s3.endpoint_url"]),
        (FaultKind.NO_CREDENTIALS, ["http://store.test:9000", "s3.aws_access_key_id", "s3.aws_secret_access_key"]),
        (FaultKind.WRONG_KEY_ID, ["AKID…", "s3.aws_access_key_id"]),
        (FaultKind.WRONG_SECRET, ["AKID…", "s3.aws_secret_access_key"]),
        (FaultKind.EXPIRED, ["AKID…", "s3.aws_session_token"]),
        (FaultKind.DENIED, ["'my-bucket'", "PutObject a/key", "s3:PutObject"]),
        (FaultKind.WRONG_REGION, ["'my-bucket'", "'eu-test-1'", "s3.region_name"]),
        (FaultKind.CLOCK_SKEW, ["clock"]),
        (FaultKind.UNREACHABLE, ["http://store.test:9000", "s3.endpoint_url"]),
        (FaultKind.TLS, ["http://store.test:9000", "s3.use_ssl", "s3.ca_bundle"]),
        (FaultKind.TIMEOUT, ["http://store.test:9000", "s3.request_timeout_seconds"]),
    ],
)
def test_a_sentence_names_what_to_correct(kind: FaultKind, named: list[str]) -> None:
    """What is wrong and the setting that mends it are named; of the access key, its beginning only."""
    sentence = str(Fault(kind, "detail").error(AT_HOME, "PutObject", "a/key"))
    assert [name for name in named if name not in sentence] == []
    assert "AKIDENTIFIER" not in sentence


def test_settings_that_sentences_name_exist() -> None:
    """Every setting that a sentence sends its reader to is one."""
    known = set(environment_variables().values())
    for sentence in (kind.value.sentence for kind in FaultKind):
        words = [word.strip(",.;:()") for word in sentence.split()]
        assert [
            word for word in words if word.startswith(("s3.", "retry.", "concurrency.")) and word not in known
        ] == []


def test_aws_is_named_by_its_region() -> None:
    """Without an endpoint the store is AWS, and without keys of their own the credentials are the session's."""
    sentence = str(Fault(FaultKind.WRONG_SECRET, "detail").error(AT_AWS, "PutObject"))
    assert "AWS S3 (eu-test-1)" in sentence
    assert "the credentials of the session" in sentence


# --- through the real clients ---


@asynccontextmanager
async def through(server: FaultServer, client: str, **more: object) -> AsyncIterator[Store]:
    """The server's bucket, through a client that makes one attempt at everything."""
    store = connect(Settings(s3=server.s3.address(BUCKET, client=client, **more)).s3)
    server.put_object(BUCKET, "a", b"1")
    try:
        yield store
    finally:
        await store.aclose()


@pytest.fixture
async def store(server: FaultServer, client: str) -> AsyncIterator[Store]:
    """The same, with time enough."""
    async with through(server, client) as store:
        yield store


async def keys_of(store: Store) -> list[str]:
    """List everything."""
    return [info.key async for page in store.pages("") for info in page]


READS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "get": lambda store: store.get("a", ALL),
    "head": lambda store: store.head("a"),
    "pages": keys_of,
    "folders": lambda store: store.folders(),
}
WRITES: dict[str, Callable[[Store], Awaitable[Outcome]]] = {
    "put": lambda store: store.put("put", b"2"),
    "create": lambda store: store.put("create", b"2", expect=Expect.NOTHING),
    "copy": lambda store: store.copy("a", "copy"),
}
NO_ANSWER: list[Effect] = [
    Status(503, "SlowDown"),
    Status(500),
    Status(502, "BadGateway"),
    AppliedThenStatus(500),
    Dropped(),
    AppliedThenDropped(),
    NeverAnswers(),
]


@pytest.mark.parametrize("effect", NO_ANSWER, ids=str)
async def test_without_an_answer_nobody_knows(server: FaultServer, client: str, effect: Effect) -> None:
    """A read is a transient error, a write unknown, a delete unconfirmed, applied or not; after one attempt each."""
    more = {"request_timeout_seconds": 0.3} if isinstance(effect, NeverAnswers) else {}
    server.inject(injected.Fault(effect))
    async with through(server, client, **more) as store:
        reads = await asyncio.gather(*(read(store) for read in READS.values()), return_exceptions=True)
        writes = await asyncio.gather(*(write(store) for write in WRITES.values()))
        confirmed = set(server.objects(BUCKET)) - {"a"}
        failed = await store.delete(["put", "none"])
    for error in reads:
        assert isinstance(error, StoreError)
        assert error.transient
        assert "\n" not in str(error)
        assert "Debug source" not in str(error)
        assert error.__cause__ is None
        assert error.__suppress_context__
    for outcome in writes:
        assert isinstance(outcome, Unknown)
        assert outcome.fault.transient
    assert confirmed == (set(WRITES) if isinstance(effect, AppliedThenStatus | AppliedThenDropped) else set())
    assert set(failed) == {"put", "none"}
    assert all(error.transient for error in failed.values())
    assert len(server.requests) == len(READS) + len(WRITES) + 1


@pytest.mark.parametrize(
    ("code", "transient"),
    [("SomethingElse", True), ("InternalError", True), ("SlowDown", True), ("AccessDenied", False)],
)
async def test_a_delete_in_part_names_the_keys_that_are_left(
    server: FaultServer, store: Store, code: str, *, transient: bool
) -> None:
    """The others are gone and confirmed, and the error of an unknown code is worth another try."""
    server.put_object(BUCKET, "b", b"")
    server.put_object(BUCKET, "c", b"")
    server.inject(injected.Fault(PartialDelete("b", code)))
    failed = await store.delete(["a", "b", "c", "none"])
    assert list(failed) == ["b"]
    assert failed["b"].transient is transient
    assert "DeleteObjects b" in str(failed["b"])
    assert list(server.objects(BUCKET)) == ["b"]


async def test_one_batch_of_many_that_fails_in_part_is_asked_about_alone(server: FaultServer, client: str) -> None:
    """Of 2,500 keys one cannot be deleted: it is named, and its batch alone was sent twice, by obstore."""
    keys = [f"k/{number:04d}" for number in range(2500)]
    for key in keys:
        server.put_object(BUCKET, key, b"")
    server.inject(injected.Fault(PartialDelete("k/1500", "AccessDenied"), operation="DeleteObjects"))
    async with through(server, client) as store:
        assert list(await store.delete(keys)) == ["k/1500"]
    assert sorted(server.objects(BUCKET)) == ["a", "k/1500"]
    sent = sorted(len(request.deleted) for request in server.requests if request.operation == "DeleteObjects")
    assert sent == ([500, 1000, 1000, 1000] if client == "obstore" else [500, 1000, 1000])


async def test_an_error_for_a_key_that_nobody_sent_confirms_none(server: FaultServer, store: Store) -> None:
    """Where the answer names a failed key in a form of its own, any of the batch may be meant."""
    body = b"<DeleteResult><Error><Key>A</Key><Code>InternalError</Code></Error></DeleteResult>"
    server.inject(injected.Fault(MalformedBody(body), operation="DeleteObjects"))
    assert set(await store.delete(["a", "b"])) == {"a", "b"}


@pytest.mark.parametrize(
    ("effect", "outcome"),
    [
        (Status(412, "PreconditionFailed"), Refused(Refusal.CONDITION)),
        (Status(409, "ConditionalRequestConflict"), Refused(Refusal.CONFLICT)),
        (Status(501, "NotImplemented"), Refused(Refusal.UNSUPPORTED)),
        (Status(404, "NoSuchKey"), Refused(Refusal.CONDITION)),
    ],
    ids=str,
)
async def test_a_refused_condition_is_refused(
    server: FaultServer, store: Store, effect: Status, outcome: Refused
) -> None:
    """The kinds of refusal are distinguished in the same way through both clients; for a replacement, 404 is one."""
    server.inject(injected.Fault(effect))
    assert await store.put("a", b"2", expect='"0123"') == outcome
    if effect.code != 404:  # which to a create would be a missing bucket's
        assert await store.put("b", b"2", expect=Expect.NOTHING) == outcome


async def test_a_conflict_of_a_plain_write_is_unknown(server: FaultServer, store: Store) -> None:
    """A plain PUT that met another write may have been applied."""
    server.inject(injected.Fault(Status(409, "OperationAborted")))
    assert isinstance(await store.put("b", b"2"), Unknown)


@pytest.mark.parametrize("effect", [Status(403, "AccessDenied"), Status(404, "NoSuchBucket")], ids=str)
async def test_a_permanent_error_is_raised(server: FaultServer, store: Store, effect: Status) -> None:
    """What no repetition mends is an error of reads and writes alike, and never an absent object or a refusal."""
    server.inject(injected.Fault(effect))
    for name, call in (READS | WRITES).items():
        if name == "head" and effect.code == 404:
            continue  # a HEAD has no body: its 404 cannot say what is missing
        with pytest.raises(StoreError) as caught:
            await call(store)
        assert not caught.value.transient, name


@pytest.mark.parametrize("body", [None, b"<html>", b'<?xml version="1.0"?><Error><Code>SlowDown</Code></Error>'])
async def test_an_answer_that_is_none_confirms_nothing(server: FaultServer, store: Store, body: bytes | None) -> None:
    """A success with a body cut off, or somebody else's, is unknown to a replacement and confirms no delete."""
    server.inject(injected.Fault(MalformedBody(body)))
    assert isinstance(await store.put("a", b"2", expect='"0123"'), Unknown)
    assert set(await store.delete(["none"])) == {"none"}
    if body is None or b"Error" not in body:
        with pytest.raises(StoreError) as caught:
            await keys_of(store)
        assert caught.value.transient


async def test_an_error_within_a_success_fails_a_copy(server: FaultServer, store: Store) -> None:
    """S3 may answer a COPY with 200 and an error in the body: that copy is not done."""
    error = b'<?xml version="1.0"?><Error><Code>InternalError</Code><Message>no</Message></Error>'
    server.inject(injected.Fault(MalformedBody(error), operation="CopyObject"))
    assert isinstance(await store.copy("a", "b"), Unknown)


async def test_a_success_without_an_etag_is_unknown(server: FaultServer, store: Store) -> None:
    """A success that lacks what every success has is no answer, and no error of Python's."""
    server.inject(injected.Fault(MalformedBody(b"")))
    # What is answered is the 412 of a condition that does not hold, dressed as a success: nothing was written.
    outcome = await store.put("a", b"2", expect='"0123"')
    assert isinstance(outcome, Unknown)
    with pytest.raises(StoreError) as caught:
        await store.head("a")
    assert caught.value.transient


async def test_calm_weather(server: FaultServer, store: Store) -> None:
    """Without a fault the same calls are done: what is seen above is the faults' doing."""
    for write in WRITES.values():
        assert isinstance(await write(store), Done)
    for read in READS.values():
        assert await read(store) is not None
    assert await store.delete(["a", *WRITES]) == {}
    assert server.objects(BUCKET) == {}
