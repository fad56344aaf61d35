"""Gates in a job: at each it reports its phase, and waits for the test.

A folder is all there is of it, so that drivers, executors and tasks of Airflow can be asked, wherever they run. Imports
the standard library alone.
"""

from __future__ import annotations

import os
import threading
import uuid
from pathlib import Path

_PAUSE_SECONDS = 0.05


class Gates:
    """A gate for each phase. Gates are open until they are shut."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def shut(self, phase: str) -> None:
        """Let every process that reaches this phase wait."""
        self._shut(phase).touch()

    def open(self, phase: str) -> None:
        """Let the waiting processes go on, and all later ones."""
        self._shut(phase).unlink(missing_ok=True)

    def reach(self, phase: str) -> None:
        """Report that this process has reached a phase, and wait until its gate is open."""
        (self.folder / f"{phase}.{os.getpid()}.{uuid.uuid4().hex}").touch()
        while self._shut(phase).exists():
            threading.Event().wait(_PAUSE_SECONDS)

    def reached(self, phase: str) -> list[int]:
        """Return the pids of the processes that have reached a phase, in any order."""
        return [int(path.name.split(".")[1]) for path in self.folder.glob(f"{phase}.*")]

    def _shut(self, phase: str) -> Path:
        return self.folder / f"shut-{phase}"
