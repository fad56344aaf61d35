"""A claim as XCom carries it: where it is, and its messages too while they are few and small."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from airflow_provider_pawnqueue.engine import Claim, ClaimReference, InvalidArgumentError, Message

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine import Settings

#: What operators take as ``claim``: what the sensor returned, or what the engine gives.
Given: TypeAlias = "Claim | ClaimReference | Mapping[str, Any] | str"

#: So large all messages of a claim may be together, as JSON, to be in its reference; else the bucket has them.
LARGEST_INLINE: Final = 16 * 1024


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
    return told if messages is None else told | {"messages": [written(message) for message in messages]}


def size_of(messages: Sequence[Message]) -> int:
    """Return how large messages are together, as JSON."""
    return sum(len(json.dumps(written(message), ensure_ascii=False).encode()) for message in messages)


def written(message: Message) -> dict[str, Any]:
    """Write a message as JSON has it."""
    return asdict(message) | {"created_at": message.created_at.isoformat(), "headers": dict(message.headers)}


def inline_messages(given: Given) -> list[Message] | None:
    """Return the messages that came along with a reference, or None."""
    read = literal(given) if isinstance(given, str) else given
    if not isinstance(read, Mapping) or not isinstance(read.get("messages"), list):
        return None
    try:
        return [
            Message(**{**each, "created_at": datetime.fromisoformat(each["created_at"])}) for each in read["messages"]
        ]
    except (KeyError, TypeError, ValueError):
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
        except (ValueError, SyntaxError):
            continue
    return text


def _shown(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:60]}…"  # noqa: PLR2004 - as much as fits in a sentence
