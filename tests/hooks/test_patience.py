"""A store that is away for a while is asked again; one that refuses, and one that stays away, is an error."""

from __future__ import annotations

import asyncio
import logging

import pytest

from airflow_provider_pawnqueue.hooks import patience
from pawnqueue import StoreError


class Away:
    """Something that fails so many times."""

    def __init__(self, times: int, *, transient: bool = True) -> None:
        self.left = times
        self.transient = transient

    def __call__(self) -> str:
        """Fail, or be there."""
        self.left -= 1
        if self.left >= 0:
            raise StoreError("It is away.", transient=self.transient)
        return "there"

    async def awaited(self) -> str:
        """Do the same, awaited."""
        return self()


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses are short."""
    monkeypatch.setattr(patience, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(patience, "_LONGEST_PAUSE", 0.02)


def test_it_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    """Until it answers; the log says so each time."""
    with caplog.at_level(logging.WARNING):
        assert patience.patiently(Away(3), "Claim c") == "there"
    assert [record.message.partition(":")[0] for record in caplog.records] == ["Claim c"] * 3


def test_an_event_loop_goes_on_meanwhile() -> None:
    """Who awaits blocks nobody."""

    async def both() -> tuple[str, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        found = await patience.awaited_patiently(Away(3).awaited, "Claim c")
        ticking.cancel()
        return found, ticks

    found, ticks = asyncio.run(both())
    assert found == "there"
    assert ticks > 3


def test_what_only_a_person_can_mend_is_an_error_at_once() -> None:
    """It is asked once."""
    away = Away(3, transient=False)
    with pytest.raises(StoreError, match="away"):
        patience.patiently(away, "Claim c")
    assert away.left == 2


def test_patience_has_an_end() -> None:
    """Then its own error is raised."""
    with pytest.raises(StoreError, match="away"):
        patience.patiently(Away(10**6), "Claim c", seconds=0.05)
