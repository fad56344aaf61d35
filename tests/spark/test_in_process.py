"""A task with a Spark session of its own gets options to read its claim, without any key in them."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pawnqueue.spark.in_process import reading
from pawnqueue import ClaimBusyError, Settings, SyncPawnQueue
from tests.support.airflow import TOPIC, connected

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "a-secret-of-the-tests"


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncPawnQueue]:
    """The queue of the default connection, which has a key."""
    yield from connected(monkeypatch, aws_access_key_id="AKTEST", aws_secret_access_key=SECRET)


def test_options_for_a_block(queue: SyncPawnQueue) -> None:
    """They name the claim, and a private file with the settings, which is removed after the block."""
    [published] = queue.publish(TOPIC, [{"n": 1}])
    given = queue.claim(TOPIC, "test", claim_id="one").hand_over().to_dict()
    with reading(given) as options:
        path = Path(options["connection"])
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        settings = Settings.from_yaml(path, environ={})
        assert settings.s3.aws_secret_access_key is not None
        assert settings.s3.aws_secret_access_key.get_secret_value() == SECRET
        assert SECRET not in str(options)
        assert json.loads(options["claim"])["claim_id"] == "one"
        with pytest.raises(ClaimBusyError):
            queue.attach(given, payloads=False)  # this task works on it
    assert not path.parent.exists()
    assert queue.attach(given, payloads=False).ids == [published]
