"""Credentials: every source of keys signs with the right key, and keys that expire are replaced in time."""

from __future__ import annotations

import asyncio
import os
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qs

import boto3
import pytest
from botocore.credentials import DeferredRefreshableCredentials
from botocore.exceptions import ClientError, EndpointConnectionError
from botocore.session import Session as CoreSession

from pawnqueue import ConfigError, PawnQueue, Settings, StoreError
from pawnqueue.stores.connect import connect
from pawnqueue.stores.credentials import SessionCredentials
from pawnqueue.stores.port import Done, Unknown
from tests.pawnqueue.opened import BUCKET, both_clients
from tests.support.faults import Behaviour, FaultServer
from tools.kit.stores import ALL

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pawnqueue.stores.port import Store
    from tools.kit.servers import S3Server


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials but those that a test brings."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def settings_of(server: FaultServer, client: str, **s3: Any) -> Settings:
    """Settings for the bucket, without credentials."""
    return Settings(s3={"endpoint_url": server.endpoint, "bucket_name": BUCKET, "client": client, **s3})


async def signed_by(server: FaultServer, store: Store) -> set[str | None]:
    """Use the store, and return the access keys that its requests were signed with."""
    assert isinstance(await store.put("a", b"1"), Done)
    assert await store.get("a", ALL) is not None
    assert await store.delete(["a"]) == {}
    await store.aclose()
    return {request.access_key_id for request in server.requests}


class Issuer:
    """A token service: each key it gives lives for as long, and the store knows when it ends."""

    def __init__(self, life: float) -> None:
        """Start with no key."""
        self.life = timedelta(seconds=life)
        self.expiries: dict[str, datetime | None] = {}
        self.threads: set[int] = set()
        self.fails: Exception | None = None

    def issue(self) -> dict[str, str]:
        """Give a new key, as botocore's ``refresh_using`` has to."""
        self.threads.add(threading.get_ident())
        if self.fails is not None:
            raise self.fails
        key = f"AK{len(self.expiries):04d}"
        expiry = datetime.now(UTC) + self.life
        self.expiries[key] = expiry
        return {"access_key": key, "secret_key": "s", "token": f"token of {key}", "expiry_time": expiry.isoformat()}

    def session(self, refresh: Callable[[], dict[str, str]] | None = None) -> boto3.Session:
        """Make a session whose credentials are refreshed here."""
        core = CoreSession()
        vars(core)["_credentials"] = DeferredRefreshableCredentials(refresh_using=refresh or self.issue, method="test")
        return boto3.Session(botocore_session=core, region_name="us-east-1")


# --- keys that expire ---


@both_clients
async def test_keys_that_expire_are_replaced_in_time(client: str) -> None:
    """Over several lives of a key no request is signed with one that has expired, and each key is used."""
    issuer = Issuer(life=2.0)
    with FaultServer(Behaviour(credentials=issuer.expiries), buckets=(BUCKET,)) as server:
        store = connect(settings_of(server, client).s3, session=issuer.session())
        while len(issuer.expiries) < 4:
            assert isinstance(await store.put("a", b"1"), Done)
            await asyncio.sleep(0.02)  # a key has to age
        await store.aclose()
        assert {request.status for request in server.requests} == {200}
        used = {request.access_key_id for request in server.requests}
        tokens = {request.headers["x-amz-security-token"] for request in server.requests}
    assert used >= set(sorted(issuer.expiries)[:-1])
    assert tokens == {f"token of {key}" for key in used}
    assert len(server.requests) > 2 * len(
        issuer.expiries
    )  # and nobody is asked at every request, however slow they are


@both_clients
async def test_a_session_is_asked_off_the_event_loop(server: FaultServer, client: str) -> None:
    """Credentials are fetched in other threads, and other work goes on while a token service takes its time."""
    issuer = Issuer(life=3600)
    loop, asked, others_went_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    in_time = []

    def slow() -> dict[str, str]:
        loop.call_soon_threadsafe(asked.set)
        in_time.append(others_went_on.wait(10))
        return issuer.issue()

    async def work() -> None:
        await asked.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        others_went_on.set()

    store = connect(settings_of(server, client).s3, session=issuer.session(slow))
    outcome, _ = await asyncio.gather(store.put("a", b"1"), work())
    await store.aclose()
    assert isinstance(outcome, Done)
    assert all(in_time)
    assert threading.get_ident() not in issuer.threads


