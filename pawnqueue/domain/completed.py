"""The completed log (``docs/protocol.md``, section 4): an object for each claim, with a line for each acked message."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import zstandard

from pawnqueue.domain import layout, numbers
from pawnqueue.domain.bounds import LATEST_TIME, MOST_PAYLOAD_DEPTH, NotJsonError, parse_json, within_bounds
from pawnqueue.domain.claim_record import ClaimRecord
from pawnqueue.domain.record import FORMAT, UnreadableRecordError, to_json
from pawnqueue.errors import CompatibilityError

#: What a claim's record says of its log: with payloads, or without.
WITH_PAYLOADS: Final = "payloads"
WITHOUT_PAYLOADS: Final = "ids"
#: How many messages of one claim are logged. The others are only counted.
MAX_LOGGED_MESSAGES: Final = 100_000
#: Of the lines of one object, with their newlines. Payloads are left out from half of it on.
MAX_LOG_BYTES: Final = 64 * 1024**2
#: The largest object that is downloaded as a part of the log.
MAX_STORED_LOG_BYTES: Final = MAX_LOG_BYTES + 1024**2

_LATEST_MICROSECONDS: Final = 10**16 - 1
_NAME: Final = re.compile(r"(?P<time>[0-9]{16})-(?P<count>[1-9][0-9]{0,6})-(?P<stem>[^/]+)\.jsonl\.zst")


@dataclass(frozen=True, slots=True)
class LoggedClaim:
    """An object of the log, by its name."""

    name: str
    count: int
    """How many messages the claim has completed."""


def log_name(record: ClaimRecord, count: int) -> str:
    """Return the name of a claim's object: LIST shows the latest claims first.

    ⚑ §4: it is the same for each process that finishes the claim, so that no message is logged twice.
    """
    microseconds = min(int(record.created_at * 1_000_000), _LATEST_MICROSECONDS)
    return f"{_LATEST_MICROSECONDS - microseconds:016}-{count}-{record.stem}.jsonl.zst"


def parse_log_name(name: str) -> LoggedClaim | None:
    """Read the name of an object of the log, or return None for a stranger's."""
    match = _NAME.fullmatch(name)
    if match is None or layout.parse_stem(match["stem"]) is None:
        return None
    return LoggedClaim(name, int(match["count"]))


@dataclass(frozen=True, slots=True)
class CompletedMessage:
    """A message that was acked, as the completed log has it."""

    id: str
    """Its id; "" where the process that finished its claim had not read its pack."""
    topic: str
    """The topic that it was in."""
    unit: str
    """The name under which it was kept: a uuid, or a pack's unit, ``#`` and its number."""
    published_at: datetime | None
    """When it was published, as the name of its object tells; if it had a delay, when it was due."""
    claimed_at: datetime
    """When it was claimed."""
    completed_at: datetime
    """When all messages of its claim were settled, as far as the process that logged it knows."""
    consumer: str
    """The name of the consumer that had it."""
    owner: str
    """On whose behalf it was claimed."""
    claim: str
    """The claim, by its id and generation."""
    deliveries: int
    """How often it was delivered."""
    payload: dict[str, Any] | None = None
    """Its payload, if the topic logs payloads and its own process logged it."""


def completed_count(record: ClaimRecord) -> int:
    """Return how many messages of a claim are acked."""
    return sum(count for unit_id in record.settled for how, count in record.decisions_of(unit_id) if how.how == "acked")


def log_body(
    record: ClaimRecord,
    now: float,
    *,
    ids_in: Callable[[str, int], list[str]],
    payloads: Mapping[str, Mapping[str, Any]],
) -> bytes:
    """Return the body of a claim's object.

    :param ids_in: returns the ids of messages of a unit; of a single message, the number is 1.
    :param payloads: payloads by the names under which the messages are kept, where they are logged.
    """
    head = {
        "claim": record.stem,
        "claimed_at": record.created_at,
        "completed_at": now,
        "consumer": record.consumer,
        "owner": record.owner,
        "v": FORMAT,
    }
    lines = [to_json(head)]
    size = 0
    for unit_id, unit, message_id, name, deliveries in _acked(record, ids_in):
        if len(lines) > MAX_LOGGED_MESSAGES or size > MAX_LOG_BYTES * 3 // 4:
            break
        line: dict[str, Any] = {"deliveries": deliveries, "id": message_id, "name": name, "unit": unit}
        payload = payloads.get(unit, payloads.get(unit_id) if unit == unit_id else None)
        text = to_json(line if payload is None else {**line, "payload": payload})
        if payload is not None and size + len(text) > MAX_LOG_BYTES // 2:
            text = to_json(line)
        size += len(text.encode("utf-8", "replace")) + 1
        lines.append(text)
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(
        "\n".join([*lines, ""]).encode("utf-8", "replace")
    )


