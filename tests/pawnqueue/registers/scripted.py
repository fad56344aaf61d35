"""A bucket whose writes meet the fates that they are given, and the strategy on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pawnqueue.domain.record import Record
from pawnqueue.errors import StoreError
from pawnqueue.registers.conditional_write import ConditionalWrite
from pawnqueue.registers.strategy import Step
from pawnqueue.runtime.clock import SystemClock
from pawnqueue.settings import RetrySettings
from pawnqueue.stores.port import Done, Expect, Refusal, Refused, Unknown
from pawnqueue.stores.retry import ResilientStore
from tools.kit.stores import Answer, CarryOut, HookedStore, Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from pawnqueue.runtime.clock import Clock
    from pawnqueue.stores.port import Expectation, Outcome, Store

KEY = "register"
LOST = StoreError("The connection was lost.", transient=True)
DENIED = StoreError("The store denied it.")

#: What befalls a PUT: done and answered; lost before or after it was done; done only when somebody else has asked for
#: something; met by another write; a store without conditions; a permanent error.
Fate: TypeAlias = str
FINE, DROPPED, ANSWER_LOST, LATE, CONFLICT, UNSUPPORTED, FORBIDDEN = (
    "fine",
    "dropped",
    "answer lost",
    "late",
    "conflict",
    "unsupported",
    "forbidden",
)


@dataclass(frozen=True)
class Landed:
    """A write that the store carried out."""

    body: bytes
    expect: Expectation
    version: str


class Scripted(HookedStore):
    """A bucket whose PUTs meet the fates they are given, and that remembers what it carried out."""

    def __init__(self, fate: Callable[[], Fate] = lambda: FINE) -> None:
        super().__init__()
        self.fate = fate
        self.sent: list[Expectation] = []
        self.landed: list[Landed] = []
        self.reads = 0
        #: What somebody else does just before the next read; what happens instead of it.
        self.before_read: list[Callable[[], object]] = []
        self.failing_reads: list[StoreError] = []
        self._late: list[tuple[str, bytes, Expectation]] = []

    async def answer(self, request: Request, carry_out: CarryOut) -> Answer:
        """Let PUTs meet their fates, and GETs what happens before them."""
        if request.call == "put":
            return await self._meet_fate(request.key, request.body, request.expect)
        if request.call == "get":
            self.reads += 1
            if self.failing_reads:
                raise self.failing_reads.pop(0)
            if self.before_read:
                self.before_read.pop(0)()
        return await carry_out()

    async def _meet_fate(self, key: str, body: bytes, expect: Expectation) -> Outcome:
        self.sent.append(expect)
        await self._land_what_is_late()
        match self.fate():
            case "dropped":
                return Unknown(LOST)
            case "late":
                self._late.append((key, body, expect))
                return Unknown(LOST)
            case "conflict":
                return Refused(Refusal.CONFLICT)
            case "unsupported":
                return Refused(Refusal.UNSUPPORTED)
            case "forbidden":
                raise DENIED
            case "answer lost":
                await self.carry_out(key, body, expect)
                return Unknown(LOST)
        return await self.carry_out(key, body, expect)

    async def carry_out(self, key: str, body: bytes, expect: Expectation) -> Outcome:
        """Do it, and remember that it was done."""
        outcome = await self.below.put(key, body, expect=expect)
        if isinstance(outcome, Done):
            self.landed.append(Landed(body, expect, outcome.version))
        return outcome

    async def _land_what_is_late(self) -> None:
        late, self._late = self._late, []
        for key, body, expect in late:
            await self.carry_out(key, body, expect)


def scripted(*fates: Fate) -> Scripted:
    """Return a bucket that deals out the fates in order, and is fine after them."""
    left = list(fates)
    return Scripted(lambda: left.pop(0) if left else FINE)


def registers(
    store: Store,
    kind: type[ConditionalWrite] = ConditionalWrite,
    *,
    budget: float = 20.0,
    unquoted: bool = False,
    clock: Clock | None = None,
) -> ConditionalWrite:
    """Return the strategy on the store, trying again at once."""
    clock = clock or SystemClock()
    retry = RetrySettings(budget_seconds=budget, initial_delay_seconds=0, max_delay_seconds=0)
    return kind(ResilientStore(store, retry, clock), clock, unquoted=unquoted, at_once=16)


def step(expect: str | Expect = Expect.NOTHING, **content: object) -> Step:
    """Return a compare-and-set of the register."""
    assert expect is not Expect.ANYTHING
    return Step(KEY, Record.model_validate(content), expect)  # type: ignore[arg-type]


async def take(store: Store, expect: str | Expect = Expect.NOTHING, *, budget: float = 20.0) -> Outcome:
    """Make one compare-and-set."""
    [outcome] = await registers(store, budget=budget).write([step(expect)])
    return outcome
