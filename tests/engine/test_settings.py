"""Settings: the ways in, what they refuse, and what they never print."""

import copy
import logging
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, SecretStr, TypeAdapter, ValidationError

from airflow_provider_pawnqueue.engine.errors import ConfigError
from airflow_provider_pawnqueue.engine.settings import (
    ConcurrencySettings,
    CsprngVerifySettings,
    PollingSettings,
    RetrySettings,
    S3Settings,
    Settings,
    environment_variables,
)
from airflow_provider_pawnqueue.engine.settings.base import Section

EXAMPLE = Path(__file__).parents[2] / "config.example.yaml"
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
    "claims.margin_seconds": 2.5,
    "claims.max_claim_age_seconds": 86401.5,
    "claims.keep_when_closed": True,
    "claims.record_retention_seconds": 86402.5,
    "retry.budget_seconds": 0.0,
    "retry.initial_delay_seconds": 0.25,
    "retry.max_delay_seconds": 5.5,
    "limits.max_payload_bytes": 1024,
    "limits.max_payload_depth": 65,
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

#: The variables of pawn-queue 0.1.2, from its documentation.
PAWN_QUEUE_VARIABLES = {
    "PAWNQUEUE_S3_ENDPOINT_URL": "s3.endpoint_url",
    "PAWNQUEUE_S3_BUCKET_NAME": "s3.bucket_name",
    "PAWNQUEUE_S3_ACCESS_KEY": "s3.aws_access_key_id",
    "PAWNQUEUE_S3_SECRET_KEY": "s3.aws_secret_access_key",
    "PAWNQUEUE_S3_REGION": "s3.region_name",
    "PAWNQUEUE_S3_USE_SSL": "s3.use_ssl",
    "PAWNQUEUE_POLLING_INTERVAL_SECONDS": "polling.interval_seconds",
    "PAWNQUEUE_POLLING_MAX_MESSAGES_PER_POLL": "polling.max_messages_per_poll",
    "PAWNQUEUE_POLLING_VISIBILITY_TIMEOUT": "polling.visibility_timeout_seconds",
    "PAWNQUEUE_POLLING_LEASE_REFRESH_INTERVAL": "polling.lease_refresh_interval_seconds",
    "PAWNQUEUE_POLLING_JITTER_MAX_MS": "polling.jitter_max_ms",
    "PAWNQUEUE_CONCURRENCY_STRATEGY": "concurrency.strategy",
    "PAWNQUEUE_CSPRNG_JITTER_MIN_MS": "concurrency.csprng_verify.jitter_min_ms",
    "PAWNQUEUE_CSPRNG_JITTER_MAX_MS": "concurrency.csprng_verify.jitter_max_ms",
    "PAWNQUEUE_CSPRNG_VERIFY_RETRIES": "concurrency.csprng_verify.verify_retries",
    "PAWNQUEUE_CSPRNG_RETRY_DELAY_MS": "concurrency.csprng_verify.verify_retry_delay_ms",
    "PAWNQUEUE_REGISTRY_HEARTBEAT_INTERVAL": "registry.heartbeat_interval_seconds",
}

