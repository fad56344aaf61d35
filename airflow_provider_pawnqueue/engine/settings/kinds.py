"""The kinds of value that a setting can have: what each one accepts, and how it is described to whoever got it wrong.

A refused value is described by its :class:`Kind`, never by pydantic's message, and is shown only where its kind allows
it: a text may be a secret that was put into the wrong place.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

#: How a secret is printed.
MASK: Final = "**********"

_TEN_YEARS: Final = 315_360_000
_AN_HOUR_IN_MS: Final = 3_600_000
_A_MILLION: Final = 1_000_000
_LARGEST_PUT: Final = 5 * 1024**3
_DEEPEST_JSON: Final = 500  # Python's own JSON encoder gives up at about twice that
_LONGEST_PREFIX: Final = 512  # of the 1,024 bytes of a key

_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_HOST: Final = re.compile(r"[^\W_]([\w.-]*[^\W_])?\.?|[0-9a-f:.]*:[0-9a-f:.]*")
_SESSION_NAME: Final = re.compile(r"[A-Za-z0-9_+=,.@-]{2,64}")

_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})


@dataclass(frozen=True, slots=True)
class Kind:
    """What a setting expects, to be read after "must be", and whether a value of it may appear in an error."""

    expects: str
    shown: bool = True


def _not_a_switch(value: object) -> object:
    # To pydantic True is the number 1; in a YAML file it is a mistake (``max_in_flight: yes``).
    if isinstance(value, bool):
        raise ValueError  # noqa: TRY004 - pydantic collects ValueErrors only
    return value


def _switch(value: object) -> bool:
    word = str(value).lower() if isinstance(value, (bool, int, str)) else ""
    if word not in _TRUE | _FALSE:
        raise ValueError
    return word in _TRUE


def _is_clean(text: str) -> bool:
    return bool(text) and text.isprintable() and text == text.strip()


def _text(value: str) -> str:
    if not _is_clean(value):
        raise ValueError
    return value


def _key_id(value: str) -> str:
    if value == MASK:
        message = "is the mask under which settings are printed, not the value itself"
        raise ValueError(message)
    return _text(value)


def _secret(value: SecretStr) -> SecretStr:
    _key_id(value.get_secret_value())
    return value


def _bucket_name(value: str) -> str:
    if ".." in value or not _BUCKET.fullmatch(value):
        raise ValueError
    return value


def _role_arn(value: str) -> str:
    if not value.startswith("arn:"):
        raise ValueError
    return _text(value)


def _session_name(value: str) -> str:
    if not _SESSION_NAME.fullmatch(value):
        raise ValueError
    return value


def _file(value: object) -> object:
    if value == "":
        raise ValueError
    return value


def _key_prefix(value: str) -> str:
    segments = value.split("/")
    if not value.isprintable() or "//" in value or not {".", ".."}.isdisjoint(segments):
        raise ValueError
    prefix = value.strip("/")
    if len(prefix.encode()) > _LONGEST_PREFIX:
        raise ValueError
    return f"{prefix}/" if prefix else ""


def endpoint(value: str, *, tls: bool) -> str:
    """Bring an endpoint to the form ``scheme://host[:port]``.

    :param tls: which scheme an endpoint without one gets.
    """
    if not _is_clean(value) or " " in value:
        raise ValueError
    url = value if "://" in value else f"{'https' if tls else 'http'}://{value}"
    if "@" in url:
        message = "must not hold a user name or a password: credentials have settings of their own"
        raise ValueError(message)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise ValueError from None
    if parts.path not in {"", "/"} or "?" in url or "#" in url:
        message = "must not hold a path or a query: the bucket and the key prefix have settings of their own"
        raise ValueError(message)
    if parts.scheme not in {"http", "https"} or not _HOST.fullmatch(host) or port == 0:
        raise ValueError
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{f':{port}' if port else ''}"


Seconds = Annotated[
    float,
    Field(ge=0, le=_TEN_YEARS),
    BeforeValidator(_not_a_switch),
    Kind(f"a number of seconds from 0 to {_TEN_YEARS}"),
]
SomeSeconds = Annotated[
    float,
    Field(gt=0, le=_TEN_YEARS),
    BeforeValidator(_not_a_switch),
    Kind(f"a number of seconds above 0 and up to {_TEN_YEARS}"),
]
Milliseconds = Annotated[
    int,
    Field(ge=0, le=_AN_HOUR_IN_MS),
    BeforeValidator(_not_a_switch),
    Kind(f"a whole number of milliseconds from 0 to {_AN_HOUR_IN_MS}"),
]
Count = Annotated[
    int, Field(ge=1, le=_A_MILLION), BeforeValidator(_not_a_switch), Kind(f"a whole number from 1 to {_A_MILLION}")
]
Repeats = Annotated[int, Field(ge=0, le=1000), BeforeValidator(_not_a_switch), Kind("a whole number from 0 to 1000")]
Bytes = Annotated[
    int,
    Field(ge=1, le=_LARGEST_PUT),
    BeforeValidator(_not_a_switch),
    Kind(f"a whole number of bytes from 1 to {_LARGEST_PUT}, the most that one PUT carries"),
]
Depth = Annotated[
    int,
    Field(ge=1, le=_DEEPEST_JSON),
    BeforeValidator(_not_a_switch),
    Kind(f"a whole number from 1 to {_DEEPEST_JSON}"),
]
Switch = Annotated[
    bool, BeforeValidator(_switch), Kind("true or false (also 1, yes, on and 0, no, off; in capitals too)")
]
Text = Annotated[
    str,
    AfterValidator(_text),
    Kind(
        "a text that is not empty, without line breaks or white space around it "
        "(in YAML, quote what looks like a number or a date)",
        shown=False,
    ),
]
KeyId = Annotated[
    str,
    AfterValidator(_key_id),
    Kind("the key's id: a text that is not empty, without white space around it (quoted in YAML)", shown=False),
]
Secret = Annotated[
    SecretStr,
    AfterValidator(_secret),
    Kind("a secret text that is not empty, without white space around it (quoted in YAML)", shown=False),
]
BucketName = Annotated[
    str,
    AfterValidator(_bucket_name),
    Kind(
        "a bucket's name: 3 to 63 letters, digits, dots, hyphens and underscores, a letter or a digit at both ends, "
        "no two dots in a row",
        shown=False,
    ),
]
RoleArn = Annotated[str, AfterValidator(_role_arn), Kind("a role's ARN, which begins with arn:", shown=False)]
SessionName = Annotated[
    str, AfterValidator(_session_name), Kind("2 to 64 letters, digits and _+=,.@- characters", shown=False)
]
File = Annotated[Path, BeforeValidator(_file), Kind("the path of a file", shown=False)]
KeyPrefix = Annotated[
    str,
    AfterValidator(_key_prefix),
    Kind(
        "a prefix of keys such as team/queues: no //, no segment . or .., no control characters, "
        f"at most {_LONGEST_PREFIX} bytes",
        shown=False,
    ),
]
Endpoint = Annotated[
    str, Kind("the address of an S3 service: [http:// or https://]host[:port], and nothing else", shown=False)
]
