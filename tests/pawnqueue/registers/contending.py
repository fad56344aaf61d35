"""Contenders for one register, and whether their answers are one order of writes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pawnqueue.registers.conditional_write import ConditionalWrite
from pawnqueue.stores.port import Done, Expect
from tests.pawnqueue.registers.scripted import KEY, step
from tools.kit.stores import ALL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pawnqueue.stores.port import Outcome, Store

CONTENDERS, ROUNDS = 5, 4


@dataclass
class History:
    """The answers to the contenders of a register, round by round; in a round all of them expect one version."""

    rounds: list[tuple[str | Expect, list[Outcome]]] = field(default_factory=list)

    def violations(self, final_body: bytes) -> list[str]:
        """Say where the answers are not one order of writes: each done once, each behind the one it expected."""
        found = []
        standing: str | Expect = Expect.NOTHING
        winner = None
        for number, (expected, outcomes) in enumerate(self.rounds):
            done = [(who, outcome) for who, outcome in enumerate(outcomes) if isinstance(outcome, Done)]
            if expected != standing:
                found.append(f"round {number} expected {expected}, and the last one done was {standing}")
            if len(done) != 1:
                return [*found, f"round {number} was not won by one: {outcomes}"]
            [(winner, outcome)] = done
            standing = outcome.version
        if json.loads(final_body)["by"] != [len(self.rounds) - 1, winner]:
            found.append(f"{final_body!r} is stored, and {winner} was answered that it won")
        return found


async def contend(strategies: Sequence[ConditionalWrite], store: Store) -> History:
    """Let one contender a strategy go for the register, all at once, round after round."""
    history = History()
    expect: str | Expect = Expect.NOTHING
    for number in range(ROUNDS):
        answers = await asyncio.gather(
            *(strategy.write([step(expect, by=[number, contender])]) for contender, strategy in enumerate(strategies))
        )
        history.rounds.append((expect, [outcome for [outcome] in answers]))
        found = await store.get(KEY, ALL)
        expect = found.info.version if found else Expect.NOTHING
    return history
