"""Waiting for something that happens in other processes, which only a look can tell."""

from __future__ import annotations

import time
from collections.abc import Callable

_PAUSE_SECONDS = 0.05


def wait_until(condition: Callable[[], object], what: str, *, seconds: float = 60.0) -> None:
    """Return once the condition is true. Raise ``TimeoutError``, which says what did not become true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {seconds:g} s it was still not true that {what}")
        time.sleep(_PAUSE_SECONDS)
