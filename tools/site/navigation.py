"""The navigation of the site: what the front page links to, in its order, under its headings.

So the front page is the one list of all pages, but for folders with an ``index`` of their own: that page lists them.
The pages need no markup for it, as the code host shows no navigation. A page that no index names is a warning of
Sphinx's, and so an error.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FRONT = "index"
_HEADING = re.compile(r"^## (?P<text>.+)$", re.MULTILINE)
_PAGE = re.compile(r"\]\((?P<page>[\w/-]+)\.md\)")


def kinds(index: str) -> dict[str, list[str]]:
    """Return the pages below each heading of an index; one that is named twice is where it was first."""
    _, *parts = _HEADING.split(index)
    seen: set[str] = set()
    found: dict[str, list[str]] = {}
    for heading, text in zip(parts[::2], parts[1::2], strict=True):
        pages = [page for page in dict.fromkeys(_PAGE.findall(text)) if page not in seen]
        seen.update(pages)
        found[heading] = pages
    return found


def trees(index: str) -> str:
    """Return the navigation as Sphinx wants it, in the words of MyST."""
    parts = []
    for kind, pages in kinds(index).items():
        lines = ["```{toctree}", ":hidden:", f":caption: {kind}", "", *pages, "```"]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _added(_app: Sphinx, page: str, source: list[str]) -> None:
    if page == FRONT or page.endswith(f"/{FRONT}"):
        source[0] += f"\n\n{trees(source[0])}\n"


def setup(app: Sphinx) -> dict[str, bool]:
    """Have Sphinx ask."""
    app.connect("source-read", _added)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
