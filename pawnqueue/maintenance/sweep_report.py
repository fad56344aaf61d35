"""The report of a sweep, and the question about the owners of open claims."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Literal, Self, TypeAlias, TypeVar

from pawnqueue.domain.claim_record import ClaimRecord
from pawnqueue.runtime.clock import Clock
from pawnqueue.runtime.concurrency import wait_at_most

T = TypeVar("T")

Verdict: TypeAlias = Literal["going", "ended"]

#: Says of an open claim, by its record, whether the run that it was claimed for still goes on; None: unknown.
AskByRecord: TypeAlias = Callable[[ClaimRecord, Clock, float], Awaitable[Verdict | None]]


@dataclass(frozen=True, slots=True)
class OpenClaim:
    """An open claim, as the function that is asked about its owner gets it."""

    topic: str
    """The topic of its messages."""
    claim_id: str
    """Its id."""
    generation: int
    """The generation of that id."""
    owner: str
    """The owner that it is held for."""
    consumer: str
    """The name of the consumer."""
    created_at: datetime
    """When it was claimed."""
    until: datetime
    """When its time is over, unless it is renewed."""
    messages: int
    """How many of its messages are not settled."""

    @classmethod
    def of(cls, topic: str, record: ClaimRecord) -> Self:
        """Return a stored record as users see it."""
        return cls(
            topic,
            record.claim_id,
            record.generation,
            record.owner,
            record.consumer,
            datetime.fromtimestamp(record.created_at, UTC),
            datetime.fromtimestamp(record.until, UTC),
            sum(record.messages_left.values()),
        )


#: Says of an open claim whether the run that it was claimed for still goes on; None: unknown. A plain function is
#: called in a thread of its own, as it may block.
AskOwner: TypeAlias = Callable[[OpenClaim], Awaitable[Verdict | None] | Verdict | None]


def ask_by_record(topic: str, ask: AskOwner | None) -> AskByRecord | None:
    """Return the user's ``ask`` as a function of a claim record. A plain one runs in a thread, one call at a time."""
    if ask is None:
        return None
    if not inspect.iscoroutinefunction(ask):
        return _OneAtATime(topic, ask)

    async def by_record(record: ClaimRecord, clock: Clock, at_most: float) -> Verdict | None:
        return await _answer(ask(OpenClaim.of(topic, record)), clock, at_most)

    return by_record


class NoAnswerError(Exception):
    """It is not known whether the owner of a claim goes on."""


class _OneAtATime:
    """Asks a function that blocks: in a thread, and about one claim at a time.

    ⚑ §5.7: waiting for earlier questions does not count as time of an answer, so slow answers about other claims leave
    each one its full time. While one answer is overdue, no other claim of the sweep is asked about.
    """

    def __init__(self, topic: str, ask: AskOwner) -> None:
        self._topic = topic
        self._ask = ask
        self._lock = asyncio.Lock()
        self._overdue = False

    async def __call__(self, record: ClaimRecord, clock: Clock, at_most: float) -> Verdict | None:
        async with self._lock:
            if self._overdue:
                raise NoAnswerError("its owner was not asked about, as an earlier question has no answer yet")
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
    raise NoAnswerError(f"the question about its owner was not answered within {at_most:g} seconds")


@dataclass(slots=True)
class SweepReport:
    """What a sweep found and did, or would do after a dry run."""

    topic: str
    """The topic that was swept."""
    dry_run: bool = False
    """Whether nothing was changed."""
    paused: bool = False
    """Whether the topic is paused: nobody is given its messages until somebody resumes it."""
    finished_effects: int = 0
    """Messages of claims whose decisions were carried out."""

    finished_moves: int = 0
    """Redrives that another process had begun."""
    renewed_claims: int = 0
    """Open claims that were renewed, as their owners go on."""

    fenced_claims: int = 0
    """Claims that were fenced, as their owners had ended or their time was over."""
    closed_claims: int = 0
    """Claim records that were closed, as nothing is left to do."""
    given_back: int = 0
    """Unsettled messages of ended claims: they can be claimed now."""

    expired: int = 0
    """Messages that were buried, as they were older than ``max_age_seconds`` and nobody had ever claimed them."""

    finished_writes: int = 0
    """Staged writes that were decided and not fully published."""

    dropped_writes: int = 0
    """Writes of which nothing is visible: they were never decided, or their staged rows were gone."""

    removed_leases: int = 0
    """Leases without a message."""
    removed_records: int = 0
    """Records of claims and writes that were older than the retention."""
    removed_leftovers: int = 0
    """Unneeded objects: of interrupted probes, of writes, and reasons of dead letters that are gone."""
    removed_letters: int = 0
    """Dead letters that were past a limit of their topic, and had been warned of."""
    removed_completed: int = 0
    """Messages that were removed from the completed log, past its limits."""
    expiring_letters: int = 0
    """Dead letters that are past a limit of their topic, or will be soon: they go when their warning is old enough."""
    stuck: dict[str, str] = field(default_factory=dict)
    """The keys of messages with a decision that could not be carried out, and why."""

    strangers: list[str] = field(default_factory=list)
    """Keys that are not the queue's. They are left alone."""

    failures: list[str] = field(default_factory=list)
    """What could not be done now, including stuck messages; the next sweep retries it."""

    defects: list[str] = field(default_factory=list)
    """Keys where the sweep met a defect of this version. They are among the failures; the log has tracebacks."""

    def counts(self) -> tuple[tuple[str, int], ...]:
        """Return the counters, by their names."""
        return tuple((counter.name, getattr(self, counter.name)) for counter in fields(self) if counter.type == "int")
