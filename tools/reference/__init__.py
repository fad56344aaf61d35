"""Writes ``docs/reference/`` from the code: ``python -m tools.reference``. The other pages are written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tools.reference import dags, engine, errors, events, settings, spark

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "dags.md": dags.page,
    "engine.md": engine.page,
    "errors.md": errors.page,
    "events.md": events.page,
    "settings.md": settings.page,
    "spark.md": spark.page,
}
