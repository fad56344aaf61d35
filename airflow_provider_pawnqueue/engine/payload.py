"""What may be in a message: a JSON object, and nothing that JSON would silently turn into something else."""

from __future__ import annotations

import math
from typing import Any

from airflow_provider_pawnqueue.engine.errors import InvalidPayloadError
from airflow_provider_pawnqueue.engine.records import canonical
from airflow_provider_pawnqueue.engine.settings import LimitsSettings

#: Python reads and writes no number of more than 4,300 digits.
MOST_BITS = 14_000
#: Headers as canonical JSON: consumers take a message that is much larger than its payload for malformed.
MOST_HEADER_BYTES = 32 * 1024


def checked_payload(payload: object, limits: LimitsSettings, topic: str, position: int) -> dict[str, Any]:
    """Return the payload, or raise naming the place in it that is wrong."""
    where = f"payloads[{position}]"
    if not isinstance(payload, dict):
        raise _invalid(topic, where, f"is a {type(payload).__name__}", "a payload is a JSON object: pass a dict")
    _walk(payload, where, 1, limits.max_payload_depth, topic)
    size = len(canonical(payload))
    if size > limits.max_payload_bytes:
        most = limits.max_payload_bytes
        raise _invalid(
            topic,
            where,
            f"has {size:,} bytes of JSON",
            f"limits.max_payload_bytes is {most:,}: store it and send its key",
        )
    return payload


def checked_headers(headers: object, topic: str) -> dict[str, str]:
    """Return the headers, or raise naming the one that is wrong."""
    if headers is None:
        return {}
    if not isinstance(headers, dict):
        raise _invalid(topic, "headers", f"is a {type(headers).__name__}", "headers are a dict of text to text")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise _invalid(topic, f"headers[{name!r}]", f"is a {type(value).__name__}", "headers are text, both sides")
        if not _is_unicode(name) or not _is_unicode(value):
            raise _invalid(topic, f"headers[{name!r}]", *_HALF_A_PAIR)
    size = len(canonical(headers))
    if size > MOST_HEADER_BYTES:
        raise _invalid(
            topic, "headers", f"has {size:,} bytes of JSON", f"{MOST_HEADER_BYTES:,} are the most: use the payload"
        )
    return dict(headers)


def _walk(value: object, path: str, depth: int, deepest: int, topic: str) -> None:
    if isinstance(value, dict):
        _not_too_deep(path, depth, deepest, topic)
        for key, inner in value.items():
            if not isinstance(key, str):
                raise _invalid(topic, path, f"has the key {key!r}", "keys of JSON objects are text: use str(key)")
            if not _is_unicode(key):
                raise _invalid(topic, path, f"has the key {key!r}, which {_HALF_A_PAIR[0]}", _HALF_A_PAIR[1])
            _walk(inner, f"{path}.{key}", depth + 1, deepest, topic)
    elif isinstance(value, list | tuple):
        _not_too_deep(path, depth, deepest, topic)
        for index, inner in enumerate(value):
            _walk(inner, f"{path}[{index}]", depth + 1, deepest, topic)
    elif isinstance(value, float) and not math.isfinite(value):
        raise _invalid(topic, path, f"is {value}", "JSON has no such number: use None")
    else:
        _check_plain(value, path, topic)


def _check_plain(value: object, path: str, topic: str) -> None:
    if isinstance(value, str):
        if not _is_unicode(value):
            raise _invalid(topic, path, *_HALF_A_PAIR)
    elif isinstance(value, int):
        if value.bit_length() > MOST_BITS:
            raise _invalid(topic, path, "is too long a number to be read again", "pass it as text")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _invalid(topic, path, f"is {value}", "JSON has no such number: use None")
    elif value is not None:
        raise _invalid(
            topic,
            path,
            f"is a {type(value).__name__}",
            "JSON has no such type: convert it, as with .isoformat() or list()",
        )


_HALF_A_PAIR = ("holds half of a surrogate pair", "text must be valid Unicode")


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _not_too_deep(path: str, depth: int, deepest: int, topic: str) -> None:
    # Checked on the way down, so that neither a self-containing list nor a hostile payload meets Python's own limit.
    if depth > deepest:
        shown = path if len(path) <= 80 else f"{path[:77]}..."  # noqa: PLR2004 - a line of a terminal
        raise _invalid(
            topic, shown, f"is nested more than {deepest} deep", "flatten it, or raise limits.max_payload_depth"
        )


def _invalid(topic: str, path: str, what: str, remedy: str) -> InvalidPayloadError:
    return InvalidPayloadError(
        f"{path} for topic {topic!r} {what}: {remedy}. Nothing was published.", topic=topic, operation="publish"
    )
