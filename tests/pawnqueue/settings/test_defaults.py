"""The defaults, and that every setting can be given."""

import pytest

from pawnqueue.settings import (
    ConcurrencySettings,
    CsprngVerifySettings,
    PollingSettings,
    Settings,
    environment_variables,
)
from tests.pawnqueue.settings.given import BUCKET, OTHER, at, with_one


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
    sections = [*Settings.sections().values(), *ConcurrencySettings.sections().values()]
    assert set(OTHER) == set(environment_variables().values())
    described = [field.description for field in Settings.fields_below().values()]
    described += [section.__doc__ for section in sections]
    assert all(text and "\n" not in text for text in described)


@pytest.mark.parametrize("path", OTHER)
def test_every_setting_can_be_given(path: str) -> None:
    """A setting that is given has the given value."""
    assert at(with_one(path, OTHER[path]), path) == OTHER[path]
