"""``events.md``: what happens in a queue, as dataclasses, and the metrics that Airflow has of it."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from typing import Any

from airflow_provider_pawnqueue.hooks import telemetry
from pawnqueue import Stats, events
from tools.reference.words import code, fields_of, first, table

HEAD = """# Events, log and metrics

The events of a queue, and the log and metrics made from them. `python -m tools.reference` writes this page from the
code.

`PawnQueue.open(..., on_event=listener)` calls a function with each event as it happens, in the queue's own thread.
The function has to return at once; an exception in it is logged and changes nothing. The events are dataclasses of
`pawnqueue.events`, and `event.sentence()` describes one in a line. The log is written from the same
events, by the loggers named here. No payload and no secret is in any of them.
"""
METRICS = """
## Metrics

In Airflow, the hook counts the events with Airflow's own metrics (statsd or OpenTelemetry, as `[metrics]` says),
with the topic as the tag `topic`:

"""
GAUGES = """
The janitor sets these gauges each time that it has swept a topic, from the result of `stats`:

"""


def kinds() -> list[type[events.Event]]:
    """Return the events, in the order in which the module has them."""
    found = [each for each in vars(events).values() if inspect.isclass(each) and issubclass(each, events.Event)]
    return [each for each in found if not each.__name__.startswith("_") and each is not events.Event]


def page() -> str:
    """Return the page as the code has it now."""
    return "".join([HEAD, *(_entry(each) for each in kinds()), METRICS, _counters(), GAUGES, _gauges()])


def _entry(kind: type[events.Event]) -> str:
    level = logging.getLevelName(kind.level)
    rows = [[code(name), code(annotation), said] for name, annotation, said in fields_of(kind)]
    logged = f"Logged by `pawnqueue.{kind.subject}` at {level}."
    return f"\n## {kind.__name__}\n\n{first(kind)} {logged}\n\n{table('field | type | meaning', rows)}"


def _counters() -> str:
    """Find out what each counter counts: by events whose fields all have another size."""
    rows = []
    for kind in kinds():
        sizes = {field.name: 2 + number for number, field in enumerate(dataclasses.fields(kind))}
        event = kind(**{field.name: _sized(field, sizes[field.name]) for field in dataclasses.fields(kind)})
        names = {size: name for name, size in sizes.items()}
        for metric, count, _ in telemetry.counters_of(event):
            by = "1" if count == 1 else _measure(kind, names[count])
            rows.append([code(metric), code(kind.__name__), by])
    return table("counter | event | goes up by", rows)


def _sized(field: dataclasses.Field[Any], size: int) -> object:
    if str(field.type).startswith("tuple"):
        return tuple((str(each), each) for each in range(size))
    return "x" * size if field.type == "str" else size


def _measure(kind: type[events.Event], name: str) -> str:
    [field] = [each for each in dataclasses.fields(kind) if each.name == name]
    return code(name) if field.type == "int" else code(f"len({name})")


def _gauges() -> str:
    said = {name: words for name, _, words in fields_of(Stats)}
    numbers = {field.name: index for index, field in enumerate(dataclasses.fields(Stats), start=1)}
    names = {index: name for name, index in numbers.items()}
    gauges = telemetry.gauges_of(Stats(**numbers))
    return table("gauge | meaning", [[code(metric), said[names[int(value)]]] for metric, value in gauges.items()])
