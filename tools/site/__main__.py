"""``python -m tools.site [FOLDER]``: builds the site there, in ``build/site`` without one. A warning is an error."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from sphinx.cmd.build import build_main

TOP = Path(__file__).parents[2]
OURS = TOP / "build" / "site"


def main(arguments: list[str]) -> int:
    """Build all pages anew, and return what the program ends with."""
    target = Path(arguments[0]).resolve() if arguments else OURS
    if target == OURS:
        shutil.rmtree(target, ignore_errors=True)  # pages that are no more
    with tempfile.TemporaryDirectory() as remembered:  # what Sphinx keeps for the next build is no part of the site
        options = ["-b", "html", "-W", "--keep-going", "-E", "-q", "-c", str(Path(__file__).parent), "-d", remembered]
        failed = build_main([*options, str(TOP / "docs"), str(target)])
    if not failed:
        print(target / "index.html")  # noqa: T201 - what one opens
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
