"""What a call of publish puts into a topic: packs, or an object for each message (§7)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

from pawnqueue.catalog import units
from pawnqueue.domain import layout
from pawnqueue.domain.identifiers import UnitId
from pawnqueue.domain.lanes import prefix
from pawnqueue.domain.layout import PACK_SUFFIX, is_pack_name, pack_unit_id
from pawnqueue.domain.pack import MAX_PACK_BYTES, entry_line, pack_body
from pawnqueue.domain.times import iso
from pawnqueue.domain.uuids import UUID_BYTES, uuids_of
from pawnqueue.domain.write_record import TICKS_PER_SECOND
from pawnqueue.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pawnqueue.domain.records import TopicSettings
    from pawnqueue.publish.new_messages import Checked
    from pawnqueue.publish.schedule import Schedule
    from pawnqueue.runtime.clock import Clock
    from pawnqueue.settings import PacksSettings

T = TypeVar("T")

#: Whether a call of publish makes packs: always, never, or if the topic allows them and the messages are many.
PackChoice: TypeAlias = Literal["auto"] | bool

#: ⚑ §1: a pack is at most ``packs.bytes``, half of this bound, and the line with which it ends.
MAX_PACKED_LINE_BYTES: Final = MAX_PACK_BYTES // 2


@dataclass(frozen=True, slots=True)
class NewUnit:
    """An object to put into a topic: a pack, or a single message."""

    id: UnitId
    name: str
    """Of its key. It is fixed before the first attempt, so that every retry writes the same object."""
    message_ids: Sequence[str]
    lines: Sequence[bytes]

    @property
    def is_pack(self) -> bool:
        """Whether it is a pack. A pack may have a single message."""
        return is_pack_name(self.name)

    def body(self) -> bytes:
        """Return what is stored. It is made when it is sent, so that a large call does not hold all of them."""
        return pack_body(self.lines) if self.is_pack else self.lines[0]


def chosen_packs(
    pack: PackChoice, count: int, topic: str, allowed: TopicSettings, settings: PacksSettings
) -> PacksSettings | None:
    """Return how large the packs of a call are; None: each message is an object of its own.

    :raises InvalidArgumentError: packs are asked for, and the topic does not allow them.
    """
    if pack is True and not allowed.packs:
        raise InvalidArgumentError(
            f"Topic {topic!r} does not allow packs, and pack=True asks for them. If no consumer of it uses the "
            f"pawn-queue library, which sees no packs, allow them with update_topic({topic!r}, packs=True). Otherwise "
            'pass pack="auto". Nothing was published.',
            topic=topic,
            operation="publish",
        )
    wants = pack is True or (pack == "auto" and bool(allowed.packs) and count >= settings.min_messages)
    return settings if wants else None


@dataclass(frozen=True, slots=True)
class NewUnits:
    """What a call of publish puts into a topic."""

    ids: list[str]
    """Of the messages, in the order in which they were given."""
    units: list[NewUnit]
    """Each lane's in publish order."""


