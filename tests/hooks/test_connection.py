"""Connections, read: every way to write one gives the same settings, and an error in one is a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from airflow.sdk import Connection

from airflow_provider_pawnqueue.hooks.connection import Address, read
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook
from pawnqueue import ConfigError, Settings
from pawnqueue.domain.claim_terms import HANDED_OVER_TTL_SECONDS
from pawnqueue.settings import S3Settings
from tests.support.airflow_names import connection_from_uri, redact, secrets_masker

SECRET = "s3cr3t-of-the-bucket"
TOKEN = "t0k3n-of-the-session"


def made(extra: dict[str, Any] | str | None = None, **fields: Any) -> Connection:
    """A connection."""
    text = extra if isinstance(extra, str) else json.dumps(extra or {})
    return Connection(conn_id="q", **{"conn_type": "pawnqueue", **fields}, extra=text)


def s3(extra: dict[str, Any] | None = None, **fields: Any) -> S3Settings:
    """What a connection says of S3."""
    return read(made({"bucket_name": "queues", **(extra or {})}, **fields)).settings.s3


def test_all_ways_to_write_a_connection_mean_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields, a URI or JSON, short, dotted or nested names, numbers or texts give the same settings."""
    secret = quote(SECRET, safe="")
    query = "bucket_name=queues&key_prefix=team&batch_size=7&verify_tls=false&visibility_timeout=60"
    as_json = {
        "conn_type": "pawnqueue",
        "host": "http://minio",
        "port": 9000,
        "login": "key",
        "password": SECRET,
        "extra": {
            "s3": {"bucket_name": "queues", "verify_tls": "no"},
            "s3.key_prefix": "team",
            "polling": {"max_messages_per_poll": "7"},
            "visibility_timeout_seconds": "60",
        },
    }
    monkeypatch.setenv("AIRFLOW_CONN_AS_URI", f"pawnqueue://http://key:{secret}@minio:9000/?{query}")
    monkeypatch.setenv("AIRFLOW_CONN_AS_JSON", json.dumps(as_json))
    fields = {"host": "http://minio:9000", "login": "key", "password": SECRET}
    extra = {
        "bucket_name": "queues",
        "key_prefix": "team",
        "max_messages_per_poll": 7,
        "verify_tls": False,
        "visibility_timeout_seconds": 60,
    }
    found = [PawnQueueHook(name).settings for name in ("as_uri", "as_json")]
    expected = read(made(extra, **fields)).settings
    assert found == [expected, expected]
    assert expected.s3.endpoint_url == "http://minio:9000"
    assert expected.s3.key_prefix == "team/"
    assert expected.polling.max_messages_per_poll == 7
    assert expected.polling.visibility_timeout_seconds == 60
    assert not expected.s3.verify_tls
    again = connection_from_uri(made(extra, **fields).get_uri(), "q")  # what Test connection goes through
    assert read(again).settings == expected


def test_the_bucket_may_be_the_schema_of_a_uri() -> None:
    """The path of a URI names the bucket."""
    found = read(connection_from_uri("pawnqueue://minio:9000/queues", "q")).settings
    assert (found.s3.bucket_name, found.s3.endpoint_url) == ("queues", "https://minio:9000")


@pytest.mark.parametrize(
    ("host", "port", "endpoint"),
    [
        ("minio", None, "https://minio"),
        ("minio", 9000, "https://minio:9000"),
        ("http://minio:9000", None, "http://minio:9000"),
        ("http://minio:9000", 9000, "http://minio:9000"),
        ("http://minio/", 9000, "http://minio:9000"),
        ("::1", 9000, "https://[::1]:9000"),
        ("http://[::1]", 9000, "http://[::1]:9000"),
        ("http://[::1]:9000", None, "http://[::1]:9000"),
        (None, None, None),
    ],
)
def test_the_host_is_the_endpoint(host: str | None, port: int | None, endpoint: str | None) -> None:
    """The endpoint has the port of the host, or of the port's own field."""
    assert s3(host=host, port=port).endpoint_url == endpoint


def test_a_port_belongs_to_an_endpoint_in_the_extra_too() -> None:
    """A port of its own field is added to an endpoint in the extra."""
    assert s3({"endpoint_url": "http://minio"}, port=9000).endpoint_url == "http://minio:9000"


def test_the_port_of_aws() -> None:
    """Port 443 is accepted without a host: the form of Airflow 3.3.2 tests no connection without a port."""
    assert s3(port=443).endpoint_url is None


@pytest.mark.parametrize(("host", "says"), [("minio:9000", "in its host, and 9001"), (None, "a port and no host")])
def test_a_port_that_means_nothing_is_refused(host: str | None, says: str) -> None:
    """A port without a host, or one beside another port, is an error."""
    with pytest.raises(ConfigError, match=says):
        s3(host=host, port=9001)