NUMBERS = sorted(path for path, value in OTHER.items() if type(value) in {int, float})
WHOLE_NUMBERS = sorted(path for path, value in OTHER.items() if type(value) is int)
SWITCHES = sorted(path for path, value in OTHER.items() if isinstance(value, bool))
NOT_ZERO = {
    *(path for path in NUMBERS if path.split(".")[0] in {"s3", "limits", "registry"}),
    "polling.max_messages_per_poll",
    "polling.visibility_timeout_seconds",
    "polling.lease_refresh_interval_seconds",
    "concurrency.max_in_flight",
    "claims.max_claim_age_seconds",
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


def plain(value: object) -> object:
    """Unwrap a secret."""
    return value.get_secret_value() if isinstance(value, SecretStr) else value


# Defaults


def test_the_bucket_is_all_that_must_be_given() -> None:
    """With a bucket's name alone, everything has the default that pawn-queue users and our documentation expect."""
    settings = Settings(s3=BUCKET)
    assert settings.s3.endpoint_url is None
    assert settings.s3.region_name == "us-east-1"
    assert settings.polling == PollingSettings(
        interval_seconds=5,
        max_messages_per_poll=10,
        visibility_timeout_seconds=30,
        lease_refresh_interval_seconds=10,
        jitter_max_ms=200,
    )
    assert settings.concurrency.strategy == "auto"
    assert settings.concurrency.csprng_verify == CsprngVerifySettings(
        jitter_min_ms=100, jitter_max_ms=400, verify_retries=2, verify_retry_delay_ms=150
    )
    assert settings.registry.heartbeat_interval_seconds == 60
    assert settings.claims.margin_seconds == 2
    assert settings.retry.budget_seconds == 30
    assert settings.limits.max_payload_bytes == 5 * 1024 * 1024


def test_every_setting_is_covered_by_these_tests_and_described() -> None:
    """OTHER has a value for every setting, and every field has a description of one line."""
    fields = dict(Settings.fields_below())
    assert set(OTHER) == set(environment_variables().values())
    assert all(field.description and "\n" not in field.description for field in fields.values())


@pytest.mark.parametrize("path", OTHER)
def test_every_setting_can_be_given(path: str) -> None:
    """A setting that is given has the given value."""
    assert with_one(path, OTHER[path]).at(path) == OTHER[path]


# The ways in


def test_a_mapping_of_any_type_and_a_section_instance_are_taken() -> None:
    """Sections may be dicts, other mappings, or instances; the result is the same."""
    section = S3Settings(bucket_name="test-bucket")
    assert Settings(s3=section) == Settings(s3=MappingProxyType(BUCKET)) == Settings.model_validate({"s3": BUCKET})


def test_the_environment_is_not_read_by_the_constructor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings(...) is what it was given, whatever the environment says."""
    monkeypatch.setenv("PAWNQUEUE_S3_REGION", "eu-test-1")
    assert Settings(s3=BUCKET).s3.region_name == "us-east-1"


def test_the_environment_of_the_process_is_read_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """from_env and its siblings read os.environ at the time of the call."""
    monkeypatch.setenv("PAWNQUEUE_S3_REGION", "eu-test-1")
    assert Settings.from_env(s3=BUCKET).s3.region_name == "eu-test-1"
    assert Settings.load({"s3": BUCKET}).s3.region_name == "eu-test-1"


def test_explicit_beats_environment_beats_file(tmp_path: Path) -> None:
    """Each layer wins over the one below it, field by field, and keeps what it does not mention."""
    path = yaml_file(
        tmp_path,
        "s3: {bucket_name: from-file, region_name: from-file, profile_name: from-file}\n"
        "concurrency: {max_in_flight: 1, csprng_verify: {jitter_min_ms: 1, verify_retries: 1}}\n",
    )
    settings = Settings.from_yaml(
        path,
        environ={"PAWNQUEUE_S3_BUCKET_NAME": "from-env", "PAWNQUEUE_S3_REGION": "from-env"},
        s3={"bucket_name": "from-code"},
        concurrency=ConcurrencySettings(csprng_verify=CsprngVerifySettings(verify_retries=9)),
    )
    s3, verify = settings.s3, settings.concurrency.csprng_verify
    assert (s3.bucket_name, s3.region_name, s3.profile_name) == ("from-code", "from-env", "from-file")
    assert (settings.concurrency.max_in_flight, verify.jitter_min_ms, verify.verify_retries) == (1, 1, 9)


def test_none_takes_back_a_field_and_leaves_a_section() -> None:
    """A field that is None explicitly is not set any more; a section that is None says nothing."""
    data = {"s3": BUCKET | {"profile_name": "file"}, "polling": {"interval_seconds": 1}}
    settings = Settings.from_dict(data, environ={}, s3={"profile_name": None}, polling=None)
    assert settings.s3.profile_name is None
    assert settings.polling.interval_seconds == 1


def test_load_finds_the_way_in_by_what_it_is_given(tmp_path: Path) -> None:
    """A mapping, a path as text or Path, and nothing (the environment) all lead to the same settings."""
    path = yaml_file(tmp_path, "s3: {bucket_name: test-bucket}\n")
    environ = {"PAWNQUEUE_POLLING_INTERVAL_SECONDS": "7"}
    expected = Settings(s3=BUCKET, polling={"interval_seconds": 7})
    assert Settings.load({"s3": BUCKET}, environ=environ) == expected
    assert Settings.load(path, environ=environ) == expected
    assert Settings.load(str(path), environ=environ) == expected
    assert Settings.load(environ=environ, s3=BUCKET) == expected


def test_load_leaves_settings_as_they_are() -> None:
    """Settings are final: load returns the same object, and reads no environment for it."""
    settings = Settings(s3=BUCKET)
    assert Settings.load(settings, environ={"PAWNQUEUE_S3_REGION": "x"}) is settings
    changed = Settings.load(settings, environ={"PAWNQUEUE_S3_REGION": "x"}, polling={"interval_seconds": 1})
    assert changed == Settings(s3=BUCKET, polling={"interval_seconds": 1})


def test_nothing_that_is_given_is_changed() -> None:
    """Dicts and instances are the same afterwards."""
    data: dict[str, Any] = {"s3": BUCKET | {"key_prefix": "/a"}, "concurrency": {"csprng_verify": None}}
    explicit: dict[str, Any] = {"retry": {"budget_seconds": 0}}
    environ = {"PAWNQUEUE_CSPRNG_VERIFY_RETRIES": "5", "PAWNQUEUE_S3_REGION": "x"}
    before = copy.deepcopy((data, explicit, environ))
    Settings.from_dict(data, environ=environ, **explicit)
    Settings(**data)
    assert (data, explicit, environ) == before


def test_a_copy_with_changes_is_checked_and_merged() -> None:
    """model_copy(update=...) keeps the other fields of a section, and refuses what the constructor refuses."""
    settings = Settings(s3=BUCKET | {"profile_name": "test"})
    assert settings.model_copy(update={"s3": {"region_name": "x"}}).s3.profile_name == "test"
    assert "s3.bucket_name" in complaint_of(lambda: settings.model_copy(update={"s3": {"bucket_name": "x"}}))
    assert settings.model_copy() == settings


def test_settings_can_be_pickled_compared_and_hashed() -> None:
    """A pickled copy is equal, with its secrets, and has the same hash; another setting makes them differ."""
    settings = with_one("s3.aws_session_token", TOKEN)
    twin = pickle.loads(pickle.dumps(settings))  # noqa: S301 - our own bytes
    assert twin == settings == copy.deepcopy(settings)
    assert hash(twin) == hash(settings)
    assert twin.s3.aws_session_token.get_secret_value() == TOKEN
    assert settings != Settings(s3=BUCKET)


def test_settings_are_frozen() -> None:
    """Assigning to a setting fails, and what was to be assigned is not shown."""
    settings = Settings(s3=BUCKET)
    with pytest.raises(ValidationError, match="frozen") as caught:
        setattr(settings.s3, "aws_secret_access_key", SECRET)  # noqa: B010 - as a user without a type checker would
    assert SECRET not in str(caught.value)
    assert settings == Settings(s3=BUCKET)


# Every bad way in


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


@pytest.mark.parametrize("path", NUMBERS)
@pytest.mark.parametrize(
    "value", [-1, -0.5, float("nan"), float("inf"), float("-inf"), "many", True, None, [], 10**400, 1e300]
)
def test_a_number_out_of_range_is_refused(path: str, value: object) -> None:
    """Negative, endless, no number at all: each is refused, by the setting's path."""
    assert f"{path} must be a " in complaint_of(lambda: with_one(path, value))


@pytest.mark.parametrize("path", WHOLE_NUMBERS)
def test_a_fraction_is_no_whole_number(path: str) -> None:
    """A count is not rounded."""
    assert f"{path} must be a whole number" in complaint_of(lambda: with_one(path, 7.5))


@pytest.mark.parametrize("path", NUMBERS)
def test_zero_is_refused_where_it_makes_no_sense(path: str) -> None:
    """A time-out of zero is refused; a pause of zero, or a budget, is not."""
    if path in NOT_ZERO:
        assert path in complaint_of(lambda: with_one(path, 0))
    elif path in {"retry.max_delay_seconds", "concurrency.csprng_verify.jitter_max_ms"}:
        assert "must not be above" in complaint_of(lambda: with_one(path, 0))
    else:
        assert with_one(path, 0).at(path) == 0


def test_the_strategies_name_is_a_text() -> None:
    """Which strategies there are is known where a bucket is opened; what is no name at all is refused here."""
    assert with_one("concurrency.strategy", "newer").concurrency.strategy == "newer"
    for wrong in ("", " auto", 5, None):
        assert "concurrency.strategy must be a text" in complaint_of(
            lambda wrong=wrong: with_one("concurrency.strategy", wrong)
        )


@pytest.mark.parametrize("path", ["s3.client", "s3.addressing_style", "s3.server_side_encryption"])
def test_a_choice_is_refused_with_what_there_is_to_choose(path: str) -> None:
    """The choices are in the sentence, and what was chosen instead."""
    sentence = complaint_of(lambda: with_one(path, "magic"))
    assert f"{path} must be one of " in sentence
    assert str(OTHER[path]) in sentence
    assert "'magic'" in sentence


@pytest.mark.parametrize("path", SWITCHES)
@pytest.mark.parametrize(("word", "meaning"), [("true", True), ("Yes", True), ("ON", True), ("1", True), (1, True)])
def test_a_switch_is_on_by_any_of_its_words(path: str, word: object, meaning: bool) -> None:  # noqa: FBT001
    """Capitals do not matter."""
    assert with_one(path, word).at(path) is meaning


@pytest.mark.parametrize("path", SWITCHES)
@pytest.mark.parametrize("word", ["false", "NO", "Off", "0", 0, False])
def test_a_switch_is_off_by_any_of_its_words(path: str, word: object) -> None:
    """Capitals do not matter."""
    assert with_one(path, word).at(path) is False


@pytest.mark.parametrize("path", SWITCHES)
@pytest.mark.parametrize("word", ["", "y", "ja", "tru", 2, 1.0, None, []])
def test_a_switch_is_nothing_else(path: str, word: object) -> None:
    """What pawn-queue would take for false is refused."""
    assert f"{path} must be true or false" in complaint_of(lambda: with_one(path, word))


@pytest.mark.parametrize(
    "path", ["s3.region_name", "s3.profile_name", "s3.aws_access_key_id", "s3.aws_secret_access_key", "s3.role_arn"]
)
@pytest.mark.parametrize("value", ["", " x", "x\n", "a\x00b", 12345, "\udc80"])
def test_a_text_that_could_not_be_sent_is_refused(path: str, value: object) -> None:
    """Empty, with white space around it, with control characters, or a number in YAML: refused, and not shown."""
    sentence = complaint_of(lambda: with_one(path, value))
    assert f"{path} must be " in sentence
    assert "12345" not in sentence


def test_everything_that_is_wrong_is_in_one_sentence() -> None:
    """Bad values, unknown keys, missing settings and contradictions are told together."""
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


def test_a_setting_that_is_wrong_in_itself_is_not_compared() -> None:
    """Who got a number wrong is not also told that its default contradicts something."""
    data = {"s3": BUCKET, "polling": {"visibility_timeout_seconds": "long", "lease_refresh_interval_seconds": 100}}
    assert "under half" not in complaint_of(lambda: Settings.from_dict(data, environ={}))


# Contradictions


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            {"polling": {"visibility_timeout_seconds": 20}},
            (
                "polling.lease_refresh_interval_seconds (10.0) must be under half of "
                "polling.visibility_timeout_seconds (20.0)"
            ),
        ),
        (
            {"polling": {"visibility_timeout_seconds": 2, "lease_refresh_interval_seconds": 0.5}},
            "polling.visibility_timeout_seconds (2.0) must be above claims.margin_seconds (2.0)",
        ),
        (
            {"polling": {"visibility_timeout_seconds": 3, "lease_refresh_interval_seconds": 1}},
            (
                "polling.lease_refresh_interval_seconds (1.0) must be under "
                "polling.visibility_timeout_seconds (3.0) less "
                "claims.margin_seconds (2.0)"
            ),
        ),
        (
            {"concurrency": {"csprng_verify": {"jitter_max_ms": 99}}},
            (
                "concurrency.csprng_verify.jitter_min_ms (100) must not be above "
                "concurrency.csprng_verify.jitter_max_ms (99)"
            ),
        ),
        (
            {"retry": {"max_delay_seconds": 0.01}},
            "retry.initial_delay_seconds (0.05) must not be above retry.max_delay_seconds (0.01)",
        ),
        ({"s3": {"aws_access_key_id": KEY_ID}}, "s3.aws_access_key_id is set and s3.aws_secret_access_key is not"),
        ({"s3": {"aws_secret_access_key": SECRET}}, "s3.aws_secret_access_key is set and s3.aws_access_key_id is not"),
        ({"s3": {"aws_session_token": TOKEN}}, "s3.aws_session_token is set and s3.aws_access_key_id is not"),
        ({"s3": {"role_external_id": "x"}}, "s3.role_external_id is set and s3.role_arn is not"),
        (
            {"s3": {"sse_kms_key_id": "x", "server_side_encryption": "AES256"}},
            "s3.sse_kms_key_id needs s3.server_side_encryption ('AES256') to be aws:kms",
        ),
        (
            {"s3": {"sse_bucket_key_enabled": True}},
            "s3.sse_bucket_key_enabled (True) needs s3.server_side_encryption to be aws:kms",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_both_named(data: dict[str, Any], words: str) -> None:
    """Both dotted paths, both values where they are no secrets, and the rule."""
    assert words in complaint_of(lambda: Settings.from_dict(data, environ={}, s3=BUCKET))


@pytest.mark.parametrize(
    "data",
    [
        {"polling": {"visibility_timeout_seconds": 20.1}},
        {"polling": {"visibility_timeout_seconds": 2.1, "lease_refresh_interval_seconds": 0.05}},
        {
            "polling": {"visibility_timeout_seconds": 1, "lease_refresh_interval_seconds": 0.4},
            "claims": {"margin_seconds": 0},
        },
        {"concurrency": {"csprng_verify": {"jitter_min_ms": 400}}},
        {"retry": {"initial_delay_seconds": 5}},
    ],
)
def test_settings_just_inside_the_rules_are_taken(data: dict[str, Any]) -> None:
    """The rules end where they say."""
    assert Settings.from_dict(data, environ={}, s3=BUCKET).s3.bucket_name == "test-bucket"


def test_a_contradiction_names_the_variable_that_a_value_is_from() -> None:
    """Who set only the time-out, in the environment, finds the place."""
    environ = {"PAWNQUEUE_S3_BUCKET_NAME": "test-bucket", "PAWNQUEUE_POLLING_VISIBILITY_TIMEOUT": "15"}
    words = "polling.visibility_timeout_seconds (15.0, from PAWNQUEUE_POLLING_VISIBILITY_TIMEOUT)"
    assert words in complaint_of(lambda: Settings.from_env(environ=environ))


# The environment


def test_the_variables_of_pawn_queue_keep_their_names() -> None:
    """Each variable that pawn-queue reads sets the same thing here."""
    assert environment_variables().items() >= PAWN_QUEUE_VARIABLES.items()


def test_other_variables_follow_the_path() -> None:
    """Without a name from pawn-queue, a variable is PAWNQUEUE_, the section and the field."""
    for variable, path in environment_variables().items():
        assert variable in PAWN_QUEUE_VARIABLES or variable == f"PAWNQUEUE_{path.replace('.', '_').upper()}"


@pytest.mark.parametrize(("variable", "path"), environment_variables().items())
def test_every_variable_sets_its_setting(variable: str, path: str) -> None:
    """From the environment comes the same value as from code."""
    text = str(plain(OTHER[path]))
    given = {name: value for name, value in COMPANIONS.get(path, {}).items() if s3_of(path, 0).keys() != {name}}
    explicit = {} if path == "s3.bucket_name" else BUCKET
    assert Settings.from_env(environ={variable: text}, s3=explicit | given).at(path) == OTHER[path]


@pytest.mark.parametrize(
    ("variable", "path"), [pair for pair in environment_variables().items() if pair[1] != "s3.ca_bundle"]
)
def test_every_variable_is_named_when_it_is_wrong(variable: str, path: str) -> None:
    """The sentence has the path and the variable; ca_bundle is left out, as any text is the path of a file."""
    bad = "\x00"
    explicit = {} if path == "s3.bucket_name" else BUCKET
    assert f"{path} (from {variable})" in complaint_of(lambda: Settings.from_env(environ={variable: bad}, s3=explicit))


@pytest.mark.parametrize(("variable", "path"), environment_variables().items())
def test_an_empty_variable_is_not_set(variable: str, path: str) -> None:
    """The default, or what the file says, stays."""
    assert Settings.from_env(environ={variable: ""}, s3=BUCKET) == Settings(s3=BUCKET)


def test_a_variable_is_not_blamed_for_an_explicit_value() -> None:
    """Where code overrides the environment, the error does not name the variable."""
    environ = {"PAWNQUEUE_POLLING_INTERVAL_SECONDS": "1"}
    sentence = complaint_of(lambda: Settings.from_env(environ=environ, s3=BUCKET, polling={"interval_seconds": -1}))
    assert "PAWNQUEUE_POLLING_INTERVAL_SECONDS" not in sentence


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("PAWNQUEUE_S3_REGION_NAME", "PAWNQUEUE_S3_REGION"),
        ("PAWNQUEUE_S3_SESSION_TOKEN", "PAWNQUEUE_S3_AWS_SESSION_TOKEN"),
        ("PAWNQUEUE_POLLING_VISIBILITY_TIMEOUT_SECONDS", "PAWNQUEUE_POLLING_VISIBILITY_TIMEOUT"),
        ("PAWNQUEUE_CSPRNG_RETRIES", "PAWNQUEUE_CSPRNG_VERIFY_RETRIES"),
        ("PAWNQUEUE_CLAIMS_MARGIN", "PAWNQUEUE_CLAIMS_MARGIN_SECONDS"),
        ("PAWNQUEUE_LIMITS_DEPTH", "PAWNQUEUE_LIMITS_MAX_PAYLOAD_DEPTH"),
    ],
)
def test_a_variable_with_a_typo_is_logged(variable: str, nearest: str, caplog: pytest.LogCaptureFixture) -> None:
    """One warning names it and the nearest known one, and not its value; the settings are made all the same."""
    assert Settings.from_env(environ={variable: SECRET}, s3=BUCKET) == Settings(s3=BUCKET)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert variable in record.getMessage()
    assert f"did you mean {nearest}?" in record.getMessage()
    assert SECRET not in record.getMessage()


