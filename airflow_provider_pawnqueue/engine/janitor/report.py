"""What a sweep tells, and whom it asks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Literal, Self, TypeAlias

from airflow_provider_pawnqueue.engine.records import ClaimRecord

Verdict: TypeAlias = Literal["going", "ended"]

#: Asked about an open claim, by its record: does the run on whose behalf it was claimed still go on? None: not known.
AskByRecord: TypeAlias = Callable[[ClaimRecord], Awaitable[Verdict | None]]


@dataclass(frozen=True, slots=True)
class OpenClaim:
    """A claim that nobody has ended, as whoever is asked about it is shown it."""

    topic: str
    claim_id: str
    generation: int
    owner: str
    consumer: str
    created_at: datetime
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


def asking(topic: str, ask: AskOwner | None) -> AskByRecord | None:
    """Ask by what is shown of a record, whether the answer is awaited or not; or ask nobody."""
    if ask is None:
        return None

    async def by_record(record: ClaimRecord) -> Verdict | None:
        shown = OpenClaim.of(topic, record)
        answer = ask(shown) if inspect.iscoroutinefunction(ask) else await asyncio.to_thread(ask, shown)
        return await answer if isinstance(answer, Awaitable) else answer

    return by_record


@dataclass(slots=True)
class SweepReport:
    """What a sweep found and did; after a dry run, what it would do."""

    topic: str
    dry_run: bool = False
    finished_effects: int = 0
    """Members of claims whose decisions were carried out here."""

    finished_moves: int = 0
    renewed_claims: int = 0
    """Open claims whose owners go on."""

    fenced_claims: int = 0
    closed_claims: int = 0
    given_back: int = 0
    """Messages of claims that have ended, of which nothing was decided: anyone may have them now."""

    finished_writes: int = 0
    """Staged writes that were decided and not published to the end."""

    dropped_writes: int = 0
    """Writes that were never decided: what had been staged for them is removed."""

    removed_leases: int = 0
    removed_records: int = 0
    removed_leftovers: int = 0
    stuck: dict[str, str] = field(default_factory=dict)
    """Messages, by key, of which something was decided that could not be carried out, and why."""

    strangers: list[str] = field(default_factory=list)
    """Keys that nobody of ours has made. They are left alone."""

    failures: list[str] = field(default_factory=list)
    """What could not be done now, stuck messages included; the next sweep tries it again."""

    def counts(self) -> tuple[tuple[str, int], ...]:
        """Return its numbers, by their names."""
        return tuple((counter.name, getattr(self, counter.name)) for counter in fields(self) if counter.type == "int")
