"""Messages as they are given to publish, and as they are once they were checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from pawnqueue.domain.dedup_segment import MAX_KEY_BYTES
from pawnqueue.domain.record import canonical
from pawnqueue.errors import InvalidArgumentError, InvalidPayloadError
from pawnqueue.publish.payload import MAX_HEADER_BYTES, checked_headers, checked_payload, checked_size
from pawnqueue.publish.schedule import AT_ONCE, Schedule, checked_schedule

if TYPE_CHECKING:
    from pawnqueue.settings import LimitsSettings


#: How much of a wrong key an error shows.
MAX_SHOWN_CHARACTERS: Final = 60
#: The deduplication key of the only message of a call, or what returns each message's from its payload.
DedupKey: TypeAlias = str | Callable[[Any], str] | None


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
    dedup_key: str | None = None
    """While the topic's window lasts, no other message with this key is published. It is used instead of the call's."""


class Checked(msgspec.Struct, frozen=True, gc=False):  # quicker to make than a frozen dataclass
    """A message to publish that was checked. What its caller changes now changes it no more."""

    payload: bytes
    """Canonical JSON."""
    headers: dict[str, str]
    schedule: Schedule = AT_ONCE
    dedup_key: str | None = None

    def with_headers(self, more: Mapping[str, str]) -> Checked:
        """Return it with these headers too, in place of none that it has. If they are too many, it has its own only."""
        headers = {**more, **self.headers}
        if len(canonical(headers)) > MAX_HEADER_BYTES:
            return self
        return Checked(self.payload, headers, self.schedule, self.dedup_key)


def checked_json(
    payload_json: bytes, headers: Mapping[str, str] | None, limits: LimitsSettings, topic: str, position: int
) -> Checked:
    """Return a message whose payload is canonical JSON already, nested no deeper than a payload may be.

    :raises InvalidPayloadError: it is too large, or its headers are wrong.
    """
    own = checked_headers(headers, topic, position) if headers else {}
    return Checked(checked_size(payload_json, limits, topic, position), own)


def checked_messages(  # noqa: PLR0913 - what a call says of all its messages
    payloads: object,
    headers: Mapping[str, str] | None,
    limits: LimitsSettings,
    topic: str,
    *,
    schedule: Schedule = AT_ONCE,
    first: int = 0,
    dedup_key: DedupKey = None,
) -> list[Checked]:
    """Return the messages, checked, or raise an error that names the wrong one and the place in it.

    :param payloads: what the caller of ``publish`` gave. What was checked before is taken as it is.
    :param schedule: of the messages that have none of their own.
    :param first: the number of the first of them.
    :param dedup_key: of the only message, or a function that returns each message's from its payload.
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
        key = payload.dedup_key if isinstance(payload, NewMessage) else None
        if key is None:
            key = _key_from(dedup_key, given, topic, position) if callable(dedup_key) else dedup_key
        checked.append(Checked(checked_payload(given, limits, topic, position), own, when, key))
    return checked


def _key_from(function: Callable[[Any], str], payload: object, topic: str, position: int) -> str:
    try:
        return function(payload)
    except Exception as error:
        raise InvalidArgumentError(
            f"The function dedup_key failed for message {position} for topic {topic!r} with {type(error).__name__}. "
            "Nothing was published.",
            topic=topic,
            operation="publish",
        ) from error


def check_dedup_keys(messages: Sequence[Checked], topic: str, dedup_key: DedupKey) -> bool:
    """Return whether the messages have deduplication keys: each of them, or none.

    :raises InvalidArgumentError: one has no valid key although a key is given for it, or for others.
    """
    if dedup_key is not None and not callable(dedup_key) and len(messages) > 1:
        raise InvalidArgumentError(
            f"dedup_key={_shown(dedup_key)} is a key for {len(messages)} messages of topic {topic!r}, of which one "
            "would be published: pass a function that returns the key of a payload, as dedup_key=lambda payload: "
            'payload["id"], or a NewMessage with a key for each. Nothing was published.',
            topic=topic,
            operation="publish",
        )
    if dedup_key is None and all(message.dedup_key is None for message in messages):
        return False
    for position, message in enumerate(messages):
        key: object = message.dedup_key
        if not _is_key(key):
            raise InvalidArgumentError(
                f"Message {position} for topic {topic!r} has {'no' if key is None else 'a wrong'} deduplication key"
                f"{'' if key is None else f', {_shown(key)}'}: a key is a text of 1 to {MAX_KEY_BYTES:,} bytes, and "
                "each message of a call has one, or none has. Nothing was published.",
                topic=topic,
                operation="publish",
            )
    return True


def check_no_keys(topic: str, messages: Sequence[Checked]) -> None:
    """Refuse deduplication keys of staged messages: a write is published once by its id."""
    if any(message.dedup_key is not None for message in messages):
        raise InvalidArgumentError(
            f"Staged messages for topic {topic!r} have no deduplication keys, as a write is published once by its id: "
            "publish them instead. Nothing was staged.",
            topic=topic,
            operation="stage",
        )


def _shown(key: object) -> str:
    return repr(key[:MAX_SHOWN_CHARACTERS]) if isinstance(key, str) else f"a {type(key).__name__}"


def _is_key(key: object) -> bool:
    if not isinstance(key, str):
        return False
    encoded = key.encode("utf-8", "replace")
    return 0 < len(encoded) <= MAX_KEY_BYTES and encoded.decode() == key


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