def test_variables_of_others_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Known variables, and those outside our sections, are not worth a warning."""
    environ = dict.fromkeys(environment_variables(), "") | {"PAWNQUEUE_HOME": "x", "AWS_REGION": "x", "S3_X": "x"}
    Settings.from_env(environ=environ, s3=BUCKET)
    assert not caplog.records


# YAML


def test_a_config_of_pawn_queue_works_unchanged(tmp_path: Path) -> None:
    """A file with pawn-queue's sections and nothing of ours loads, with its values."""
    path = yaml_file(
        tmp_path,
        f"""\
s3:
  endpoint_url: "https://objects.example.test"   # some provider
  bucket_name: "letters"
  aws_access_key_id: "{KEY_ID}"
  aws_secret_access_key: "{SECRET}"
  region_name: "north-1"
  use_ssl: true
polling:
  interval_seconds: 2
  max_messages_per_poll: 25
  visibility_timeout_seconds: 45
  lease_refresh_interval_seconds: 15
  jitter_max_ms: 100
concurrency:
  strategy: "csprng_verify"
  csprng_verify:
    jitter_min_ms: 50
    jitter_max_ms: 250
    verify_retries: 3
    verify_retry_delay_ms: 75
registry:
  heartbeat_interval_seconds: 90
""",
    )
    settings = Settings.from_yaml(path, environ={})
    assert settings.s3.endpoint_url == "https://objects.example.test"
    assert settings.s3.aws_secret_access_key == SecretStr(SECRET)
    assert settings.polling.visibility_timeout_seconds == 45
    assert settings.concurrency.csprng_verify.verify_retry_delay_ms == 75
    assert settings.registry.heartbeat_interval_seconds == 90


