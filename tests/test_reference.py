"""The reference page says what the docstrings say."""

from __future__ import annotations

from tools import reference


def test_the_page_is_what_the_docstrings_say() -> None:
    """Whoever changes one writes the page anew: python -m tools.reference."""
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page()


def test_every_argument_is_told_of() -> None:
    """No row of the page is without an explanation."""
    rows = [line for line in reference.page().splitlines() if line.startswith("| `")]
    assert len(rows) > 50
    assert not [row for row in rows if row.endswith("|  |")]
