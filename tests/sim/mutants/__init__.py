"""The engine with one rule taken out. Each must be caught by the simulation: that is what shows that it can fail.

A mutant is named after what it leaves out, and says which rule of docs/protocol.md that is. The rooms are the page's
sections; a rule that two lines of the engine keep is taken out of both.
"""

from tests.sim.mutants import (  # noqa: F401 - each enters its mutants
    claiming,
    faults,
    flow,
    janitor,
    keys,
    lanes,
    listening,
    liveness,
    packs,
    redriving,
    sessions,
    settling,
    takeover,
    times,
    writes,
)
from tests.sim.mutants.entering import MUTANTS, Mutant, mutated

__all__ = ["MUTANTS", "Mutant", "mutated"]
