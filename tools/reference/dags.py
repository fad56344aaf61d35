"""``dags.md``: what a DAG imports."""

from __future__ import annotations

import importlib
from types import FunctionType

from tools.reference.words import PACKAGE, first, imported

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
            "PawnQueuePauseTopicOperator",
            "PawnQueueResumeTopicOperator",
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

#: Classes whose methods users call.
WITH_METHODS = {"PawnQueueHook", "ClaimOutput"}

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
    text = imported(f"{PACKAGE}.{module}", name)
    if templated := getattr(subject, "template_fields", ()):
        text += f"\nTemplated: {', '.join(f'`{field}`' for field in templated)}.\n"
    if name in WITH_METHODS:
        text += "\n" + "".join(_methods(subject))
    return text


def _methods(kind: type) -> list[str]:
    """Return the public properties and methods that users call, with the first sentence of each."""
    kinds = (FunctionType, property, classmethod, staticmethod)
    public = {
        name: value for name, value in vars(kind).items() if isinstance(value, kinds) and not name.startswith("_")
    }
    return [f"- `{name}`: {first(value)}\n" for name, value in public.items()]
