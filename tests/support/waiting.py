"""Waiting for what comes true in other processes, of which nothing tells but a look."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_PAUSE_SECONDS = 0.05


def wait_until(condition: Callable[[], bool], what: str, *, seconds: float = 60.0) -> None:
    """Return once the condition is true; it fails the test, saying what did not come true, when the time is over."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"after {seconds:g} s it was still not so that {what}"
        time.sleep(_PAUSE_SECONDS)
