"""§2: three outcomes, the store's time, and what a holder trusts."""

from __future__ import annotations

from typing import Any

from pawnqueue.claims.claiming import Attempt
from pawnqueue.claims.held import HeldClaim
from pawnqueue.context import Context
from pawnqueue.domain import layout
from pawnqueue.registers.conditional_write import ConditionalWrite
from pawnqueue.stores import server_time
from pawnqueue.stores.port import Done, Unknown
from pawnqueue.stores.server_time import ServerTime
from tests.sim.mutants.entering import Patches, mutant

#: A claim's deadline is kept twice: as it was reckoned when it was asked for, and by what is known of the store's time
#: now. What is to take out a rule of the first has to take out the second as well.
AS_IT_WAS_RECKONED = (HeldClaim, "trusted_until", lambda self, **_: self._deadline)


@mutant("§2 Unknown is never read as done", 8, 17, 10)
def unknown_is_done() -> Patches:
    original = ConditionalWrite._take

    async def take(self: ConditionalWrite, step: Any) -> Any:
        outcome = await self._store.put(step.key, step.record.stamped(self._clock.nonce()).encode(), expect=step.expect)
        return (
            Done("")
            if isinstance(outcome, Unknown)
            else outcome
            if isinstance(outcome, Done)
            else await original(self, step)
        )

    return [(ConditionalWrite, "_take", take)]


@mutant(
    "§2 A holder stops the margin before its time, and a taker waits for the margin after it",
    410,
    417,
    418,
    arena="duel",
)
def no_margin() -> Patches:
    # The holder reckons with the error of its time besides: that is the same rule, kept once more.
    def trusted_until(self: ServerTime, until: float, margin: float, **_: bool) -> float:
        return until - margin - self._require_known().middle

    return [(Context, "margin", property(lambda _: 0.0)), (ServerTime, "trusted_until", trusted_until)]


@mutant("§2 The time of a claim is counted from before the request was sent", 61, 440, 529, arena="duel")
def counted_from_the_answer() -> Patches:
    original = Attempt._win

    async def win(self: Attempt, pool: Any) -> Any:
        won = await original(self, pool)
        context, order = self._context, self._request
        won.deadline = context.trusted_until(context.clock.elapsed(), min(order.ttl, order.session_ttl))
        return won

    return [(Attempt, "_win", win), AS_IT_WAS_RECKONED]


@mutant("§2 A sample ends with the answer that tells the date: its PUT may land again later", 1, 3, 7, arena="timing")
def sampled_to_the_put() -> Patches:
    async def probe(self: ServerTime) -> Any:
        while True:
            key, sent = layout.probe(self._clock.uuid()), self._clock.elapsed()
            version = await self._store.overwrite(key, server_time.unique_body(self._clock))
            answered = self._clock.elapsed()
            found = await self._store.head(key)
            self._remove(key)
            if found is not None and found.version == version:
                return server_time._sample_of(found.last_modified, sent, answered), answered - sent

    return [(ServerTime, "_probe", probe)]


@mutant("§2 Deadlines reckon with drift, and with the error of the time", 0, 3, 0, arena="timing")
def deadlines_without_drift() -> Patches:
    def trusted_until(self: ServerTime, until: float, margin: float) -> float:
        return until - margin - self._require_known().middle

    return [(ServerTime, "trusted_until", trusted_until)]


@mutant("§2 A holder of hours stops earlier by as much as its clock may have drifted", 16, 25, 34, arena="long")
def claims_without_drift() -> Patches:
    def trusted(self: Context, started: float, seconds: float) -> float:
        return started + seconds - self.margin

    return [(Context, "trusted_until", trusted), AS_IT_WAS_RECKONED]


@mutant("§2 A clock that stood still is noticed, and all deadlines are judged by that", 150, 252, arena="crowd")
def deadlines_stay_as_they_were() -> Patches:
    return [AS_IT_WAS_RECKONED]


@mutant("§2 An object that is younger than it can be tells that our clock stood still", 2, 12, 15, arena="timing")
def dates_say_nothing() -> Patches:
    return [(ServerTime, "note_date", lambda *_: None)]


@mutant("§2 A sample that is too slow to disprove a suspicion is taken alone", 222, 528, 2584, arena="timing")
def suspects_are_believed() -> Patches:
    original = ServerTime._believe

    def believe(self: ServerTime, sample: Any, _: Any) -> None:
        original(self, sample, None)
        self._suspicion = None

    return [(ServerTime, "_believe", believe)]
