"""Probe which strategy a bucket's store can carry. Done once a bucket, by what the store does and not by its name.

A conditional PUT must hold under concurrency, so after four requests in sequence come races. Answers without
information (a 503, a time-out, a lost connection) change no verdict: the request is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from pawnqueue.domain import layout
from pawnqueue.domain.object_sizes import MAX_SMALL_RECORD_BYTES
from pawnqueue.errors import CompatibilityError, StoreError
from pawnqueue.events import logger_of
from pawnqueue.registers import strategies
from pawnqueue.registers.strategy import Abilities
from pawnqueue.stores.port import Done, Expect, Expectation, Outcome, Refusal, Refused, StoredObject, Unknown
from pawnqueue.stores.server_time import unique_body

if TYPE_CHECKING:
    from pawnqueue.runtime.clock import Clock
    from pawnqueue.stores.retry import Backoff, ResilientStore

logger = logger_of("queue")

T = TypeVar("T")

MEASURED_WRITES = 8  # where a strategy's pauses have to fit how long a write takes from its look to its answer
RACES = 4  # of creates, and as many of updates; each on a key of its own, all at once
CONTENDERS = 4  # not more: some stores let each loser wait for a second
_WRONG = '"0123456789abcdef0123456789abcdef"'  # an ETag that no object of the probe has
UNANSWERED_RACES = 5  # without an answer to any loser, after which silence counts as a refusal


#: Returns what the store answered to the contenders for a key, and what each of them had written.
_Race: TypeAlias = Callable[[str], Awaitable[tuple[Sequence[Outcome], Sequence[bytes]]]]


@dataclass(frozen=True, slots=True)
class ProbeResult(Abilities):
    """What the probe found, and why."""

    strategy: str
    """The strategy that suits what was found."""
    reason: str
    """Why the probe chose it."""
    look_to_answer: float | None = None
    """How long the slowest of some writes took from its look to its answer, in seconds. None: the strategy has no
    pauses that must fit it."""


async def probe(store: ResilientStore, clock: Clock) -> ProbeResult:
    """Probe the store, and remove what was written for it, also after an error.

    :raises CompatibilityError: the store cannot carry a queue at all.
    :raises StoreError: the store kept failing, so nothing was found out.
    """
    return await _Probe(store, clock).run()


class _Probe:
    def __init__(self, store: ResilientStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._keys: list[str] = []

    async def run(self) -> ProbeResult:
        try:
            await self._read_after_write()
            found = await self._abilities()
            strategy, why = strategies.best(found)
            finding = ProbeResult(
                strategy.name,
                why or _all_held(found),
                look_to_answer=await self._measure() if strategy.advice is not None else None,
                **asdict(found),
            )
        finally:
            await self._store.delete(self._keys)
        logger.info("Probe: this bucket carries %s (%s).", finding.strategy, finding.reason)
        return finding

    async def _measure(self) -> float:
        """Return how long a look and the write that rests on it take, in seconds: the slowest of some."""
        key, slowest = self._new_key(), 0.0
        for _ in range(MEASURED_WRITES):
            began = self._clock.elapsed()
            await self._store.head(key)
            await self._store.overwrite(key, unique_body(self._clock))
            slowest = max(slowest, self._clock.elapsed() - began)
        return slowest

    async def _abilities(self) -> Abilities:
        """Probe in sequence, then by races what held in sequence. Without creates, nothing else is probed."""
        key = self._new_key()
        created = await self._known(key, Expect.NOTHING)
        if not isinstance(created, Done):
            return _without_creates(f"a PUT with If-None-Match: * of a new object {_treated(created)}")
        again = await self._known(key, Expect.NOTHING)
        if again != Refused(Refusal.CONDITION):
            return _without_creates(f"a PUT with If-None-Match: * {_treated(again)}")
        updates, unquoted = await self._updates_in_sequence(key, created.version)
        create: _Race = partial(self._contend, expect=Expect.NOTHING)
        update: _Race = partial(self._race_to_update, unquoted=unquoted)
        races = [create] * RACES + ([] if updates else [update] * RACES)
        judged = await _all(self._until_judged(race) for race in races)
        creates = next(filter(None, judged[:RACES]), "")
        updates = updates or next(filter(None, judged[RACES:]), "")
        return Abilities(
            creates=creates,
            updates=updates,
            unquoted_if_match=unquoted and not (creates or updates),
            conditional_deletes=not (creates or updates) and await self._deletes_versions(),
        )

    async def _deletes_versions(self) -> bool:
        """Say whether a bulk DELETE was seen to honour the ETag of each key.

        Nothing relies on it, so a store that refuses the request, or does not answer it, counts as one that cannot.
        """
        changed, stays = self._new_key(), self._new_key()
        try:
            first, other = await self._known(changed, Expect.NOTHING), await self._known(stays, Expect.NOTHING)
            if not isinstance(first, Done) or not isinstance(other, Done):
                return False
            refused = {changed: Refused(Refusal.CONDITION)}
            if await self._store.delete_versions({changed: other.version, stays: other.version}) != refused:
                return False
            if await self._store.head(changed) is None or await self._store.head(stays) is not None:
                return False
            right = await self._store.delete_versions({changed: first.version, stays: other.version})
            return not right and await self._store.head(changed) is None
        except StoreError:
            return False

    async def _updates_in_sequence(self, key: str, version: str) -> tuple[str, bool]:
        """Return how the store breaks ``If-Match``, or "", and whether it wants the ETag without its quotes."""
        wrong = await self._known(key, _WRONG)
        if wrong != Refused(Refusal.CONDITION):
            return f"a PUT with a wrong If-Match {_treated(wrong)}", False
        for expected in (version, version.strip('"')):
            if isinstance(await self._known(key, expected), Done):
                return "", expected != version
        return "a PUT with the right If-Match was refused", False

    async def _read_after_write(self) -> None:
        backoff = self._store.backoff()
        key, version, written = self._new_key(), "", 0
        while written < 2:  # noqa: PLR2004 - a new object, then one that is overwritten
            body = unique_body(self._clock)
            outcome = await self._store.put(key, body)
            if not isinstance(outcome, Done):
                # This write may still land, at any time, over a later one: go on with another key.
                await self._again(backoff, outcome)
                key, written = self._new_key(), 0
                continue
            version, written = outcome.version, written + 1
            found = await self._store.get(key, MAX_SMALL_RECORD_BYTES)
            if found is None or found.body != body:
                raise self._inconsistent_error("a GET right after a PUT does not show what was written")
            if found.info.version != version:
                raise self._inconsistent_error("GET and PUT report different ETags for one object")
        listed = {info.key: info.version async for page in self._store.pages(layout.PROBES) for info in page}
        if listed.get(key) != version:
            raise self._inconsistent_error("a LIST right after a PUT does not show the object, or shows another ETag")

    def _inconsistent_error(self, what: str) -> CompatibilityError:
        return CompatibilityError(
            f"This store cannot carry a queue: {what}. Use a store with read-after-write consistency, and no cache in "
            "front of it.",
            operation="probe",
        )

    async def _known(self, key: str, expect: Expectation) -> Done | Refused:
        """Write until the outcome is known. An attempt whose answer was lost is recognised by its body."""
        body = unique_body(self._clock)
        backoff = self._store.backoff()
        while True:
            outcome = await self._put(key, body, expect)
            if isinstance(outcome, Refused) and outcome.why is Refusal.CONDITION:
                found = await self._store.get(key, MAX_SMALL_RECORD_BYTES)
                return Done(found.info.version) if found and found.body == body else outcome
            if isinstance(outcome, Done) or (isinstance(outcome, Refused) and outcome.why is Refusal.UNSUPPORTED):
                return outcome
            await self._again(backoff, outcome)

    async def _until_judged(self, race: _Race) -> str:
        backoff = self._store.backoff()
        while True:
            key = self._new_key()
            outcomes, bodies = await race(key)
            final = await self._store.get(key, MAX_SMALL_RECORD_BYTES)
            verdict = judge(outcomes, bodies, final, silence_is_refusal=backoff.attempts >= UNANSWERED_RACES)
            if verdict is not None:
                return verdict
            await self._again(backoff, next((o for o in outcomes if isinstance(o, Unknown)), outcomes[0]))

    async def _race_to_update(self, key: str, *, unquoted: bool) -> tuple[Sequence[Outcome], Sequence[bytes]]:
        # Not a plain PUT: an attempt of it that lands late would put the first version back, for a second winner.
        created = await self._known(key, Expect.NOTHING)
        if not isinstance(created, Done):
            return [created], [b""]
        return await self._contend(key, created.version.strip('"') if unquoted else created.version)

    async def _contend(self, key: str, expect: Expectation) -> tuple[Sequence[Outcome], Sequence[bytes]]:
        bodies = [unique_body(self._clock) for _ in range(CONTENDERS)]
        return await _all(self._put(key, body, expect) for body in bodies), bodies

    async def _put(self, key: str, body: bytes, expect: Expectation) -> Outcome:
        try:
            return await self._store.put(key, body, expect=expect)
        except StoreError as error:
            if error.transient:
                raise
            # A plain PUT was accepted a moment ago: what the store rejects here is the condition.
            return Refused(Refusal.UNSUPPORTED)

    def _new_key(self) -> str:
        self._keys.append(layout.probe(self._clock.uuid()))
        return self._keys[-1]

    async def _again(self, backoff: Backoff, outcome: Outcome) -> None:
        if await backoff.pause():
            return
        fault = (
            outcome.fault
            if isinstance(outcome, Unknown)
            else StoreError("Conditional writes kept conflicting.", transient=True)
        )
        raise StoreError(
            f"The probe of the bucket could not be finished and nothing was decided, so open the queue again: {fault}",
            transient=True,
            operation="probe",
            cause=fault,
        )


def _all_held(found: Abilities) -> str:
    how = "If-None-Match and If-Match held in sequence and in a race"
    return f"{how}; ETags unquoted" if found.unquoted_if_match else how


def _without_creates(how: str) -> Abilities:
    return Abilities(creates=how, updates=how)


def _treated(outcome: Done | Refused) -> str:
    match outcome:
        case Done():
            return "overwrote an object"
        case Refused(Refusal.UNSUPPORTED):
            return "is not implemented"
        case Refused():
            return "was refused"


async def _all(work: Iterable[Awaitable[T]]) -> list[T]:
    """Wait for all of it, also where a part fails: a part that went on would leave objects behind."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def judge(
    outcomes: Sequence[Outcome], bodies: Sequence[bytes], final: StoredObject | None, *, silence_is_refusal: bool
) -> str | None:
    """Judge one race by its answers and by what is stored afterwards.

    Returns the violation, ``""`` where exactly one won, and None for a race without a result. A race has a result if
    one contender won and another was refused; a contender without an answer is not judged.

    Ceph answers nearly all losers of an update with a 500. So after some races ``silence_is_refusal`` lets such answers
    count as refusals. A request without any answer never counts. This is safe because the order is random: a write that
    should have been refused, and was carried out and answered with an error, comes last as often as first. Then it is
    stored in the winner's place.
    """
    winners = [body for outcome, body in zip(outcomes, bodies, strict=True) if isinstance(outcome, Done)]
    if any(isinstance(outcome, Refused) and outcome.why is Refusal.UNSUPPORTED for outcome in outcomes):
        return "the store does not implement conditional writes"
    if len(winners) > 1:
        return f"{len(winners)} of {len(outcomes)} concurrent conditional writes of one key won"
    if not winners:
        return None
    if final is None or final.body != winners[0]:
        return "a conditional write that had won was overwritten by one that should have been refused"
    refused = any(isinstance(outcome, Refused) for outcome in outcomes)
    failed = any(isinstance(outcome, Unknown) and outcome.answered for outcome in outcomes)
    return "" if refused or (silence_is_refusal and failed) else None
