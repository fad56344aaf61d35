"""A queue's events as metrics of Airflow."""

from __future__ import annotations

from functools import cache
from typing import Any

from pawnqueue import Stats, events


def count(event: events.Event) -> None:
    """Count an event. The queue logs the event, and logs a failure of this function."""
    for name, number, tags in counters_of(event):
        if number:
            _stats().incr(name, number, tags=tags)


def counters_of(event: events.Event) -> list[tuple[str, int, dict[str, str]]]:
    """Return the counters that an event raises, each with its amount and its tags."""
    topic = getattr(event, "topic", None)
    tags = {} if topic is None else {"topic": topic}
    counts: dict[str, int] = {}
    match event:
        case events.Published():
            counts = {"published": len(event.ids)}
        case events.WriteDone():
            counts = {"published": event.count}
        case events.Claimed():
            counts = {"claims": 1, "claimed": len(event.ids)}
        case events.Settled():
            counts = {
                "acked": len(event.acked),
                "buried": len(event.buried),
                "released": len(event.released),
                "lost": len(event.lost),
            }
        case events.ClaimLost():
            counts = {"claims_lost": 1}
        case events.TakenOver():
            counts = {"claims_taken_over": 1}
        case events.LettersRedriven() | events.LettersExpiring() | events.LettersRemoved():
            counts = _of_letters(event)
        case events.Swept():
            counts = {"sweeps": 1, "sweep_failures": event.failures}
        case _:
            pass
    return [(f"pawnqueue.{name}", count, tags) for name, count in counts.items()]


def _of_letters(event: events.LettersRedriven | events.LettersExpiring | events.LettersRemoved) -> dict[str, int]:
    if isinstance(event, events.LettersRedriven):
        return {"redriven": event.moved}
    is_warning = isinstance(event, events.LettersExpiring)
    return {"letters_expiring" if is_warning else "letters_removed": event.count}


@cache
def _stats() -> Any:  # noqa: ANN401 - a module or an object, depending on Airflow's version
    try:
        from airflow.sdk.observability import stats  # noqa: PLC0415 - Airflow 3.3 has it
    except ImportError:
        from airflow.providers.common.compat.sdk import Stats as AirflowStats  # noqa: PLC0415

        return AirflowStats
    return stats


def report(topic: str, stats: Stats) -> None:
    """Report what the janitor has counted in a topic."""
    for name, value in gauges_of(stats).items():
        _stats().gauge(name, value, tags={"topic": topic})


def gauges_of(stats: Stats) -> dict[str, float]:
    """Return the gauges of a topic and their values."""
    return {
        "pawnqueue.pending": stats.pending,
        "pawnqueue.in_flight": stats.in_flight,
        "pawnqueue.delayed": stats.delayed,
        "pawnqueue.dead": stats.dead,
        "pawnqueue.oldest_age_seconds": stats.oldest_age_seconds or 0.0,
    }
