"""What settings must agree on."""

from typing import Any

import pytest

from pawnqueue.settings import Settings
from tests.pawnqueue.settings.given import BUCKET, KEY_ID, SECRET, TOKEN, complaint_of


def test_a_setting_that_is_wrong_in_itself_is_not_compared() -> None:
    """A wrong number is not also reported as a contradiction with its default."""
    data = {"s3": BUCKET, "polling": {"visibility_timeout_seconds": "long", "lease_refresh_interval_seconds": 100}}
    assert "under half" not in complaint_of(lambda: Settings.from_dict(data, environ={}))


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
    """If only the time-out is set, in the environment, the error names the place."""
    environ = {"PAWNQUEUE_S3_BUCKET_NAME": "test-bucket", "PAWNQUEUE_POLLING_VISIBILITY_TIMEOUT": "15"}
    words = "polling.visibility_timeout_seconds (15.0, from PAWNQUEUE_POLLING_VISIBILITY_TIMEOUT)"
    assert words in complaint_of(lambda: Settings.from_env(environ=environ))
