"""Lanes: what the name of a unit says of its priority, and of the time from which it may be claimed (§1).

A name is ``[~{due}-][{level}-]{ts}-{uuid}…``. LIST sorts by it: higher priorities first, then the default one, the
lower ones, and what was published with a delay.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeAlias

from pawnqueue.domain.layout import read_stamp, timestamp

if TYPE_CHECKING:
    from pawnqueue.domain.records import TopicSettings

#: Priorities are whole numbers from -9 to 9, higher ones first.
MAX_PRIORITY: Final = 9

_STAMP: Final = r"\d{4}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])T(?:[01]\d|2[0-3])(?:[0-5]\d){2}_\d{6}"
_DELAYED: Final = re.compile(rf"~(?P<due>{_STAMP})-", re.ASCII)
_LEVEL: Final = re.compile(r"(?:!(?P<above>[0-8])|_(?P<below>[1-9]))-", re.ASCII)
#: What the names begin with that are in a lane.
_MARKS: Final = "!_~"
#: Where the lanes begin: names in a lane come behind this, and not behind that of the next lane.
_HIGHER, _DEFAULT, _LOWER, _DELAYS = "", "!~", "_", "~"

#: Behind which name a part of a topic begins, and before which name it ends; "" for the end of the topic.
Range: TypeAlias = tuple[str, str]


def prefix(priority: int, due: float | None) -> str:
    """Return what the name of a unit begins with.

    :param due: the server time from which it may be claimed; None: at once.
    """
    delay = "" if due is None else f"~{timestamp(due)}-"
    if not priority:
        return delay
    return f"{delay}!{MAX_PRIORITY - priority}-" if priority > 0 else f"{delay}_{-priority}-"


def ranges(settings: TopicSettings) -> list[Range]:
    """Return the parts of a topic that are listed one by one, where a LIST does not show all of it.

    A consumer that goes on behind the last name that it has seen would miss a new message of a higher priority.
    """
    starts = [_HIGHER]
    if settings.priorities is not None:
        starts += [_DEFAULT, _LOWER]
    if settings.delays is not None:
        starts.append(_DELAYS)
    return list(zip(starts, [*starts[1:], ""], strict=True))


def end_of_due(range_: Range, now: float) -> str:
    """Return where a part of a topic ends that has only units which are due at this server time.

    Delayed units are sorted by the time at which they are due, so their listing ends with the first one that is not.
    """
    return f"{_DELAYS}{timestamp(now)}." if range_[0] == _DELAYS else range_[1]


def may_be_early(name: str) -> bool:
    """Say whether a unit was published with a delay, which may be over."""
    return name.startswith(_DELAYS)


def is_early(name: str, now: str) -> bool:
    """Say whether a unit must not be claimed yet.

    ⚑ §1: this depends on its name alone, whatever the topic's settings say.

    :param now: the server time, as names have it (:func:`.timestamp`).
    """
    found = _DELAYED.match(name) if may_be_early(name) else None
    return found is not None and found["due"] > now


def due_at(name: str) -> float | None:
    """Return the server time from which a unit may be claimed; None: it was published without a delay."""
    found = _DELAYED.match(name) if name.startswith(_DELAYS) else None
    return None if found is None else read_stamp(found["due"])


def without_delay(name: str) -> str:
    """Return a name without the time at which its unit is due."""
    found = _DELAYED.match(name) if name.startswith(_DELAYS) else None
    return name if found is None else name[found.end() :]


def priority_of(name: str) -> int:
    """Return the priority of a unit, by its name."""
    found = _LEVEL.match(without_delay(name)) if name[0] in _MARKS else None
    if found is None:
        return 0
    return MAX_PRIORITY - int(found["above"]) if found["above"] else -int(found["below"])


def by_priority(name: str) -> tuple[int, str]:
    """Return what to sort by, so that higher priorities come first, and in each those that wait for longest."""
    return -priority_of(name), by_age(name)


def by_age(name: str) -> str:
    """Return what to sort by, so that units come first that have been claimable for longest, whatever their priority.

    A unit that was delayed waits since it was due.
    """
    if name[0] not in _MARKS:
        return name
    if _DELAYED.match(name):
        return name[1:]
    found = _LEVEL.match(name)
    return name if found is None else name[found.end() :]
