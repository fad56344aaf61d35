"""The quick way from a plain payload to its JSON. :mod:`.payload` checks all others, one value at a time."""

from __future__ import annotations

import marshal
import re
from typing import Final

import msgspec

from pawnqueue.domain.bounds import is_deeper

#: A payload with less JSON than this has no number that is too long to be read again.
_LONG_NUMBER_DIGITS: Final = 4000
_LONG_NUMBER: Final = re.compile(rb"\d{%d}" % _LONG_NUMBER_DIGITS)
#: Without the flag of later versions, marshal looks up no object that it has written before.
_MARSHAL_VERSION: Final = 2


class _OtherSpellingError(ValueError):
    """msgspec and json write a number in different ways."""


def _as_json_writes_it(digits: str) -> float:
    # Both write the same digits. json has an exponent from 1e16 on and below 1e-4, with a sign and two digits.
    if "e" in digits or "0.0000" in digits:
        raise _OtherSpellingError
    return float(digits)


_encode: Final = msgspec.json.Encoder(order="sorted").encode
_decode: Final = msgspec.json.Decoder(float_hook=_as_json_writes_it).decode


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
    if len(body) >= _LONG_NUMBER_DIGITS and _LONG_NUMBER.search(body):
        return None
    may_be_deep = len(body) > 2 * max_depth and body.count(b"{") + body.count(b"[") > max_depth
    return None if may_be_deep and is_deeper(payload, max_depth) else body
