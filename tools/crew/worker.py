"""One program as a process of its own, and what its diary says so far."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tools.crew.jobs import DIARY, Consuming, Job, Publishing, Sweeping
from tools.kit.processes import ServerProcess

ROOT = Path(__file__).parents[2]
PROGRAMS = {Consuming: "consumer", Publishing: "publisher", Sweeping: "janitor"}
PAUSE = 0.02


class WorkerError(RuntimeError):
    """A program ended by itself, or did not end on the signal."""


class Worker:
    """Runs for the length of a ``with`` block at most, and never longer than the process that started it."""

    def __init__(self, job: Job) -> None:
        self.name = job.name
        self.fate = ""
        """What was done to it: killed, frozen, or nothing."""

        self.published: set[str] = set()
        self.publishing: tuple[float, float] | None = None
        self.consuming: tuple[float, float] | None = None
        """From the first request to the last answer, where there was one."""

        self.holding: set[str] = set()
        self.holding_since = 0.0
        self.acking: set[str] = set()
        """What it has asked to be acked, of all that it ever had."""

        self.received: list[str] = []
        self.batches = 0
        self.acked: set[str] = set()
        self.dead: set[str] = set()
        self.refused = 0
        self.requests = 0
        self.in_vain = 0
        """How many of its requests looked for messages and got none."""

        self.ended = False
        self.process = ServerProcess(
            [sys.executable, "-m", f"tools.crew.{PROGRAMS[type(job)]}"],
            ready=lambda: True,
            env={"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))},
            grace=0.5,
        )
        job.write(self.process.data)
        self._read = 0

    @property
    def diary(self) -> Path:
        """Where its diary is, until the block is left."""
        return self.process.data / DIARY

    @property
    def settled(self) -> int:
        """How many orders it has acked or given up on."""
        return len(self.acked) + len(self.dead)

    def __enter__(self) -> Self:
        self.process.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.__exit__(kind, error, trace)

    def kill(self) -> None:
        """Kill -9: it cannot say good-bye."""
        self.fate = "killed"
        self.process.signal(signal.SIGKILL)
        wait_until(lambda: not self.process.running, f"{self.name} is dead", seconds=10)
        self.look()

    def freeze(self) -> None:
        """SIGSTOP: it is frozen, and does not know it."""
        self.fate = "frozen"
        self.process.signal(signal.SIGSTOP)
        wait_until(self._is_frozen, f"{self.name} is frozen", seconds=10)
        self.look()

    def thaw(self) -> None:
        """SIGCONT."""
        self.fate = ""
        self.process.signal(signal.SIGCONT)

    def end(self) -> None:
        """Ask it to finish what it has begun, without waiting for that."""
        if self.process.running and not self.ended:
            self.process.signal(signal.SIGTERM)

    def look(self) -> None:
        """Read on in its diary. Raises :class:`WorkerError` if the program is gone and nobody wanted it to be."""
        running = self.process.running
        if self.diary.exists():
            with self.diary.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]  # the rest of a line that is just being written comes the next time
            self._read += len(whole)
            for line in whole.splitlines():
                self._learn(json.loads(line))
        if not running and not self.ended and self.fate != "killed":
            raise WorkerError(f"{self.name} has ended by itself; its log ends with:\n{self.process.log[-4000:]}")

    def _learn(self, event: dict[str, Any]) -> None:
        ids = event.get("ids", [])
        self.requests = event.get("requests", self.requests)
        self.in_vain = event.get("in_vain", self.in_vain)
        self.ended = self.ended or event.get("ended", False)
        match event["event"]:
            case "published":
                self.published.update(ids)
                self.publishing = (self.publishing[0] if self.publishing else event["begun"], event["at"])
            case "held":
                self.holding = set(ids)
                self.holding_since = event["at"]
                self.received += ids
                self.batches += 1
                self.consuming = self.consuming or (event["begun"], event["at"])
            case "acking":
                self.acking.update(ids)
            case "settled":
                (self.acked if event["how"] == "acked" else self.dead).update(ids)
                self.holding.difference_update(ids)
                if self.consuming:
                    self.consuming = (self.consuming[0], event["at"])
            case "dropped":
                self.refused += event.get("refused", 0)
                self.holding.difference_update(event.get("ids", self.holding))

    def _is_frozen(self) -> bool:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8")
        return stat.rpartition(")")[2].split()[0] == "T"


def wait_until(condition: Callable[[], bool], what: str, *, seconds: float) -> None:
    """Wait until the condition holds; raise :class:`WorkerError` if it does not in time."""
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            raise WorkerError(f"{seconds:g} seconds have passed, and still it is not true that {what}.")
        time.sleep(PAUSE)
