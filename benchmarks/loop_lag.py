"""How late an event loop wakes its sleepers: in a triggerer (``lag_trigger.py``), and in an idle process."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

EVERY = 0.05
#: So many are noted at once: writing is not to be what is measured.
NOTED = 20


async def watch(path: str) -> None:
    """Sleep again and again, and note when it was and how late it woke."""
    file = Path(path)
    loop = asyncio.get_running_loop()
    notes: list[str] = []
    while True:
        due = loop.time() + EVERY
        await asyncio.sleep(EVERY)
        notes.append(f"{time.time():.3f} {max(0.0, loop.time() - due):.6f}\n")
        if len(notes) == NOTED:
            _append(file, notes)
            notes.clear()


def _append(file: Path, notes: list[str]) -> None:
    with file.open("a", encoding="ascii") as written:
        written.writelines(notes)


@contextmanager
def idle_process(path: Path) -> Iterator[None]:
    """Have the same noted by a process that does nothing else: what it is late by is the machine's."""
    process = multiprocessing.get_context("spawn").Process(target=_alone, args=(str(path),), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _alone(path: str) -> None:
    with suppress(KeyboardInterrupt):
        asyncio.run(watch(path))


def read(path: Path, begin: float, end: float) -> list[float]:
    """Return by how many seconds it was late in a span of time, in order of size."""
    lines = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
    return sorted(float(late) for at, late in lines if begin <= float(at) < end)


def told(late: list[float]) -> str:
    """Say it: the median, the 99th of a hundred, and the worst."""
    if not late:
        return "nothing was noted"
    return (
        f"{late[len(late) // 2] * 1000:6.1f} ms {late[int(len(late) * 0.99)] * 1000:8.1f} ms {late[-1] * 1000:8.1f} ms"
    )
