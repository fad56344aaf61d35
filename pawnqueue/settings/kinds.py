"""The kinds of value that a setting can have: pydantic types that say in our own words what they expect.

A refused value is shown only where its kind allows it: a text may be a secret that was put into the wrong place.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    PlainSerializer,
    SecretStr,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from pawnqueue.domain.bounds import MOST_PAYLOAD_DEPTH
from pawnqueue.domain.numbers import MAX_PACK_MESSAGES

_MAX_SHOWN_VALUE_CHARACTERS: Final = 40
_MAX_SHOWN_NUMBER: Final = 10**18
_MAX_PREFIX_BYTES: Final = 512  # of the 1,024 bytes of a key

#: Of a pack's lines, before the last one: half of what a pack may have.
MAX_PACK_LINES_BYTES: Final = 32 * 1024**2

_MASK: Final = str(SecretStr("any"))
_SWITCH_WORDS: Final = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(
    ("false", "0", "no", "off"), False
)
_BUCKET: Final = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_HOST: Final = re.compile(r"[^\W_]([\w.-]*[^\W_])?\.?|[0-9a-f:.]*:[0-9a-f:.]*")
_SESSION_NAME: Final = re.compile(r"[A-Za-z0-9_+=,.@-]{2,64}")


def refusal(words: str) -> PydanticCustomError:
    """Return the error that says these words after the setting's name."""
    return PydanticCustomError("setting", words)  # without a context, pydantic does not take it for a template


def expected(what: str, where: Callable[[Any], object] = lambda _: True, *, shown: bool = False) -> WrapValidator:
    """Refuse, with "must be ``what``", values that the type refuses and values for which ``where`` is false."""

    def check(value: object, accept: ValidatorFunctionWrapHandler) -> object:
        try:
            if where(accepted := accept(value)):
                return accepted
        except ValidationError as error:
            if error.errors()[0]["type"] == "setting":
                raise
        raise refusal(f"must be {what}{f', not {shorten(value)}' if shown else ''}")

    check.__doc__ = what  # for the reference page
    return WrapValidator(check)


def number(what: str, low: float, high: float, why: str = "") -> WrapValidator:
    """Expect a number in a range."""
    return expected(f"{what} from {low} to {high}{why}", lambda value: low <= value <= high, shown=True)


def shorten(value: object) -> str:
    """Show a value in few characters: of a long one the beginning, of any other type its name."""
    if isinstance(value, int) and abs(value) > _MAX_SHOWN_NUMBER:
        return "a number that is too large to show"  # Python refuses to print the largest ones
    if value is not None and not isinstance(value, (int, float, str)):
        return f"a value of type {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_VALUE_CHARACTERS else f"{text[:_MAX_SHOWN_VALUE_CHARACTERS]}…"


def _refuse_switch(value: object) -> object:
    # To pydantic True is the number 1; in a YAML file it is a mistake (``max_in_flight: yes``).
    return None if isinstance(value, bool) else value


def _is_clean(text: str) -> bool:
    return bool(text) and text.isprintable() and text == text.strip()


def _is_credential(value: str | SecretStr) -> bool:
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    if text == _MASK:
        raise refusal("is the mask under which settings are printed, not the value itself")
    return _is_clean(text)


def _normalize_prefix(value: str) -> str:
    prefix = value.strip("/")
    astray = not value.isprintable() or "//" in value or not {".", ".."}.isdisjoint(prefix.split("/"))
    if astray or len(prefix.encode()) > _MAX_PREFIX_BYTES:
        raise ValueError
    return f"{prefix}/" if prefix else ""


def _normalize_endpoint(value: str, info: ValidationInfo) -> str:
    """Bring an endpoint to the form ``scheme://host[:port]``; where it has no scheme, ``use_ssl`` decides."""
    url = value if "://" in value else f"{'https' if info.data.get('use_ssl', True) else 'http'}://{value}"
    if "@" in url:
        raise refusal("must not hold a user name or a password: credentials have settings of their own")
    parts = urlsplit(url)  # both may raise a ValueError
    host, port = parts.hostname or "", parts.port
    if parts.path not in {"", "/"} or "?" in url or "#" in url:
        raise refusal("must not hold a path or a query: the bucket and the key prefix have settings of their own")
    good_host = _is_clean(value) and " " not in value and _HOST.fullmatch(host)
    if not good_host or parts.scheme not in {"http", "https"} or port == 0:
        raise ValueError
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{f':{port}' if port else ''}"


_Int = Annotated[int, BeforeValidator(_refuse_switch)]
_Float = Annotated[float, BeforeValidator(_refuse_switch)]
_TEN_YEARS: Final = 315_360_000
_CLEAN: Final = "a text that is not empty, without line breaks or white space around it"

Seconds = Annotated[_Float, number("a number of seconds", 0, _TEN_YEARS)]
SomeSeconds = Annotated[
    _Float,
    expected(f"a number of seconds above 0 and up to {_TEN_YEARS}", lambda it: 0 < it <= _TEN_YEARS, shown=True),
]
Milliseconds = Annotated[_Int, number("a whole number of milliseconds", 0, 3_600_000)]
Count = Annotated[_Int, number("a whole number", 1, 1_000_000)]
Repeats = Annotated[_Int, number("a whole number", 0, 1000)]
Bytes = Annotated[_Int, number("a whole number of bytes", 1, 5 * 1024**3, ", the most that one PUT carries")]
PackMessages = Annotated[_Int, number("a whole number", 1, MAX_PACK_MESSAGES)]
PackBytes = Annotated[_Int, number("a whole number of bytes", 1, MAX_PACK_LINES_BYTES)]
Depth = Annotated[_Int, number("a whole number", 1, MOST_PAYLOAD_DEPTH)]
Switch = Annotated[
    bool,
    BeforeValidator(lambda value: _SWITCH_WORDS.get(str(value).lower())),
    expected("true or false (also 1, yes, on and 0, no, off; in capitals too)", shown=True),
]
Text = Annotated[str, expected(f"{_CLEAN} (in YAML, quote what looks like a number or a date)", _is_clean)]
KeyId = Annotated[
    str,
    expected(f"the key's id: {_CLEAN} (quoted in YAML)", _is_credential),
    PlainSerializer(lambda _: _MASK, return_type=str, when_used="json"),
]
Secret = Annotated[SecretStr, expected(f"a secret: {_CLEAN} (quoted in YAML)", _is_credential)]
BucketName = Annotated[
    str,
    expected(
        "a bucket's name: 3 to 63 letters, digits, dots, hyphens and underscores, a letter or a digit at both ends, "
        "no two dots in a row",
        _BUCKET.fullmatch,
    ),
]
RoleArn = Annotated[
    str, expected("a role's ARN, which begins with arn:", lambda arn: arn.startswith("arn:") and _is_clean(arn))
]
SessionName = Annotated[str, expected("2 to 64 letters, digits and _+=,.@- characters", _SESSION_NAME.fullmatch)]
File = Annotated[Path, expected("the path of a file", lambda path: path != Path())]
KeyPrefix = Annotated[
    str,
    AfterValidator(_normalize_prefix),
    expected(
        "a prefix of keys such as team/queues: no //, no segment . or .., no control characters, "
        f"at most {_MAX_PREFIX_BYTES} bytes"
    ),
]
Endpoint = Annotated[
    str,
    AfterValidator(_normalize_endpoint),
    expected("the address of an S3 service: [http:// or https://]host[:port], and nothing else"),
]