def test_the_example_has_every_setting_with_its_default() -> None:
    """config.example.yaml loads, leaves nothing out, and equals the defaults (but for the bucket, which has none)."""

    def leaves(data: Mapping[str, Any], model: type[Section]) -> set[str]:
        found: set[str] = set()
        for name, value in data.items():
            section = model.section_of(name)
            found |= leaves(value, section) if section else {model.path_of(name)}
        return found

    text = EXAMPLE.read_text(encoding="utf-8")
    assert leaves(yaml.safe_load(text), Settings) == set(environment_variables().values())
    settings = Settings.from_yaml(EXAMPLE, environ={})
    assert settings == Settings(s3={"bucket_name": settings.s3.bucket_name})
    commented = [
        line for line in text.splitlines() if ":" in line and not line.startswith("#") and line.startswith(" ")
    ]
    assert all("  # " in line or " # " in line for line in commented)


@pytest.mark.parametrize("nothing", ["", " ~", " null", " {}"])
def test_a_section_without_content_has_its_defaults(tmp_path: Path, nothing: str) -> None:
    """All lines of a section may be commented out."""
    text = f"s3: {{bucket_name: test-bucket}}\npolling:{nothing}\nconcurrency:\n  csprng_verify:{nothing}\n"
    assert Settings.from_yaml(yaml_file(tmp_path, text), environ={}) == Settings(s3=BUCKET)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("just text", "is not a mapping"),
        ("- s3", "is not a mapping"),
        ("s3:\n\tbucket_name: x\n", "line 2, column 1: there is a tab"),
        ("s3:\n  bucket_name: [x\n", "is not valid YAML on line 3"),
        (
            "s3: {bucket_name: x}\npolling: {}\ns3: {}\n",
            "has the key s3 twice in one mapping, the second time on line 3",
        ),
        ("s3:\n  use_ssl: true\n  use_ssl: false\n", "has the key use_ssl twice"),
        ("- {a: 1, a: 2}\n", "has the key a twice"),
        ("s3: 1\n---\ns3: 2\n", "is not valid YAML on line 2"),
        ("s3: {bucket_name: 2024-13-45}\n", "does not exist"),
        ("[" * 5000, "nested too deeply"),
        ("s3: \x01\n", "a character that YAML does not allow"),
        (f"s3:\n  aws_secret_access_key: *{SECRET}\n", "quote a value that begins with *"),
        (f"s3:\n  aws_secret_access_key: *ab/{SECRET}\n", "quote a value that begins with *"),
        (f"s3:\n  aws_secret_access_key: !{SECRET} x\n", "quote a value that begins with !"),
        (f"s3:\n  aws_secret_access_key: @{SECRET}\n", "quote a value that begins with @"),
        (f"s3:\n  aws_secret_access_key: !!int {SECRET}\n", "does not exist"),
    ],
)
def test_bad_yaml_is_told_without_quoting_it(tmp_path: Path, text: str, problem: str) -> None:
    """The sentence has the file, and the line where there is one; what stands there may be a secret."""
    path = yaml_file(tmp_path, text)
    sentence = complaint_of(lambda: Settings.from_yaml(path, environ={}))
    assert str(path) in sentence
    assert problem in sentence
    assert SECRET not in sentence


