"""``queue.md``: what the package ``pawnqueue`` exports."""

from __future__ import annotations

import inspect
from typing import Any

import pawnqueue
from pawnqueue import PawnQueue, SyncPawnQueue
from pawnqueue.bucket.topics import TopicOptions
from tools.reference.words import capital, code, default, errors_of, fields_of, first, parameters, table, told

HEAD = """# The queue

Everything that `pawnqueue` exports. `python -m tools.reference` writes this page from the docstrings.

`PawnQueue` is for asyncio, and `SyncPawnQueue` is the same without it. Each call is shown here as `PawnQueue` has it;
with `SyncPawnQueue`, leave out `await`. An invalid argument raises [`InvalidArgumentError`](misuse.md) before anything
is done. The other [errors](errors.md), the [settings](settings.md) and the [events](events.md) have pages of their own.
"""
CALLS = {
    "Opening and closing": ["open", "aclose", "closed", "strategy", "settings", "probe", "health"],
    "Topics": ["create_topic", "update_topic", "pause", "resume", "topic", "list_topics", "delete_topic", "purge"],
    "Publishing": ["publish"],
    "Claiming and working": [
        "claim", "renew", "keep_alive", "leave", "attach", "release", "ack", "requeue", "bury", "settle", "nack",
        "settle_overwritten",
    ],
    "Workers": ["listen", "drain", "is_draining"],
    "Looking": ["stats", "backlog", "peek", "find", "messages", "held", "known_claims", "last_claim"],
    "Dead letters and the janitor": ["completed", "dead_letters", "redrive", "sweep"],
    "Reading and writing by many processes": [
        "portions", "read", "fetch", "look_again", "stage", "commit_write", "abort_write",
    ],
    "Producers and consumers": ["register_producer", "register_consumer", "list_producers", "list_consumers"],
}  # fmt: skip
SYNC_ONLY = ["awaited", "run", "close"]
RETURNED = {
    "Messages and claims": ["Message", "NewMessage", "Claim", "ClaimReference", "LastClaim", "KeepAlive",
                            "SyncKeepAlive"],
    "Workers": ["HandedMessage", "Retry", "RequeueMessage", "BuryMessage", "Listened", "Drained"],
    "Outcomes": ["Settlement", "RedriveResult", "RedriveProgress", "Removed", "SweepReport", "OpenClaim", "Written",
                 "PublishedIds", "Staged"],
    "Looks": ["Topic", "TopicSettings", "CompletedLog", "DeadLetterLimits", "CompletedMessage", "CompletedPage",
              "Stats", "Backlog", "Location", "DeadLetter",
              "DeadLetterPage", "Registration", "Portion", "FetchedPortion", "MessageColumns", "Selection",
              "PlannedUnit", "ProbeResult", "Health"],
    "For your tests": ["MemoryStore"],
}  # fmt: skip
METHODS = {
    "Claim": ["hand_over"],
    "ClaimReference": ["to_dict", "from_dict"],
    "FetchedPortion": ["messages", "columns"],
    "MessageColumns": ["times"],
    "Portion": ["split_off"],
    "SweepReport": ["counts"],
}
#: Told on pages of their own.
ELSEWHERE = {"Settings", "events", "PawnQueue", "SyncPawnQueue"}
#: What these are needs no word in each docstring.
OBVIOUS = {
    "topic": "The topic's name.",
    "claim": "A claim, as `claim` or `attach` gave it.",
    "reference": "What `hand_over` or `leave` returned, or the dict of its `to_dict`.",
    "claim_id": "The claim's id.",
    "write_id": "The write's id, as its parts were staged under it.",
    "name": "Its name.",
    "portion": "One of those that `portions` returned.",
    "sections": "Settings, a section each: `s3={...}`, `polling={...}`.",
}


def page() -> str:
    """Return the page as the docstrings have it now."""
    parts = [HEAD]
    for heading, names in CALLS.items():
        parts.append(f"\n## {heading}\n")
        parts += [_call(PawnQueue, name) for name in names]
    parts.append("\n## Of SyncPawnQueue alone\n")
    parts += [_call(SyncPawnQueue, name) for name in SYNC_ONLY]
    for heading, names in RETURNED.items():
        parts.append(f"\n## {heading}\n")
        parts += [_kind(getattr(pawnqueue, name)) for name in names]
    return "".join(parts)


def _call(kind: type, name: str) -> str:
    subject = inspect.getattr_static(kind, name)
    if isinstance(subject, property):
        return f"\n### {name}\n\n`queue.{name}`: {first(subject)}\n"
    function = getattr(kind, name)
    doc = told(function)
    awaited = "await " if inspect.iscoroutinefunction(function) or name == "open" else ""
    owner = kind.__name__ if isinstance(subject, (staticmethod, classmethod)) else "queue"
    text = f"\n### {name}\n\n`{awaited}{owner}.{name}({_arguments(function)})`\n\n{doc.text}\n"
    rows = [
        [code(name), default(each), _said(name, doc.params)] for each in parameters(function) for name in _shown(each)
    ]
    if rows:
        text += "\n" + table("argument | default | meaning", rows)
    notes = [f"- returns {said}\n" for _, said in doc.fields.get("returns", [])] + errors_of(doc)
    return "\n".join(filter(None, [text, "".join(notes)]))


def _arguments(function: Any) -> str:  # noqa: ANN401 - whatever can be called
    words, by_name = [], False
    for each in parameters(function):
        is_options = _is_topic_options(each)
        named = each.kind is inspect.Parameter.KEYWORD_ONLY or is_options
        if named and not by_name:
            words.append("*")
            by_name = True
        shown = "" if each.default is inspect.Parameter.empty else f"={default(each).strip('`')}"
        words += [f"{name}{'=...' if is_options else shown}" for name in _shown(each)]
    return ", ".join(words)


def _is_topic_options(parameter: inspect.Parameter) -> bool:
    return parameter.kind is inspect.Parameter.VAR_KEYWORD and parameter.name == "settings"


def _shown(parameter: inspect.Parameter) -> list[str]:
    if _is_topic_options(parameter):
        return list(TopicOptions.__annotations__)
    return [f"**{parameter.name}" if parameter.kind is inspect.Parameter.VAR_KEYWORD else parameter.name]


def _said(shown: str, params: dict[str, str]) -> str:
    name = shown.lstrip("*")
    return capital(params.get(name) or OBVIOUS.get(name, ""))


def _kind(kind: type) -> str:
    rows = [] if kind.__name__ == "MemoryStore" else [*_fields(kind), *_properties(kind)]
    text = f"\n### {kind.__name__}\n\n{told(kind).text}\n"
    return text + ("\n" + table("attribute | type | meaning", rows) if rows else "") + _methods(kind)


def _fields(kind: type) -> list[list[str]]:
    described = {name: field.description or "" for name, field in getattr(kind, "model_fields", {}).items()}
    return [[code(name), code(type_), said or described.get(name, "")] for name, type_, said in fields_of(kind)]


def _properties(kind: type) -> list[list[str]]:
    return [
        [code(name), code(inspect.signature(value.fget).return_annotation.strip("'")), first(value)]
        for name, value in vars(kind).items()
        if isinstance(value, property) and not name.startswith("_") and value.fget is not None
    ]


def _methods(kind: type) -> str:
    """Describe the methods that users call, without those by which the queue makes or changes the object."""
    lines = []
    for name in METHODS.get(kind.__name__, []):
        method = getattr(kind, name)
        arguments = ", ".join(each.name for each in parameters(method))
        lines.append(f"- `{name}({arguments})`: {first(method)}\n")
    return "\n" + "".join(lines) if lines else ""
