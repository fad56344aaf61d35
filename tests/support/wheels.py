"""The wheels that `make dist` builds, and pip."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Wheels:
    """One wheel of each distribution, in one folder."""

    provider: Path
    engine: Path


def wheels_in(folder: Path) -> Wheels:
    """Return the wheels that are in a folder of built files."""
    [provider] = folder.glob("airflow_provider_pawnqueue-*.whl")
    [engine] = folder.glob("pawnqueue_engine-*.whl")
    return Wheels(provider, engine)


def pip(*arguments: str | Path) -> None:
    """Run this environment's pip, which has to succeed."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
