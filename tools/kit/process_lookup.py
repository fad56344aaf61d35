"""Finds the processes of one Airflow or Spark by a mark in their environment, and ends them when their owner is gone.

Airflow's tasks and Spark's Python workers leave the process group of their parent, and tasks outlive a parent that is
killed. So neither group nor parent says where a process belongs. The environment does: every child inherits it.

As a program (``python -m tools.kit.process_lookup OWNER_PID MARK FOLDER``) it waits for the end of its owner, also by
SIGKILL. Then it ends the processes with this mark, and removes the folder.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
import time
from pathlib import Path

from airflow_provider_pawnqueue.spark.guard import end_processes, read_processes

MARK = "PAWNKIT_MARK"
_PAUSE_SECONDS = 0.02
_EMPTY_LOOKS = 3


def marked(mark: str) -> list[int]:
    """Return the pids of all running processes whose environment has the mark."""
    line = f"{MARK}={mark}".encode()
    found = []
    for pid in read_processes() or ():
        with contextlib.suppress(OSError):
            if line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return sorted(found)


def end_marked(mark: str, *, seconds: float = 10.0) -> list[int]:
    """Kill all processes that have the mark. Return those that are left after some seconds."""

    def find() -> set[int]:
        # One look can miss a process that is being forked, or that is in its exec, when it has no environment.
        for _ in range(_EMPTY_LOOKS):
            if found := marked(mark):
                return {*found}
            time.sleep(_PAUSE_SECONDS)
        return set()

    return sorted(end_processes(find, give_up=seconds))


def parent_of(pid: int) -> int:
    """Return the pid of a process's parent, or raise ``ProcessLookupError`` if there is no such process."""
    found = (read_processes() or {}).get(pid)
    if found is None:
        raise ProcessLookupError(f"no process {pid}")
    return found[0]


def descendants(pid: int) -> list[int]:
    """Return a process's children, their children, and so on."""
    children: dict[int, list[int]] = {}
    for child, (parent, _, _) in (read_processes() or {}).items():
        children.setdefault(parent, []).append(child)
    found, unseen = [], [pid]
    while unseen:
        below = children.get(unseen.pop(), [])
        found += below
        unseen += below
    return found


def memory_bytes(pids: list[int]) -> int:
    """Return how many bytes the processes take together. Shared memory is counted once."""
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
