"""``python -m tools.prose [--write]``: count phrases that stop a reader, and long paragraphs. The counts may only fall.

It reads the tracked Markdown files, and the texts and comments of the tracked Python files, as they are on disk.
``prose.json`` has what is allowed: phrases per top-level folder, long paragraphs per page. ``--write`` lowers it.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).parents[1]
ALLOWED = "tools/prose.json"
GENERATED = "docs/reference/"  # written from docstrings, which are counted in the code
LONG = 6 * 120  # characters of a paragraph: six lines of this project's width

PHRASES = re.compile(
    r"(?:^|[.:;,(] | (?:and|by|of|for|to|that) )(?:[Ww]ho|[Ww]hoever) [a-z]+ "  # "who comes next waits"
    r"|\b[Ss]o (?:long|many|often|much) [^at]"  # "so many looks are taken"
    r"|\b(?:stands?|standing|(?:is|are|was|were) told|be had)\b"
    r"|(?<![Tt]here )\b(?:is|are) no (?:valid )?(?:[a-z]+ (?:name|id)\b|(?:number|message|order|topic|claim)s?\b)"
    r"|\b(?:is|are|was|were) there[.,;]|\b(?:that|what|who|nobody|one) (?:(?:is|are|was|were) there|has it)\b"
)
CODE_BLOCK = re.compile(r"^ *(```+|~~~+).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)[^`]+\1")
NEW_PARAGRAPH = re.compile(r"\s*(#|\||>|[-*+] |\d+[.)] |<|!\[|---)")


def paragraphs(markdown: str) -> Iterator[str]:
    """Yield a page's paragraphs, each in one line; each list item or table row is one, a block of code is none."""
    lines: list[str] = []
    for line in [*CODE_BLOCK.sub("", markdown).splitlines(), ""]:
        if lines and (not line.strip() or NEW_PARAGRAPH.match(line)):
            yield " ".join(lines)
            lines = []
        if line.strip():
            lines.append(line.strip())


def python_prose(source: str) -> Iterator[str]:
    """Yield the texts of a module (docstrings, log lines, errors) and its comments, each in one line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from paragraphs(node.value)
    blocks: dict[int, list[str]] = {}  # by their last lines
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            blocks[token.start[0]] = [*blocks.pop(token.start[0] - 1, []), token.string.lstrip("#: ")]
    yield from map(" ".join, blocks.values())


def phrases(text: str) -> list[str]:
    """Return what the text has of the phrases of the list, as it is written there."""
    return [found[0].strip() for found in PHRASES.finditer(CODE.sub("`", text))]


def measure(top: Path, names: list[str]) -> dict[str, dict[str, int]]:
    """Return the phrases of each top-level folder, and the long paragraphs of each page. A table's row is none."""
    found: dict[str, Counter[str]] = {"phrases": Counter(), "long paragraphs": Counter()}
    for name in names:
        if not name.startswith(GENERATED) and (top / name).is_file():
            text = (top / name).read_text(encoding="utf-8")
            parts = list(python_prose(text) if name.endswith(".py") else paragraphs(text))
            found["phrases"][name.partition("/")[0]] += sum(len(phrases(part)) for part in parts)
            if name.endswith(".md"):
                found["long paragraphs"][name] += sum(len(part) > LONG for part in parts if part[0] != "|")
    return {kind: {name: count for name, count in sorted(counts.items()) if count} for kind, counts in found.items()}


def main(arguments: list[str], top: Path = TOP) -> int:
    """Return 1 if a count is higher than the allowed one, else 0. With --write, record the counts that fell."""
    listed = subprocess.run(["git", "ls-files", "*.py", "*.md"], cwd=top, check=True, capture_output=True, text=True)
    allowed: dict[str, dict[str, int]] = json.loads((top / ALLOWED).read_text(encoding="utf-8"))
    found = measure(top, listed.stdout.splitlines())
    rose = False
    for kind, name, count in [(kind, *item) for kind, counts in found.items() for item in counts.items()]:
        if count > (most := allowed[kind].get(name, 0)):
            print(f"{name}: {count} {kind}, and at most {most} are allowed. What counts: tools/prose.py")
            rose = True
    lower = {
        kind: {name: min(found[kind][name], most) for name, most in counts.items() if name in found[kind]}
        for kind, counts in allowed.items()
    }
    if lower != allowed and "--write" in arguments:
        (top / ALLOWED).write_text(json.dumps(lower, indent=2) + "\n", encoding="utf-8")
    elif lower != allowed:
        print("Fewer than are allowed. To record it: python -m tools.prose --write")
    return int(rose)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
