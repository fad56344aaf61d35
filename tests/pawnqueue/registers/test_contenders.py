"""Many contenders for one register: a linearizability check, which sees a strategy without one of its rules."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from pawnqueue.registers.conditional_write import ConditionalWrite
from pawnqueue.registers.strategy import Step
from pawnqueue.runtime.concurrency import for_each
from pawnqueue.stores.port import Done, Expect, Refusal, Refused, Unknown
from tests.pawnqueue.registers.contending import CONTENDERS, contend
from tests.pawnqueue.registers.scripted import (
    ANSWER_LOST,
    CONFLICT,
    DROPPED,
    FINE,
    KEY,
    LATE,
    Scripted,
    registers,
    take,
)
from tools.kit.stores import ALL

if TYPE_CHECKING:
    from pawnqueue.stores.port import Outcome


class TrustsRefusals(ConditionalWrite):
    """Broken on purpose: takes a 412 after an unknown attempt for somebody else's doing."""

    async def _look(self, step: Step, nonce: str) -> Outcome | None:
        seen = await super()._look(step, nonce)
        return Refused(Refusal.CONDITION) if isinstance(seen, Done) else seen


class TrustsItself(ConditionalWrite):
    """Broken on purpose: takes an unknown write for done."""

    async def _look(self, step: Step, nonce: str) -> Outcome | None:
        return Done('"0"')


class SendsAgain(ConditionalWrite):
    """Broken on purpose: sends an unknown write again without a look, until it is refused."""

    async def _look(self, step: Step, nonce: str) -> Outcome | None:
        return None


class LooksAfterUnknownOnly(ConditionalWrite):
    """Broken on purpose: looks when an answer was lost, and believes the 412 that comes after that."""

    async def _take(self, step: Step) -> Outcome:
        nonce = self._clock.nonce()
        body = step.record.stamped(nonce).encode()
        while True:
            outcome = await self._store.put(step.key, body, expect=self._sent(step.expect))
            if isinstance(outcome, Done) or outcome == Refused(Refusal.CONDITION):
                return outcome
            seen = await self._look(step, nonce) if isinstance(outcome, Unknown) else None
            if seen is not None:
                return seen


async def scripted_history(kind: type[ConditionalWrite], seed: int) -> list[str]:
    """Return the violations of a run on the scripted store."""
    chance = random.Random(seed)  # noqa: S311
    fates = [FINE, DROPPED, ANSWER_LOST, LATE, CONFLICT]
    store = Scripted(lambda: chance.choices(fates, weights=[3, 2, 3, 2, 2])[0])
    # A write id that was never found makes a broken one go on for its budget.
    strategies = [registers(store, kind, budget=0.05 if kind is SendsAgain else 20.0) for _ in range(CONTENDERS)]
    history = await contend(strategies, store)
    standing = await store.get(KEY, ALL)
    violations = history.violations(standing.body if standing else b"")
    # What landed is a chain by itself, or the store would not be atomic; the winners' versions are its links.
    told = [outcome.version for _, outcomes in history.rounds for outcome in outcomes if isinstance(outcome, Done)]
    landed = Counter(landed.version for landed in store.landed)
    violations += [
        f"{version} was reported, and landed {landed[version]} times" for version in told if landed[version] != 1
    ]
    return violations


async def test_contenders_win_in_one_order() -> None:
    """In 150 runs through lost, late and conflicting writes, each round has one winner, which built on the last."""
    for seed in range(150):
        assert await scripted_history(ConditionalWrite, seed) == [], f"seed {seed}"


@pytest.mark.parametrize("broken", [TrustsRefusals, TrustsItself, SendsAgain, LooksAfterUnknownOnly])
async def test_the_check_sees_what_is_broken(broken: type[ConditionalWrite]) -> None:
    """Without one of its rules the strategy does not pass the check above."""
    for seed in range(20):
        if await scripted_history(broken, seed):
            return
    pytest.fail(f"{broken.__name__} was not noticed in 20 runs")


async def test_free_running_contenders_never_both_win() -> None:
    """Processes read and write at will: no version was replaced by two, and nobody won by a write that never landed."""
    for seed in range(40):
        chance = random.Random(seed)  # noqa: S311
        store = Scripted(lambda chance=chance: chance.choice([FINE, DROPPED, ANSWER_LOST, LATE, CONFLICT]))  # type: ignore[misc]
        wins: list[tuple[str | Expect, str]] = []

        async def run(_: int, store: Scripted = store, wins: list[tuple[str | Expect, str]] = wins) -> None:
            for _ in range(4):
                found = await store.below.get(KEY)
                expect = found.info.version if found else Expect.NOTHING
                outcome = await take(store, expect)
                if isinstance(outcome, Done):
                    wins.append((expect, outcome.version))

        await for_each(run, range(CONTENDERS), at_once=CONTENDERS)
        landed = {(landed.expect, landed.version) for landed in store.landed}
        assert set(wins) <= landed, f"seed {seed}"
        assert len({expect for expect, _ in wins}) == len({version for _, version in wins}) == len(wins)
        # Nobody has overwritten the last one, so whoever wrote it knows that it was theirs.
        assert (store.landed[-1].expect, store.landed[-1].version) in wins