async def test_a_key_is_held_for_half_its_life() -> None:
    """An answer is used for half of the life it has left, for a minute at most, and never beyond its end."""
    for life, hold in ((3600, 60), (100, 50), (1.0, 0.5), (0.2, 0.1)):
        issuer = Issuer(life=life)
        before = datetime.now(UTC)
        expires = SessionCredentials(issuer.session()).resolve()["expires_at"]
        after = datetime.now(UTC)
        assert expires is not None
        # The key's end is exact to the microsecond, and the answer was made between the two.
        assert before + timedelta(seconds=hold) - (after - before) <= expires <= after + timedelta(seconds=hold)
        assert expires <= (issuer.expiries["AK0000"] or after)


@both_clients
@pytest.mark.parametrize(
    ("failure", "detail"),
    [
        (RuntimeError("with a secret in it"), "RuntimeError"),
        (EndpointConnectionError(endpoint_url="http://sts"), "EndpointConnectionError"),
        (ClientError({"Error": {"Code": "AccessDenied"}}, "AssumeRole"), "AssumeRole: AccessDenied"),
    ],
    ids=["own", "unreachable", "denied"],
)
async def test_a_failed_refresh_is_told_and_survived(
    server: FaultServer, client: str, failure: Exception, detail: str
) -> None:
    """A token service that fails is a transient error in one sentence; the next request asks it again."""
    issuer = Issuer(life=3600)
    issuer.fails = failure
    store = connect(settings_of(server, client).s3, session=issuer.session())
    with pytest.raises(StoreError) as caught:
        await store.get("a", ALL)
    sentence = (
        f"The credentials for {server.endpoint} could not be renewed ({detail}): look after the profile, the role or "
        "the token service that gives them."
    )
    assert str(caught.value) == sentence
    assert caught.value.transient
    outcome = await store.put("a", b"1")
    assert isinstance(outcome, Unknown)
    assert str(outcome.fault) == sentence
    with pytest.raises(StoreError, match="could not be renewed"):
        await store.folders()
    assert {str(error) for error in (await store.delete(["a"])).values()} == {sentence}
    assert server.requests == []
    issuer.fails = None
    assert isinstance(await store.put("a", b"1"), Done)
    await store.aclose()


@both_clients
async def test_keys_that_come_expired_are_a_failed_refresh(server: FaultServer, client: str) -> None:
    """A token service that gives expired keys counts as one that fails; nothing is signed with them."""
    store = connect(settings_of(server, client).s3, session=Issuer(life=-5).session())
    with pytest.raises(StoreError, match="could not be renewed"):
        await store.get("a", ALL)
    assert server.requests == []
    await store.aclose()


@both_clients
async def test_no_credentials_at_all(server: FaultServer, client: str) -> None:
    """Where nothing gives credentials, opening the queue says so at once and names the settings."""
    with pytest.raises(StoreError) as caught:
        await PawnQueue.open(settings_of(server, client))
    assert str(caught.value) == (
        f"No credentials for {server.endpoint} were found (the session has none): set s3.aws_access_key_id and "
        "s3.aws_secret_access_key, a profile, a role, or the AWS_* variables."
    )
    assert not caught.value.transient
    assert server.requests == []


# --- ways in ---


@both_clients
async def test_explicit_keys(server: FaultServer, client: str) -> None:
    """Keys and a session token in the settings sign every request, whatever the environment says."""
    settings = settings_of(
        server, client, aws_access_key_id="AKOURS", aws_secret_access_key="s", aws_session_token="our token"
    )
    assert await signed_by(server, connect(settings.s3)) == {"AKOURS"}
    assert {request.headers["x-amz-security-token"] for request in server.requests} == {"our token"}


