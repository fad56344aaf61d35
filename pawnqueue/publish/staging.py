"""Staged rows of a write: messages that are not visible yet, in a few objects beside the queue (§7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pawnqueue.domain import layout
from pawnqueue.domain.envelope import Envelope
from pawnqueue.domain.identifiers import UnitId
from pawnqueue.domain.object_sizes import STAGED_OBJECT_BYTES, max_staged_bytes
from pawnqueue.domain.pack import pack_body, staged_lines
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.domain.write_record import StagedObject
from pawnqueue.errors import CompatibilityError, InvalidArgumentError, ObjectTooLargeError, PawnQueueError, StoreError
from pawnqueue.events import logger_of
from pawnqueue.publish.packing import MAX_PACKED_LINE_BYTES, ranges_within
from pawnqueue.runtime.concurrency import for_each

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.publish.new_messages import Checked
    from pawnqueue.settings import PacksSettings

logger = logger_of("publish")

#: How many characters of a nonce are in the names of an attempt's objects.
_ATTEMPT_ID_CHARACTERS: Final = 32
#: How long a write waits for a process that can read all its staged rows: time for an upgrade, or to raise a limit.
MAX_WAIT_FOR_ROWS_SECONDS: Final = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Staged:
    """What one attempt has staged of one part of a write. It can be pickled, and is small."""

    topic: str
    """The topic."""
    write_id: str
    """The id of the write."""
    part: int
    """The number of the part."""
    objects: tuple[StagedObject, ...] = ()
    """The objects that hold its messages."""

    def __len__(self) -> int:
        """Count the messages."""
        return sum(each.count for each in self.objects)

    def __bool__(self) -> bool:
        """Return True: a part without rows is staged too."""
        return True


async def stage(
    context: Context, before: Staged, messages: Sequence[Checked], producer_id: str, packs: PacksSettings | None
) -> Staged:
    """Stage messages behind those that were staged before, and return all of them. None of them is visible.

    :param packs: how large the packs are that the commit copies into the topic; None: it makes an object of each row.

    ⚑ Each call uses names of its own: it overwrites nothing that another attempt has staged, and adopts nothing of it.
    """
    attempt = context.clock.nonce()[:_ATTEMPT_ID_CHARACTERS]
    topic, write_id, part = before.topic, before.write_id, before.part
    made: list[tuple[StagedObject, bytes]] = []
    for lines, is_pack in _objects(_lines(before, messages, producer_id, is_pack=packs is not None), packs):
        body = pack_body(lines) if is_pack else b"\n".join([*lines, b""])
        name = layout.staged_name(part, attempt, len(made), is_pack=is_pack)
        made.append((StagedObject(name=name, size=len(body), count=len(lines)), body))
    try:
        await for_each(
            lambda each: context.store.overwrite(layout.staged_object(topic, write_id, each[0].name), each[1]),
            made,
            at_once=context.at_once,
        )
    except StoreError:
        # These names were not returned, so no commit can rely on them.
        await remove(context, [layout.staged_object(topic, write_id, each.name) for each, _ in made])
        raise
    return replace(before, objects=(*before.objects, *(each for each, _ in made)))


def _lines(before: Staged, messages: Sequence[Checked], producer_id: str, *, is_pack: bool) -> list[bytes]:
    topic, write_id, start = before.topic, before.write_id, len(before)
    return staged_lines(
        layout.written_ids(topic, write_id, before.part, range(start, start + len(messages))),
        ((message.payload, message.headers) for message in messages),
        topic=topic,
        producer_id=producer_id,
        write_id=write_id if is_pack else "",  # a row gets it from the commit
    )


def _objects(lines: Sequence[bytes], packs: PacksSettings | None) -> Iterator[tuple[Sequence[bytes], bool]]:
    """Give the lines of each object to be staged, and whether it is a pack."""
    most, most_bytes = (packs.messages, packs.bytes) if packs else (len(lines), STAGED_OBJECT_BYTES)
    for start, end in ranges_within(lines, most, most_bytes):
        # A line may be too large for any pack.
        yield lines[start:end], bool(packs) and (end - start > 1 or len(lines[start]) <= MAX_PACKED_LINE_BYTES)


@dataclass(frozen=True, slots=True)
class Piece:
    """A unit that a write publishes: a row, or a pack that was staged."""

    id: UnitId
    count: int = 1
    envelope: Envelope | None = None
    """Of a row, without its time."""
    source: str = ""
    """The key of a staged pack."""

    @property
    def is_pack(self) -> bool:
        """Whether it is a pack, which may have a single message."""
        return layout.is_of_pack(self.id)

    @property
    def is_gone(self) -> bool:
        """Whether what was staged was removed or changed."""
        return self.envelope is None and not self.source


def messages_ahead(objects: Sequence[StagedObject], place: int, line: int, most: int) -> int:
    """Return how many messages are in the next rows and packs, at most this many, from a line of one of the objects."""
    count = 0
    while most > 0 and place < len(objects):
        each = objects[place]
        rest = each.count - line
        taken = rest if each.is_pack else min(rest, most)
        count += taken
        most -= 1 if each.is_pack else taken
        place, line = place + 1, 0
    return count


class UnreadRowsError(StoreError):
    """This process cannot read some staged rows of a write. Another process may be able to."""


class StagedReader:
    """Reads what a write publishes, in order, one staged object at a time. A staged pack is not read."""

    def __init__(  # noqa: PLR0913, PLR0917 - which rows these are, and what is known of their objects
        self,
        context: Context,
        topic: str,
        write_id: str,
        objects: Sequence[StagedObject],
        start: int = 0,
        present: Mapping[str, int] | None = None,
        *,
        is_wait_over: bool = False,
    ) -> None:
        """Start behind this many messages, which is not within a pack.

        :param present: the names and sizes of the objects that were found, if they were listed already: no other
            object is read.
        :param is_wait_over: rows that this process cannot read count as gone.
        """
        self._context = context
        self._topic = topic
        self._write_id = write_id
        self._objects = objects
        self._place = 0
        self._present = present
        self._is_wait_over = is_wait_over
        self._skipped = ""  # the last object of which rows were skipped
        self._before: Counter[int] = Counter()  # how many messages of each part came before
        self._lines: list[bytes] | None = None  # of the object, if it was read; empty: it was removed or changed
        self._line = start

    async def take(self, count: int) -> list[Piece]:
        """Return the pieces of the next messages, at most this many, which do not end within a pack.

        :raises UnreadRowsError: this process cannot read some of them.
        """
        pieces: list[Piece] = []
        while count > 0 and (each := self._advance()) is not None:
            last = min(each.count, self._line + count)
            if each.is_pack:
                pieces.append(self._pack(each))
            else:
                if self._lines is None:
                    self._lines = await self._read(each)
                pieces += [self._row(each, self._lines, line) for line in range(self._line, last)]
            count -= last - self._line
            self._line = last
        return pieces

    def ahead(self, most: int) -> int:
        """Return how many messages the next pieces have, at most this many pieces."""
        return messages_ahead(self._objects, self._place, self._line, most)

    def skip_gone(self) -> int:
        """Skip the next messages as long as their whole objects are known to be gone; return how many."""
        count = 0
        while (each := self._advance()) is not None and self._is_gone(each):
            count += each.count - self._line
            self._line = each.count
        return count

    def _advance(self) -> StagedObject | None:
        """Move to the object that holds the next message, and return it; None after the last message."""
        while self._place < len(self._objects):
            each = self._objects[self._place]
            if self._line < each.count:
                return each
            self._before[layout.part_of_staged(each.name)] += each.count
            self._line -= each.count
            self._place += 1
            self._lines = None
        return None

    def _is_gone(self, each: StagedObject) -> bool:
        if self._lines is not None:
            return not self._lines
        return self._present is not None and self._present.get(each.name, -1) < each.size

    async def _read(self, each: StagedObject) -> list[bytes]:
        """Return the lines of an object, or none if it does not hold the rows that were staged."""
        if self._is_gone(each):
            return []
        key = layout.staged_object(self._topic, self._write_id, each.name)
        try:
            found = await self._context.store.get(key, max_staged_bytes(self._context.settings.limits))
        except ObjectTooLargeError as error:
            if error.size == each.size:
                self._wait_or_skip(key, error)  # it was staged by a process with larger limits
            return []  # or it is not the object that was staged
        lines = [] if found is None else found.body.splitlines()
        return lines if len(lines) == each.count else []

    def _pack(self, each: StagedObject) -> Piece:
        uuid = layout.written_pack_uuid(self._topic, self._write_id, each.name)
        source = "" if self._is_gone(each) else layout.staged_object(self._topic, self._write_id, each.name)
        return Piece(layout.pack_unit_id(uuid, each.count), each.count, source=source)

    def _row(self, each: StagedObject, lines: Sequence[bytes], line: int) -> Piece:
        key = layout.staged_object(self._topic, self._write_id, each.name)
        envelope = self._decoded(lines[line], key) if lines else None
        if envelope is not None:
            return Piece(UnitId(envelope.id), envelope=envelope)
        part = layout.part_of_staged(each.name)
        return Piece(UnitId(layout.written_id(self._topic, self._write_id, part, self._before[part] + line)))

    def _decoded(self, line: bytes, key: str) -> Envelope | None:
        try:
            envelope = Envelope.decode(line, key)
        except UnreadableRecordError:
            return None
        except CompatibilityError as error:
            self._wait_or_skip(key, error)
            return None
        # ⚑ §1: the id becomes a part of the message's key.
        return envelope if layout.is_message_id(envelope.id) else None

    def _wait_or_skip(self, key: str, why: PawnQueueError) -> None:
        """⚑ §7: a write does not wait for ever for a process that can read its rows."""
        if self._is_wait_over:
            if key != self._skipped:  # one log line for each object, however many rows it has
                logger.warning("Rows of %s are not published, as no process could read them for a week: %s", key, why)
            self._skipped = key
            return
        raise UnreadRowsError(
            f"Write {self._write_id} of topic {self._topic!r} is decided, but cannot be finished by this process: it "
            f"cannot read rows of {key}: {why} Commit it again, or sweep the topic, from a process that can read these "
            f"rows. After {MAX_WAIT_FOR_ROWS_SECONDS / 86_400:g} days it is finished without these rows.",
            topic=self._topic,
            operation="commit_write",
            cause=why,
        )


async def list_staged(context: Context, topic: str, write_id: str) -> dict[str, int]:
    """Return the names and sizes of all objects that are staged for a write, by any attempt."""
    return {
        parsed[1]: info.size
        async for page in context.store.pages(layout.staged(topic, write_id))
        for info in page
        if (parsed := layout.parse_staged(info.key)) is not None
    }


async def remove(context: Context, keys: Sequence[str]) -> int:
    """Remove staged objects that no commit can rely on, and return how many are gone. The janitor removes the rest."""
    try:
        failed: Mapping[str, StoreError] = await context.store.delete(keys) if keys else {}
    except StoreError as fault:
        failed = dict.fromkeys(keys, fault)
    if failed:
        key, error = next(iter(failed.items()))
        logger.warning("%d staged objects stay until the janitor removes them: %s: %s", len(failed), key, error)
    return len(keys) - len(failed)


async def remove_all(context: Context, topic: str, write_id: str) -> None:
    """Remove all that is staged for a write that is done, by all its attempts, earlier and later ones."""
    try:
        names = await list_staged(context, topic, write_id)
    except StoreError as error:
        logger.warning("What is staged for write %s of topic %r stays until a sweep: %s", write_id, topic, error)
    else:
        await remove(context, [layout.staged_object(topic, write_id, name) for name in names])


def continue_part(part: Staged, after: object) -> Staged:
    """Return what was staged of a part so far, to stage more behind it."""
    if after is None:
        return part
    if isinstance(after, Staged) and (after.topic, after.write_id, after.part) == (
        part.topic,
        part.write_id,
        part.part,
    ):
        return after
    raise InvalidArgumentError(
        f"after must be what stage() has returned for part {part.part} of write {part.write_id} of topic "
        f"{part.topic!r}.",
        topic=part.topic,
        operation="stage",
    )


def sort_parts(topic: str, write_id: str, given: object) -> list[Staged]:
    """Return what was staged, in the order of its parts.

    :raises InvalidArgumentError: it belongs to another write, or contains a part twice.
    """
    parts: dict[int, Staged] = {}
    for each in given if isinstance(given, Iterable) else (None,):
        if not isinstance(each, Staged):
            break
        if (each.topic, each.write_id) != (topic, write_id):
            raise _part_error(f"{each.write_id!r} of topic {each.topic!r} was staged, not this write", write_id)
        if each.part in parts:
            raise _part_error(f"part {each.part} is given twice: pass the result of one attempt at each part", write_id)
        parts[each.part] = each
    else:
        return [parts[part] for part in sorted(parts)]
    raise _part_error("pass what stage() has returned, once for each part", write_id)


def _part_error(why: str, write_id: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"Write {write_id} was not committed: {why}. Nothing was published.", operation="commit_write"
    )
