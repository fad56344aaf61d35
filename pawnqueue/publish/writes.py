"""Committing a staged write: one compare-and-set decides it, and whoever comes carries it out (§7).

    (none) --commit--> begun --note of progress--> begun --all is published--> done
    (none) --abort, janitor, deletion of the topic--> dropped --commit of other objects--> begun
    begun --staged rows are gone, and nothing of it is visible--> dropped

Before ``begun`` nothing of a write is visible, whatever dies; after it all of it will be, whoever finishes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pawnqueue.bucket.topics import topic_not_found
from pawnqueue.domain import layout
from pawnqueue.domain.records import TICKS_PER_SECOND, StagedObject, WriteRecord
from pawnqueue.errors import (
    StoreError,
)
from pawnqueue.events import WriteDecided, logger_of
from pawnqueue.publish import decided_writes, staging
from pawnqueue.publish.decided_writes import DecidedWrite, TopicExists
from pawnqueue.publish.publisher import topic_may_exist
from pawnqueue.publish.write_outcome import (
    Written,
    check_same_rows,
    gone_before_the_end,
    incomplete,
    not_there,
)
from pawnqueue.registers.register import Versioned
from pawnqueue.registers.write_records import HOLD_SECONDS

if TYPE_CHECKING:
    from pawnqueue.context import Context
    from pawnqueue.publish.staging import Staged

logger = logger_of("publish")

#: Ten million messages that are published at once are placed up to ten seconds ahead of the time.
FARTHEST_AHEAD_SECONDS: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Commit:
    """A staged write that is to be published: all of it or nothing."""

    context: Context
    topic: str
    write_id: str
    staged: Sequence[Staged]
    place: Callable[[float, int], int]
    """Gives the place in the queue of the first of so many messages, at this server time."""
    topic_exists: TopicExists
    """Says whether the topic is there still."""
    ended: set[str] = field(default_factory=set)
    """The attempts of this process that have ended, with nothing of them under way any more."""
    allow_empty: bool = False
    """Whether a write that was done without rows may have rows the next time, which are not published."""

    async def done(self) -> Written:
        """Decide and publish it, or finish what another one has decided under its id.

        :raises WriteBusyError: another one is at it.
        :raises StagedGoneError: some of it is not there; nothing was published.
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
                    done = None  # what is staged for this commit is decided on its own, or found to be gone
                backoff = context.store.backoff()  # that was work, and not a wait for others
            if done is None and not await backoff.pause():
                raise _undecided(topic, write_id)
        await staging.remove_all(context, topic, write_id)
        if done.lost:
            raise incomplete(topic, done)
        if not is_ours:
            check_same_rows(done, topic, self.staged, allow_empty=self.allow_empty)
        return Written(topic, write_id, done.count, already=not is_ours)

    async def _decide(self, found: Versioned[WriteRecord] | None) -> DecidedWrite | None:
        """⚑ §7: the creation of the record is the decision. It fixes what is published, and under which keys."""
        context, topic, write_id = self.context, self.topic, self.write_id
        objects = [each for part in self.staged for each in part.objects]
        await self._check_there(objects, found)
        if not await topic_may_exist(topic, self.topic_exists):
            raise topic_not_found(topic, "commit_write")
        count = sum(each.count for each in objects)
        now = await context.now()
        record = WriteRecord(
            write_id=write_id,
            state="begun" if count else "done",
            created_at=now,
            until=now + HOLD_SECONDS,
            holder=context.clock.uuid(),
            ttl=HOLD_SECONDS if count else 0.0,
            # ⚑ §7: a request of a dead committer that lands late meets the key that its message has now.
            place=_inherited_place(found, now) or self.place(now, count),
            count=count,
            size=sum(each.size for each in objects),
            begun=min(decided_writes.MESSAGES_PER_NOTE, count),
            objects=objects,
            dropped=found.value.dropped if found is not None else [],
        )
        decided = await decided_writes.begin_attempt(context, topic, record, found, self.ended)
        if decided is None:
            return None
        context.events.tell(WriteDecided(topic=topic, write_id=write_id, count=count))
        return DecidedWrite(context, topic, decided, self.topic_exists, self.ended)

    async def _check_may_go_on(self, *, is_ours: bool) -> None:
        """Raise where a write was dropped as its rows are gone, and this commit has no others to decide on."""
        objects = [each for part in self.staged for each in part.objects]
        if is_ours:
            await self._check_there(objects, None)  # which names what is gone
        if is_ours or not objects:
            raise gone_before_the_end(self.topic, self.write_id)

    async def _check_there(self, objects: Sequence[StagedObject], found: Versioned[WriteRecord] | None) -> None:
        """⚑ §7: what is not there now, or may be removed at any time, is relied on by no decision."""
        there = await staging.listed(self.context, self.topic, self.write_id) if objects else {}
        gone = set(found.value.dropped) if found is not None else set()
        for each in objects:
            if there.get(each.name) != each.size or each.name in gone:
                raise not_there(self.topic, self.write_id, each)


async def drop(context: Context, topic: str, write_id: str, names: Sequence[str]) -> bool:
    """Let no commit of a write that is not decided rely on these objects any more; return False where it is decided.

    ⚑ §7: a commit may be about to rely on them, so that is decided by compare-and-set, and noted by name before they
    go: a write that is decided has all of its objects.
    """
    backoff = context.store.backoff()
    while True:
        found = await context.write_record(topic, write_id).read()
        if found is not None and found.value.state != "dropped":
            return False
        before = found.value.dropped if found is not None else []
        if found is not None and set(names) <= set(before):
            return True
        now = await context.now()
        record = WriteRecord(write_id=write_id, state="dropped", created_at=now, dropped=sorted({*before, *names}))
        if await decided_writes.write_record(context, topic, record, found) is not None:
            return True
        if not await backoff.pause():
            raise _undecided(topic, write_id)


async def abort(context: Context, topic: str, write_id: str, staged: Sequence[Staged] | None) -> int:
    """Remove what was staged, unless it was decided; return how many objects are gone."""
    if staged is None:
        names = list(await staging.listed(context, topic, write_id))
    else:
        names = [each.name for part in staged for each in part.objects]
    if not names or not await drop(context, topic, write_id, names):
        return 0
    return await staging.remove(context, [layout.staged_object(topic, write_id, name) for name in names])


def _inherited_place(found: Versioned[WriteRecord] | None, now: float) -> int:
    """Return the place that a dropped write had; 0 where it had none, or one that is none of ours, as it is far ahead.

    Messages that are published there would wait behind all others for ever.
    """
    place = found.value.place if found is not None else 0
    return place if place <= (now + FARTHEST_AHEAD_SECONDS) * TICKS_PER_SECOND else 0


def _undecided(topic: str, write_id: str) -> StoreError:
    return StoreError(
        f"Others kept changing the record of write {write_id} of topic {topic!r}: commit it again.",
        topic=topic,
        operation="commit_write",
        transient=True,
    )
