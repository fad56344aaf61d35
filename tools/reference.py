"""Writes ``docs/reference/dags.md`` from the docstrings of what a DAG imports: ``python -m tools.reference``."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "dags.md"
PACKAGE = "airflow_provider_pawnqueue"

#: What the page tells of, in order: a heading, and what is imported from where.
SECTIONS: dict[str, list[tuple[str, str]]] = {
    "Waiting and claiming": [
        ("sensors.pawnqueue", "PawnQueueSensor"),
        ("decorators", "claimed"),
        ("decorators", "ClaimOutput"),
    ],
    "Operators": [
        ("operators.pawnqueue", name)
        for name in (
            "PawnQueuePublishOperator",
            "PawnQueueSettleOperator",
            "PawnQueueAckOperator",
            "PawnQueueNackOperator",
            "PawnQueueRedriveOperator",
            "PawnQueueCreateTopicOperator",
            "PawnQueueJanitorOperator",
        )
    ],
    "Spark": [("spark.operators", "PawnQueueSparkSubmitOperator")],
    "The hook": [("hooks.pawnqueue", "PawnQueueHook")],
    "Triggers": [
        ("triggers.pawnqueue", "PawnQueueEventTrigger"),
        ("triggers.pawnqueue", "PawnQueueClaimTrigger"),
    ],
    "DAGs": [("dags", "janitor_dag")],
}
_PARAM = re.compile(r"^:param (\w+): (.*?)(?=^:|\Z)", re.MULTILINE | re.DOTALL)
_ROLE = re.compile(r":(?:class|meth|func|mod):`[~.]*(?:[\w.]+\.)?(\w+)`")

HEAD = """# Reference

What a DAG imports, with its arguments. Written by `python -m tools.reference` from the docstrings, which an editor
shows too. How the parts play together is in [In Airflow](../airflow.md).
"""


def page() -> str:
    """Return the page as the docstrings have it now."""
    parts = [HEAD]
    for heading, names in SECTIONS.items():
        parts.append(f"\n## {heading}\n")
        parts += [_entry(module, name) for module, name in names]
    return "".join(parts)


def _entry(module: str, name: str) -> str:
    subject = getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)
    text, params = _documented(subject)
    defaults = _defaults(subject)
    lines = [f"\n### {name}\n\n", f"`from {PACKAGE}.{module} import {name}`\n\n", f"{text}\n"]
    if params:
        lines.append("\n| argument | default | |\n|---|---|---|\n")
        lines += [f"| `{each}` | {defaults.get(each, '')} | {told} |\n" for each, told in params]
    templated = getattr(subject, "template_fields", ())
    if templated:
        lines.append(f"\nTemplated: {', '.join(f'`{field}`' for field in templated)}.\n")
    lines += [f"- `{each}`: {told}\n" for each, told in _own_methods(subject)]
    return "".join(lines)


def _documented(subject: Any) -> tuple[str, list[tuple[str, str]]]:  # noqa: ANN401 - a class or a function
    doc = inspect.getdoc(subject) or ""
    params = [(name, " ".join(told.split())) for name, told in _PARAM.findall(doc)]
    text = _PARAM.sub("", doc).strip()
    return _plain(text), [(name, _plain(told).replace("|", "\\|")) for name, told in params]


def _plain(text: str) -> str:
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


def _defaults(subject: Any) -> dict[str, str]:  # noqa: ANN401 - likewise
    function = subject.__init__ if inspect.isclass(subject) else subject
    found = {}
    for parameter in inspect.signature(inspect.unwrap(function)).parameters.values():
        value = parameter.default
        found[parameter.name] = "" if value is inspect.Parameter.empty else f"`{_shown(value)}`"
    return found


def _shown(value: object) -> str:
    return str(value) if hasattr(value, "total_seconds") else repr(value)


def _own_methods(subject: Any) -> list[tuple[str, str]]:  # noqa: ANN401 - likewise
    """Return the public properties and methods of a class that users call, with the first sentence of each."""
    if not inspect.isclass(subject) or subject.__name__ not in {"PawnQueueHook", "ClaimOutput"}:
        return []
    found = []
    for name, value in vars(subject).items():
        if name.startswith("_") or not (callable(value) or isinstance(value, (property, classmethod, staticmethod))):
            continue
        doc = inspect.getdoc(value) or ""
        found.append((name, _plain(" ".join(doc.split("\n\n")[0].split()))))
    return found


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
