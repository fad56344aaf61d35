"""What operators are given, checked when it is rendered: a template makes texts of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from airflow.providers.common.compat.sdk import AirflowFailException


def checked_count(given: object, name: str) -> int:
    """Return a whole number of at least 1, or fail without another try."""
    try:
        count = int(str(given)) if isinstance(given, str) else given
    except ValueError:
        count = None
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise AirflowFailException(f"{name}={given!r}: pass a whole number of at least 1.")
    return count


def checked_seconds(given: object, name: str) -> float:
    """Return a time in seconds, more than none, or fail without another try."""
    try:
        seconds = float(given) if isinstance(given, (str, int, float)) and not isinstance(given, bool) else math.nan
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise AirflowFailException(f"{name}={given!r}: pass a number of seconds, more than 0.")
    return seconds


def checked_topics(given: object) -> list[str]:
    """Return the topics that were named, one or several, or fail without another try."""
    topics = [given] if isinstance(given, str) else list(given) if isinstance(given, Sequence) else []
    if not topics or not all(isinstance(topic, str) and topic for topic in topics):
        raise AirflowFailException(f"topic={given!r}: name a topic, or a list of topics.")
    return list(dict.fromkeys(topics))
