"""A topic without a janitor is warned of once, and costs a look an hour."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING

import pytest

from airflow_provider_pawnqueue.triggers import janitor_watch
from airflow_provider_pawnqueue.triggers.janitor_watch import JanitorWatch
from pawnqueue import MemoryStore, PawnQueue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Later(datetime):
    """The time, some hours later."""

    hours = 0

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        """Return it."""
        return datetime.now(tz) + timedelta(hours=cls.hours)


@pytest.fixture
async def queue(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PawnQueue]:
    """A queue with a topic, and a wall clock that can be put forward."""
    monkeypatch.setattr(janitor_watch, "datetime", Later)
    monkeypatch.setattr(Later, "hours", 0)
    async with PawnQueue.open(store=MemoryStore()) as queue:
        await queue.create_topic("orders")
        yield queue


async def warnings(queue: PawnQueue, caplog: pytest.LogCaptureFixture, watch: JanitorWatch | None = None) -> int:
    """Look as if it were time to, and return how many warnings there were by then."""
    watch = watch or JanitorWatch(queue, "orders")
    watch._next = 0.0
    with caplog.at_level(logging.WARNING):
        await watch.look()
    return sum("No janitor has swept orders within the last hour" in record.message for record in caplog.records)


async def test_a_new_topic_has_an_hour(queue: PawnQueue, caplog: pytest.LogCaptureFixture) -> None:
    """It is warned of once, an hour after it was created."""
    watch = JanitorWatch(queue, "orders")
    assert await warnings(queue, caplog, watch) == 0
    Later.hours = 2
    assert await warnings(queue, caplog, watch) == 1
    assert await warnings(queue, caplog, watch) == 1


async def test_one_that_is_swept_is_well(queue: PawnQueue, caplog: pytest.LogCaptureFixture) -> None:
    """There is no warning until an hour after the last sweep."""
    await queue.sweep("orders")
    assert await warnings(queue, caplog) == 0
    Later.hours = 2
    assert await warnings(queue, caplog) == 1


async def test_what_cannot_be_asked_concerns_nobody(queue: PawnQueue, caplog: pytest.LogCaptureFixture) -> None:
    """A topic that is gone raises nothing here: its waiting tasks fail by themselves."""
    watch = JanitorWatch(queue, "gone")
    await watch.look()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_it_asks_once_an_hour(queue: PawnQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many looks in an hour send one request."""
    asked = 0
    original = PawnQueue.topic

    async def topic(self: PawnQueue, name: str) -> object:
        nonlocal asked
        asked += 1
        return await original(self, name)

    monkeypatch.setattr(PawnQueue, "topic", topic)
    watch = JanitorWatch(queue, "orders")
    for _ in range(5):
        await watch.look()
    assert asked == 1
