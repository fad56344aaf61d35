"""Settings from environment variables."""

import logging

import pytest

from pawnqueue.settings import Settings, environment_variables
from tests.pawnqueue.settings.given import BUCKET, COMPANIONS, OTHER, SECRET, at, complaint_of, plain, s3_of

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
    assert at(Settings.from_env(environ={variable: text}, s3=explicit | given), path) == OTHER[path]


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
