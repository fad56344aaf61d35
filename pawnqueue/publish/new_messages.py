"""Messages as they are given to publish, and as they are once they were checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from pawnqueue.errors import InvalidPayloadError
from pawnqueue.publish.payload import checked_headers, checked_payload

if TYPE_CHECKING:
    from pawnqueue.settings import LimitsSettings


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to publish that is more than a payload."""

    payload: Mapping[str, Any] = field(repr=False)
    """The JSON object."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Text to text, in addition to those of the call. If both have a name, this value is used."""


class Checked(msgspec.Struct, frozen=True, gc=False):  # quicker to make than a frozen dataclass
    """A message to publish that was checked. What its caller changes now changes it no more."""

    payload: bytes
    """Canonical JSON."""
    headers: dict[str, str]


def checked_messages(
    payloads: object, headers: Mapping[str, str] | None, limits: LimitsSettings, topic: str, *, first: int = 0
) -> list[Checked]:
    """Return the messages, checked, or raise an error that names the wrong one and the place in it.

    :param payloads: what the caller of ``publish`` gave. What was checked before is taken as it is.
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
        given, own = payload, common
        if isinstance(payload, NewMessage):
            given = payload.payload
            if payload.headers:  # they are checked together, as their common size is bounded
                own = checked_headers(_merge_headers(common, payload.headers), topic, position)
        checked.append(Checked(checked_payload(given, limits, topic, position), own))
    return checked


def _merge_headers(common: dict[str, str], own: object) -> object:
    return {**common, **own} if isinstance(own, Mapping) else own
