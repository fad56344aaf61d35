"""Writes ``docs/reference/`` from the code: ``python -m tools.reference``. The other pages are written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tools.reference import dags, errors, events, queue, settings, spark

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "dags.md": dags.page,
    "errors.md": errors.page,
    "events.md": events.page,
    "queue.md": queue.page,
    "settings.md": settings.page,
    "spark.md": spark.page,
}
