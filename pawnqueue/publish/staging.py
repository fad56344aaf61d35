"""Staged rows of a write: messages that nobody can see yet, in a few objects beside the queue (§7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pawnqueue.domain import layout
from pawnqueue.domain.object_sizes import STAGED_OBJECT_BYTES, max_staged_bytes
from pawnqueue.domain.records import Envelope, StagedObject, UnreadableRecordError
from pawnqueue.errors import (
    CompatibilityError,
    InvalidArgumentError,
    ObjectTooLargeError,
    PawnQueueError,
    StoreError,
)
from pawnqueue.events import logger_of
from pawnqueue.runtime.concurrency import for_each

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.publish.publisher import Checked

logger = logger_of("publish")

#: So much of a nonce is in the names of an attempt's objects.
_ATTEMPT_ID_CHARACTERS: Final = 32
#: How long a write waits for a process that can read all of its staged rows: time to upgrade one, or to raise a limit.
MAX_WAIT_FOR_ROWS_SECONDS: Final = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Staged:
    """What an attempt has staged of one part of a write. It can be pickled, and is small."""

    topic: str
    """The topic that it is for."""
    write_id: str
    """The write that it is of."""
    part: int
    """Which part of that."""
    objects: tuple[StagedObject, ...] = ()
    """The objects that carry it."""

    def __len__(self) -> int:
        """Count the messages."""
        return sum(each.count for each in self.objects)

    def __bool__(self) -> bool:
        """Be true, if there is nothing in it either: a part without rows is staged."""
        return True


async def stage(context: Context, before: Staged, messages: Sequence[Checked], producer_id: str) -> Staged:
    """Stage messages behind those that were staged before, and return all of it. Nothing of it can be seen.

    ⚑ Each call has names of its own: nothing that another attempt has staged is overwritten, or counts as its own.
    """
    attempt = context.clock.nonce()[:_ATTEMPT_ID_CHARACTERS]
    topic, write_id, part = before.topic, before.write_id, before.part
    made: list[tuple[StagedObject, bytes]] = []
    for body, count in _bodies(before, messages, producer_id):
        name = layout.staged_name(part, attempt, len(made))
        made.append((StagedObject(name=name, size=len(body), count=count), body))
    try:
        await for_each(
            lambda each: context.store.overwrite(layout.staged_object(topic, write_id, each[0].name), each[1]),
            made,
            at_once=context.at_once,
        )
    except StoreError:
        # Nobody has heard of these names: no commit can rely on them.
        await remove(context, [layout.staged_object(topic, write_id, each.name) for each, _ in made])
        raise
    return replace(before, objects=(*before.objects, *(each for each, _ in made)))


def _bodies(before: Staged, messages: Sequence[Checked], producer_id: str) -> Iterator[tuple[bytes, int]]:
    lines: list[bytes] = []
    size = 0
    for position, message in enumerate(messages, len(before)):
        envelope = Envelope(
            id=layout.written_id(before.topic, before.write_id, before.part, position),
            topic=before.topic,
            producer_id=producer_id,
            payload=message.payload,
            headers=message.headers,
        )
        lines.append(envelope.encode() + b"\n")
        size += len(lines[-1])
        if size >= STAGED_OBJECT_BYTES:
            yield b"".join(lines), len(lines)
            lines, size = [], 0
    if lines:
        yield b"".join(lines), len(lines)


@dataclass(frozen=True, slots=True)
class Row:
    """A message of a write, as it was staged."""

    id: str
    envelope: Envelope | None  # has no time yet; None: what was staged is gone, or was changed


class UnreadRowsError(StoreError):
    """This process cannot read some staged rows of a write, and another one may."""


class RowReader:
    """Reads the messages of a write, in order, from one on, one staged object at a time."""

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
        """Begin at a row.

        :param present: the names and sizes of the objects that were found, if somebody has listed them: no other one
            is asked for.
        :param is_wait_over: rows that this process cannot read count as gone.
        """
        self._context = context
        self._topic = topic
        self._write_id = write_id
        self._objects = iter(objects)
        self._present = present
        self._is_wait_over = is_wait_over
        self._passed_over = ""  # the last object of which rows were
        self._before: Counter[int] = Counter()  # how many messages of each part came before
        self._object: StagedObject | None = None
        self._lines: list[bytes] | None = None  # of that object, where it was read; none: it is gone, or was changed
        self._line = start

    async def take(self, count: int) -> list[Row]:
        """Read the next messages, as many as this.

        :raises UnreadRowsError: this process cannot read some of them.
        """
        rows: list[Row] = []
        while len(rows) < count and (each := self._next()) is not None:
            if self._lines is None:
                self._lines = await self._read(each)
            last = min(each.count, self._line + count - len(rows))
            rows += [self._row(each, self._lines, line) for line in range(self._line, last)]
            self._line = last
        return rows

    def pass_over_gone(self) -> int:
        """Pass over the messages that come next and are known to be gone, by whole objects; return how many."""
        count = 0
        while (each := self._next()) is not None and self._is_gone(each):
            count += each.count - self._line
            self._line = each.count
        return count

    def _next(self) -> StagedObject | None:
        """Return the object that has the next message, or None behind the last message."""
        while self._object is None or self._line >= self._object.count:
            if self._object is not None:
                self._before[layout.part_of_staged(self._object.name)] += self._object.count
                self._line -= self._object.count
            self._object = next(self._objects, None)
            self._lines = None
            if self._object is None:
                return None
        return self._object

    def _is_gone(self, each: StagedObject) -> bool:
        if self._lines is not None:
            return not self._lines
        return self._present is not None and self._present.get(each.name, -1) < each.size

    async def _read(self, each: StagedObject) -> list[bytes]:
        """Return the lines of an object, or none where it does not have the rows that it had."""
        if self._is_gone(each):
            return []
        key = layout.staged_object(self._topic, self._write_id, each.name)
        try:
            found = await self._context.store.get(key, max_staged_bytes(self._context.settings.limits))
        except ObjectTooLargeError as error:
            if error.size == each.size:
                self._wait_or_pass_over(key, error)  # a process whose limits are larger has staged it
            return []  # or somebody else has put it there
        lines = [] if found is None else found.body.splitlines()
        return lines if len(lines) == each.count else []

    def _row(self, each: StagedObject, lines: Sequence[bytes], line: int) -> Row:
        key = layout.staged_object(self._topic, self._write_id, each.name)
        envelope = self._decoded(lines[line], key) if lines else None
        if envelope is not None:
            return Row(envelope.id, envelope)
        part = layout.part_of_staged(each.name)
        return Row(layout.written_id(self._topic, self._write_id, part, self._before[part] + line), None)

    def _decoded(self, line: bytes, key: str) -> Envelope | None:
        try:
            envelope = Envelope.decode(line, key)
        except UnreadableRecordError:
            return None
        except CompatibilityError as error:
            self._wait_or_pass_over(key, error)
            return None
        # ⚑ §1: it becomes a part of the message's key.
        return envelope if layout.is_message_id(envelope.id) else None

    def _wait_or_pass_over(self, key: str, why: PawnQueueError) -> None:
        """⚑ §7: A write does not wait for ever for a process that can read its rows."""
        if self._is_wait_over:
            if key != self._passed_over:  # one line for each object, however many rows it has
                logger.warning("Rows of %s are not published, as nobody could read them for so long: %s", key, why)
            self._passed_over = key
            return
        raise UnreadRowsError(
            f"Write {self._write_id} of topic {self._topic!r} is decided, and cannot be finished here: rows of {key} "
            f"cannot be read: {why} The rest follows when it is committed or swept by a process that can read them. "
            f"If there is none for {MAX_WAIT_FOR_ROWS_SECONDS / 86_400:g} days, it is finished without these rows.",
            topic=self._topic,
            operation="commit_write",
            cause=why,
        )


async def listed(context: Context, topic: str, write_id: str) -> dict[str, int]:
    """Return the names and sizes of what is staged for a write, whoever has staged it."""
    return {
        parsed[1]: info.size
        async for page in context.store.pages(layout.staged(topic, write_id))
        for info in page
        if (parsed := layout.parse_staged(info.key)) is not None
    }


async def remove(context: Context, keys: Sequence[str]) -> int:
    """Remove staged objects that no commit can rely on, and return how many are gone. The janitor sees to the rest."""
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
        names = await listed(context, topic, write_id)
    except StoreError as error:
        logger.warning("What is staged for write %s of topic %r stays until a sweep: %s", write_id, topic, error)
    else:
        await remove(context, [layout.staged_object(topic, write_id, name) for name in names])


def continued(part: Staged, after: object) -> Staged:
    """Return what was staged of a part so far, behind which more is staged."""
    if after is None:
        return part
    if isinstance(after, Staged) and (after.topic, after.write_id, after.part) == (
        part.topic,
        part.write_id,
        part.part,
    ):
        return after
    raise InvalidArgumentError(
        f"after is what stage() has returned for part {part.part} of write {part.write_id} of topic {part.topic!r}.",
        topic=part.topic,
        operation="stage",
    )


def in_order(topic: str, write_id: str, given: object) -> list[Staged]:
    """Return what was staged in the order of its parts.

    :raises InvalidArgumentError: it is of another write, or a part is in it twice.
    """
    parts: dict[int, Staged] = {}
    for each in given if isinstance(given, Iterable) else (None,):
        if not isinstance(each, Staged):
            break
        if (each.topic, each.write_id) != (topic, write_id):
            raise _wrong(f"{each.write_id!r} of topic {each.topic!r} was staged, and this is another write", write_id)
        if each.part in parts:
            raise _wrong(f"part {each.part} is in it twice: pass what one attempt at each part has returned", write_id)
        parts[each.part] = each
    else:
        return [parts[part] for part in sorted(parts)]
    raise _wrong("it takes what stage() has returned, of each part once", write_id)


def _wrong(why: str, write_id: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"Write {write_id} was not committed: {why}. Nothing was published.", operation="commit_write"
    )
