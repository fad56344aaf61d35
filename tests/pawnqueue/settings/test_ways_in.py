"""The ways in: their order of precedence, and what becomes of what is given."""

import copy
import pickle
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from pydantic import ValidationError

from pawnqueue.settings import (
    ConcurrencySettings,
    CsprngVerifySettings,
    RetrySettings,
    S3Settings,
    Settings,
    environment_variables,
)
from pawnqueue.settings.short_names import names_of_settings
from tests.pawnqueue.settings.given import BUCKET, CREDENTIALS, SECRET, TOKEN, complaint_of, with_one, yaml_file


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


def test_a_dump_in_python_can_be_fed_back() -> None:
    """model_dump() keeps the secrets wrapped, and is a source of settings."""
    settings = Settings(s3=CREDENTIALS, retry=RetrySettings(budget_seconds=0))
    assert Settings.from_dict(settings.model_dump(), environ={}) == settings


def test_settings_of_packs_are_named_with_their_section() -> None:
    """Alone, ``messages`` and ``bytes`` would not say of what."""
    names = names_of_settings()
    packs = {path for path in environment_variables().values() if path.startswith("packs.")}
    assert packs <= names.keys()
    assert not {path.partition(".")[2] for path in packs} & names.keys()
