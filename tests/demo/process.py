"""A demo as a process of its own, as a stranger runs it, and what is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MARK = "PAWNQUEUE_DEMO_TEST"


class Demo:
    """One run of it, whose processes can be told by their environment: a variable of it, or its folder in others.

    A process that gives itself a title writes it over the first variables that it had.
    """

    def __init__(self, folder: Path, module: str, *arguments: str) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = folder
        self.output = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            env={**os.environ, MARK: self.mark, "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def read_until(self, words: str) -> None:
        """Read its output up to the line with these words."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.output += line
            if words in line:
                return
        pytest.fail(f"{words!r} was never said:\n{self.output}")

    def finish(self, seconds: float = 100.0) -> int:
        """Read the rest of its output, and return its exit status."""
        rest, _ = self._process.communicate(timeout=seconds)
        self.output += rest
        return self._process.returncode

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process that was started, and to none of those that it has started."""
        self._process.send_signal(number)

    def processes(self) -> list[int]:
        """Return all processes that are left of it, whatever their parent is now."""
        return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and self._is_of_it(entry)]

    def _is_of_it(self, entry: Path) -> bool:
        try:
            environment = (entry / "environ").read_bytes()
            return f"{MARK}={self.mark}".encode() in environment or os.fsencode(self.folder) in environment
        except OSError:  # gone meanwhile, or somebody else's
            return False


def nothing_is_left(of: Demo, seconds: float = 20.0) -> bool:
    """Wait until no process and no file of it exists."""
    give_up = time.monotonic() + seconds
    while of.processes() or any(of.folder.iterdir()):
        if time.monotonic() > give_up:
            return False
        time.sleep(0.05)
    return True
