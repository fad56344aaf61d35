"""The promises of docs/protocol.md, section 5, attacked by new schedules, and by those that once failed."""

from __future__ import annotations

import os

import pytest

from tests.sim.run import ARENAS, name_of, run_chunk, run_many

#: How many new schedules a test run tries; ``make sim`` tries 100,000.
NEW = 1000
#: Schedules that once broke a promise, or died of something, by their arenas. The engine has changed since, so they may
#: differ now.
ONCE_FAILED = {
    "flow": (260, 1795183253005431),
    "flow-csprng": (1795183253008277,),
    "schedule": (
        3813, 77624, 104032, 106366, 1795012388007966, 1795012388024181,
        1795024132000268, 1795024132038438, 1795024132050036,
        1795025881025590,
    ),
    "crowd": (2337, 77002646, 1795034389069156),
    "stuck": (658, 1795034389085224),
    "stuck-csprng": (40379,),
    "duel": (104185, 112860, 1795012285003810),
    "letters": (1795183253009313,),
    "packs": (21, 72, 785, 2376, 400098),
    "writing": (1795171094068999,),
    "patience-csprng": (1795171094098202,),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_new_schedules_keep_every_promise() -> None:
    """In schedules never run before, nothing is lost, held or settled twice, delivered after its ack, or left over.

    And nothing waits too long, and nothing is buried that nobody was given.
    """
    first = int.from_bytes(os.urandom(6))
    results = list(run_many(first, NEW, workers=os.cpu_count() or 1))
    assert len(results) == NEW
    broken = {seed: promises for seed, promises, _ in results if promises}
    assert not broken, f"replay with: python -m tests.sim.run --seed {next(iter(broken))}"


@pytest.mark.parametrize("arena", ONCE_FAILED)
def test_schedules_that_once_failed_keep_every_promise(arena: str) -> None:
    """What the simulation has found stays mended."""
    assert [one for one in run_chunk(ONCE_FAILED[arena], arena) if one[1]] == []


def test_every_arena_has_its_share() -> None:
    """In any hundred schedules each arena is played as often as is stated."""
    names = [name_of(seed) for seed in range(12_345, 12_445)]
    assert {name: names.count(name) for name in ARENAS} == {name: arena.share for name, arena in ARENAS.items()}
