"""The simulation can fail: the engine without one of its rules breaks a promise, and is caught."""

from __future__ import annotations

import pytest

from tests.sim.duel import duel
from tests.sim.mutants import MUTANTS, mutated
from tests.sim.run import run_chunk
from tests.sim.scenario import schedule

#: Schedules that catch a mutant are rare for some: they are tried first, and others if the engine has changed since.
MOST = 4000
AT_ONCE = 20


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MUTANTS)
def test_the_mutant_is_caught(name: str) -> None:
    """A schedule is found that breaks a promise once the rule is left out."""
    arena = MUTANTS[name].arena or (duel if MUTANTS[name].in_duels else schedule)
    with mutated(name):
        tried = 0
        for seeds in _seeds(name):
            tried += len(seeds)
            if any(broken for _, broken, _ in run_chunk(seeds, arena)):
                return
    pytest.fail(f"{tried} schedules did not notice that this rule is left out: {MUTANTS[name].rule}")


def _seeds(name: str) -> list[tuple[int, ...]]:
    known = MUTANTS[name].seeds
    others = [tuple(range(first, first + AT_ONCE)) for first in range(0, MOST, AT_ONCE)]
    return [known, *others] if known else others
