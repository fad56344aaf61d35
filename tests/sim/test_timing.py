"""The store's time, attacked by new schedules of its own."""

from __future__ import annotations

import os

from tests.sim.run import run_chunk

NEW = 300


def test_every_time_that_is_told_is_as_right_as_it_says() -> None:
    """⚑ In any weather, with wrong and stopped clocks, no time is more wrong than its error, no deadline late."""
    first = int.from_bytes(os.urandom(6))
    broken = {seed: wrong for seed, wrong, _ in run_chunk(range(first, first + NEW), "timing") if wrong}
    assert not broken, f"replay with: python -m tests.sim.run --arena timing --seed {next(iter(broken))}"
