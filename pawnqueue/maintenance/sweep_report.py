"""What a sweep tells, and whom it asks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Literal, Self, TypeAlias, TypeVar

from pawnqueue.domain.records import ClaimRecord
from pawnqueue.runtime.clock import Clock
from pawnqueue.runtime.concurrency import wait_at_most

T = TypeVar("T")

Verdict: TypeAlias = Literal["going", "ended"]

#: Asked about an open claim, by its record: does the run on whose behalf it was claimed still go on? None: not known.
AskByRecord: TypeAlias = Callable[[ClaimRecord, Clock, float], Awaitable[Verdict | None]]


@dataclass(frozen=True, slots=True)
class OpenClaim:
    """A claim that nobody has ended, as whoever is asked about it is shown it."""

    topic: str
    """The topic whose messages it has."""
    claim_id: str
    """Its id."""
    generation: int
    """Which one under that id."""
    owner: str
    """On whose behalf it is held."""
    consumer: str
    """Who claimed, by name."""
    created_at: datetime
    """When it was claimed."""
    until: datetime
    """When its time is over, unless it is renewed."""
    messages: int
    """How many of its messages are not settled."""

    @classmethod
    def of(cls, topic: str, record: ClaimRecord) -> Self:
        """Show a stored record."""
        return cls(
            topic,
            record.claim_id,
            record.generation,
            record.owner,
            record.consumer,
            datetime.fromtimestamp(record.created_at, UTC),
            datetime.fromtimestamp(record.until, UTC),
            len(record.unsettled),
        )


#: Asked about an open claim: does the run on whose behalf it was claimed still go on? None: not known. A plain function
#: is called in a thread of its own, as it may block.
AskOwner: TypeAlias = Callable[[OpenClaim], Awaitable[Verdict | None] | Verdict | None]


def ask_by_record(topic: str, ask: AskOwner | None) -> AskByRecord | None:
    """Ask by what is shown of a record, whether the answer is awaited or not; or ask nobody."""
    if ask is None:
        return None
    if not inspect.iscoroutinefunction(ask):
        return _OneAtATime(topic, ask)

    async def by_record(record: ClaimRecord, clock: Clock, at_most: float) -> Verdict | None:
        return await _answer(ask(OpenClaim.of(topic, record)), clock, at_most)

    return by_record


class NoAnswerError(Exception):
    """Nobody knows whether the owner of a claim goes on."""


class _OneAtATime:
    """Asks a function that blocks: in a thread, and about one claim at a time.

    ⚑ §5.7: the wait for a turn is not part of the time that an answer may take, so slow answers about other claims
    leave an honest one its full time. While one is overdue, the rest of the sweep is not asked about.
    """

    def __init__(self, topic: str, ask: AskOwner) -> None:
        self._topic = topic
        self._ask = ask
        self._turn = asyncio.Lock()
        self._overdue = False

    async def __call__(self, record: ClaimRecord, clock: Clock, at_most: float) -> Verdict | None:
        async with self._turn:
            if self._overdue:
                raise NoAnswerError("it was not asked about, as an earlier question has no answer yet")
            self._overdue = True
            answer = await _answer(asyncio.to_thread(self._call, OpenClaim.of(self._topic, record)), clock, at_most)
            return await _answer(answer, clock, at_most) if isinstance(answer, Awaitable) else answer

    def _call(self, claim: OpenClaim) -> Awaitable[Verdict | None] | Verdict | None:
        try:
            return self._ask(claim)
        finally:
            self._overdue = False


async def _answer(answer: Awaitable[T], clock: Clock, at_most: float) -> T:
    task = asyncio.ensure_future(answer)
    if await wait_at_most(task, clock, at_most):
        return task.result()
    raise NoAnswerError(f"it was asked about, and there was no answer within {at_most:g} seconds")


@dataclass(slots=True)
class SweepReport:
    """What a sweep found and did; after a dry run, what it would do."""

    topic: str
    """The topic that was swept."""
    dry_run: bool = False
    """Whether nothing was changed, and the numbers are what would be done."""
    finished_effects: int = 0
    """Members of claims whose decisions were carried out here."""

    finished_moves: int = 0
    """Dead letters whose way back somebody had begun."""
    renewed_claims: int = 0
    """Open claims whose owners go on."""

    fenced_claims: int = 0
    """Claims that were ended, as their owners had ended or their time was over."""
    closed_claims: int = 0
    """Records of claims of which nothing is left to do."""
    given_back: int = 0
    """Messages of claims that have ended, of which nothing was decided: anyone may have them now."""

    finished_writes: int = 0
    """Staged writes that were decided and not published to the end."""

    dropped_writes: int = 0
    """Writes of which nothing is visible: they were never decided, or staged rows of them were gone after that."""

    removed_leases: int = 0
    """Leases without a message."""
    removed_records: int = 0
    """Records of claims and of writes that were kept for long enough."""
    removed_leftovers: int = 0
    """Objects that nobody needs: of probes that were cut off, of writes, and reasons of dead letters that are gone."""
    stuck: dict[str, str] = field(default_factory=dict)
    """Messages, by key, of which something was decided that could not be carried out, and why."""

    strangers: list[str] = field(default_factory=list)
    """Keys that nobody of ours has made. They are left alone."""

    failures: list[str] = field(default_factory=list)
    """What could not be done now, stuck messages included; the next sweep tries it again."""

    defects: list[str] = field(default_factory=list)
    """Keys at which the sweep met a defect of this version. They are among the failures, and the log has tracebacks."""

    def counts(self) -> tuple[tuple[str, int], ...]:
        """Return its numbers, by their names."""
        return tuple((counter.name, getattr(self, counter.name)) for counter in fields(self) if counter.type == "int")