@both_clients
async def test_the_environment(server: FaultServer, client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without keys in the settings those of the AWS_* variables are used."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "its token")
    assert await signed_by(server, connect(settings_of(server, client).s3)) == {"AKENV"}
    assert {request.headers["x-amz-security-token"] for request in server.requests} == {"its token"}


@both_clients
async def test_a_profile(server: FaultServer, client: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The profile that the settings name is used, over the environment's; a missing one raises an error."""
    (tmp_path / "config").write_text(
        "[default]\naws_access_key_id = AKDEFAULT\naws_secret_access_key = s\n"
        "[profile queue]\naws_access_key_id = AKPROFILE\naws_secret_access_key = s\nregion = mars\n"
        "endpoint_url = http://127.0.0.1:1\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    named = settings_of(server, client, profile_name="queue")
    assert await signed_by(server, connect(named.s3)) == {"AKPROFILE"}
    assert {request.region for request in server.requests} == {"us-east-1"}
    with pytest.raises(ConfigError, match=r"profile \(nobody\) could not be found.*s3\.profile_name"):
        connect(settings_of(server, client, profile_name="nobody").s3)


@both_clients
async def test_the_default_profile(server: FaultServer, client: str, tmp_path: Path) -> None:
    """Without anything else the default profile's keys are used."""
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = AKDEFAULT\naws_secret_access_key = s\n", encoding="utf-8"
    )
    assert await signed_by(server, connect(settings_of(server, client).s3)) == {"AKDEFAULT"}


@both_clients
async def test_a_session_of_the_caller(server: FaultServer, client: str) -> None:
    """A session that is given comes before the keys in the settings."""
    settings = settings_of(server, client, aws_access_key_id="AKOURS", aws_secret_access_key="s")
    session = boto3.Session(aws_access_key_id="AKGIVEN", aws_secret_access_key="s")
    assert await signed_by(server, connect(settings.s3, session)) == {"AKGIVEN"}


class TokenService:
    """An STS that gives one role's keys, and remembers what it was asked."""

    def __init__(self, seconds: int = 3600) -> None:
        """Prepare; it runs with the ``with`` block."""
        self.asked: list[dict[str, list[str]]] = []
        self.signatures: list[str] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                service.asked.append(parse_qs(form))
                service.signatures.append(self.headers["Authorization"])
                expiry = (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
                body = (
                    '<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult>'
                    f"<Credentials><AccessKeyId>ASIAROLE{len(service.asked)}</AccessKeyId>"
                    "<SecretAccessKey>s</SecretAccessKey><SessionToken>role token</SessionToken>"
                    f"<Expiration>{expiry}</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
                ).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Self:
        """Start."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._server.server_port}"


@both_clients
async def test_a_role(server: FaultServer, client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A role is assumed with the keys of the settings, under its session name and external id, once an hour."""
    with TokenService() as service:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", service.endpoint)
        settings = settings_of(
            server,
            client,
            aws_access_key_id="AKBASE",
            aws_secret_access_key="s",
            role_arn="arn:aws:iam::123456789012:role/queue",
            role_session_name="nightly",
            role_external_id="partner-7",
        )
        assert await signed_by(server, connect(settings.s3)) == {"ASIAROLE1"}
    assert {request.headers["x-amz-security-token"] for request in server.requests} == {"role token"}
    [asked] = service.asked
    assert asked["Action"] == ["AssumeRole"]
    assert asked["RoleArn"] == ["arn:aws:iam::123456789012:role/queue"]
    assert asked["RoleSessionName"] == ["nightly"]
    assert asked["ExternalId"] == ["partner-7"]
    assert all("Credential=AKBASE/" in signature for signature in service.signatures)


@both_clients
async def test_a_role_that_cannot_be_assumed(server: FaultServer, client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A role without a base identity, and one behind a token service that is down, get errors that say so."""
    role = {"role_arn": "arn:aws:iam::123456789012:role/queue"}
    store = connect(settings_of(server, client, **role).s3)
    with pytest.raises(StoreError, match=r"No credentials for .*\(the session has none\)"):
        await store.get("a", ALL)
    await store.aclose()
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    store = connect(settings_of(server, client, aws_access_key_id="AK", aws_secret_access_key="s", **role).s3)
    with pytest.raises(StoreError, match=r"could not be renewed \(EndpointConnectionError\)"):
        await store.get("a", ALL)
    await store.aclose()
    assert server.requests == []


@pytest.mark.servers
@both_clients
async def test_a_role_of_a_real_token_service(
    moto: S3Server, server: FaultServer, client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys that moto's STS gives for a role sign the requests."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", moto.endpoint)
    settings = settings_of(
        server,
        client,
        aws_access_key_id="AKBASE",
        aws_secret_access_key="s",
        role_arn="arn:aws:iam::123456789012:role/queue",
        role_external_id="partner-7",
    )
    [key] = await signed_by(server, connect(settings.s3))
    assert key is not None
    assert key.startswith("ASIA")


# --- what the environment must not change ---

NONSENSE = {
    "AWS_ACCESS_KEY_ID": "NONSENSE",
    "AWS_SECRET_ACCESS_KEY": "nonsense",
    "AWS_SESSION_TOKEN": "nonsense",
    "AWS_PROFILE": "nonsense",
    "AWS_DEFAULT_PROFILE": "nonsense",
    "AWS_ENDPOINT": "http://127.0.0.1:1",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1",
    "AWS_REGION": "mars",
    "AWS_DEFAULT_REGION": "mars",
    "AWS_BUCKET": "nonsense",
    "AWS_BUCKET_NAME": "nonsense",
    "AWS_SKIP_SIGNATURE": "true",
    "AWS_UNSIGNED_PAYLOAD": "true",
    "AWS_ALLOW_HTTP": "false",
    "AWS_ALLOW_INVALID_CERTIFICATES": "true",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
    "AWS_S3_EXPRESS": "true",
    "AWS_REQUEST_PAYER": "true",
    "AWS_CONDITIONAL_PUT": "disabled",
    "AWS_COPY_IF_NOT_EXISTS": "multipart",
    "AWS_DISABLE_BULK_DELETE": "true",
    "AWS_DISABLE_TAGGING": "true",
    "AWS_CHECKSUM_ALGORITHM": "sha256",
    "AWS_SERVER_SIDE_ENCRYPTION": "aws:kms",
    "AWS_SSE_KMS_KEY_ID": "nonsense",
    "AWS_SSE_BUCKET_KEY_ENABLED": "true",
    "AWS_DEFAULT_CONTENT_TYPE": "non/sense",
    "AWS_PROXY_URL": "http://127.0.0.1:1",
    "AWS_TIMEOUT": "1ms",
    "AWS_ROLE_ARN": "arn:aws:iam::1:role/nonsense",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "nonsense",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/nonsense",
    "AWS_USE_FIPS_ENDPOINT": "true",
    "AWS_USE_DUALSTACK_ENDPOINT": "true",
    "AWS_CA_BUNDLE": "nonsense",
    "AWS_REQUEST_CHECKSUM_CALCULATION": "when_supported",
    "AWS_MAX_ATTEMPTS": "5",
}
# What differs between any two requests.
_OF_THE_MOMENT = ("authorization", "x-amz-date", "host", "user-agent", "amz-sdk-invocation-id", "amz-sdk-request")


async def requests_made(client: str) -> list[object]:
    """Use a store by explicit settings, and return all that its requests say."""
    with FaultServer(buckets=(BUCKET,)) as server:
        settings = settings_of(server, client, aws_access_key_id="AKOURS", aws_secret_access_key="s")
        store = connect(settings.s3)
        version = await store.put("a", b"1")
        assert isinstance(version, Done)
        assert isinstance(await store.put("a", b"2", expect=version.version), Done)
        assert isinstance(await store.copy("a", "b"), Done)
        assert await store.folders() == []
        assert await signed_by(server, store) == {"AKOURS"}
        return [
            (
                request.operation,
                request.bucket,
                request.key,
                request.region,
                {name: value for name, value in request.headers.items() if name not in _OF_THE_MOMENT},
            )
            for request in server.requests
        ]


@both_clients
async def test_variables_do_not_override_settings(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With explicit settings every request is the same whatever AWS_* variables say, which are all still there."""
    expected = await requests_made(client)
    for name, value in NONSENSE.items():
        monkeypatch.setenv(name, value)
    assert await requests_made(client) == expected
    assert {name: os.environ[name] for name in NONSENSE} == NONSENSE


async def test_no_single_variable_overrides_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one of them alone, for obstore, which reads them all by itself: none hides behind another."""
    expected = await requests_made("obstore")
    for name, value in NONSENSE.items():
        with monkeypatch.context() as alone:
            alone.setenv(name, value)
            assert await requests_made("obstore") == expected, name
