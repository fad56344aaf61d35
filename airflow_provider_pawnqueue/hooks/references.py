"""A claim as XCom carries it: where it is, and its messages too while they are few and small.

⚑ Messages are JSON *texts* in XCom, never dicts: Airflow's serialization reads the keys of a dict (``__classname__``,
``__id__``, ``__type`` with ``__var``) at any depth, and a payload is whatever its publisher wrote. The texts are ASCII,
so whatever is in a payload can be stored and encoded.

⚑ What a task is given becomes dicts again, and Airflow sends those on before the task's own code runs: its rendered
fields go to its supervisor as msgpack, and into the database as JSON. One payload that they cannot carry would keep
the task from every message beside it. So such a message goes along nowhere: a claim that has one is handed on without
messages, which the bucket has exactly.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn, SupportsIndex, TypeAlias

from pawnqueue import Claim, ClaimReference, InvalidArgumentError, Message

if TYPE_CHECKING:
    from pawnqueue import Settings

#: What operators take as ``claim``: what the sensor returned, or what the engine gives.
Given: TypeAlias = "Claim | ClaimReference | Mapping[str, Any] | str"

#: So large all messages of a claim may be together, as JSON, to be in its reference; else the bucket has them.
MAX_INLINE_BYTES: Final = 16 * 1024
#: How deeply a payload may be nested that goes along. The publisher's default limit is 64. Airflow's API gives up at
#: about 190, and a database may at less: MySQL's JSON ends at 100, of which the fields around a payload take some.
MOST_DEPTH: Final = 80
#: The integers of msgpack.
_INTEGERS: Final = range(-(2**63), 2**64)
_LONG_INTEGER: Final = re.compile(r"[0-9]{19}")
_TOO_LARGE: Final = MAX_INLINE_BYTES + 1
_FIELDS: Final = tuple(field.name for field in fields(Message))


def place_of(settings: Settings) -> str:
    """Name a queue, as references name it: two connections to one bucket may name its address differently."""
    return f"{settings.s3.bucket_name}/{settings.s3.key_prefix}"


def to_xcom(
    reference: ClaimReference, settings: Settings, *, count: int, size: int, messages: Sequence[Message] | None = None
) -> dict[str, Any]:
    """Write a reference as JSON has it.

    :param count: how many messages the claim has.
    :param size: how large they are together, as JSON.
    :param messages: what to carry along.
    """
    told = reference.to_dict() | {"queue": place_of(settings), "count": count, "bytes": size}
    texts = [text_of(message) for message in messages or ()]
    if messages is None or None in texts:
        return told  # the bucket has them
    return told | {"messages": f"[{', '.join(filter(None, texts))}]"}


def size_of(messages: Iterable[Message]) -> int:
    """Return how large messages are together, as JSON; too large to go along, where one cannot be written."""
    return sum(_TOO_LARGE if (text := text_of(message)) is None else len(text) for message in messages)


def text_of(message: Message) -> str | None:
    """Write a message as one JSON text, or return None: Airflow cannot carry it (see :func:`obstacle_in`)."""
    try:
        text = json.dumps(written(message))
    except (RecursionError, ValueError):
        return None
    is_doubtful = text.count("[") + text.count("{") > MOST_DEPTH or _LONG_INTEGER.search(text)
    return None if is_doubtful and obstacle_in(message.payload) else text


def obstacle_in(payload: object, *, most_depth: int = MOST_DEPTH) -> str | None:
    """Say why Airflow cannot carry a payload from task to task, or return None: it can."""
    level = [payload]
    for _ in range(most_depth + 1):
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
    return f"it is nested more than {most_depth} deep"


def written(message: Message) -> dict[str, Any]:
    """Write a message as tasks receive it: what JSON has."""
    told = {name: getattr(message, name) for name in _FIELDS}
    return told | {"created_at": message.created_at.isoformat(), "headers": dict(message.headers)}


def decoded_messages(value: Any) -> Any:  # noqa: ANN401 - a list, or lists in it
    """Read the texts in what XCom has, whatever lists they are in. What is a dict was written by a former release."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            raise InvalidArgumentError(
                "The messages in XCom are not JSON, so another program has written them: read them from the bucket by "
                "PawnQueueHook().messages(claim).",
                operation="read messages",
            ) from None
    if isinstance(value, Sequence):
        return [decoded_messages(each) for each in value]
    return value


