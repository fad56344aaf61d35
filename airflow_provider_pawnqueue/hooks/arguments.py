"""What operators, sensors and triggers are given, checked where it is known: constants when a DAG file is parsed.

Templates and the output of other tasks are known when a task runs, and a template makes texts of numbers. Both are
checked by the same functions. Triggers import this, in an event loop, so it imports little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import AirflowFailException


class WrongArgumentError(AirflowFailException, ValueError):
    """An argument is of the wrong kind or out of its range: a task that has it fails without another try."""


def check_constants(check: Callable[[Any, str], object], **given: object) -> None:
    """Refuse wrong constants when the DAG file is parsed. None is what was left out."""
    for name, value in given.items():
        if value is not None and is_constant(value):
            check(value, name)


def is_constant(given: object) -> bool:
    """Say whether a value is known when the DAG file is parsed: not a template, nor what another task returns."""
    if isinstance(given, str):
        return "{{" not in given and "{%" not in given
    if isinstance(given, Mapping):
        return all(map(is_constant, given.values()))
    if isinstance(given, (list, tuple, set, frozenset)):
        return all(map(is_constant, given))
    return not hasattr(given, "iter_references")  # as what Airflow resolves for a task has


def checked_count(given: object, name: str) -> int:
    """Return a whole number of at least 1."""
    try:
        count = int(str(given)) if isinstance(given, str) else given
    except ValueError:
        count = None
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise WrongArgumentError(f"{name}={given!r}: pass a whole number of at least 1.")
    return count


def checked_batch(most: object, least: object) -> tuple[int | None, int]:
    """Return how many messages are claimed at most, and how many are waited for."""
    max_messages = None if most is None else checked_count(most, "max_messages")
    min_messages = checked_count(least, "min_messages")
    if max_messages is not None and min_messages > max_messages:
        raise WrongArgumentError(
            f"min_messages={min_messages} is more than max_messages={max_messages}: no claim would ever have so many."
        )
    return max_messages, min_messages


def checked_seconds(given: object, name: str) -> float:
    """Return a time in seconds, more than none."""
    seconds = _seconds(given)
    if not 0 < seconds < math.inf:
        raise WrongArgumentError(f"{name}={given!r}: pass a number of seconds, more than 0.")
    return seconds


def checked_delay(given: object, name: str = "delay") -> float:
    """Return a time in seconds that may be none."""
    seconds = _seconds(given)
    if not 0 <= seconds < math.inf:
        raise WrongArgumentError(f"{name}={given!r}: pass a number of seconds, 0 or more.")
    return seconds


def _seconds(given: object) -> float:
    if isinstance(given, timedelta):
        return given.total_seconds()
    try:
        return float(given) if isinstance(given, (str, int, float)) and not isinstance(given, bool) else math.nan
    except (ValueError, OverflowError):
        return math.nan


def checked_flag(given: object, name: str) -> bool:
    """Return a yes or no. A template makes a text of it, and each text would be a yes."""
    flag = {"true": True, "false": False}.get(given.strip().lower()) if isinstance(given, str) else given
    if not isinstance(flag, bool):
        raise WrongArgumentError(f"{name}={given!r}: pass True or False.")
    return flag


def checked_word(given: object, name: str, *, of: Collection[str]) -> str:
    """Return one of a few words."""
    if isinstance(given, str) and given in of:
        return given
    raise WrongArgumentError(f"{name}={given!r}: pass {' or '.join(map(repr, of))}.")


def checked_text(given: object, name: str) -> str:
    """Return a text that says something."""
    if isinstance(given, str) and given.strip():
        return given
    raise WrongArgumentError(f"{name}={given!r}: pass a text.")


def checked_ids(given: object, name: str = "ids") -> list[str] | None:
    """Return ids, one or several, also where a template has made a text of their list; None where all are meant."""
    read: Any = _list_of(given)
    if read is None:
        return None
    ids: list[Any] = [read] if isinstance(read, str) else list(read) if isinstance(read, Iterable) else [None]
    if not all(isinstance(each, str) and each for each in ids):
        raise WrongArgumentError(f"{name}={given!r}: pass the ids of messages, one or several.")
    return ids


def checked_topics(given: object, name: str = "topic") -> list[str]:
    """Return the topics that were named, one or several."""
    read: Any = _list_of(given)
    topics = [read] if isinstance(read, str) else list(read) if isinstance(read, Sequence) else []
    if not topics or not all(isinstance(topic, str) and topic for topic in topics):
        raise WrongArgumentError(f"{name}={given!r}: name a topic, or a list of topics.")
    return list(dict.fromkeys(checked_topic(topic, name) for topic in topics))


def checked_topic(given: object, name: str = "topic") -> str:
    """Return the name of a topic."""
    from pawnqueue import InvalidTopicError  # noqa: PLC0415 - not in an event loop
    from pawnqueue.domain import layout  # noqa: PLC0415 - not in an event loop

    if not isinstance(given, str) or not given:
        raise WrongArgumentError(f"{name}={given!r}: name a topic.")
    try:
        return layout.checked_topic(given)
    except InvalidTopicError as wrong:
        raise WrongArgumentError(f"{name}={given!r}: {wrong}") from None


def _list_of(given: object) -> object:
    if isinstance(given, str) and given.lstrip().startswith("["):  # a template has made a text of a list
        from airflow_provider_pawnqueue.hooks import references  # noqa: PLC0415 - it needs the engine

        return references.literal(given)
    return given
