"""Which claims a task knew when it began: by that a settlement tells which messages the task can have seen.

⚑ No clock is asked. A claim has a new generation each time that it is made anew, and a new round of its run each time
that the run was cleared. The generation counts from 0 again after the record of an old claim was removed; the round
does not rise where Airflow is asked to clear tasks without their run. So both are compared.

Imports nothing of the engine: the plugin does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from airflow_provider_pawnqueue.hooks.keys import CLAIMS, ROUND, claims_in


@dataclass(frozen=True, slots=True)
class Begun:
    """What a task knew when it began. False where the run had not been cleared, and no claim been made anew."""

    #: How often the run had been cleared.
    round: int = 0
    #: The generations of claims, by topic and claim id. A claim that is not in it is in generation 0.
    generations: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.round or any(self.generations.values()))

    @classmethod
    def of_claims(cls, number: int, claims: Iterable[tuple[str, str, int]]) -> Self:
        """Return what a task knows in a round, of the claims that have been made."""
        return cls(number, {(topic, claim_id): generation for topic, claim_id, generation in claims})

    @classmethod
    def read(cls, marker: object) -> Self:
        """Read what :meth:`as_marker` wrote. Without a marker: the first round, and the first generation."""
        if not isinstance(marker, Mapping):
            return cls()
        told: Any = marker.get(CLAIMS, ())
        named = [dict(zip(("topic", "claim_id", "generation"), each, strict=False)) for each in told]
        return cls.of_claims(int(marker.get(ROUND, 0)), claims_in(named))

    def as_marker(self) -> dict[str, Any]:
        """Write it for XCom: with lists, as Airflow reads some keys of dicts as its own."""
        claims = [[*claim, generation] for claim, generation in sorted(self.generations.items()) if generation]
        return {ROUND: self.round, CLAIMS: claims} if claims else {ROUND: self.round}

    def limited(self, claims: Iterable[tuple[str, str, int]]) -> Self:
        """Return it with no later generations than those of the given claims."""
        known = dict(self.generations)
        for topic, claim_id, generation in claims:
            known[topic, claim_id] = min(generation, known.get((topic, claim_id), generation))
        return replace(self, generations=known)

    def up_to(self, other: Begun) -> Self:
        """Return what both know."""
        known = {claim: min(number, other.generations.get(claim, 0)) for claim, number in self.generations.items()}
        return replace(self, round=min(self.round, other.round), generations=known)

    def knows(self, claim: tuple[str, str], generation: int, number: int) -> bool:
        """Say whether a task that began like this can have seen a claim.

        :param claim: its topic and id.
        :param generation: its generation.
        :param number: how often the run had been cleared when it was made.
        """
        return self.round >= number and self.generations.get(claim, 0) >= generation
