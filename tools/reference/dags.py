"""``dags.md``: what a DAG imports."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from tools.reference.words import PACKAGE, cell, default, first, parameters, told

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
            "PawnQueueRequeueOperator",
            "PawnQueueBuryOperator",
            "PawnQueueNackOperator",
            "PawnQueueRedriveOperator",
            "PawnQueueCreateTopicOperator",
            "PawnQueueUpdateTopicOperator",
            "PawnQueueDeleteTopicOperator",
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

HEAD = """# What a DAG imports

Operators, sensor, hook and triggers with their arguments. `python -m tools.reference` writes this page from the
docstrings, which an editor shows too. How the parts work together: [In Airflow](../airflow.md).
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
    doc = told(subject)
    defaults = {each.name: default(each) for each in parameters(subject)}
    lines = [f"\n### {name}\n\n", f"`from {PACKAGE}.{module} import {name}`\n\n", f"{doc.text}\n"]
    if doc.params:
        lines.append("\n| argument | default | |\n|---|---|---|\n")
        lines += [
            f"| `{each}` | {cell(defaults.get(each, ''))} | {cell(said)} |\n" for each, said in doc.params.items()
        ]
    templated = getattr(subject, "template_fields", ())
    if templated:
        lines.append(f"\nTemplated: {', '.join(f'`{field}`' for field in templated)}.\n")
    if methods := _own_methods(subject):
        lines.append("\n")
        lines += [f"- `{each}`: {said}\n" for each, said in methods]
    return "".join(lines)


def _own_methods(subject: Any) -> list[tuple[str, str]]:  # noqa: ANN401 - a class or a function
    """Return the public properties and methods of a class that users call, with the first sentence of each."""
    if not inspect.isclass(subject) or subject.__name__ not in {"PawnQueueHook", "ClaimOutput"}:
        return []
    return [
        (name, first(value))
        for name, value in vars(subject).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, (property, classmethod, staticmethod)))
    ]
