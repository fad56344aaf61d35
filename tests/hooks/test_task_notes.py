"""An error becomes a reason without its secrets, as Airflow masks neither XCom nor the bucket."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import mask_secret

from airflow_provider_pawnqueue.hooks.task_notes import MAX_ERROR_CHARACTERS, error_text

SECRET = "n0b0dy-is-to-see-this"


def test_an_error_without_its_secrets() -> None:
    """No part of a secret stays in the text, also where the text is cut within the secret."""
    mask_secret(SECRET)
    assert (
        error_text(ValueError(f"no answer of https://me:{SECRET}@host"))
        == "ValueError: no answer of https://me:***@host"
    )
    assert SECRET[:9] not in error_text("x" * (MAX_ERROR_CHARACTERS - 10) + SECRET)


def test_a_long_error_is_cut() -> None:
    """It keeps its first ``MAX_ERROR_CHARACTERS``; the log has the rest."""
    assert error_text("x" * 5000) == "x" * MAX_ERROR_CHARACTERS
