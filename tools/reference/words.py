"""What docstrings say, as Markdown."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import textwrap
from dataclasses import dataclass, field
from typing import Any

PACKAGE = "airflow_provider_pawnqueue"
PACKAGES = (PACKAGE, "pawnqueue", "pyspark_pawnqueue")
_FIELD = re.compile(r"^:(?P<kind>\w+)(?: (?P<name>[\w.]+))?: (?P<told>.*?)(?=^:\w|\Z)", re.MULTILINE | re.DOTALL)
_ROLE = re.compile(r":(?:attr|class|func|meth|mod):`[~.]*(?:[\w.]+\.)?(\w+)`")


@dataclass(frozen=True)
class Told:
    """A docstring: its text, and its fields by their kinds (``param``, ``raises``, ...): name and text."""

    text: str
    fields: dict[str, list[tuple[str, str]]] = field(default_factory=dict)

    @property
    def params(self) -> dict[str, str]:
        """What is said of each argument."""
        return dict(self.fields.get("param", []))

    def of(self, kind: str) -> str:
        """Return what is said in the one field of a kind."""
        [(_, told)] = self.fields[kind]
        return told


def told(subject: object) -> Told:
    """Read the docstring of a class, a function or a property."""
    doc = inspect.getdoc(subject) or ""
    fields: dict[str, list[tuple[str, str]]] = {}
    for found in _FIELD.finditer(doc):
        fields.setdefault(found["kind"], []).append((found["name"] or "", in_line(found["told"])))
    return Told(plain(_FIELD.sub("", doc).strip()), fields)


def plain(text: str) -> str:
    """Turn what Sphinx knows into what Markdown knows."""
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


def in_line(text: str) -> str:
    """Have a text in one line."""
    return plain(" ".join(text.split()))


def first(subject: object) -> str:
    """Return the first paragraph of a docstring, in one line."""
    return in_line(told(subject).text.split("\n\n")[0])


def cell(text: object) -> str:
    """Have a text in a cell of a table."""
    return str(text).replace("|", "\\|")


def code(text: object) -> str:
    """Show something as code, or nothing."""
    return f"`{text}`" if str(text) else ""


def table(head: str, rows: list[list[str]]) -> str:
    """Return a table, or nothing where it has no rows. The columns' names are divided by bars."""
    if not rows:
        return ""
    names = [name.strip() for name in head.split("|")]
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    lines += [f"| {' | '.join(cell(each) for each in row)} |".replace("  |", " |") for row in rows]
    return "".join(f"{line}\n" for line in lines)


def parameters(subject: Any) -> list[inspect.Parameter]:  # noqa: ANN401 - a class or a function
    """Return the parameters of a function, or of what makes an object of a class, without ``self``."""
    function = subject.__init__ if inspect.isclass(subject) else subject
    found = list(inspect.signature(inspect.unwrap(function)).parameters.values())
    return [each for each in found if each.name not in {"self", "cls"}]


def default(parameter: inspect.Parameter) -> str:
    """Show what a parameter is by default, as code."""
    value = parameter.default
    if value is inspect.Parameter.empty:
        return ""
    if value is os.environ:
        return "`os.environ`"
    return code(value if hasattr(value, "total_seconds") else repr(value))


def fields_of(kind: type) -> list[tuple[str, str, str]]:
    """Return the fields of a class as its source has them, and those of its bases: name, type, and what is said."""
    found: dict[str, tuple[str, str]] = {}
    for each in reversed(kind.__mro__):
        if each.__module__.startswith(PACKAGES):
            found |= _own_fields(each)
    return [(name, annotation, said) for name, (annotation, said) in found.items()]


def _own_fields(kind: type) -> dict[str, tuple[str, str]]:
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    found: dict[str, tuple[str, str]] = {}
    body = getattr(tree, "body", [])
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        annotation = ast.unparse(statement.annotation)
        if annotation.startswith("ClassVar") or statement.target.id.startswith("_"):
            continue
        said = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            said = in_line(str(following.value.value))
        found[statement.target.id] = (annotation.replace("'", '"'), said)
    return found


def capital(text: str) -> str:
    """Return the text with a capital at its beginning."""
    return text[:1].upper() + text[1:]


def errors_of(doc: Told) -> list[str]:
    """Return an item of a list for each error that a docstring names."""
    return [f"- {code(error)}: {said}\n" for error, said in doc.fields.get("raises", [])]


def imported(module: str, name: str, signature: str = "") -> str:
    """Return the section on something that users import: how, what it is, its arguments, and its errors."""
    subject = getattr(importlib.import_module(module), name)
    doc = told(subject)
    defaults = {each.name: default(each) for each in parameters(subject)}
    rows = [[code(each), defaults.get(each, ""), capital(said)] for each, said in doc.params.items()]
    blocks = [
        f"### {name}\n",
        f"`from {module} import {name}`\n",
        signature and f"`{name}{signature}`\n",
        f"{doc.text}\n",
        table("argument | default | meaning", rows),
        "".join(errors_of(doc)),
    ]
    return "\n" + "\n".join(filter(None, blocks))
