"""Checks of payloads and headers: JSON, with no value that JSON would silently turn into another one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any

from pawnqueue.domain.record import canonical
from pawnqueue.errors import InvalidPayloadError
from pawnqueue.publish.plain_json import plain_json
from pawnqueue.settings import LimitsSettings

#: Python neither reads nor writes numbers of more than 4,300 digits.
MAX_NUMBER_BITS = 14_000
#: Of the headers as canonical JSON: consumers take a message that is much larger than its payload for malformed.
MAX_HEADER_BYTES = 32 * 1024
#: An error shows the beginning and the end of a place in a payload that is longer than this.
MAX_PLACE_CHARACTERS = 160


def checked_payload(payload: object, limits: LimitsSettings, topic: str, position: int) -> bytes:
    """Return the payload as canonical JSON, or raise an error that names the wrong place in it.

    The caller may change the payload before it is sent: a generator may yield one dict repeatedly.
    """
    if not isinstance(payload, dict):
        raise _payload_error(
            topic, f"payloads[{position}]", f"is {_describe_type(payload)}", "a payload is a JSON object: pass a dict"
        )
    body = plain_json(payload, limits.max_payload_depth)
    if body is None:
        try:
            body = canonical(_copied_object(payload, 1, limits.max_payload_depth))
        except _Wrong as wrong:
            raise _payload_error(topic, wrong.place(f"payloads[{position}]"), wrong.what, wrong.remedy) from None
    return checked_size(body, limits, topic, position)


def checked_size(body: bytes, limits: LimitsSettings, topic: str, position: int) -> bytes:
    """Return a payload's JSON, or raise an error if it is larger than a payload may be."""
    if len(body) > limits.max_payload_bytes:
        most = limits.max_payload_bytes
        raise _payload_error(
            topic,
            f"payloads[{position}]",
            f"has {len(body):,} bytes of JSON",
            f"limits.max_payload_bytes is {most:,}: store it and send its key",
        )
    return body


def checked_headers(headers: object, topic: str, position: int | None = None) -> dict[str, str]:
    """Return a copy of the headers, or raise an error that names the wrong one.

    :param position: of the message that has these headers; without it, they are those of the call.
    """
    where = "headers" if position is None else f"payloads[{position}].headers"
    if headers is None:
        return {}
    if not isinstance(headers, dict):
        raise _payload_error(topic, where, f"is {_describe_type(headers)}", "headers are a dict of text to text")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise _payload_error(
                topic, f"{where}[{name!r}]", f"is {_describe_type(value)}", "headers are text, both sides"
            )
        if not _is_unicode(name) or not _is_unicode(value):
            raise _payload_error(topic, f"{where}[{name!r}]", *_LONE_SURROGATE)
    size = len(canonical(headers))
    if size > MAX_HEADER_BYTES:
        raise _payload_error(
            topic, where, f"has {size:,} bytes of JSON", f"{MAX_HEADER_BYTES:,} are the most: use the payload"
        )
    return dict(headers)


def _describe_type(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


class _Wrong(Exception):  # noqa: N818 - it is caught in this file, and turned into an error for users
    """An error in a payload. Its place is assembled while it is raised: most payloads never need one."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy
        self.steps: list[str] = []

    def place(self, where: str) -> str:
        """Return the place, inside the value that is named here."""
        path = "".join([where, *reversed(self.steps)])
        half = MAX_PLACE_CHARACTERS // 2
        return path if len(path) <= MAX_PLACE_CHARACTERS else f"{path[:half]}...{path[-half:]}"


# One Python frame for each level, so that an allowed depth does not meet Python's own limit.


def _copied_object(value: dict[Any, Any], depth: int, deepest: int) -> dict[str, Any]:
    _check_depth(depth, deepest)
    own = {}
    for key, inner in value.items():
        if not isinstance(key, str):
            raise _Wrong(f"has the key {key!r}", "keys of JSON objects are text: use str(key)")
        if not _is_unicode(key):
            raise _Wrong(f"has the key {key!r}, which {_LONE_SURROGATE[0]}", _LONE_SURROGATE[1])
        try:
            copied = _COPIED.get(type(inner)) or _copied_as(inner)
            own[key] = copied(inner, depth + 1, deepest)
        except _Wrong as wrong:
            wrong.steps.append(f".{key}")
            raise
    return own


def _copied_list(value: Sequence[Any], depth: int, deepest: int) -> list[Any]:
    _check_depth(depth, deepest)
    own = []
    for index, inner in enumerate(value):
        try:
            copied = _COPIED.get(type(inner)) or _copied_as(inner)
            own.append(copied(inner, depth + 1, deepest))
        except _Wrong as wrong:
            wrong.steps.append(f"[{index}]")
            raise
    return own


def _copied_text(value: str, _depth: int, _deepest: int) -> str:
    if not _is_unicode(value):
        raise _Wrong(*_LONE_SURROGATE)
    return value


def _copied_integer(value: int, _depth: int, _deepest: int) -> int:
    if value.bit_length() > MAX_NUMBER_BITS:
        raise _Wrong("is too long a number to be read again", "pass it as text")
    return value


def _copied_number(value: float, _depth: int, _deepest: int) -> float:
    if not math.isfinite(value):
        raise _Wrong(f"is {value}", "JSON has no such number: use None")
    return value


def _copied_nothing(_value: None, _depth: int, _deepest: int) -> None:
    pass


_COPIED: dict[type, Callable[[Any, int, int], Any]] = {
    dict: _copied_object,
    list: _copied_list,
    tuple: _copied_list,
    str: _copied_text,
    int: _copied_integer,
    bool: _copied_integer,
    float: _copied_number,
    NoneType: _copied_nothing,
}


def _copied_as(value: object) -> Callable[[Any, int, int], Any]:
    """Return the function that copies a value of a type derived from one of JSON's."""
    for kind, copied in _COPIED.items():
        if isinstance(value, kind):
            return copied
    remedy = "JSON has no such type: convert it, as with .isoformat() or list()"
    raise _Wrong(f"is {_describe_type(value)}", remedy)


_LONE_SURROGATE = ("holds half of a surrogate pair", "text must be valid Unicode")


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_depth(depth: int, deepest: int) -> None:
    # Checked before descending, so that neither a list that contains itself nor a forgery meets Python's own limit.
    if depth > deepest:
        raise _Wrong(f"is nested more than {deepest} deep", "flatten it, or raise limits.max_payload_depth")


def _payload_error(topic: str, path: str, what: str, remedy: str) -> InvalidPayloadError:
    return InvalidPayloadError(
        f"{path} for topic {topic!r} {what}: {remedy}. Nothing was published.", topic=topic, operation="publish"
    )
