"""A connection to a queue in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.airflow import connected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pawnqueue import SyncPawnQueue


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncPawnQueue]:
    """The queue of the default connection, as another process has it."""
    yield from connected(monkeypatch)
