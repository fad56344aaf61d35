"""The bounds of what is read from the bucket (§1): numbers, times, names and nesting. All else is garbage."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeAlias

from pydantic import AfterValidator, Field, StringConstraints

#: Spark's integers end here.
MOST_COUNT: Final = 2**31 - 1
#: The beginning of the year 9999. Python has dates for a whole year after it, for code that adds to a time.
LATEST_TIME: Final = 253_370_764_800.0
#: The latest place of a write's first message, in microseconds since 1970: in the year 2242. Until then, and for as
#: many messages as a write can have, a float of seconds tells microseconds apart.
LATEST_PLACE: Final = 2**33 * 1_000_000 - MOST_COUNT
#: How many ranges of rows that could not be published one write may have.
MOST_RANGES: Final = 10_000
LONGEST_DURATION: Final = 315_360_000.0  # ten years, in seconds
MOST_OBJECT_BYTES: Final = 5 * 1024**4
MOST_WRITE_BYTES: Final = 2**62
#: A staged row has at least the id and the payload of a message: with an empty payload, 59 bytes.
MIN_STAGED_ROW_BYTES: Final = 50
#: Every process reads payloads that are nested this deeply, as the setting of a publisher's process may allow it.
#: Python's JSON encoder gives up at about twice that.
MOST_PAYLOAD_DEPTH: Final = 500
#: Fields that this version does not know are written again, and pydantic gives up at a depth of about 250.
MOST_RECORD_DEPTH: Final = 100
LONGEST_NAME_BYTES: Final = 255
#: Of a message's id, as JSON. A claim record may have to keep one beside each decision.
LONGEST_MESSAGE_ID_BYTES: Final = 255
#: The longest name of a producer or a consumer, in characters.
LONGEST_REGISTERED_NAME: Final = 256
#: A claim's owner, its consumer and its session. Airflow's owners are the longest: four names of up to 250 characters.
MAX_HOLDER_CHARACTERS: Final = 1024
#: How many characters of a reason, and of the error beside it, are kept.
MAX_REASON_CHARACTERS: Final = 2000

#: The name of a message's object: printable ASCII without a slash, so that no store changes it.
MESSAGE_NAME: Final = re.compile(rf"[ -.0-~]{{1,{LONGEST_NAME_BYTES}}}")
_UUID: Final = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"

Count: TypeAlias = Annotated[int, Field(ge=0, le=MOST_COUNT)]
ByteCount: TypeAlias = Annotated[int, Field(ge=0, le=MOST_OBJECT_BYTES)]
Time: TypeAlias = Annotated[float, Field(ge=0, le=LATEST_TIME)]
Duration: TypeAlias = Annotated[float, Field(ge=0, le=LONGEST_DURATION)]
#: A text that becomes the last part of a message's key. A slash in it would lead to another folder, or out of the
#: topic, with the reader's rights.
MessageName: TypeAlias = Annotated[str, StringConstraints(pattern=rf"^{MESSAGE_NAME.pattern}$")]
UuidText: TypeAlias = Annotated[str, StringConstraints(pattern=f"^{_UUID}$")]
#: The id of a unit, see ``identifiers.UnitId``.
UNIT_ID: Final = rf"{_UUID}(\.(0|[1-9][0-9]{{0,3}})-[1-9][0-9]{{0,3}})?"
UnitText: TypeAlias = Annotated[str, StringConstraints(pattern=f"^{UNIT_ID}$")]
#: What a producer or a consumer says of itself: without control characters.
PlainText: TypeAlias = Annotated[
    str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$", min_length=1, max_length=LONGEST_REGISTERED_NAME)
]
#: The name of a claim's owner, consumer or session. Errors and logs name them.
HolderText: TypeAlias = Annotated[str, StringConstraints(max_length=MAX_HOLDER_CHARACTERS)]


def cut_reason(text: str) -> str:
    """Return the part of a reason, or of an error, that is kept."""
    return text[:MAX_REASON_CHARACTERS]


def check_id_size(message_id: str) -> str:
    """Return the id of a message.

    :raises ValueError: it is longer than any of ours.
    """
    is_short = len(message_id) <= LONGEST_MESSAGE_ID_BYTES // 6  # a character takes at most six bytes in JSON
    if not is_short and len(json.dumps(message_id, ensure_ascii=False)[1:-1].encode()) > LONGEST_MESSAGE_ID_BYTES:
        raise ValueError("an id is longer than any of ours")
    return message_id


#: The reason of a decision. ⚑ §1: a longer text is cut where it is read, because it is copied from record to record and
#: each has other fields beside it. Otherwise a lease that can be read could be too large to be taken over.
ReasonText: TypeAlias = Annotated[str, AfterValidator(cut_reason)]


_FIRST_DATE: Final = datetime.fromtimestamp(0, UTC)
_LAST_DATE: Final = datetime.fromtimestamp(LATEST_TIME, UTC)


def within_bounds(time: datetime) -> datetime | None:
    """Return a time that was read, or None where it is out of the bounds of times.

    ⚑ §1: a time within the bounds stays in Python's calendar when it is rounded, or when a consumer adds to it.
    """
    return time if _FIRST_DATE <= time <= _LAST_DATE else None


_PLAIN: Final = re.compile(rf"[^\x00-\x1f\x7f\ud800-\udfff]{{1,{LONGEST_REGISTERED_NAME}}}")


def is_plain(text: str) -> bool:
    """Say whether it can be the name of a producer or a consumer."""
    return _PLAIN.fullmatch(text) is not None


class NotJsonError(ValueError):
    """A body that is not JSON as the queue stores it. The error never quotes the body."""


def _refuse_constant(_name: str) -> float:
    raise NotJsonError("it has a NaN or an infinity, which JSON does not have")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise NotJsonError("it has a number that is too large for a float")
    return number


_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_constant)
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(body: bytes, *, max_depth: int) -> Any:  # noqa: ANN401 - any JSON value
    """Read strict JSON in UTF-8, nested no deeper than this.

    ⚑ §5.6: whatever the body is, the only error is ours. What comes back can be written as UTF-8 and as strict JSON.

    :raises NotJsonError: the body is something else.
    """
    try:
        text = body.decode("utf-8-sig")
        data = _DECODER.decode(text)
    except NotJsonError:
        raise
    except RecursionError:
        raise _too_deep(max_depth) from None
    except ValueError:  # also for a number of over 4,300 digits
        raise NotJsonError("") from None
    if text.count("[") + text.count("{") > max_depth and is_deeper(data, max_depth):
        raise _too_deep(max_depth)
    if _SURROGATE.search(text) and not _is_unicode(data):
        raise NotJsonError("it holds half of a surrogate pair")
    return data


def _too_deep(max_depth: int) -> NotJsonError:
    return NotJsonError(f"it is nested more than {max_depth} deep")


def is_deeper(data: Any, max_depth: int) -> bool:  # noqa: ANN401 - any JSON value
    """Say whether objects and lists are nested more deeply than this. A loop, because recursion would fail on them."""
    level = [data] if isinstance(data, dict | list) else []
    for _ in range(max_depth):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _is_unicode(data: Any) -> bool:  # noqa: ANN401 - any JSON value
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
