"""Finds all processes of one Airflow or Spark by a mark in their environment, and ends them when their owner is gone.

Airflow's tasks and Spark's Python workers leave the process group of what started them, and tasks outlive it when it is
killed: neither the group nor the parent tells whose they are. The environment does: it is handed down to every child.

As a program (the arguments: the owner's pid, the mark, the folder to remove) it waits for its owner's end, also by
SIGKILL, and then leaves nothing of it. It imports the standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

MARK = "PAWNKIT_MARK"
_PAUSE_SECONDS = 0.02
_LOOKS = 3


def marked(mark: str) -> list[int]:
    """Return the pids of all processes whose environment has the mark; of those that have ended there is none."""
    line = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                if line in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return sorted(found)


def end_marked(mark: str, *, seconds: float = 10.0) -> list[int]:
    """Kill all that have the mark, until none is left or the time is over; return those that are left."""
    deadline = time.monotonic() + seconds
    looks_without = 0
    while True:
        left = marked(mark)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # One look can miss what is just being forked, or is in the middle of its exec: then it has no environment.
        looks_without = 0 if left else looks_without + 1
        if looks_without == _LOOKS or time.monotonic() > deadline:
            return left
        time.sleep(_PAUSE_SECONDS)


def parent_of(pid: int) -> int:
    """Return the pid of a process's parent; raises ``ProcessLookupError`` where there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ProcessLookupError(f"no process {pid}") from error
    return int(stat.rpartition(")")[2].split()[1])


def descendants(pid: int) -> list[int]:
    """Return a process's children, their children, and so on."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(ProcessLookupError):
                children.setdefault(parent_of(int(folder.name)), []).append(int(folder.name))
    found, unseen = [], [pid]
    while unseen:
        below = children.get(unseen.pop(), [])
        found += below
        unseen += below
    return found


def memory(pids: list[int]) -> int:
    """Return how many bytes the processes take together; what several share is counted once."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def main() -> None:
    """Wait for the owner's end, then end what is left of it."""
    owner, mark, directory = sys.argv[1:]
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(int(owner))
        if os.getppid() == int(owner):
            select.select([pidfd], [], [])
    end_marked(mark)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
