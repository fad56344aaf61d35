"""Lanes: what the name of a unit says of its priority, and of the time from which it may be claimed (§1).

A name is ``[~][{level}-][{due}-]{ts}-{uuid}…``, with ``~`` and ``due`` if it was published with a delay. LIST sorts by
it: higher priorities first, then the default one, the lower ones, and then what was published with a delay. In each
lane it sorts by time.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from pawnqueue.domain.layout import read_stamp, timestamp

if TYPE_CHECKING:
    from pawnqueue.domain.records import TopicSettings

#: Priorities are whole numbers from -9 to 9, higher ones first.
MAX_PRIORITY: Final = 9

_STAMP: Final = r"\d{4}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])T(?:[01]\d|2[0-3])(?:[0-5]\d){2}_\d{6}"
_LANE: Final = re.compile(rf"(~)?(?:(?:!(?P<above>[0-8])|_(?P<below>[1-9]))-)?(?P<stamp>{_STAMP})-", re.ASCII)
_DELAYED: Final = "~"
#: What the names begin with that are in a lane of their own.
_MARKS: Final = "!_~"
_LEVELS: Final = [*(f"!{level}" for level in range(9)), *(f"_{level}" for level in range(1, 10))]
#: Where the names of lanes begin, and where they end. Names in between have the default priority.
_BOUNDS: Final = sorted(
    {"", _DELAYED, *(f"{delay}{level}{end}" for delay in ("", _DELAYED) for level in _LEVELS for end in "-.")}
)


def are_listed_apart(settings: TopicSettings) -> bool:
    """Say whether the lanes of a topic are listed one by one where a LIST does not show all of it.

    A consumer that goes on behind the last name that it has seen would miss a new message of a higher priority.
    """
    return settings.priorities is not None or settings.delays is not None


def prefix(priority: int, due: float | None) -> str:
    """Return what the name of a unit begins with.

    :param due: the server time from which it may be claimed; None: at once.
    """
    level = "" if not priority else f"!{MAX_PRIORITY - priority}-" if priority > 0 else f"_{-priority}-"
    return level if due is None else f"{_DELAYED}{level}{timestamp(due)}-"


def lane_of(name: str) -> int:
    """Return the number of the lane that a name is in. Higher priorities come first, and all that is delayed last."""
    return bisect_right(_BOUNDS, name) - 1


def end_of(lane: int) -> str:
    """Return what all names of a lane come before; "" for the last one."""
    return _BOUNDS[lane + 1] if lane + 1 < len(_BOUNDS) else ""


def may_be_early(name: str) -> bool:
    """Say whether a unit was published with a delay, which may be over."""
    return name.startswith(_DELAYED)


def is_early(name: str, now: str) -> bool:
    """Say whether a unit must not be claimed yet.

    ⚑ §1: this depends on its name alone, whatever the topic's settings say.

    :param now: the server time, as names have it (:func:`.timestamp`).
    """
    found = _LANE.match(name) if may_be_early(name) else None
    return found is not None and found["stamp"] > now


def due_at(name: str) -> float | None:
    """Return the server time from which a unit may be claimed; None: it was published without a delay."""
    found = _LANE.match(name) if may_be_early(name) else None
    return None if found is None else read_stamp(found["stamp"])


def without_delay(name: str) -> str:
    """Return a name without its priority and the time at which its unit is due, if it was delayed."""
    found = _LANE.match(name) if may_be_early(name) else None
    return name if found is None else name[found.end() :]


def priority_of(name: str) -> int:
    """Return the priority of a unit, by its name."""
    found = _LANE.match(name) if name[0] in _MARKS else None
    if found is None:
        return 0
    return MAX_PRIORITY - int(found["above"]) if found["above"] else -int(found["below"] or 0)


def by_priority(name: str) -> tuple[int, str]:
    """Return what to sort by, so that higher priorities come first, and in each those that wait for longest."""
    return -priority_of(name), by_age(name)


def by_age(name: str) -> str:
    """Return what to sort by, so that units come first that have been claimable for longest, whatever their priority.

    A unit that was delayed waits since it was due.
    """
    found = _LANE.match(name) if name[0] in _MARKS else None
    return name if found is None else name[found.start("stamp") :]
