"""Files beside ``docs/`` that a page links to: each is a page of the site too, so that no link leaves it.

On the code host such a link is shown by the host. The site is read without one, so it takes the files along, as they
are: a file as a listing, a folder as a list of its files.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.lexers.special import TextLexer
from pygments.util import ClassNotFound
from sphinx import addnodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

TOP = Path(__file__).parents[2]
FOLDER = "source"
EARLY = 400  # before Sphinx collects what is to be downloaded: these are not
Page = tuple[str, dict[str, Any], str]


class Sources:
    """What the pages of one build link to."""

    def __init__(self) -> None:
        self._wanted: set[Path] = set()

    def relink(self, app: Sphinx, tree: nodes.document) -> None:
        """Turn links to files and folders beside ``docs/`` into links to their pages."""
        here = app.env.docname
        found = [*tree.findall(addnodes.download_reference), *tree.findall(addnodes.pending_xref)]
        for node in found:
            path = ((Path(app.srcdir) / here).parent / str(node.get("reftarget", "")).partition("#")[0]).resolve()
            if node.get("refdomain") == "doc":  # MyST takes any Markdown for a page of its own, which has no ending
                path = path.with_name(f"{path.name}.md")
            if not path.exists() or not path.is_relative_to(TOP) or path.is_relative_to(app.srcdir):
                continue
            self._want(path)
            link = nodes.reference("", "", refuri=app.builder.get_relative_uri(here, _page_name(path)), internal=True)
            link += [child.deepcopy() for child in node.children]
            node.replace_self(link)

    def pages(self, app: Sphinx) -> Iterator[Page]:
        """Give Sphinx the pages."""
        for path in sorted(self._wanted):
            name = _page_name(path)
            body = self._listed(app, path) if path.is_dir() else _shown(path)
            title = html.escape(str(path.relative_to(TOP)))
            yield name, {"title": title, "body": f"<h1>{title}</h1>{body}"}, "page.html"

    def _want(self, path: Path) -> None:
        self._wanted.add(path)
        if path.is_dir():
            for each in _within(path):
                self._want(each)

    def _listed(self, app: Sphinx, folder: Path) -> str:
        rows = []
        for path in _within(folder):
            link = app.builder.get_relative_uri(_page_name(folder), _page_name(path))
            rows.append(f'<li><a href="{link}">{html.escape(path.name)}</a></li>')
        return f"<ul>{''.join(rows)}</ul>"


def _within(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith(("__pycache__", ".")))


def _page_name(path: Path) -> str:
    return f"{FOLDER}/{path.relative_to(TOP).as_posix()}"


def _shown(path: Path) -> str:
    try:
        lexer = get_lexer_for_filename(path.name)
    except ClassNotFound:
        lexer = TextLexer()
    return str(highlight(path.read_text(encoding="utf-8"), lexer, HtmlFormatter()))


def setup(app: Sphinx) -> dict[str, bool]:
    """Have Sphinx ask."""
    sources = Sources()
    app.connect("doctree-read", sources.relink, priority=EARLY)
    app.connect("html-collect-pages", sources.pages)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
