"""The wheels, built from the tree itself (`make dist` builds them from the sdists), and pip."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Wheels:
    """One wheel of each distribution, built from the same tree."""

    provider: Path
    engine: Path


def pip(*arguments: str | Path) -> None:
    """Run this environment's pip, which has to succeed."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def build(top: Path, folder: Path) -> Wheels:
    """Build both wheels of the project that is in ``top``."""
    pip("wheel", "--no-deps", "--wheel-dir", folder, top, top / "tools" / "engine")
    [provider] = folder.glob("airflow_provider_pawnqueue-*.whl")
    [engine] = folder.glob("pawnqueue_engine-*.whl")
    return Wheels(provider, engine)
