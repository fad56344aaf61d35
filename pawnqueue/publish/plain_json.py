"""The quick way from a plain payload to its JSON. :mod:`.payload` checks all others, one value at a time."""

from __future__ import annotations

import marshal
import re
from typing import Any, Final

import msgspec

from pawnqueue.domain.bounds import is_deeper

#: A payload with less JSON than this has no number that is too long to be read again.
_LONG_NUMBER_DIGITS: Final = 4000
_LONG_NUMBER: Final = re.compile(rb"\d{%d}" % _LONG_NUMBER_DIGITS)
#: Without the flag of later versions, marshal looks up no object that it has written before.
_MARSHAL_VERSION: Final = 2


#: Of finite floats but zero: from the first of these on, and below the second, msgspec and json write the same text.
#: json writes all others with an exponent that has a sign and two digits.
LEAST_PLAIN_FLOAT: Final = 1e-4
FIRST_FLOAT_WITH_EXPONENT: Final = 1e16


class _OtherSpellingError(ValueError):
    """msgspec and json write a number in different ways."""


def _plain_float(digits: str) -> float:
    number = float(digits)
    if number and not LEAST_PLAIN_FLOAT <= abs(number) < FIRST_FLOAT_WITH_EXPONENT:
        raise _OtherSpellingError
    return number


_encode: Final = msgspec.json.Encoder(order="sorted").encode
_decode: Final = msgspec.json.Decoder(float_hook=_plain_float).decode


def plain_json(payload: dict[object, object], max_depth: int) -> bytes | None:
    """Return a payload as canonical JSON, or None for a payload that is not plain: only :mod:`.payload` can judge it.

    ⚑ What is returned here is what :mod:`.payload` would make of it, byte for byte. msgspec also writes dates, sets,
    bytes and more, and NaN as null. Such values are not equal to what is read back. marshal refuses every type of a
    user's, which could say that it is equal.
    """
    try:
        marshal.dumps(payload, _MARSHAL_VERSION)
        body = _encode(payload)
        if _decode(body) != payload:
            return None
    except Exception:  # noqa: BLE001 - whatever it is, a value has raised it, and the exact check names that value
        return None
    return body if _is_within_bounds(payload, body, max_depth) else None


def plain_json_of_text(text: str, max_depth: int) -> bytes | None:
    """Return the text of a JSON object as canonical JSON, or None for a text that is not plain.

    ⚑ What is returned here is what :mod:`json` and then :mod:`.payload` would make of it, byte for byte: msgspec takes
    no text that they refuse.
    """
    try:
        payload = _decode(text)
        body = _encode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return body if isinstance(payload, dict) and _is_within_bounds(payload, body, max_depth) else None


def _is_within_bounds(payload: Any, body: bytes, max_depth: int) -> bool:  # noqa: ANN401 - any JSON
    if len(body) >= _LONG_NUMBER_DIGITS and _LONG_NUMBER.search(body):
        return False
    may_be_deep = len(body) > 2 * max_depth and body.count(b"{") + body.count(b"[") > max_depth
    return not (may_be_deep and is_deeper(payload, max_depth))
