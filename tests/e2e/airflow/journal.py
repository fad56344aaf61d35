"""What tasks note of the messages that they hold, and the judge of it: nothing lost, and never two holders at once."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

#: A DAG whose task holds its messages until it may end, and notes five times a second that it does.
HOLDING = """
import json, os, time
from datetime import timedelta
from pathlib import Path
from airflow.sdk import DAG, task
from airflow_provider_pawnqueue.decorators import claimed
from airflow_provider_pawnqueue.hooks.pawnqueue import PawnQueueHook

JOURNAL, GATE = Path({journal!r}), Path({gate!r})

def note(ids, try_number):
    now = {{"at": time.monotonic(), "wall": time.time()}}
    line = json.dumps({{"pid": os.getpid(), "try": try_number, "ids": ids, **now}})
    with JOURNAL.open("a") as file:
        file.write(line + "\\n")

with DAG({dag_id!r}, schedule=None, catchup=False) as dag:
    with claimed({topic!r}, group_id="batch", max_messages=100, ttl=120) as claim:
        @task(retries={retries}, retry_delay=timedelta(0))
        def work(claim, ti=None):
            ids = [message.id for message in PawnQueueHook().messages(claim)]
            note(ids, ti.try_number)
            while not GATE.exists():
                time.sleep(0.2)
                note(ids, ti.try_number)
            return len(ids)

        work(claim)
"""


@dataclass(frozen=True, slots=True)
class Note:
    """A task has messages, at this moment."""

    pid: int
    number: int
    ids: tuple[str, ...]
    at: float
    wall: float


class Journal:
    """The notes of the tasks of one test."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal"
        self.gate = folder / "gate"
        self.path.touch()

    def dag(self, dag_id: str, topic: str, *, retries: int = 2) -> str:
        """Return the source of a DAG that holds messages, and notes so."""
        return HOLDING.format(journal=str(self.path), gate=str(self.gate), dag_id=dag_id, topic=topic, retries=retries)

    def let_end(self) -> None:
        """Let the tasks come to their ends."""
        self.gate.touch()

    def notes(self) -> list[Note]:
        """Return what was noted so far, in order."""
        lines = [json.loads(line) for line in self.path.read_text().splitlines() if line.endswith("}")]
        return [Note(line["pid"], line["try"], tuple(line["ids"]), line["at"], line["wall"]) for line in lines]

    def wait_for(self, condition: Callable[[list[Note]], object], what: str, seconds: float = 240.0) -> list[Note]:
        """Wait until the notes are so."""
        deadline = time.monotonic() + seconds
        while not condition(notes := self.notes()):
            assert time.monotonic() < deadline, f"not noted after {seconds:g} s: {what}; noted were {notes[-3:]}"
            time.sleep(0.1)
        return notes

    def held_twice(self) -> list[str]:
        """Return sentences on messages that two processes had at one moment."""
        spans: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for note in self.notes():
            for message in note.ids:
                spans[message][note.pid].append(note.at)
        return [sentence for message, by_pid in spans.items() for sentence in _overlaps(message, by_pid)]


def _overlaps(message: str, by_pid: dict[int, list[float]]) -> Iterable[str]:
    ordered = sorted((min(times), max(times), pid) for pid, times in by_pid.items())
    for (_, end, pid), (begin, _, other) in pairwise(ordered):
        if begin < end:
            yield f"process {other} had message {message} {end - begin:.1f} s before process {pid} had done with it"
