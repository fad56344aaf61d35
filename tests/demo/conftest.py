"""Demos that tests start, and end whatever becomes of them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.demo.process import Demo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Callable[..., Demo]]:
    """Starts one, by its module; ends whatever a failed test has left of it."""
    started: list[Demo] = []

    def start(module: str, *arguments: str) -> Demo:
        started.append(Demo(tmp_path, module, *arguments))
        return started[-1]

    yield start
    for one in started:
        while pids := one.processes():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        one.finish()