def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    """Missing, a folder, not text, an impossible name."""
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (str(tmp_path / "missing.yaml"), str(tmp_path), str(binary), "a\x00b"):
        assert f"The settings file {path} " in complaint_of(partial(Settings.load, path, environ={}))


def test_a_file_from_windows_is_read(tmp_path: Path) -> None:
    """A byte order mark and CRLF do no harm."""
    path = tmp_path / "queue.yaml"
    path.write_bytes(b"\xef\xbb\xbfs3:\r\n  bucket_name: test-bucket\r\n")
    assert Settings.from_yaml(path, environ={}) == Settings(s3=BUCKET)


def test_a_mapping_that_contains_itself_is_a_config_error(tmp_path: Path) -> None:
    """An alias that leads back is an unknown key, not an endless loop."""
    path = yaml_file(tmp_path, "s3: &a\n  bucket_name: test-bucket\n  s3: *a\npolling: &b\n  polling: *b\n")
    assert "s3.s3 is unknown" in complaint_of(lambda: Settings.from_yaml(path, environ={}))


def test_merge_keys_are_yaml_and_no_duplicates(tmp_path: Path) -> None:
    """A mapping may take keys from an anchor and override them."""
    text = "s3: {bucket_name: test-bucket}\nretry: &r {budget_seconds: 1}\nclaims: {}\n"
    text += "polling:\n  <<: &p {interval_seconds: 1}\n  interval_seconds: 2\n"
    assert Settings.from_yaml(yaml_file(tmp_path, text), environ={}).polling.interval_seconds == 2


