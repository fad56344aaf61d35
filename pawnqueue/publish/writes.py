"""Committing a staged write: one compare-and-set decides it, and any process can carry it out (§7).

    (none) --commit--> begun --note of progress--> begun --all is published--> done
    (none) --abort, janitor, deletion of the topic--> dropped --commit of other objects--> begun
    begun --staged rows are gone, and nothing of it is visible--> dropped

Before ``begun`` nothing of a write is visible, whatever dies. After it all of it becomes visible: if its process dies,
another one finishes it (:mod:`.decided_writes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from pawnqueue.bucket.topics import topic_not_found_error
from pawnqueue.domain import layout
from pawnqueue.domain.object_sizes import MAX_STAGED_OBJECTS
from pawnqueue.domain.write_record import TICKS_PER_SECOND, StagedObject, WriteRecord
from pawnqueue.errors import InvalidArgumentError, StoreError
from pawnqueue.events import WriteDecided, logger_of
from pawnqueue.publish import decided_writes, staging
from pawnqueue.publish.decided_writes import DecidedWrite, TopicExists
from pawnqueue.publish.sending import topic_may_exist
from pawnqueue.publish.write_outcome import Written, check_same_rows, dropped_error, incomplete_error, missing_error
from pawnqueue.registers.register import Versioned
from pawnqueue.registers.write_records import HOLD_SECONDS

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.publish.staging import Staged

logger = logger_of("publish")

#: A place in the queue that is later than this is forged: ten million messages at once are placed ten seconds ahead.
FARTHEST_AHEAD_SECONDS: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of a staged write: all of it is published, or nothing."""

    context: Context
    topic: str
    write_id: str
    staged: Sequence[Staged]
    place: Callable[[float, int], int]
    """Returns the place in the queue of the first of these messages, from the server time and their number."""
    topic_exists: TopicExists
    """Says whether the topic still exists."""
    ended: set[str] = field(default_factory=set)
    """The attempts of this process that have ended and have no request in flight any more."""
    allow_empty: bool = False
    """Whether rows of a write that was done without rows are ignored; else they are an error."""

    async def carry_out(self) -> Written:
        """Decide and publish the write, or finish it if another commit has decided it.

        :raises WriteBusyError: another process is publishing it.
        :raises StagedGoneError: some of its staged objects do not exist; nothing was published.
        :raises InvalidArgumentError: the write was done without rows, and this commit has some.
        """
        context, topic, write_id = self.context, self.topic, self.write_id
        is_ours = False
        done: WriteRecord | None = None
        backoff = context.store.backoff()
        while done is None:
            found = await context.write_record(topic, write_id).read()
            held: DecidedWrite | None = None
            if found is None or found.value.state == "dropped":
                held = await self._decide(found)
                is_ours = is_ours or held is not None
            elif found.value.state == "begun":
                held = await decided_writes.take_over(context, topic, found, self.topic_exists, self.ended)
            else:
                done = found.value
            if held is not None:
                done = await held.finish()
                if done is not None and done.state == "dropped":
                    await self._check_may_go_on(is_ours=is_ours)
                    done = None  # the next round decides on the objects of this commit, or finds that they are gone
                backoff = context.store.backoff()  # the retry budget is for waiting, and that was work
            if done is None and not await backoff.pause():
                raise _contended_error(topic, write_id)
        await staging.remove_all(context, topic, write_id)
        if done.lost:
            raise incomplete_error(topic, done)
        if not is_ours:
            check_same_rows(done, topic, self.staged, allow_empty=self.allow_empty)
        return Written(topic, write_id, done.count, already=not is_ours)

    async def _decide(self, found: Versioned[WriteRecord] | None) -> DecidedWrite | None:
        """⚑ §7: writing the record is the decision. It fixes what is published, and under which keys."""
        context, topic, write_id = self.context, self.topic, self.write_id
        objects = [each for part in self.staged for each in part.objects]
        dropped = found.value.dropped if found is not None else []
        # ⚑ §1: no record is written that would not be read.
        if len(objects) + len(dropped) > MAX_STAGED_OBJECTS:
            raise InvalidArgumentError(
                f"Write {write_id} of topic {topic!r} has {len(objects):,} staged objects, and {len(dropped):,} that "
                f"were dropped before: one write has at most {MAX_STAGED_OBJECTS:,}. Stage more rows in each, or "
                "commit several writes.",
                topic=topic,
                operation="commit_write",
            )
        await self._check_stored(objects, found)
        has_packs = any(each.is_pack for each in objects)
        if not await topic_may_exist(topic, partial(self.topic_exists, with_packs=has_packs)):
            if not has_packs or not await topic_may_exist(topic, self.topic_exists):
                raise topic_not_found_error(topic, "commit_write")
            # ⚑ §7: its consumers would not look for them.
            raise InvalidArgumentError(
                f"Rows of write {write_id} were staged as packs, and topic {topic!r} allows none any more, as it was "
                "created anew: nothing was published. Stage the rows again.",
                topic=topic,
                operation="commit_write",
            )
        count = sum(each.count for each in objects)
        now = await context.now()
        record = WriteRecord(
            write_id=write_id,
            state="begun" if count else "done",
            created_at=now,
            until=now + HOLD_SECONDS,
            holder=context.clock.uuid(),
            ttl=HOLD_SECONDS if count else 0.0,
            # ⚑ §7: a late request of a dead committer writes the key that its message has now, and no second one.
            place=_inherited_place(found, now) or self.place(now, count),
            count=count,
            size=sum(each.size for each in objects),
            begun=staging.messages_ahead(objects, 0, 0, decided_writes.PIECES_PER_NOTE),
            objects=objects,
            dropped=dropped,
        )
        decided = await decided_writes.begin_attempt(context, topic, record, found, self.ended)
        if decided is None:
            return None
        context.events.tell(WriteDecided(topic=topic, write_id=write_id, count=count))
        return DecidedWrite(context, topic, decided, self.topic_exists, self.ended)

    async def _check_may_go_on(self, *, is_ours: bool) -> None:
        """Raise if a write was dropped as its rows are gone, and this commit has no others to decide on."""
        objects = [each for part in self.staged for each in part.objects]
        if is_ours:
            await self._check_stored(objects, None)  # its error names the missing object
        if is_ours or not objects:
            raise dropped_error(self.topic, self.write_id)

    async def _check_stored(self, objects: Sequence[StagedObject], found: Versioned[WriteRecord] | None) -> None:
        """⚑ §7: no decision relies on an object that is not stored now, or may be removed at any time."""
        stored = await staging.list_staged(self.context, self.topic, self.write_id) if objects else {}
        gone = set(found.value.dropped) if found is not None else set()
        for each in objects:
            if stored.get(each.name) != each.size or each.name in gone:
                raise missing_error(self.topic, self.write_id, each)


