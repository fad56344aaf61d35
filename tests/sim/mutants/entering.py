"""How a mutant is entered, and how the engine runs with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock  # patches attributes, and replaces nothing

Patches = Sequence[tuple[Any, str, Any]]


@dataclass(frozen=True)
class Mutant:
    """A rule that is left out."""

    rule: str
    patches: Callable[[], Patches]
    #: Schedules that have caught it: they are tried first.
    seeds: tuple[int, ...] = ()
    #: Where it shows: the arena's name (``tests.sim.run.ARENAS``).
    arena: str = "schedule"
    #: Where no arena judges the rule: the test that does.
    test: str = ""


MUTANTS: dict[str, Mutant] = {}


def mutant(
    rule: str, *seeds: int, arena: str = "schedule", test: str = ""
) -> Callable[[Callable[[], Patches]], Callable[[], Patches]]:
    """Enter a mutant under its function's name."""

    def enter(patches: Callable[[], Patches]) -> Callable[[], Patches]:
        name = patches.__name__
        if name in MUTANTS:
            raise ValueError(f"There is a mutant {name} already.")
        MUTANTS[name] = Mutant(rule, patches, seeds, arena, test)
        return patches

    return enter


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Run the block with a mutant of the engine."""
    patchers = [mock.patch.object(*patch) for patch in MUTANTS[name].patches()]
    for patcher in patchers:
        patcher.start()
    try:
        yield
    finally:
        for patcher in patchers:
            patcher.stop()
