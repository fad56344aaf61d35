"""One program as a process of its own, and what its diary says so far."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tools.crew.plan import DIARY, Job
from tools.kit.history import History, record
from tools.kit.processes import ServerProcess
from tools.kit.waiting import wait_until

ROOT = Path(__file__).parents[2]


class WorkerError(RuntimeError):
    """A program ended by itself."""


class Worker(ServerProcess):
    """A program that runs for the length of a ``with`` block at most, and never longer than the process it is for.

    :param tree: the folder with the code that it runs, of this version or another.
    """

    def __init__(self, job: Job, tree: Path = ROOT) -> None:
        super().__init__(
            [sys.executable, "-m", "tools.crew.program"],
            ready=lambda: True,
            env={"PYTHONPATH": os.pathsep.join(filter(None, (str(tree), os.environ.get("PYTHONPATH"))))},
            grace=0.5,
        )
        job.write(self.data)
        self.name = job.name
        self.fate = ""
        """What was done to it: killed, frozen, or nothing."""

        self.history = History()
        self.diary = self.data / DIARY
        self.busy: tuple[float, float] | None = None
        """From its first request to the last answer with messages or a settlement, once it had one."""

        self.refused = 0
        """How many of its messages were lost when it settled them."""

        self.requests = 0
        self.in_vain = 0
        """How many of its requests looked for messages and found none."""

        self.ended = False
        self._read = 0

    @property
    def holding(self) -> set[str]:
        """The messages that it holds and has not settled."""
        return {unit for _, unit in self.history.open_holds} - self.acked - self.dead

    @property
    def holding_since(self) -> float:
        """When it received its last batch."""
        return self.history.holds[-1].start if self.history.holds else 0.0

    @property
    def received(self) -> list[str]:
        """All messages that it ever received, some more than once."""
        return [message_id for _, message_id, _ in self.history.delivered]

    @property
    def batches(self) -> int:
        """How many claims it had."""
        return len({claim for _, _, claim in self.history.delivered})

    @property
    def acked(self) -> set[str]:
        """The messages that it has acked."""
        return {message_id for _, message_id, _ in self.history.acked}

    @property
    def dead(self) -> set[str]:
        """The messages that it has buried."""
        return {unit for _, unit, _, how in self.history.settled if how == "dead"}

    def kill(self) -> None:
        """Kill -9: it cannot say good-bye."""
        self.fate = "killed"
        self.signal(signal.SIGKILL)
        wait_until(lambda: not self.running, f"{self.name} is dead", seconds=10)
        self.look()

    def freeze(self) -> None:
        """SIGSTOP: it is frozen, and does not know it."""
        self.fate = "frozen"
        self.signal(signal.SIGSTOP)
        wait_until(self._is_frozen, f"{self.name} is frozen", seconds=10)
        self.look()

    def thaw(self) -> None:
        """SIGCONT."""
        self.fate = ""
        self.signal(signal.SIGCONT)

    def end(self) -> None:
        """Ask it to finish what it has begun, without waiting for that."""
        if self.running and not self.ended:
            self.signal(signal.SIGTERM)

    def look(self) -> None:
        """Read on in its diary. Raises :class:`WorkerError` if the program has ended and nobody has asked it to."""
        running = self.running
        if self.diary.exists():
            with self.diary.open("rb") as file:
                file.seek(self._read)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]  # the rest of a line that is just being written comes the next time
            self._read += len(whole)
            for line in whole.splitlines():
                self._learn(json.loads(line))
        if not running and not self.ended and self.fate != "killed":
            raise WorkerError(f"{self.name} has ended by itself; its log ends with:\n{self.log[-4000:]}")

    def _learn(self, event: dict[str, Any]) -> None:
        record(self.history, event)
        self.ended = self.ended or event.get("ended", False)
        self.requests, self.in_vain = event["requests"], event["in_vain"]
        self.refused += event.get("refused", 0)
        if "begun" in event or event["event"] == "settled":
            first, _ = self.busy or (event["begun"], 0.0)
            self.busy = first, event["at"]

    def _is_frozen(self) -> bool:
        stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8")
        return stat.rpartition(")")[2].split()[0] == "T"