def test_fields_left_empty_say_nothing() -> None:
    """An empty text or null, which the form gives for an empty field, leaves the default."""
    left = dict.fromkeys(("key_prefix", "region_name", "strategy", "aws_conn_id"), "")
    nothing = dict.fromkeys(("jitter_min_ms", "visibility_timeout_seconds", "max_messages_per_poll"))
    found = read(made({"bucket_name": "queues", **left, **nothing}, host="", login="", password="", schema=""))
    assert found == read(made({"bucket_name": "queues"}))
    assert found.settings.polling.visibility_timeout_seconds == HANDED_OVER_TTL_SECONDS
    assert found.settings.s3.region_name == "us-east-1"


def test_the_environment_of_the_worker_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers that read one connection have one queue."""
    monkeypatch.setenv("PAWNQUEUE_S3_BUCKET_NAME", "another")
    monkeypatch.setenv("PAWNQUEUE_S3_KEY_PREFIX", "another")
    monkeypatch.setenv("PAWNQUEUE_CONCURRENCY_STRATEGY", "csprng_verify")
    found = read(made({"bucket_name": "queues"})).settings
    assert found.s3.bucket_name == "queues"
    assert found.s3.key_prefix == ""
    assert found.concurrency.strategy == "auto"
    with pytest.raises(ConfigError) as wrong:
        read(made({}))
    assert "s3.bucket_name is missing" in str(wrong.value)
    assert "PAWNQUEUE" not in str(wrong.value)


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"bucket_nme": "queues"}, "did you mean 'bucket_name'"),
        ({"s3": {"bucket_nme": "queues"}}, "did you mean 's3.bucket_name'"),
        ({"bucket_name": {"a": 1}}, "'bucket_name.a' in its extra, which is not a setting"),
        ({"zzzzzz": 1}, "remove it"),
        ({"bucket_name": 5}, "s3.bucket_name must be a bucket's name"),
        ({"bucket_name": "queues", "batch_size": "many"}, "max_messages_per_poll must be a whole number"),
        ({"bucket_name": "queues", "batch_size": True}, "max_messages_per_poll must be a whole number"),
        ({"bucket_name": "queues", "verify_tls": "perhaps"}, "verify_tls must be true or false"),
        ({"bucket_name": "queues", "s3.bucket_name": "others"}, "two values for s3.bucket_name"),
        ({"bucket_name": "queues", "aws_conn_id": 5}, "aws_conn_id must be the id"),
        ("[1]", "not a JSON object"),
        ("{", "not a JSON object"),
        ('{"a":' * 100_000, "not a JSON object"),
    ],
)
def test_what_is_wrong_in_the_extra_is_named(extra: dict[str, Any] | str, says: str) -> None:
    """The error has the connection's id, and says what to write instead."""
    with pytest.raises(ConfigError) as wrong:
        read(made(extra))
    assert says in str(wrong.value)
    assert "'q'" in str(wrong.value)


def test_a_connection_of_another_type_is_refused() -> None:
    """The error says how to use the identity of an AWS connection."""
    with pytest.raises(ConfigError, match=r"of type 'aws'.*aws_conn_id"):
        read(made({"bucket_name": "queues"}, conn_type="aws"))
    assert read(made({"bucket_name": "queues"}, conn_type="generic")).settings.s3.bucket_name == "queues"


def test_secrets_show_nowhere() -> None:
    """Neither in what is printed of an address, nor in errors, whatever the name under which they were given."""
    found = read(made({"bucket_name": "queues", "session_token": TOKEN}, login="key", password=SECRET))
    assert found.settings.s3.aws_session_token is not None
    shown = f"{found} {found!r} {found.settings.model_dump_json()}"
    assert SECRET not in shown
    assert TOKEN not in shown
    for extra in (
        {"s3": {"secret_access_key": SECRET}},
        {"aws_session_token": TOKEN, "bucket_name": "x"},
        {"a": TOKEN},
    ):
        with pytest.raises(ConfigError) as wrong:
            read(made(extra, password=SECRET, port=None))
        assert SECRET not in str(wrong.value)
        assert TOKEN not in str(wrong.value)


@pytest.mark.parametrize(
    "name", ["aws_session_token", "session_token", "s3.aws_session_token", "aws_secret_access_key"]
)
def test_secrets_in_the_extra_are_masked_in_logs(name: str) -> None:
    """They are masked under each name that they can have."""
    masker = secrets_masker()
    masker.reset_masker()
    read(
        made(
            {"bucket_name": "queues", name: TOKEN, "aws_access_key_id": "key"}
            | ({"aws_secret_access_key": SECRET} if "token" in name else {})
        )
    )
    assert TOKEN not in str(redact(f"a line with {TOKEN} in it"))
    masker.reset_masker()


