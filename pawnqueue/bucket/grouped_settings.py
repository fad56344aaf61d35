"""Settings of a topic that are given as a dict, such as ``dead_letters={"max_count": 1000}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from pydantic import ValidationError

from pawnqueue.arguments import shown
from pawnqueue.domain.record import Part
from pawnqueue.domain.topic_limits import CompletedLog, DeadLetterLimits
from pawnqueue.errors import ConfigError

if TYPE_CHECKING:
    from pawnqueue.domain.records import TopicSettings

M = TypeVar("M", bound=Part)


class DeadLetterOptions(TypedDict, total=False):
    """Which dead letters of a topic the janitor removes. Give one of the first two, or both."""

    max_age_seconds: float | None
    """Those that have been dead letters for this long."""
    max_count: int | None
    """The oldest ones beyond this number."""
    notice_seconds: float
    """How long before that the janitor warns of it, at least (default: a day)."""


class CompletedOptions(TypedDict, total=False):
    """The completed log of a topic."""

    max_count: int
    """How many messages it keeps (default: 100,000)."""
    max_age_seconds: float
    """For how many seconds (default: a week)."""
    payloads: bool
    """Whether it has their payloads, too (default False)."""


def with_groups(topic: str, before: TopicSettings, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes of a topic's settings with each dict checked, and as its model.

    A dict that says the same as the stored setting gives the stored one, with fields that this version does not know.
    """
    given = dict(changes)
    if given.get("dead_letters") is not None:
        limits = _checked(topic, "dead_letters", DeadLetterLimits, given["dead_letters"])
        if limits.max_age_seconds is None and limits.max_count is None:
            raise _error(
                topic, "dead_letters", "pass max_age_seconds, max_count, or both; or None, and all of them are kept."
            )
        given["dead_letters"] = _unless_same(limits, before.dead_letters)
    if "completed" in given:
        given["completed"] = _checked_log(topic, before.completed, given["completed"])
    return given


def _checked_log(topic: str, before: CompletedLog | None, given: object) -> CompletedLog | None:
    if given is None or given is False:
        # What it has is kept within its limits, until the last of it is too old.
        return None if before is None else before.model_copy(update={"is_on": False})
    if given is True:
        given = {} if before is None else {**before.model_dump(exclude=set(before.model_extra or ())), "is_on": True}
    return _unless_same(_checked(topic, "completed", CompletedLog, given), before)


def _checked(topic: str, name: str, model: type[M], given: object) -> M:
    if isinstance(given, model):
        given = given.model_dump()
    if not isinstance(given, Mapping):
        raise _error(topic, name, f"pass a dict of {', '.join(model.model_fields)}, not {shown(given)}.")
    unknown = [each for each in given if each not in model.model_fields]
    if unknown:
        raise _error(topic, name, f"it has no {shown(unknown[0])}, only {', '.join(model.model_fields)}.")
    try:
        return model.model_validate(dict(given), strict=True)
    except ValidationError as problem:
        first = problem.errors()[0]
        raise _error(topic, f"{name}.{'.'.join(map(str, first['loc']))}", f"{first['msg']}.") from None


def _unless_same(given: M, before: M | None) -> M:
    known = type(given).model_fields
    is_same = before is not None and all(getattr(before, name) == getattr(given, name) for name in known)
    return before if is_same and before is not None else given


def _error(topic: str, name: str, advice: str) -> ConfigError:
    return ConfigError(f"Setting {name} of topic {topic!r} is wrong: {advice}", topic=topic)
