"""Programs of their own, on a store behind HTTP, that open queues, fork, and end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MARK = "=> "


def program(text: str, endpoint: str, *arguments: str, **extra: Any) -> subprocess.Popen[str]:
    """Start a program that may use the connection ``q``."""
    said = {
        "conn_type": "pawnqueue",
        "host": endpoint,
        "login": "AKTEST",
        "password": "SKTEST0123456789",
        "extra": {"bucket_name": "queues", **extra},
    }
    environ = {**os.environ, "AIRFLOW_CONN_Q": json.dumps(said), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", text, *arguments],
        env=environ,
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def done(process: subprocess.Popen[str], code: int = 0) -> str:
    """Wait for a program's end, and return the line that it printed with a mark: Airflow's log goes the same way."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, out + err
    assert "could not be closed cleanly" not in out + err
    assert "Exception ignored" not in err
    return marked(out)


def marked(out: str) -> str:
    """Return what a program printed behind its mark."""
    return "".join(line.removeprefix(MARK) for line in out.splitlines() if line.startswith(MARK))
