"""Checks of the arguments of operators, sensors and triggers.

A constant is checked when its DAG file is parsed. A template, or the output of another task, is checked by the same
function when the task runs; a template makes texts of numbers. Triggers import this module in an event loop, so it
imports little.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, TypeVar

from airflow.providers.common.compat.sdk import AirflowFailException

T = TypeVar("T")

#: The connection that is used where none is named.
DEFAULT_CONN_ID: Final = "pawnqueue_default"


class WrongArgumentError(AirflowFailException, ValueError):
    """An argument has the wrong type or is out of range. Its task fails without another try."""


def check_early(given: T, check: Callable[[Any, str], object], name: str) -> T:
    """Return an argument as it was given. Raise if it is a constant that is wrong.

    Templates, and None for an argument left out, pass.
    """
    if given is not None and is_constant(given):
        check(given, name)
    return given


def is_constant(given: object) -> bool:
    """Return whether a value is known when the DAG file is parsed: no template, and not the output of another task."""
    if isinstance(given, str):
        return "{{" not in given and "{%" not in given
    if isinstance(given, Mapping):
        return all(map(is_constant, given.values()))
    if isinstance(given, (list, tuple, set, frozenset)):
        return all(map(is_constant, given))
    return not hasattr(given, "iter_references")  # which Airflow's references to outputs have


def checked_count(given: object, name: str) -> int:
    """Return a count: a whole number of at least 1."""
    try:
        count = int(str(given)) if isinstance(given, str) else given
    except ValueError:
        count = None
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise WrongArgumentError(f"{name}={given!r}: pass a whole number of at least 1.")
    return count


def checked_batch(max_messages: object, min_messages: object) -> tuple[int | None, int]:
    """Return ``max_messages`` and ``min_messages``, which must fit each other."""
    most = None if max_messages is None else checked_count(max_messages, "max_messages")
    least = checked_count(min_messages, "min_messages")
    if most is not None and least > most:
        raise WrongArgumentError(
            f"min_messages={least} is more than max_messages={most}: no claim could have that many messages."
        )
    return most, least


def checked_seconds(given: object, name: str) -> float:
    """Return a number of seconds above 0."""
    seconds = _seconds(given)
    if not 0 < seconds < math.inf:
        raise WrongArgumentError(f"{name}={given!r}: pass a number of seconds, more than 0.")
    return seconds


def checked_delay(given: object, name: str = "delay") -> float:
    """Return a number of seconds from 0."""
    seconds = _seconds(given)
    if not 0 <= seconds < math.inf:
        raise WrongArgumentError(f"{name}={given!r}: pass a number of seconds, 0 or more.")
    return seconds


def checked_priority(given: object, name: str = "priority") -> int:
    """Return a priority; a template makes a text of it."""
    try:
        priority = int(given) if isinstance(given, (str, int)) and not isinstance(given, bool) else None
    except ValueError:
        priority = None
    if priority is None or not -9 <= priority <= 9:  # noqa: PLR2004 - as the sentence says
        raise WrongArgumentError(f"{name}={given!r}: pass a whole number from -9 to 9.")
    return priority


def checked_rate(given: object, name: str) -> float:
    """Return how many a second: a number above 0."""
    rate = math.nan if isinstance(given, timedelta) else _seconds(given)
    if not 0 < rate < math.inf:
        raise WrongArgumentError(f"{name}={given!r}: pass a number above 0.")
    return rate


def _seconds(given: object) -> float:
    if isinstance(given, timedelta):
        return given.total_seconds()
    try:
        return float(given) if isinstance(given, (str, int, float)) and not isinstance(given, bool) else math.nan
    except (ValueError, OverflowError):
        return math.nan


def checked_flag(given: object, name: str) -> bool:
    """Return a flag. A template makes a text of it, and every text would count as true."""
    flag = {"true": True, "false": False}.get(given.strip().lower()) if isinstance(given, str) else given
    if not isinstance(flag, bool):
        raise WrongArgumentError(f"{name}={given!r}: pass True or False.")
    return flag


def checked_pack(given: object, name: str = "pack") -> bool | Literal["auto"]:
    """Return whether to make packs: a flag, or ``auto``."""
    if given == "auto":
        return "auto"
    try:
        return checked_flag(given, name)
    except WrongArgumentError:
        raise WrongArgumentError(f"{name}={given!r}: pass 'auto', True or False.") from None


def checked_word(given: object, name: str, *, of: Collection[str]) -> str:
    """Return one of a few words that are allowed."""
    if isinstance(given, str) and given in of:
        return given
    raise WrongArgumentError(f"{name}={given!r}: pass {' or '.join(map(repr, of))}.")


def checked_text(given: object, name: str) -> str:
    """Return a text that is not blank."""
    if isinstance(given, str) and given.strip():
        return given
    raise WrongArgumentError(f"{name}={given!r}: pass a text.")


def checked_ids(given: object, name: str = "ids") -> list[str] | None:
    """Return a list of ids, also where a template made a text of the list; None where all messages are meant."""
    read: Any = _list_of(given)
    if read is None:
        return None
    ids: list[Any] = [read] if isinstance(read, str) else list(read) if isinstance(read, Iterable) else [None]
    if not all(isinstance(each, str) and each for each in ids):
        raise WrongArgumentError(f"{name}={given!r}: pass the ids of messages, one or several.")
    return ids


def checked_topics(given: object, name: str = "topic") -> list[str]:
    """Return a list of topics, without duplicates."""
    read: Any = _list_of(given)
    topics = [read] if isinstance(read, str) else list(read) if isinstance(read, Sequence) else []
    if not topics or not all(isinstance(topic, str) and topic for topic in topics):
        raise WrongArgumentError(f"{name}={given!r}: name a topic, or a list of topics.")
    return list(dict.fromkeys(checked_topic(topic, name) for topic in topics))


def checked_topic(given: object, name: str = "topic") -> str:
    """Return a valid topic name."""
    from pawnqueue import InvalidTopicError  # noqa: PLC0415 - not in an event loop
    from pawnqueue.domain import layout  # noqa: PLC0415 - not in an event loop

    if not isinstance(given, str) or not given:
        raise WrongArgumentError(f"{name}={given!r}: name a topic.")
    try:
        return layout.checked_topic(given)
    except InvalidTopicError as wrong:
        raise WrongArgumentError(f"{name}={given!r}: {wrong}") from None


def _list_of(given: object) -> object:
    if isinstance(given, str) and given.lstrip().startswith("["):  # a template made a text of a list
        from airflow_provider_pawnqueue.hooks import references  # noqa: PLC0415 - it imports the engine

        return references.literal(given)
    return given