def test_an_error_names_the_file(tmp_path: Path) -> None:
    """What is wrong with a value in a file is told with the file's path."""
    path = yaml_file(tmp_path, "s3: {bucket_name: x}\n")
    assert f"The settings of {path} do not hold" in complaint_of(lambda: Settings.from_yaml(path, environ={}))


# S3


@pytest.mark.parametrize(
    ("given", "tls", "endpoint"),
    [
        ("store.test", True, "https://store.test"),
        ("store.test", False, "http://store.test"),
        ("localhost:9000", False, "http://localhost:9000"),
        ("http://store.test:9000", True, "http://store.test:9000"),
        ("HTTPS://Store.TEST/", False, "https://store.test"),
        ("http://[::1]:9000", True, "http://[::1]:9000"),
        ("127.0.0.1:9000/", True, "https://127.0.0.1:9000"),
        ("http://minio_1:9000", True, "http://minio_1:9000"),
        ("http://store.test:", True, "http://store.test"),
    ],
)
def test_an_endpoint_is_normalised(given: str, tls: bool, endpoint: str) -> None:  # noqa: FBT001
    """A scheme decides; without one, use_ssl does. What was normalised stays the same when it is given again."""
    s3 = S3Settings(bucket_name="test-bucket", endpoint_url=given, use_ssl=tls)
    assert s3.endpoint_url == endpoint
    assert s3.uses_tls is endpoint.startswith("https")
    assert S3Settings(bucket_name="test-bucket", endpoint_url=s3.endpoint_url, use_ssl=not tls).endpoint_url == endpoint