def units_of(  # noqa: PLR0913 - what an envelope says beside its payload
    clock: Clock,
    topic: str,
    messages: Sequence[Checked],
    producer_ids: Sequence[str],
    *,
    place: int,
    packs: PacksSettings | None,
    error_seconds: float = 0.0,
    ids: Sequence[str] = (),
) -> NewUnits:
    """Return what to put into the topic. Messages share a pack if they have one priority and one delay.

    :param producer_ids: of each message its producer's.
    :param place: in the queue, in ticks, of the first message. The others follow, a tick apart.
    :param packs: how large the packs are; None: each message is an object of its own.
    :param error_seconds: how much later than its place tells a message may be published.
    :param ids: of the messages, where they have some already.
    """
    ids = list(ids) or (_fresh_ids(clock.nonce(), len(messages)) if packs else [clock.uuid() for _ in messages])
    lines = [
        entry_line(
            id=message_id,
            topic=topic,
            producer_id=producer_id,
            created_at=iso_of_tick(at),
            payload_json=message.payload,
            headers=message.headers,
            priority=message.schedule.priority,
            dedup_key=message.dedup_key,
        )
        for at, (message_id, message, producer_id) in enumerate(zip(ids, messages, producer_ids, strict=True), place)
    ]
    made = []
    by_schedule = _positions_by_schedule(messages)
    most, most_bytes = (packs.messages, packs.bytes) if packs else (1, 0)
    for schedule, positions in by_schedule.items():
        own_lines, own_ids = _chosen(lines, positions), _chosen(ids, positions)
        for start, end in ranges_within(own_lines, most, most_bytes):
            first, last = place + positions[start], place + positions[end - 1]
            lane = prefix(schedule.priority, schedule.due(last / TICKS_PER_SECOND, error_seconds))
            stamp, count = first / TICKS_PER_SECOND, end - start
            is_alone = len(positions) == 1 and len(by_schedule) > 1
            if packs and not is_alone and (count > 1 or len(own_lines[start]) <= MAX_PACKED_LINE_BYTES):
                uuid = clock.uuid()
                unit_id, name = pack_unit_id(uuid, count), units.pack_name_at(stamp, uuid, count, lane)
            else:
                unit_id, name = UnitId(own_ids[start]), units.name_at(stamp, own_ids[start], lane)
            made.append(NewUnit(unit_id, name, own_ids[start:end], own_lines[start:end]))
    return NewUnits(ids, made)


def _positions_by_schedule(messages: Sequence[Checked]) -> dict[Schedule, Sequence[int]]:
    """Return which messages have each schedule, in order."""
    if all(message.schedule is messages[0].schedule for message in messages):
        return {messages[0].schedule: range(len(messages))} if messages else {}
    found: dict[Schedule, list[int]] = {}
    for position, message in enumerate(messages):
        found.setdefault(message.schedule, []).append(position)
    return {**found}


def _chosen(all_: Sequence[T], positions: Sequence[int]) -> Sequence[T]:
    return all_ if len(positions) == len(all_) else [all_[position] for position in positions]


def ranges_within(lines: Sequence[bytes], most: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Give the first line of each object with many lines, and the line behind its last.

    It ends with the line that takes it past a bound. A line that is larger than that is alone.
    """
    start = size = 0
    for number, line in enumerate(lines):
        if len(line) >= most_bytes:
            if start < number:
                yield start, number
            yield number, number + 1
            start, size = number + 1, 0
            continue
        size += len(line) + 1
        if size >= most_bytes or number + 1 - start >= most:
            yield start, number + 1
            start, size = number + 1, 0
    if start < len(lines):
        yield start, len(lines)


def only_some(unit: NewUnit, ids: Collection[str]) -> NewUnit | None:
    """Return the unit with these messages only, under the name that it has then; None: with none of them."""
    kept = [each for each in zip(unit.message_ids, unit.lines, strict=True) if each[0] in ids]
    if not kept:
        return None
    if len(kept) == len(unit.message_ids):
        return unit
    uuid = layout.uuid_of(unit.id)
    name = f"{stem_of(unit.name)}.{len(kept)}{PACK_SUFFIX}"
    return NewUnit(pack_unit_id(uuid, len(kept)), name, [each for each, _ in kept], [line for _, line in kept])


def stem_of(name: str) -> str:
    """Return a unit's name without its ending, which in a pack's name tells the number of messages."""
    return name.partition(".")[0]


def _fresh_ids(nonce: str, count: int) -> list[str]:
    """Make the ids of messages out of one nonce: a thousand times the clock's own takes six times as long."""
    return uuids_of(hashlib.shake_128(nonce.encode()).digest(UUID_BYTES * count))


def iso_of_tick(place: int) -> str:
    """Write a place in the queue as :func:`.iso` writes a time, in a fifth of its time."""
    second, tick = divmod(place, TICKS_PER_SECOND)
    return f"{_to_the_second(second)}.{tick:06}+00:00"


@lru_cache(maxsize=64)
def _to_the_second(second: int) -> str:
    return iso(second).partition(".")[0]
