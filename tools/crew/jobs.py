"""What each program has to do: a file in its working directory, which also gets its diary."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from pawnqueue import Settings

JOB = "job.json"
DIARY = "diary.jsonl"

#: Ways to make the demo lie, by which a test proves that its checks notice: an ack that never gets into the books, and
#: a consumer that goes on trusting a claim whose time is over.
Sabotage: TypeAlias = Literal["", "forget-ack", "overstay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every program needs to know."""

    name: str
    topic: str
    queue: dict[str, Any]
    """The settings of the queue, by section."""

    @property
    def settings(self) -> Settings:
        """Those settings. The environment has no part in them: it may be about another bucket."""
        return Settings.from_dict(self.queue, environ={})

    def write(self, folder: Path) -> None:
        """Leave it where the program looks for it."""
        (folder / JOB).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls) -> Self:
        """Find it in the working directory."""
        return cls(**json.loads(Path(JOB).read_text(encoding="utf-8")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Publishing(Job):
    """Publish the orders from ``first`` up to but not including ``end``."""

    first: int
    end: int
    poison_every: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Consuming(Job):
    """Claim orders until told to stop."""

    batch: int
    ttl: float
    seconds_per_order: float
    """What an order takes to fulfil. Nothing is done in it: it is the queue that is on show."""

    sabotage: Sabotage = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeping(Job):
    """Sweep until told to stop."""

    every: float
