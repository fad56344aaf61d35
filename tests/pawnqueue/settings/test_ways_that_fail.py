"""Whatever way bad settings come in by, it ends in one ConfigError."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter

from pawnqueue.errors import ConfigError
from pawnqueue.settings import S3Settings, Settings
from tests.pawnqueue.settings.given import BUCKET, KEY_ID, SECRET, complaint_of


@pytest.mark.parametrize(
    "make",
    [
        lambda: Settings(s3={"bucket_name": "x"}),
        lambda: Settings(s3=S3Settings(bucket_name="x")),
        lambda: Settings(s3=S3Settings.model_construct({"bucket_name"}, bucket_name="x")),
        lambda: Settings.model_validate({"s3": {"bucket_name": "x"}}),
        lambda: Settings.model_validate_json('{"s3": {"bucket_name": "x"}}'),
        lambda: Settings.model_validate_strings({"s3": {"bucket_name": "x"}}),
        lambda: TypeAdapter(list[Settings]).validate_python([{"s3": {"bucket_name": "x"}}]),
        lambda: Settings.from_dict({"s3": {"bucket_name": "x"}}, environ={}),
        lambda: Settings.from_env(environ={"PAWNQUEUE_S3_BUCKET_NAME": "x"}),
        lambda: Settings.load({}, environ={}, s3={"bucket_name": "x"}),
        lambda: S3Settings(bucket_name="x"),
    ],
)
def test_every_way_in_fails_with_a_config_error_that_names_the_setting(make: Callable[[], object]) -> None:
    """Never pydantic's ValidationError, and always the full dotted path."""
    assert "s3.bucket_name" in complaint_of(make)


def test_broken_json_is_a_config_error() -> None:
    """JSON that cannot be parsed is not quoted."""
    assert complaint_of(lambda: Settings.model_validate_json('{"s3": ' + SECRET)) == "The settings are not valid JSON."


@pytest.mark.parametrize("value", [None, 1, "text", [], Settings(s3=BUCKET)])
def test_a_source_that_is_no_mapping_is_refused(value: Any) -> None:  # noqa: ANN401 - of the wrong type on purpose
    """What cannot be settings leads to a ConfigError; None as a dict says nothing, so the bucket is missing."""
    if not isinstance(value, Settings):
        complaint_of(lambda: Settings.from_dict(value, environ={}))
    if value is not None:
        complaint_of(lambda: Settings.from_dict({"s3": value}, environ={}))
        complaint_of(lambda: Settings(s3=BUCKET, polling=value))


@pytest.mark.parametrize("source", [7, b"queue.yaml", [], object()])
def test_a_source_of_another_type_is_refused(source: Any) -> None:  # noqa: ANN401 - of the wrong type on purpose
    """Load says that it wants a path, and of which type the source is."""
    with pytest.raises(ConfigError, match=f"type {type(source).__name__}"):
        Settings.load(source)


def test_a_missing_bucket_is_told_with_its_variable() -> None:
    """The variable is offered where the environment was read, and only there."""
    assert "PAWNQUEUE_S3_BUCKET_NAME" in complaint_of(lambda: Settings.from_env(environ={}))
    assert "s3.bucket_name is missing" in complaint_of(lambda: Settings.model_validate({}))
    assert "PAWNQUEUE" not in complaint_of(lambda: Settings.model_validate({"s3": None}))


@pytest.mark.parametrize(
    ("data", "unknown", "nearest"),
    [
        ({"pooling": {}}, "pooling", "polling"),
        ({"polling": {"interval": 1}}, "polling.interval", "polling.interval_seconds"),
        ({"polling": {"max_in_flight": 1}}, "polling.max_in_flight", "concurrency.max_in_flight"),
        ({"bucket_name": "x"}, "bucket_name", "s3.bucket_name"),
        ({"s3": {"access_key": "x"}}, "s3.access_key", "s3.aws_access_key_id"),
        ({"s3": {"secret_key": "x"}}, "s3.secret_key", "s3.aws_secret_access_key"),
        ({"s3": {"region": "x"}}, "s3.region", "s3.region_name"),
        (
            {"concurrency": {"csprng_verify": {"retries": 1}}},
            "concurrency.csprng_verify.retries",
            "concurrency.csprng_verify.verify_retries",
        ),
        ({"retry": {1: 2}}, "retry.1", "retry."),
    ],
)
def test_an_unknown_key_is_told_with_the_nearest_known_one(data: dict[str, Any], unknown: str, nearest: str) -> None:
    """A typo in a key is an error that shows the way."""
    sentence = complaint_of(lambda: Settings.from_dict({"s3": BUCKET} | data, environ={}, s3=BUCKET))
    assert f"{unknown} is unknown; the nearest setting is {nearest}" in sentence


def test_everything_that_is_wrong_is_in_one_sentence() -> None:
    """Bad values, unknown keys, missing settings and contradictions are reported together."""
    sentence = complaint_of(
        lambda: Settings.from_dict(
            {
                "s3": {"use_ssl": "maybe", "aws_access_key_id": KEY_ID},
                "polling": {"interval_seconds": -1, "lease_refresh_interval_seconds": 20, "nonsense": 1},
                "concurrency": {"strategy": "", "csprng_verify": {"jitter_min_ms": 500, "verify_retries": -1}},
                "retry": {"initial_delay_seconds": 9},
                "limits": 5,
            },
            environ={},
        )
    )
    for expected in [
        "s3.use_ssl must be",
        "s3.bucket_name is missing",
        "s3.aws_secret_access_key is not",
        "polling.interval_seconds must be",
        "polling.nonsense is unknown",
        "polling.lease_refresh_interval_seconds (20.0) must be under half of polling.visibility_timeout_seconds (30.0)",
        "concurrency.strategy must be",
        "concurrency.csprng_verify.verify_retries must be",
        "concurrency.csprng_verify.jitter_min_ms (500) must not be above concurrency.csprng_verify.jitter_max_ms (400)",
        "retry.initial_delay_seconds (9.0) must not be above retry.max_delay_seconds (5.0)",
        "limits must be a mapping",
    ]:
        assert sentence.count(expected) == 1, expected


def test_an_error_can_cross_a_process() -> None:
    """A ConfigError is the same after pickling."""
    with pytest.raises(ConfigError) as caught:
        Settings(s3={"bucket_name": "x"})
    copied = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
    assert str(copied) == str(caught.value)
