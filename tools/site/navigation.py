"""Which page is filed under which kind. The pages say nothing of it themselves: the code host shows no navigation.

A folder brings whatever lies in it, sorted by its path and titled by its heading. A page of no kind is a warning of
Sphinx's, and so an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FRONT = "index"
KINDS: dict[str, list[str]] = {
    "Begin": ["quickstart"],
    "How to": ["airflow", "spark", "faq", "how-to/*"],
    "Explanation": ["explanation/*", "protocol", "architecture"],
    "Reference": ["reference/*", "compatibility"],
    "For contributors": ["testing", "releasing"],
}


def trees() -> str:
    """Return the navigation as Sphinx wants it, in the words of MyST."""
    parts = []
    for kind, pages in KINDS.items():
        lines = ["```{toctree}", ":hidden:", ":glob:", f":caption: {kind}", "", *pages, "```"]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _added(_app: Sphinx, page: str, source: list[str]) -> None:
    if page == FRONT:
        source[0] += f"\n\n{trees()}\n"


def setup(app: Sphinx) -> dict[str, bool]:
    """Have Sphinx ask."""
    app.connect("source-read", _added)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
