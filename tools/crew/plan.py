"""What a crew has to do: how many of what, and the job that each of its programs finds in its folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from pawnqueue import Settings

TOPIC = "orders"
DIARY = "diary.jsonl"
_JOB = "job.json"

#: Ways to make the demo lie, by which a test proves that its checks notice: an ack that never gets into the books, and
#: a consumer that goes on trusting a claim whose time is over.
Sabotage: TypeAlias = Literal["", "forget-ack", "overstay"]
Program: TypeAlias = Literal["publisher", "consumer", "janitor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much of everything."""

    orders: int = 2_000
    poison_every: int = 125
    publishers: int = 2
    consumers: int = 4
    janitors: int = 0
    batch: int = 100
    ttl: float = 8.0
    margin: float = 2.0
    seconds_per_batch: float = 1.0
    """What a batch takes to fulfil. Nothing is done in it: the demo shows the queue."""

    sabotage: Sabotage = ""

    @property
    def poison(self) -> int:
        """How many orders nobody can fulfil."""
        return sum(map(self.is_poison, range(self.orders)))

    def is_poison(self, number: int) -> bool:
        """Whether the order with this number cannot be fulfilled: one of each ``poison_every``."""
        return number % self.poison_every == self.poison_every // 2

    def order(self, number: int) -> dict[str, Any]:
        """Return one order. An order that cannot be fulfilled has the quantity 0."""
        return {"order": number, "quantity": 0 if self.is_poison(number) else 1 + number % 5}

    def share(self, publisher: int) -> range:
        """Return the numbers of the orders that a publisher publishes. Publishers are counted from 1."""
        return range(self.orders * (publisher - 1) // self.publishers, self.orders * publisher // self.publishers)


@dataclass(frozen=True, slots=True)
class Job:
    """What one program has to do."""

    program: Program
    number: int
    queue: dict[str, Any]
    """The settings of the queue, by section."""

    plan: Plan

    @property
    def name(self) -> str:
        """The name by which the program is a producer or consumer of the queue."""
        return f"{self.program} {self.number}"

    @property
    def settings(self) -> Settings:
        """The settings of the queue, without those of the environment, which may be about another bucket."""
        return Settings.from_dict(self.queue, environ={})

    def write(self, folder: Path) -> None:
        """Write it to where the program looks for it."""
        (folder / _JOB).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls) -> Self:
        """Read it from the working directory."""
        job = json.loads(Path(_JOB).read_text(encoding="utf-8"))
        return cls(**{**job, "plan": Plan(**job["plan"])})
