"""Messages as they are given to publish, and as they are once they were checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from pawnqueue.errors import InvalidPayloadError
from pawnqueue.publish.payload import checked_headers, checked_payload
from pawnqueue.publish.schedule import AT_ONCE, Schedule, checked_schedule

if TYPE_CHECKING:
    from pawnqueue.settings import LimitsSettings


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to publish that is more than a payload."""

    payload: Mapping[str, Any] = field(repr=False)
    """The JSON object."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Text to text, in addition to those of the call. If both have a name, this value is used."""
    delay: float | None = None
    """For how many seconds nobody is given it; None: as the call says."""
    not_before: datetime | None = None
    """Before which time nobody is given it; None: as the call says."""
    priority: int | None = None
    """From -9 to 9; None: as the call says."""


class Checked(msgspec.Struct, frozen=True, gc=False):  # quicker to make than a frozen dataclass
    """A message to publish that was checked. What its caller changes now changes it no more."""

    payload: bytes
    """Canonical JSON."""
    headers: dict[str, str]
    schedule: Schedule = AT_ONCE


def checked_messages(  # noqa: PLR0913 - what a call says of all its messages
    payloads: object,
    headers: Mapping[str, str] | None,
    limits: LimitsSettings,
    topic: str,
    *,
    schedule: Schedule = AT_ONCE,
    first: int = 0,
) -> list[Checked]:
    """Return the messages, checked, or raise an error that names the wrong one and the place in it.

    :param payloads: what the caller of ``publish`` gave. What was checked before is taken as it is.
    :param schedule: of the messages that have none of their own.
    :param first: the number of the first of them.
    """
    if isinstance(payloads, Mapping | NewMessage | str | bytes) or not isinstance(payloads, Iterable):
        what = "one of them" if isinstance(payloads, Mapping | NewMessage) else f"a {type(payloads).__name__}"
        raise InvalidPayloadError(
            f"publish takes payloads, as a list or any other iterable of dicts, and this is {what}: "
            f"publish({topic!r}, [payload]). Nothing was published.",
            topic=topic,
            operation="publish",
        )
    common = checked_headers(headers, topic)
    checked = []
    for position, payload in enumerate(payloads, first):
        if isinstance(payload, Checked):
            checked.append(payload)
            continue
        given, own, when = payload, common, schedule
        if isinstance(payload, NewMessage):
            given = payload.payload
            when = _own_schedule(payload, schedule, topic, position)
            if payload.headers:  # they are checked together, as their common size is bounded
                own = checked_headers(_merge_headers(common, payload.headers), topic, position)
        checked.append(Checked(checked_payload(given, limits, topic, position), own, when))
    return checked


def _own_schedule(message: NewMessage, common: Schedule, topic: str, position: int) -> Schedule:
    """Return the schedule of a message: what it says, and what the call says where it says nothing."""
    has_delay = message.delay is not None or message.not_before is not None
    if not has_delay and message.priority is None:
        return common
    priority = common.priority if message.priority is None else message.priority
    own = checked_schedule(topic, message.delay, message.not_before, priority, position=position)
    if not has_delay:
        own = own._replace(delay=common.delay, not_before=common.not_before)
    return AT_ONCE if own == AT_ONCE else own


def _merge_headers(common: dict[str, str], own: object) -> object:
    return {**common, **own} if isinstance(own, Mapping) else own
