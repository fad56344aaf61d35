"""Requests are tried again while the store does not answer. A refusal, or a long outage, is an error."""

from __future__ import annotations

import asyncio
import logging

import pytest

from airflow_provider_pawnqueue.hooks import retries
from pawnqueue import ClaimBusyError, StoreError


class Away:
    """A request that fails for a number of times."""

    def __init__(self, times: int, *, transient: bool = True) -> None:
        self.left = times
        self.transient = transient

    def __call__(self) -> str:
        """Fail, or return."""
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
    monkeypatch.setattr(retries, "MIN_OUTAGE_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(retries, "MAX_OUTAGE_PAUSE_SECONDS", 0.02)


def test_it_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    """Each failed try is logged."""
    with caplog.at_level(logging.WARNING):
        assert retries.retry_store(Away(3), "Claim c") == "there"
    assert [record.message.partition(":")[0] for record in caplog.records] == ["Claim c"] * 3


def test_an_event_loop_goes_on_meanwhile() -> None:
    """Other tasks of the loop run during the pauses."""

    async def both() -> tuple[str, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        found = await retries.retry_async(Away(3).awaited, retries.Outage("Claim c", 60.0))
        ticking.cancel()
        return found, ticks

    found, ticks = asyncio.run(both())
    assert found == "there"
    assert ticks > 3


def test_a_refusal_is_an_error_at_once() -> None:
    """There is no second try."""
    away = Away(3, transient=False)
    with pytest.raises(StoreError, match="away"):
        retries.retry_store(away, "Claim c")
    assert away.left == 2


def test_a_long_outage_is_an_error() -> None:
    """The store's own error is raised after the time."""
    with pytest.raises(StoreError, match="away"):
        retries.retry_store(Away(10**6), "Claim c", seconds=0.05)


def test_a_busy_claim_is_waited_for() -> None:
    """The caller hears of the first error only, and the last one is raised when the time is over."""
    now, heard = [0.0], []
    wait = retries.BusyClaim(3.0, clock=lambda: now[0], on_first=heard.append)
    busy = ClaimBusyError("busy", claim_id="c", owner="o", retry_after=60.0)
    assert [wait.pause_after(busy) for _ in range(3)] == [0.5, 1.0, 2.0]
    assert wait.pause_after(busy) == 3.0
    assert heard == [busy]
    now[0] = 3.0
    with pytest.raises(ClaimBusyError):
        wait.pause_after(busy)
    with pytest.raises(StoreError, match="away"):
        retries.BusyClaim(60.0).pause_after(StoreError("It is away."))
