"""A claim as XCom carries it: its reference, and its messages too while they are few and small.

⚑ Messages are JSON *texts* in XCom, never dicts: Airflow's serialization interprets some keys of a dict
(``__classname__``, ``__id__``, ``__type`` with ``__var``) at any depth, and a publisher may use any key. The texts are
ASCII, so any payload can be stored and encoded.

⚑ A task receives dicts again, and Airflow sends these on before the task's own code runs: rendered fields go to the
task's supervisor as msgpack, and into the database as JSON. One payload that these cannot carry would keep the task
from all other messages. So a claim with such a message is handed over without messages. The bucket has them exactly.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any, Final, NoReturn, SupportsIndex, TypeAlias

from pawnqueue import Claim, ClaimReference, InvalidArgumentError, Message, Settings

#: What operators take as ``claim``: what the sensor returned, or a claim or reference of the engine.
Given: TypeAlias = "Claim | ClaimReference | Mapping[str, Any] | str"

#: The messages of a claim are in its reference if their JSON is not larger than this.
MAX_INLINE_BYTES: Final = 16 * 1024
#: The deepest nesting of a payload in XCom. The publisher's default limit is 64. Airflow's API fails at about 190, and
#: MySQL's JSON at 100, of which the fields around a payload take some.
MAX_DEPTH: Final = 80
#: The integers of msgpack.
_INTEGERS: Final = range(-(2**63), 2**64)
_LONG_INTEGER: Final = re.compile(r"[0-9]{19}")
_TOO_LARGE: Final = MAX_INLINE_BYTES + 1
_FIELDS: Final = tuple(field.name for field in fields(Message))


def place_of(settings: Settings) -> str:
    """Return the name of a queue in references, which does not depend on the address in its connection."""
    return f"{settings.s3.bucket_name}/{settings.s3.key_prefix}"


def to_xcom(
    reference: ClaimReference, settings: Settings, *, count: int, size: int, messages: Sequence[Message] | None = None
) -> dict[str, Any]:
    """Return a reference as JSON has it.

    :param count: how many messages the claim has.
    :param size: how large they are together, as JSON.
    :param messages: the messages to put into the reference.
    """
    written = reference.to_dict() | {"queue": place_of(settings), "count": count, "bytes": size}
    texts = [text_of(message) for message in messages or ()]
    if messages is None or None in texts:
        return written  # the bucket has the messages
    return written | {"messages": f"[{', '.join(filter(None, texts))}]"}


def size_of(messages: Iterable[Message]) -> int:
    """Return how large messages are together, as JSON. One that XCom cannot carry counts as too large."""
    return sum(_TOO_LARGE if (text := text_of(message)) is None else len(text) for message in messages)


def text_of(message: Message) -> str | None:
    """Return a message as one JSON text, or None if Airflow cannot carry it (see :func:`obstacle_in`)."""
    try:
        text = json.dumps(fields_of(message))
    except (RecursionError, ValueError):
        return None
    is_doubtful = text.count("[") + text.count("{") > MAX_DEPTH or _LONG_INTEGER.search(text)
    return None if is_doubtful and obstacle_in(message.payload) else text


def obstacle_in(payload: object, *, max_depth: int = MAX_DEPTH) -> str | None:
    """Return why Airflow cannot carry a payload from task to task, or None if it can."""
    level = [payload]
    for _ in range(max_depth + 1):
        below: list[object] = []
        for each in level:
            if isinstance(each, dict):
                below += each.values()
            elif isinstance(each, list):
                below += each
            elif isinstance(each, int) and each not in _INTEGERS:
                return "it has an integer beyond 64 bits"
        if not below:
            return None
        level = below
    return f"it is nested more than {max_depth} deep"


def fields_of(message: Message) -> dict[str, Any]:
    """Return a message as tasks receive it: a dict of JSON values."""
    values = {name: getattr(message, name) for name in _FIELDS}
    return values | {"created_at": message.created_at.isoformat(), "headers": dict(message.headers)}


def decoded_messages(value: Any) -> Any:  # noqa: ANN401 - a list, or lists in it
    """Return messages from their texts in XCom, in the same lists. A dict was written by a former release."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            raise InvalidArgumentError(
                "The messages in XCom are not JSON, so another program has written them: read them from the bucket "
                "with PawnQueueHook().messages(claim).",
                operation="read messages",
            ) from None
    if isinstance(value, Sequence):
        return [decoded_messages(each) for each in value]
    return value


