"""What the tests of settings have in common: values to give, and ways to give one."""

from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from pawnqueue.errors import ConfigError
from pawnqueue.settings import Settings

BUCKET: dict[str, Any] = {"bucket_name": "test-bucket"}
KEY_ID, SECRET, TOKEN = "KEYIDFORTESTS", "secret-for-tests", "token-for-tests"

#: A valid value for every setting, other than its default.
OTHER: dict[str, object] = {
    "s3.use_ssl": False,
    "s3.endpoint_url": "https://store.test:9000",
    "s3.bucket_name": "other-bucket",
    "s3.key_prefix": "team/",
    "s3.region_name": "eu-test-1",
    "s3.aws_access_key_id": KEY_ID,
    "s3.aws_secret_access_key": SecretStr(SECRET),
    "s3.aws_session_token": SecretStr(TOKEN),
    "s3.profile_name": "test",
    "s3.role_arn": "arn:aws:iam::000000000000:role/test",
    "s3.role_session_name": "tests",
    "s3.role_external_id": "external",
    "s3.addressing_style": "virtual",
    "s3.verify_tls": False,
    "s3.ca_bundle": Path("authorities.pem"),
    "s3.server_side_encryption": "aws:kms",
    "s3.sse_kms_key_id": "key",
    "s3.sse_bucket_key_enabled": True,
    "s3.client": "boto3",
    "s3.connect_timeout_seconds": 4.5,
    "s3.request_timeout_seconds": 21.5,
    "s3.max_connections": 65,
    "polling.interval_seconds": 6.5,
    "polling.max_messages_per_poll": 11,
    "polling.visibility_timeout_seconds": 31.5,
    "polling.lease_refresh_interval_seconds": 11.5,
    "polling.jitter_max_ms": 201,
    "concurrency.strategy": "csprng_verify",
    "concurrency.max_in_flight": 33,
    "concurrency.csprng_verify.jitter_min_ms": 101,
    "concurrency.csprng_verify.jitter_max_ms": 401,
    "concurrency.csprng_verify.verify_retries": 3,
    "concurrency.csprng_verify.verify_retry_delay_ms": 151,
    "registry.heartbeat_interval_seconds": 61.5,
    "registry.register_consumers": False,
    "claims.margin_seconds": 2.5,
    "claims.max_claim_age_seconds": 86401.5,
    "claims.keep_when_closed": True,
    "claims.record_retention_seconds": 86402.5,
    "retry.budget_seconds": 0.0,
    "retry.initial_delay_seconds": 0.25,
    "retry.max_delay_seconds": 5.5,
    "limits.max_payload_bytes": 1024,
    "limits.max_payload_depth": 65,
    "packs.messages": 4096,
    "packs.bytes": 33_554_432,
    "packs.min_messages": 2,
    "packs.linger_seconds": 0.5,
}

#: What a setting needs beside it.
COMPANIONS: dict[str, dict[str, object]] = {
    "s3.aws_access_key_id": {"aws_secret_access_key": SECRET},
    "s3.aws_secret_access_key": {"aws_access_key_id": KEY_ID},
    "s3.aws_session_token": {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET},
    "s3.role_external_id": {"role_arn": "arn:aws:iam::000000000000:role/test"},
    "s3.sse_kms_key_id": {"server_side_encryption": "aws:kms"},
    "s3.sse_bucket_key_enabled": {"server_side_encryption": "aws:kms"},
}


def nested(path: str, value: object) -> dict[str, Any]:
    """Return a dict with one setting in it."""
    for name in reversed(path.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def with_one(path: str, value: object) -> Settings:
    """Make settings in which one setting, and what it needs beside it, is given."""
    return Settings.from_dict(
        nested(path, value), environ={}, s3=BUCKET | COMPANIONS.get(path, {}) | s3_of(path, value)
    )


def s3_of(path: str, value: object) -> dict[str, object]:
    """Return the setting as an argument of the s3 section, if it is in there."""
    section, _, name = path.partition(".")
    return {name: value} if section == "s3" else {}


def complaint_of(make: Callable[[], object]) -> str:
    """Return the sentence of the ConfigError that ``make`` raises, which carries nothing else."""
    with pytest.raises(ConfigError) as caught:
        make()
    error = caught.value
    assert error.__cause__ is None
    assert error.__context__ is None
    assert error.cause is None
    sentence = str(error)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


def yaml_file(folder: Path, text: str) -> Path:
    """Write a settings file."""
    path = folder / "queue.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def at(settings: Settings, path: str) -> object:
    """Return the value at a dotted path."""
    return attrgetter(path)(settings)


def plain(value: object) -> object:
    """Unwrap a secret."""
    return value.get_secret_value() if isinstance(value, SecretStr) else value


CREDENTIALS = BUCKET | {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET, "aws_session_token": TOKEN}
