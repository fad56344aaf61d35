"""What is told of errors, where Airflow masks nothing."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import mask_secret

from airflow_provider_pawnqueue.hooks.keys import LONGEST_ERROR, told

SECRET = "n0b0dy-is-to-see-this"


def test_an_error_without_its_secrets() -> None:
    """XCom and dead letters keep it, and show it to whoever may read them; also where it is cut off in a secret."""
    mask_secret(SECRET)
    assert told(ValueError(f"no answer of https://me:{SECRET}@host")) == "ValueError: no answer of https://me:***@host"
    assert SECRET[:9] not in told("x" * (LONGEST_ERROR - 10) + SECRET)


def test_a_long_error_is_cut() -> None:
    """What is longer is in the log."""
    assert told("x" * 5000) == "x" * LONGEST_ERROR