def as_received(value: Any) -> Any:  # noqa: ANN401 - one claim, several, or nothing
    """Return references as tasks receive them: with their messages as dicts."""
    if isinstance(value, Mapping):
        messages = decoded_messages(value.get("messages"))
        # A former release wrote payloads unchecked. The list and the message around a payload are two levels more.
        if obstacle_in(messages, max_depth=MAX_DEPTH + 2):
            return as_received(without_messages(value))
        return {_Field(name): messages if name == "messages" else each for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [as_received(each) for each in value]
    return value


def without_messages(value: Any) -> Any:  # noqa: ANN401 - likewise
    """Return references without their messages."""
    if isinstance(value, Mapping):
        return {name: each for name, each in value.items() if name != "messages"}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [without_messages(each) for each in value]
    return value


class _Field(str):
    """The name of a field of a reference. A task that loops over the reference by mistake gets these."""

    __slots__ = ()

    def __getattr__(self, name: str) -> NoReturn:
        help_ = "" if name.startswith("_") else _NO_MESSAGE
        raise AttributeError(f"{str(self)!r} has no attribute {name!r}.{help_}", name=name, obj=self)

    def __getitem__(self, index: SupportsIndex | slice) -> str:
        if isinstance(index, str):
            raise TypeError(f"{str(self)!r} has no item {index!r}.{_NO_MESSAGE}")
        return super().__getitem__(index)


_NO_MESSAGE: Final = (
    " A task receives a reference to a claim, which is a dict, and not the messages: "
    "`for message in PawnQueueHook().messages(claim)`."
)


def inline_messages(given: Given) -> list[Message] | None:
    """Return the messages in a reference, or None if it has none."""
    read = literal(given) if isinstance(given, str) else given
    found = read.get("messages") if isinstance(read, Mapping) else None
    try:
        each_one = json.loads(found) if isinstance(found, str) else found
        if not isinstance(each_one, list):
            return None
        return [Message(**{**each, "created_at": datetime.fromisoformat(each["created_at"])}) for each in each_one]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None  # another release wrote them; the bucket has them too


def from_xcom(given: Given, settings: Settings, operation: str) -> ClaimReference:
    """Return the reference to a claim from any form of it.

    :raises InvalidArgumentError: it is not a claim, or a claim of another queue.
    """
    if isinstance(given, ClaimReference):
        return given
    if isinstance(given, Claim):
        return ClaimReference(given.topic, given.claim_id, given.generation, given.session)
    read = literal(given) if isinstance(given, str) else given
    if not isinstance(read, Mapping):
        raise InvalidArgumentError(
            f"claim={_shown(given)} is not a claim: pass what the sensor returned (claim=sensor.output). A sensor of "
            "several topics returns a list: pass one of its items.",
            operation=operation,
        )
    queue = read.get("queue")
    if queue is not None and queue != place_of(settings):
        raise InvalidArgumentError(
            f"The claim belongs to the queue in {queue!r}, and this connection's queue is in {place_of(settings)!r}: "
            "pass the pawnqueue_conn_id with which it was claimed.",
            operation=operation,
        )
    return ClaimReference.from_dict(read)


def each_of(given: object) -> list[Given]:
    """Return the claims in what a sensor returned: one, several if it waits for several topics, or none."""
    read: Any = literal(given) if isinstance(given, str) else given
    if read is None:
        return []
    if isinstance(read, Sequence) and not isinstance(read, (str, bytes)):
        return [each for each in read if each is not None]
    return [read] if not isinstance(read, str) or read.strip() else []


def topics_of(given: object) -> list[str]:
    """Return the topics of claims, as far as they are known."""
    found = (
        each.get("topic") if isinstance(each, Mapping) else getattr(each, "topic", None) for each in each_of(given)
    )
    return [*dict.fromkeys(topic for topic in found if isinstance(topic, str))]


def literal(text: str) -> Any:  # noqa: ANN401 - whatever a template was rendered to
    """Return the value of which a template made a text: JSON, or a Python literal."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return text


def _shown(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:60]}…"  # noqa: PLR2004 - as much as fits in a sentence
