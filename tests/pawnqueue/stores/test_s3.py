"""From settings to requests: where they go, what they carry, how many there are, by both clients."""

from __future__ import annotations

import ssl
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp
import obstore
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from yarl import URL

from pawnqueue import Settings, StoreError
from pawnqueue.stores.boto3_s3 import Boto3S3
from pawnqueue.stores.connect import connect
from pawnqueue.stores.forks import ForkAwareStore
from pawnqueue.stores.obstore_s3 import ObstoreS3
from pawnqueue.stores.port import Done, Expect
from tests.pawnqueue.opened import BUCKET
from tests.support.faults import FaultServer
from tools.kit.stores import ALL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pawnqueue.stores.port import Store

pytestmark = pytest.mark.parametrize("client", ["obstore", "boto3"])


def store_at(endpoint: str | None, client: str, **s3: Any) -> Store:
    """Connect to the bucket."""
    chosen = {
        "endpoint_url": endpoint,
        "bucket_name": BUCKET,
        "aws_access_key_id": "AKTEST",
        "aws_secret_access_key": "s",
        "client": client,
        **s3,
    }
    return connect(Settings(s3=chosen).s3)


async def use(store: Store) -> None:
    """Make one call of each kind."""
    assert isinstance(await store.put("a/x", b"1", expect=Expect.NOTHING), Done)
    assert await store.get("a/x", ALL) is not None
    assert await store.head("a/x") is not None
    assert isinstance(await store.copy("a/x", "b/y"), Done)
    assert [info.key async for page in store.pages("a/") for info in page] == ["a/x"]
    assert [info.key async for page in store.pages("", start_after="a/x") for info in page] == ["b/y"]
    assert await store.folders() == ["a/", "b/"]
    assert await store.delete(["a/x", "a/none"]) == {}


#: What :func:`use` makes: one request each.
OPERATIONS = [
    "PutObject",
    "GetObject",
    "HeadObject",
    "CopyObject",
    "ListObjectsV2",
    "ListObjectsV2",
    "ListObjectsV2",
    "DeleteObjects",
]


# --- where requests go ---


async def test_a_path_names_the_bucket(server: FaultServer, client: str) -> None:
    """With an endpoint the bucket is in the path, and the port in the Host header; each call is one request."""
    store = store_at(server.endpoint, client)
    await use(store)
    await store.aclose()
    assert [request.operation for request in server.requests] == OPERATIONS
    assert {request.bucket for request in server.requests} == {BUCKET}
    assert {request.headers["host"] for request in server.requests} == {urlsplit(server.endpoint).netloc}
    assert set(server.objects(BUCKET)) == {"b/y"}