def test_addresses_are_equal_by_what_they_say() -> None:
    """A changed connection is another address."""
    first, same = (read(made({"bucket_name": "queues"}, password=SECRET, login="key")) for _ in range(2))
    assert first == same
    assert hash(first) == hash(same)
    assert first != read(made({"bucket_name": "queues"}, password=f"{SECRET}2", login="key"))
    assert first != read(made({"bucket_name": "queues", "key_prefix": "a"}, password=SECRET, login="key"))


class TestBorrowed:
    """An AWS connection's identity, region, endpoint and TLS settings."""

    @pytest.fixture
    def aws(self, connection: Callable[..., str]) -> Callable[..., str]:
        """Make an AWS connection."""

        def make(extra: dict[str, Any] | None = None, **fields: Any) -> str:
            fields = {"login": "AWSKEY", "password": "aws-s3cr3t-key", **fields}
            return connection("aws_there", extra, conn_type="aws", **fields)

        return make

    def test_what_it_says_of_the_place_counts(self, aws: Callable[..., str]) -> None:
        """Its region and endpoint are used where the queue's connection has none."""
        extra = {"region_name": "eu-west-1", "endpoint_url": "https://s3.example.com", "verify": False}
        found = s3({"aws_conn_id": aws(extra)})
        assert found.region_name == "eu-west-1"
        assert found.endpoint_url == "https://s3.example.com"
        assert not found.verify_tls
        assert found.aws_access_key_id is None
        own = s3({"aws_conn_id": "aws_there", "region_name": "us-west-2", "verify_tls": True}, host="http://minio:9000")
        assert (own.region_name, own.endpoint_url, own.verify_tls) == ("us-west-2", "http://minio:9000", True)

    @pytest.mark.parametrize(
        ("verify", "verifies", "bundle"), [("false", False, None), ("true", True, None), ("/ca.pem", True, "/ca.pem")]
    )
    def test_its_verify_may_be_a_text(
        self,
        aws: Callable[..., str],
        verify: str,
        bundle: str | None,
        *,
        verifies: bool,
    ) -> None:
        """It is a switch, or the file of the certificate authorities."""
        found = s3({"aws_conn_id": aws({"verify": verify})})
        assert found.verify_tls is verifies
        assert (found.ca_bundle and str(found.ca_bundle)) == bundle

    def test_an_endpoint_for_s3_alone_counts(self, aws: Callable[..., str]) -> None:
        """The amazon provider's endpoint of the service s3 is used."""
        extra = {
            "endpoint_url": "https://all.example.com",
            "service_config": {"s3": {"endpoint_url": "https://s3.here"}},
        }
        assert s3({"aws_conn_id": aws(extra)}).endpoint_url == "https://s3.here"

    @pytest.mark.parametrize("own", [{"profile_name": "p"}, {"role_arn": "arn:aws:iam::1:role/r"}, {}])
    def test_there_is_one_identity(self, aws: Callable[..., str], own: dict[str, str]) -> None:
        """A connection with an identity of its own cannot name an AWS connection too."""
        fields = {} if own else {"login": "key", "password": SECRET}
        with pytest.raises(ConfigError, match="remove one of the two") as wrong:
            s3({"aws_conn_id": aws(), **own}, **fields)
        assert SECRET not in str(wrong.value)

    def test_one_that_is_not_there_is_refused(self) -> None:
        """A missing AWS connection is an error; the machine's own identity is not used instead."""
        with pytest.raises(ConfigError, match=r"'aws_nowhere' \(aws_conn_id\), which does not exist"):
            s3({"aws_conn_id": "aws_nowhere"})

    def test_new_keys_in_it_are_another_address(self, aws: Callable[..., str]) -> None:
        """New keys give a new address, so that a client does not go on with old ones. Neither shows."""

        def address(password: str) -> Address:
            aws(password=password)
            return read(made({"bucket_name": "queues", "aws_conn_id": "aws_there"}))

        first = address("aws-s3cr3t-key")
        assert first == address("aws-s3cr3t-key")
        assert first != address("aws-s3cr3t-other")
        assert "s3cr3t" not in repr(first)
        assert first.borrowed not in repr(first)


def test_every_setting_has_a_name_in_a_connection() -> None:
    """Each setting has its dotted name, and a short one where no other setting has that."""
    for path in Settings.fields_below():
        dotted = Settings.dotted_path(path)
        with pytest.raises(ConfigError) as wrong:
            read(made({dotted: {}, "zz": 1}))
        assert dotted not in str(wrong.value)


@pytest.mark.parametrize("ttl", [3, "10", 20.5, 30, 300])
def test_a_ttl_needs_no_thought_of_renewals(ttl: float | str) -> None:
    """The renewal interval fits a short ttl, unless the connection names an interval."""
    found = read(made({"bucket_name": "queues", "visibility_timeout": ttl})).settings.polling
    assert found.lease_refresh_interval_seconds == pytest.approx(min(10, float(ttl) / 4))
    with pytest.raises(ConfigError, match="must be under half"):
        read(made({"bucket_name": "queues", "visibility_timeout": ttl, "lease_refresh_interval_seconds": 150}))