def _acked(record: ClaimRecord, ids_in: Callable[[str, int], list[str]]) -> Iterator[tuple[str, str, str, str, int]]:
    for unit_id in sorted(record.settled, key=lambda each: record.members[each].name):
        member, decision = record.members[unit_id], record.settled[unit_id]
        if not member.is_pack:
            if decision.how == "acked":
                message_id = decision.id or next(iter(ids_in(unit_id, 1)), unit_id)
                yield unit_id, unit_id, message_id, member.name, member.deliveries
            continue
        deliveries = {number: each.deliveries for each in member.shares for number in numbers.each(each.of)}
        for part in record.parts_of(unit_id):
            if part.how == "acked":
                ids = ids_in(unit_id, part.of)
                for number, message_id in zip(numbers.each(part.of), ids, strict=True):
                    unit = layout.entry_of(unit_id, number)
                    yield unit_id, unit, message_id, member.name, deliveries.get(number, 0)


def read_log(body: bytes, key: str, topic: str) -> list[CompletedMessage]:
    """Return the messages of one object, in the order in which they were published.

    :raises CompatibilityError: it has a newer format.
    :raises UnreadableRecordError: it is not a part of the log.
    """
    try:
        text = _expanded(body)
        lines = [parse_json(line, max_depth=MOST_PAYLOAD_DEPTH + 2) for line in text.split(b"\n") if line]
        head, entries = lines[0], lines[1:]
        if isinstance(head, dict) and isinstance(head.get("v"), int) and head["v"] > FORMAT:
            raise CompatibilityError(
                f"{key} has format {head['v']}, and this version reads up to {FORMAT}: upgrade it."
            )
        common = {name: _text(head, name) for name in ("consumer", "owner", "claim")}
        claimed, completed = _time(head, "claimed_at"), _time(head, "completed_at")
        return [
            CompletedMessage(
                id=_text(each, "id"),
                topic=topic,
                unit=_text(each, "unit"),
                published_at=_published(_text(each, "name")),
                claimed_at=claimed,
                completed_at=completed,
                deliveries=_count(each),
                payload=_payload(each),
                **common,
            )
            for each in entries
        ]
    except (zstandard.ZstdError, NotJsonError, KeyError, IndexError, TypeError, ValueError):
        raise UnreadableRecordError(f"{key} is not a part of the completed log") from None


def _expanded(body: bytes) -> bytes:
    """⚑ §1: whatever the body is, it takes no more memory than the largest of ours."""
    header = zstandard.get_frame_parameters(body)
    if header.content_size in {zstandard.CONTENTSIZE_UNKNOWN, 0} or header.content_size > MAX_LOG_BYTES:
        raise ValueError("it is larger than any of ours")
    if header.window_size > MAX_LOG_BYTES:
        raise ValueError("its window is larger than any of ours")
    return zstandard.ZstdDecompressor().decompress(body, max_output_size=MAX_LOG_BYTES)


def _text(of: Mapping[str, Any], name: str) -> str:
    value = of[name]
    if not isinstance(value, str):
        raise TypeError
    return value


def _time(of: Mapping[str, Any], name: str) -> datetime:
    value = of[name]
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= LATEST_TIME:
        raise TypeError
    return datetime.fromtimestamp(value, UTC)


def _count(of: Mapping[str, Any]) -> int:
    value = of["deliveries"]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError
    return value


def _payload(of: Mapping[str, Any]) -> dict[str, Any] | None:
    value = of.get("payload")
    if value is not None and not isinstance(value, dict):
        raise TypeError
    return value


def _published(name: str) -> datetime | None:
    seconds = layout.read_stamp(name)
    return None if seconds is None else within_bounds(datetime.fromtimestamp(seconds, UTC))