def received(value: Any) -> Any:  # noqa: ANN401 - one claim, several, or nothing
    """Return claims as tasks receive them: with the messages that came along as dicts."""
    if isinstance(value, Mapping):
        messages = decoded_messages(value.get("messages"))
        # A release that did not look has written what Airflow cannot carry. The list and its messages are around it.
        if obstacle_in(messages, most_depth=MOST_DEPTH + 2):
            return received(bare(value))
        return {_Field(name): messages if name == "messages" else each for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [received(each) for each in value]
    return value


def bare(value: Any) -> Any:  # noqa: ANN401 - likewise
    """Return claims without the messages that came along."""
    if isinstance(value, Mapping):
        return {name: each for name, each in value.items() if name != "messages"}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [bare(each) for each in value]
    return value


class _Field(str):
    """The name of a field of a claim: what a loop over a claim gives, which is a dict."""

    __slots__ = ()

    def __getattr__(self, name: str) -> NoReturn:
        help_ = "" if name.startswith("_") else _NO_MESSAGE
        raise AttributeError(f"{str(self)!r} has no attribute {name!r}.{help_}", name=name, obj=self)

    def __getitem__(self, index: SupportsIndex | slice) -> str:
        if isinstance(index, str):
            raise TypeError(f"{str(self)!r} has no item {index!r}.{_NO_MESSAGE}")
        return super().__getitem__(index)


_NO_MESSAGE: Final = (
    " A task is given a reference to a claim, which is a dict, and not the messages: "
    "`for message in PawnQueueHook().messages(claim)`."
)


def inline_messages(given: Given) -> list[Message] | None:
    """Return the messages that came along with a reference, or None."""
    read = literal(given) if isinstance(given, str) else given
    found = read.get("messages") if isinstance(read, Mapping) else None
    try:
        each_one = json.loads(found) if isinstance(found, str) else found
        if not isinstance(each_one, list):
            return None
        return [Message(**{**each, "created_at": datetime.fromisoformat(each["created_at"])}) for each in each_one]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None  # another release wrote them: the bucket has them too


def from_xcom(given: Given, settings: Settings, operation: str) -> ClaimReference:
    """Read a reference, however it came.

    :raises InvalidArgumentError: it is none, or one of another queue.
    """
    if isinstance(given, ClaimReference):
        return given
    if isinstance(given, Claim):
        return ClaimReference(given.topic, given.claim_id, given.generation, given.session)
    read = literal(given) if isinstance(given, str) else given
    if not isinstance(read, Mapping):
        raise InvalidArgumentError(
            f"claim={_shown(given)} is no claim: pass what the sensor returned (claim=sensor.output), one of them "
            "where it waits for several topics.",
            operation=operation,
        )
    queue = read.get("queue")
    if queue is not None and queue != place_of(settings):
        raise InvalidArgumentError(
            f"The claim is of the queue in {queue!r}, and this connection's is in {place_of(settings)!r}: pass the "
            "pawnqueue_conn_id with which it was claimed.",
            operation=operation,
        )
    return ClaimReference.from_dict(read)


def each_of(given: object) -> list[Given]:
    """Return the claims of what a sensor returned: one, several where it waits for several topics, or none."""
    read: Any = literal(given) if isinstance(given, str) else given
    if read is None:
        return []
    if isinstance(read, Sequence) and not isinstance(read, (str, bytes)):
        return [each for each in read if each is not None]
    return [read] if not isinstance(read, str) or read.strip() else []


def topics_of(given: object) -> list[str]:
    """Return the topics of claims, as far as they tell them."""
    found = (
        each.get("topic") if isinstance(each, Mapping) else getattr(each, "topic", None) for each in each_of(given)
    )
    return [*dict.fromkeys(topic for topic in found if isinstance(topic, str))]


def literal(text: str) -> Any:  # noqa: ANN401 - whatever a template was rendered to
    """Read what a template has made a text of: JSON, or Python's own way to write a dict."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return text


def _shown(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:60]}…"  # noqa: PLR2004 - as much as fits in a sentence