async def test_the_host_names_the_bucket(server: FaultServer, client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the virtual-hosted style the bucket is before the endpoint's host, and the path is the key alone."""
    async with forwarded(server) as proxy:
        # No resolver needs to know the name: the proxy gets it, and passes the request on.
        monkeypatch.setenv("HTTP_PROXY", proxy)
        monkeypatch.setenv("http_proxy", proxy)
        store = store_at("http://localhost:4711", client, addressing_style="virtual")
        await use(store)
        await store.aclose()
    assert [request.operation for request in server.requests] == OPERATIONS
    assert {request.headers["host"] for request in server.requests} == {f"{BUCKET}.localhost:4711"}
    assert set(server.objects(BUCKET)) == {"b/y"}
    copied = next(request for request in server.requests if request.operation == "CopyObject")
    assert (copied.key, copied.headers["x-amz-copy-source"].lstrip("/")) == ("b/y", f"{BUCKET}/a/x")


@pytest.mark.parametrize(
    ("s3", "url"),
    [
        ({}, "https://queues.s3.us-east-1.amazonaws.com/k"),
        ({"region_name": "eu-west-1"}, "https://queues.s3.eu-west-1.amazonaws.com/k"),
        ({"region_name": "cn-north-1"}, "https://queues.s3.cn-north-1.amazonaws.com.cn/k"),
        ({"region_name": "eu-west-1", "addressing_style": "path"}, "https://s3.eu-west-1.amazonaws.com/queues/k"),
        ({"region_name": "eu-west-1", "bucket_name": "my.queues"}, "https://s3.eu-west-1.amazonaws.com/my.queues/k"),
    ],
    ids=["default", "region", "china", "path", "dotted"],
)
async def test_without_an_endpoint_it_is_aws(
    client: str, s3: dict[str, str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests go to AWS's host for the region, over TLS, whatever endpoint the environment names."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    signed = await presigned(store_at(None, client, **s3))
    assert signed.replace("s3.us-east-1.", "s3.").partition("?")[0] == url.replace("s3.us-east-1.", "s3.")


async def presigned(store: Store) -> str:
    """Return a signed address of the key ``k``, which is made without a request."""
    assert isinstance(store, ForkAwareStore)
    adapter = store._store
    if isinstance(adapter, ObstoreS3):
        return await obstore.sign_async(adapter._store, "GET", "k", timedelta(seconds=1))
    assert isinstance(adapter, Boto3S3)
    arguments = {"Bucket": adapter._place.bucket, "Key": "k"}
    return adapter._connected().generate_presigned_url("get_object", Params=arguments)


# --- what they carry ---


async def test_the_key_prefix_is_in_every_request_and_in_no_answer(server: FaultServer, client: str) -> None:
    """All keys are below the prefix in the bucket, source and target of a COPY too, and nobody above sees it."""
    server.put_object(BUCKET, "a/not ours", b"")
    server.put_object(BUCKET, "team-b/a/not ours", b"")
    server.put_object(BUCKET, "team/a/prod-b/not ours", b"")
    store = store_at(server.endpoint, client, key_prefix="team/a/prod/")
    await use(store)
    assert set(server.objects(BUCKET)) == {
        "a/not ours",
        "team-b/a/not ours",
        "team/a/prod-b/not ours",
        "team/a/prod/b/y",
    }
    assert all(key.startswith("team/a/prod/") for request in server.requests for key in request.touches)
    copied = next(request for request in server.requests if request.operation == "CopyObject")
    assert copied.headers["x-amz-copy-source"].lstrip("/") == f"{BUCKET}/team/a/prod/a/x"
    found = await store.get("b/y", ALL)
    assert found is not None
    assert found.info.key == "b/y"
    await store.aclose()


@pytest.mark.parametrize(
    ("s3", "headers"),
    [
        ({}, {}),
        ({"server_side_encryption": "AES256"}, {"x-amz-server-side-encryption": "AES256"}),
        (
            {"server_side_encryption": "aws:kms", "sse_kms_key_id": "key-1", "sse_bucket_key_enabled": True},
            {
                "x-amz-server-side-encryption": "aws:kms",
                "x-amz-server-side-encryption-aws-kms-key-id": "key-1",
                "x-amz-server-side-encryption-bucket-key-enabled": "true",
            },
        ),
        ({"server_side_encryption": "aws:kms"}, {"x-amz-server-side-encryption": "aws:kms"}),
        (
            {"server_side_encryption": "aws:kms:dsse", "sse_kms_key_id": "key-2"},
            {
                "x-amz-server-side-encryption": "aws:kms:dsse",
                "x-amz-server-side-encryption-aws-kms-key-id": "key-2",
            },
        ),
    ],
    ids=["none", "aes", "kms", "kms-default-key", "dsse"],
)
async def test_encryption_is_asked_for_with_every_write(
    server: FaultServer, client: str, s3: dict[str, Any], headers: dict[str, str]
) -> None:
    """PUT and COPY ask for the encryption of the settings; other requests, which must not, do not."""
    store = store_at(server.endpoint, client, **s3)
    await use(store)
    await store.aclose()
    for request in server.requests:
        asked = {
            name: value for name, value in request.headers.items() if name.startswith("x-amz-server-side-encryption")
        }
        # A header that says "no" says nothing.
        if asked.get("x-amz-server-side-encryption-bucket-key-enabled") == "false":
            del asked["x-amz-server-side-encryption-bucket-key-enabled"]
        assert asked == (headers if request.operation in ("PutObject", "CopyObject") else {}), request.operation


async def test_requests_are_signed_for_the_region(server: FaultServer, client: str) -> None:
    """The region of the settings is in the signature's scope, of every request."""
    store = store_at(server.endpoint, client, region_name="eu-north-7")
    await use(store)
    await store.aclose()
    assert {request.region for request in server.requests} == {"eu-north-7"}
    assert {request.access_key_id for request in server.requests} == {"AKTEST"}


async def test_a_large_body_is_one_put(server: FaultServer, client: str) -> None:
    """8 MiB are a single PUT, with a condition and without: never an upload in parts."""
    store = store_at(server.endpoint, client)
    body = bytes(range(256)) * (8 << 12)
    done = await store.put("a", body)
    assert isinstance(done, Done)
    assert isinstance(await store.put("a", body[1:], expect=done.version), Done)
    assert [(request.operation, request.status) for request in server.requests] == [("PutObject", 200)] * 2
    assert server.objects(BUCKET) == {"a": body[1:]}
    await store.aclose()


async def test_a_page_is_one_request(server: FaultServer, client: str) -> None:
    """2,500 keys are three LISTs; 2,500 deletions are three bulk DELETEs, of at most 1,000 keys each."""
    keys = [f"a/{number:04d}" for number in range(2500)]
    for key in keys:
        server.put_object(BUCKET, key, b"")
    store = store_at(server.endpoint, client)
    assert [info.key async for page in store.pages("a/") for info in page] == keys
    assert await store.delete(keys) == {}
    await store.aclose()
    assert [request.operation for request in server.requests] == ["ListObjectsV2"] * 3 + ["DeleteObjects"] * 3
    assert sorted(len(request.deleted) for request in server.requests[3:]) == [500, 1000, 1000]
    assert server.objects(BUCKET) == {}


# --- TLS ---


async def test_a_private_certificate_needs_its_issuer(server: FaultServer, client: str, tmp_path: Path) -> None:
    """A certificate of an unknown issuer is refused, in one sentence, and accepted with ``ca_bundle``."""
    context = certified(tmp_path)
    async with forwarded(server, context) as endpoint:
        refused = store_at(endpoint, client)
        with pytest.raises(StoreError) as caught:
            await refused.get("a", ALL)
        await refused.aclose()
        detail = "the TLS handshake failed" if client == "obstore" else "SSLError"
        assert str(caught.value) == (
            f"No secure connection to {endpoint} ({detail}): check s3.use_ssl, or name the issuer in s3.ca_bundle."
        )
        assert not caught.value.transient
        with pytest.raises(StoreError, match="No secure connection"):
            await refused.put("a", b"1")
        await refused.aclose()
        assert server.requests == []
        accepted = store_at(endpoint, client, ca_bundle=str(tmp_path / "ca.pem"))
        await use(accepted)
        await accepted.aclose()
    assert [request.operation for request in server.requests] == OPERATIONS


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
async def test_a_certificate_need_not_be_checked(server: FaultServer, client: str, tmp_path: Path) -> None:
    """With ``verify_tls`` off any certificate will do, whatever ``ca_bundle`` says."""
    context = certified(tmp_path)
    async with forwarded(server, context) as endpoint:
        for s3 in ({}, {"ca_bundle": str(tmp_path / "ca.pem")}):
            store = store_at(endpoint, client, verify_tls=False, **s3)
            assert isinstance(await store.put("a", b"1"), Done)
            await store.aclose()


async def test_another_name_s_certificate_is_refused(server: FaultServer, client: str, tmp_path: Path) -> None:
    """A certificate of a known issuer for another host is no secure connection either."""
    context = certified(tmp_path, address="192.0.2.1")
    async with forwarded(server, context) as endpoint:
        store = store_at(endpoint, client, ca_bundle=str(tmp_path / "ca.pem"))
        with pytest.raises(StoreError, match="No secure connection"):
            await store.get("a", ALL)
        await store.aclose()
    assert server.requests == []


async def test_an_endpoint_without_tls_is_told(server: FaultServer, client: str) -> None:
    """An endpoint without TLS, addressed with https, gets an error that says that the connection is not secure."""
    store = store_at(server.endpoint.replace("http:", "https:"), client)
    with pytest.raises(StoreError, match="No secure connection"):
        await store.get("a", ALL)
    await store.aclose()


@asynccontextmanager
async def forwarded(server: FaultServer, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Put a reverse proxy before the server, with TLS if there is a context; without, a forward proxy too."""
    async with aiohttp.ClientSession(auto_decompress=False) as upstream:

        async def forward(request: web.BaseRequest) -> web.Response:
            path = request.raw_path
            if path.startswith("http://"):  # asked as a forward proxy
                path = "/" + path.removeprefix("http://").partition("/")[2]
            if "Expect" in request.headers:
                await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            dropped = {"Transfer-Encoding", "Expect"}
            headers = [(name, value) for name, value in request.headers.items() if name not in dropped]
            async with upstream.request(
                request.method,
                URL(server.endpoint + path, encoded=True),
                headers=headers,
                data=await request.read() or None,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            ) as answer:
                kept = {name: answer.headers[name] for name in answer.headers if name not in dropped}
                return web.Response(status=answer.status, headers=kept, body=await answer.read())

        runner = web.ServerRunner(web.Server(forward, auto_decompress=False, access_log=None), shutdown_timeout=0)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
            yield f"{'https' if context else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


def certified(folder: Path, address: str = "127.0.0.1") -> ssl.SSLContext:
    """Make an authority (``ca.pem``) and a server's context with a certificate of its."""
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])

    def builder(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(authority_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
        )

    authority = (
        builder(authority_name, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test server")]), server_key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address(address))]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(authority.public_bytes(pem))
    (folder / "server.pem").write_bytes(
        server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(pem)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return context
