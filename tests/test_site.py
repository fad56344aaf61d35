"""The documentation is built as a site, with every page in it, and is read without a network."""

from __future__ import annotations

import html.parser
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

TOP = Path(__file__).parent.parent
DOCS = TOP / "docs"
# An audit hook sees every connection that Python opens, in whatever library.
OFFLINE = """
import sys

def refuse(event, details):
    if event in {"socket.connect", "socket.getaddrinfo"}:
        raise RuntimeError(f"the build asked the network: {event} {details}")

sys.addaudithook(refuse)
from tools.site.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
#: The elements that a browser loads by themselves, with the attribute that says from where.
LOADS = {"audio": "src", "embed": "src", "iframe": "src", "img": "src", "link": "href", "script": "src", "video": "src"}
#: Of `link`, those alone: where a search or the next page is, is only told.
LOADED_LINKS = {"icon", "modulepreload", "prefetch", "preload", "stylesheet"}
CSS_LOADS = re.compile(r"@import\s+[^;]+|url\((?!\s*[\"']?(?:data:|#))[^)]+\)")


class Page(html.parser.HTMLParser):
    """One page: what it loads, where it links to, which anchors and how much Python it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.classes: list[str] = []
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the element loads, or links to."""
        had = {name: value or "" for name, value in attrs}
        where = had.get(LOADS.get(tag, ""))
        if where and (tag != "link" or LOADED_LINKS & set(had.get("rel", "").split())):
            self.loads.append(where)
        if tag == "a" and had.get("href"):
            self.links.append(had["href"])
        if name := had.get("id"):
            self.anchors.add(name)
        self.classes += had.get("class", "").split()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built in a process that may not use the network."""
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, str(target)],
        cwd=TOP,
        env={**os.environ, "PYTHONPATH": str(TOP)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    """The pages of the site, by their paths in it."""
    return {path.relative_to(site).as_posix(): Page(path) for path in site.rglob("*.html")}


def targets(pages: dict[str, Page], which: str) -> Iterator[tuple[str, str]]:
    """Return what pages load, or where they link to, each with its page."""
    for name, page in pages.items():
        for target in getattr(page, which):
            yield name, target


def test_every_page_is_in_the_site_and_in_its_navigation(pages: dict[str, Page]) -> None:
    """What lies in docs/ is a page, and the front page's navigation leads to it."""
    expected = {path.relative_to(DOCS).with_suffix(".html").as_posix() for path in DOCS.rglob("*.md")}
    assert len(expected) > 10
    assert expected <= set(pages)
    assert expected - {"index.html"} <= set(pages["index.html"].links)


def test_nothing_is_loaded_from_another_host(site: Path, pages: dict[str, Page]) -> None:
    """Scripts, styles, pictures and fonts are all in the folder."""
    loaded = list(targets(pages, "loads"))
    assert loaded
    assert not [(name, target) for name, target in loaded if urlsplit(target).netloc or urlsplit(target).scheme]
    for name, target in loaded:
        assert ((site / name).parent / unquote(urlsplit(target).path)).is_file(), (name, target)
    for style in site.rglob("*.css"):
        for load in CSS_LOADS.findall(style.read_text(encoding="utf-8")):
            assert "//" not in load, (style, load)


def test_no_link_is_dead(site: Path, pages: dict[str, Page]) -> None:
    """A page or heading that a page links to within the site exists; other links are to the web."""
    for name, target in targets(pages, "links"):
        parts = urlsplit(target)
        if parts.scheme:
            assert parts.scheme in {"http", "https"}, (name, target)
            continue
        path = ((site / name).parent / unquote(parts.path)).resolve() if parts.path else site / name
        assert path.is_file(), (name, target)
        if parts.fragment:
            assert unquote(parts.fragment) in pages[path.relative_to(site).as_posix()].anchors, (name, target)


def test_the_search_needs_no_server(pages: dict[str, Page], site: Path) -> None:
    """The index is a script beside the page, as a browser fetches nothing for a page of file://."""
    assert "searchindex.js" in pages["search.html"].loads
    assert "csprng_verify" in (site / "searchindex.js").read_text(encoding="utf-8")


def test_fences_of_all_kinds_are_python(pages: dict[str, Page]) -> None:
    """A block that is ``python dag`` is shown as Python, in colours."""
    assert pages["airflow.html"].classes.count("highlight-python") >= 5
    assert '<span class="kn">import</span>' in pages["airflow.html"].text
