"""How well a store answers is measured, and nothing is changed by it."""

from __future__ import annotations

import pytest

from tests.pawnqueue.virtual import Process, World


async def test_the_clocks_are_compared(world: World, ann: Process) -> None:
    """The offset is that of this machine's clock, as far as the store's time is known."""
    found = await ann.queue.health()
    assert found.clock_offset_seconds == pytest.approx(world.clock.wall() - world.clock.server(), abs=2)
    assert found.clock_error_seconds < 2
    assert found.round_trip_seconds >= 0


async def test_nothing_is_written(world: World, ann: Process) -> None:
    """It is a look."""
    await ann.queue.health()
    with ann.client.counting() as requests:
        await ann.queue.health()
    assert requests["PUT"] == requests["DELETE"] == 0
    assert requests["HEAD"] == 5