@pytest.mark.parametrize(
    "given",
    [
        "",
        "ftp://store.test",
        "https://",
        "http://:9000",
        "http://store.test:nine",
        "http://store.test:0",
        "http://store.test:70000",
        "http://store.test/bucket",
        "http://store.test?x=1",
        "http://store.test#x",
        "http://store test",
        " http://store.test",
        "http://store.test\n",
        "http://store\\test",
        "http://[::1",
        f"http://user:{SECRET}@store.test",
        f"user:{SECRET}@store.test",
        f"http://user:{SECRET}/x@store.test:9000",
        f"http://{SECRET}@store.test",
        f"ftp://user:{SECRET}@store.test",
    ],
)
def test_an_endpoint_that_is_no_address_is_refused(given: str) -> None:
    """Credentials, a path, a query, another scheme: refused, without showing any of it."""
    sentence = complaint_of(lambda: Settings(s3=BUCKET | {"endpoint_url": given}))
    assert "s3.endpoint_url must " in sentence
    assert SECRET not in sentence


@pytest.mark.parametrize(
    ("given", "prefix"), [("", ""), ("/", ""), ("a", "a/"), ("/a/b", "a/b/"), ("a/", "a/"), ("v1..2", "v1..2/")]
)
def test_a_key_prefix_is_normalised(given: str, prefix: str) -> None:
    """No slash at the beginning, one at the end, nothing where there is nothing."""
    assert S3Settings(bucket_name="test-bucket", key_prefix=given).key_prefix == prefix


@pytest.mark.parametrize(
    "given", ["..", "a/../b", "a/..", "./a", "a//b", "//a", "a//", "a\nb", "a\x00", "a\x7f", "x" * 513]
)
def test_a_key_prefix_that_leads_astray_is_refused(given: str) -> None:
    """Segments that clients resolve, empty segments, control characters."""
    assert "s3.key_prefix must be" in complaint_of(lambda: Settings(s3=BUCKET | {"key_prefix": given}))


@pytest.mark.parametrize("name", ["abc", "a.b-c", "a" * 63, "Old_Bucket", "123"])
def test_a_bucket_name_may_be_old(name: str) -> None:
    """Capitals and underscores are in names of old buckets."""
    assert S3Settings(bucket_name=name).bucket_name == name


@pytest.mark.parametrize("name", ["ab", "a" * 64, "a/b", "a b", "-ab", "ab.", "a..b", "ab\n", "", "bücket", None, 123])
def test_a_bucket_name_that_cannot_be_is_refused(name: Any) -> None:  # noqa: ANN401 - of the wrong type on purpose
    """Too short, too long, or with characters that no bucket has."""
    assert "s3.bucket_name must be" in complaint_of(lambda: Settings(s3={"bucket_name": name}))