async def drop(context: Context, topic: str, write_id: str, names: Sequence[str]) -> bool:
    """Exclude these objects from every commit of an undecided write; return False if the write is decided.

    ⚑ §7: a commit may be about to rely on them, so their names are recorded by compare-and-set before they are removed:
    a decided write has all its objects.
    """
    backoff = context.store.backoff()
    while True:
        found = await context.write_record(topic, write_id).read()
        if found is not None and found.value.state != "dropped":
            return False
        before = found.value.dropped if found is not None else []
        if found is not None and set(names) <= set(before):
            return True
        record = WriteRecord(
            write_id=write_id,
            state="dropped",
            created_at=await context.now(),
            place=found.value.place if found is not None else 0,  # ⚑ §7: for a late request of a dead committer
            dropped=sorted({*before, *names}),
        )
        if await decided_writes.write_record(context, topic, record, found) is not None:
            return True
        if not await backoff.pause():
            raise _contended_error(topic, write_id)


async def abort(context: Context, topic: str, write_id: str, staged: Sequence[Staged] | None) -> int:
    """Remove what was staged, unless the write was decided; return how many objects were removed."""
    if staged is None:
        names = list(await staging.list_staged(context, topic, write_id))
    else:
        names = [each.name for part in staged for each in part.objects]
    if not names or not await drop(context, topic, write_id, names):
        return 0
    return await staging.remove(context, [layout.staged_object(topic, write_id, name) for name in names])


def _inherited_place(found: Versioned[WriteRecord] | None, now: float) -> int:
    """Return the place of a dropped write; 0 if it had none, or a forged one, which is far ahead.

    Messages published there would wait behind all others for ever.
    """
    place = found.value.place if found is not None else 0
    return place if place <= (now + FARTHEST_AHEAD_SECONDS) * TICKS_PER_SECOND else 0


def _contended_error(topic: str, write_id: str) -> StoreError:
    return StoreError(
        f"Others kept changing the record of write {write_id} of topic {topic!r}: commit it again.",
        topic=topic,
        operation="commit_write",
        transient=True,
    )
