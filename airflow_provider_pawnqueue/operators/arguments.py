"""What operators are given, checked when it is rendered: a template makes texts of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_pawnqueue.hooks import references


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


def checked_delay(given: object) -> float:
    """Return a time in seconds that may be none, or fail without another try."""
    return 0.0 if given in (0, "0") else checked_seconds(given, "delay")


def checked_flag(given: object, name: str) -> bool:
    """Return a yes or no, or fail without another try; a template makes a text of it, and each text would be a yes."""
    flag = {"true": True, "false": False}.get(given.strip().lower()) if isinstance(given, str) else given
    if not isinstance(flag, bool):
        raise AirflowFailException(f"{name}={given!r}: pass True or False.")
    return flag


def checked_ids(given: object) -> list[str] | None:
    """Return ids, one or several, also where a template has made a text of their list; None where all are meant."""
    read: Any = references.literal(given) if isinstance(given, str) and given.lstrip().startswith("[") else given
    if read is None:
        return None
    ids: list[Any] = [read] if isinstance(read, str) else list(read) if isinstance(read, Iterable) else [None]
    if not all(isinstance(each, str) and each for each in ids):
        raise AirflowFailException(f"ids={given!r}: pass the ids of messages, one or several.")
    return ids


def checked_topics(given: object, name: str = "topic") -> list[str]:
    """Return the topics that were named, one or several, or fail without another try."""
    if isinstance(given, str) and given.lstrip().startswith("["):
        given = references.literal(given)  # a template has made a text of a list
    topics = [given] if isinstance(given, str) else list(given) if isinstance(given, Sequence) else []
    if not topics or not all(isinstance(topic, str) and topic for topic in topics):
        raise AirflowFailException(f"{name}={given!r}: name a topic, or a list of topics.")
    return list(dict.fromkeys(topics))
