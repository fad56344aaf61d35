"""The simulation can fail: the engine without one of its rules breaks a promise, and is caught."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.sim.mutants import MUTANTS, mutated
from tests.sim.run import run_chunk

#: Schedules that catch a mutant are rare for some: they are tried first, and others if the engine has changed since.
MOST = 4000
AT_ONCE = 20
#: What a mutant dies of that does not fit the engine (any more): it is caught by nothing then.
MISFITS = ("TypeError", "AttributeError", "NameError", "UnboundLocalError", "KeyError", "IndexError", "ValueError")

SIMULATED = [name for name, one in MUTANTS.items() if not one.test]
TESTED = [name for name, one in MUTANTS.items() if one.test]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SIMULATED)
def test_the_mutant_is_caught(name: str) -> None:
    """A schedule is found that breaks a promise once the rule is left out."""
    with mutated(name):
        tried = 0
        for seeds in _seeds(name):  # the first that catches it is enough
            tried += len(seeds)
            sentences = [sentence for _, broken, _ in run_chunk(seeds, MUTANTS[name].arena) for sentence in broken]
            misfits = [sentence for sentence in sentences if sentence.startswith(MISFITS)]
            assert not misfits, f"the mutant {name} does not fit the engine"
            if sentences:
                return
    pytest.fail(f"{tried} schedules did not notice that this rule is left out: {MUTANTS[name].rule}")


@pytest.mark.slow
@pytest.mark.parametrize("name", TESTED)
def test_the_mutant_is_caught_by_a_test(name: str) -> None:
    """What no arena judges, its test does: it fails once the rule is left out."""
    with mutated(name):
        found = pytest.main([MUTANTS[name].test, "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist"])
    assert found is pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
def test_what_catches_mutants_is_clean_without_them() -> None:
    """It is the missing rule that is seen: on the engine as it is, these schedules keep every promise."""
    seeds: dict[str, set[int]] = defaultdict(set)
    for one in MUTANTS.values():
        seeds[one.arena].update(one.seeds)
    broken = {arena: [found for found in run_chunk(sorted(some), arena) if found[1]] for arena, some in seeds.items()}
    assert not {arena: found for arena, found in broken.items() if found}


@pytest.mark.parametrize("name", SIMULATED)
def test_the_mutants_schedules_are_known(name: str) -> None:
    """Each names schedules that catch it: nobody has to look for them in each run."""
    assert MUTANTS[name].seeds


def _seeds(name: str) -> list[tuple[int, ...]]:
    known = MUTANTS[name].seeds
    others = [tuple(range(first, first + AT_ONCE)) for first in range(0, MOST, AT_ONCE)]
    return [*((seed,) for seed in known), *others]