@pytest.mark.parametrize(
    ("settings", "style"),
    [
        ({}, "virtual"),
        ({"endpoint_url": "store.test"}, "path"),
        ({"endpoint_url": "store.test", "addressing_style": "virtual"}, "virtual"),
        ({"addressing_style": "path"}, "path"),
        ({"bucket_name": "with.dots"}, "path"),
        ({"bucket_name": "Old_Bucket"}, "path"),
    ],
)
def test_the_addressing_style_is_resolved(settings: dict[str, Any], style: str) -> None:
    """Auto is path for an endpoint of one's own, and for a name that no certificate covers as a host; else virtual."""
    assert S3Settings(**(BUCKET | settings)).resolved_addressing_style == style


def test_tls_without_an_endpoint_is_as_set() -> None:
    """For AWS, use_ssl decides."""
    assert S3Settings(bucket_name="test-bucket").uses_tls
    assert not S3Settings(bucket_name="test-bucket", use_ssl=False).uses_tls


# Secrets


CREDENTIALS = BUCKET | {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET, "aws_session_token": TOKEN}


@pytest.mark.parametrize(
    "show", [repr, str, lambda it: it.model_dump_json(), lambda it: str(it.model_dump(mode="json")), "{}".format]
)
def test_nothing_that_is_printed_shows_credentials(show: Callable[[BaseModel], str]) -> None:
    """Neither settings nor their s3 section print a secret, or the access key's id; pickling the text keeps it so."""
    settings = Settings(s3=CREDENTIALS)
    for thing in (settings, settings.s3):
        text = show(thing)
        assert "test-bucket" in text
        for secret in (KEY_ID, SECRET, TOKEN):
            assert secret not in text
            assert secret.encode() not in pickle.dumps(text)


@pytest.mark.parametrize("broken", [f" {SECRET}", f"{SECRET}\n", [SECRET], {SECRET: SECRET}, SECRET.encode()])
@pytest.mark.parametrize("field", ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"])
@pytest.mark.parametrize("way", ["constructor", "section", "dict", "env", "validate"])
def test_no_error_shows_a_secret(field: str, broken: object, way: str, caplog: pytest.LogCaptureFixture) -> None:
    """The text, the repr, the pickle and the chain of the error, and the log, have nothing of a refused secret."""
    s3 = BUCKET | {field: broken}
    variable = next(name for name, path in environment_variables().items() if path == f"s3.{field}")
    ways: dict[str, Callable[[], object]] = {
        "constructor": lambda: Settings(s3=s3),
        "section": lambda: S3Settings(**s3),
        "dict": lambda: Settings.from_dict({"s3": s3}, environ={}),
        "env": lambda: Settings.from_env(environ={variable: f" {SECRET}"}, s3=BUCKET),
        "validate": lambda: Settings.model_validate({"s3": s3}),
    }
    with pytest.raises(ConfigError) as caught:
        ways[way]()
    error = caught.value
    assert error.__context__ is None
    for text in (str(error), repr(error), str(pickle.dumps(error)), caplog.text):
        assert SECRET not in text


@pytest.mark.parametrize("section", ["s3", "polling"])
def test_a_secret_in_the_place_of_a_section_is_not_shown(section: str) -> None:
    """A text where a mapping belongs is not quoted."""
    assert SECRET not in complaint_of(lambda: Settings.model_validate({"s3": BUCKET} | {section: SECRET}))


def test_a_mask_is_not_taken_for_a_secret() -> None:
    """Who feeds printed settings back is told, instead of being refused by the store."""
    printed = Settings(s3=CREDENTIALS).model_dump_json()
    sentence = complaint_of(lambda: Settings.model_validate_json(printed))
    assert "s3.aws_secret_access_key is the mask" in sentence


def test_a_dump_in_python_can_be_fed_back() -> None:
    """model_dump() keeps the secrets wrapped, and is a source of settings."""
    settings = Settings(s3=CREDENTIALS, retry=RetrySettings(budget_seconds=0))
    assert Settings.from_dict(settings.model_dump(), environ={}) == settings


def test_an_error_can_cross_a_process() -> None:
    """A ConfigError is the same after pickling."""
    with pytest.raises(ConfigError) as caught:
        Settings(s3={"bucket_name": "x"})
    copied = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
    assert str(copied) == str(caught.value)


def test_the_import_does_not_load_yaml() -> None:
    """Who does not read a file does not pay for the parser."""
    code = (
        "import sys; import airflow_provider_pawnqueue.engine.settings as s; s.Settings; print('yaml' in sys.modules)"
    )
    package = str(Path(__file__).parents[2])
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=package, timeout=60
    )
    assert run.stdout.strip() == "False"
