"""What a sweep tells, and whom it asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from airflow_provider_pawnqueue.engine.records import ClaimRecord

Verdict: TypeAlias = Literal["going", "ended"]

#: Asked about an open claim, by its record: does the run on whose behalf it was claimed still go on? None: not known.
Ask: TypeAlias = Callable[[ClaimRecord], Awaitable[Verdict | None]]


@dataclass(slots=True)
class Report:
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

    removed_leases: int = 0
    removed_records: int = 0
    removed_leftovers: int = 0
    stuck: dict[str, str] = field(default_factory=dict)
    """Messages, by key, of which something was decided that could not be carried out, and why."""

    strangers: list[str] = field(default_factory=list)
    """Keys that nobody of ours has made. They are left alone."""

    failures: list[str] = field(default_factory=list)
    """What could not be done now, stuck messages included; the next sweep tries it again."""
