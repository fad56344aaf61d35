"""The catalog is the only place that lists what lies in a topic, and that makes and parses its keys."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import airflow_provider_pawnqueue
import pawnqueue
import pyspark_pawnqueue

if TYPE_CHECKING:
    from collections.abc import Iterator

QUEUE = Path(pawnqueue.__file__).parent
PACKAGES = [QUEUE, *(Path(each.__file__).parent for each in (airflow_provider_pawnqueue, pyspark_pawnqueue))]
OUTSIDE = sorted(
    path for package in PACKAGES for path in package.rglob("*.py") if not path.is_relative_to(QUEUE / "catalog")
)
#: A deletion clears whole folders, and a sweep names the folder that it could not list in its report.
NAME_FOLDERS = {"removal.py", "sweep.py"}
FOLDERS = ("messages/", "dead-letter/", "packs/")


def _texts(tree: ast.Module) -> Iterator[str]:
    """Return the texts of a module but for its docstrings."""
    docstrings = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def _folders_asked_for(tree: ast.Module) -> set[str]:
    """Return which of the catalog's folders a module asks for."""
    attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    names = {f"{node.value.id}.{node.attr}" for node in attributes if isinstance(node.value, ast.Name)}
    return names & {"units.folder", "units.packs_folder", "letters.folder"}


def test_no_other_module_knows_where_messages_are_kept() -> None:
    """No other module has a message's folder in a text, or asks the catalog for the folder in order to list it."""
    for path in OUTSIDE:
        tree = ast.parse(path.read_text())
        paths = [text for text in _texts(tree) if any(f"/{each}" in f"/{text}" for each in FOLDERS)]
        assert not paths, path
        assert path.name in NAME_FOLDERS or not _folders_asked_for(tree), path
