"""Redrive: move dead letters back into the queue, under a new key (§5)."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pawnqueue.catalog import letters, units
from pawnqueue.claims import finish_redrive
from pawnqueue.domain import layout
from pawnqueue.domain import lease as leases
from pawnqueue.errors import PawnQueueError
from pawnqueue.events import LettersRedriven, RedriveContinued, logger_of
from pawnqueue.reads.dead_letters import find_letter_ids, read_reason, unknown_ids_error
from pawnqueue.runtime.concurrency import for_each

if TYPE_CHECKING:
    from pawnqueue.catalog.letters import ListedLetter
    from pawnqueue.context import Context
    from pawnqueue.maintenance.letter_filter import LetterFilter
    from pawnqueue.runtime.pacing import Pace

logger = logger_of("dead_letters")

#: How long a redriver holds the lock of a dead letter. After that, any process that finds the lock finishes the move.
REDRIVE_LOCK_SECONDS = 60.0
#: After this many failures the store is to blame rather than the letters: nothing is retried, so that the call ends.
MAX_RETRIED_MOVES = 10
#: How many letters of each kind a result names. All of them are counted.
MAX_NAMED_LETTERS = 100_000
#: How often ``on_progress`` is called at most, and how often the event comes.
PROGRESS_SECONDS = 1.0
PROGRESS_EVENT_SECONDS = 60.0


@dataclass(slots=True)
class RedriveResult:
    """What a redrive did, by the ids of the dead letters. It names the first 100,000 of each kind, and counts all."""

    moved: list[str] = field(default_factory=list)
    """They are in the queue again; after a dry run, they would be."""
    skipped: list[str] = field(default_factory=list)
    """Still being buried, being redriven or removed by another process, or gone meanwhile; or their new place is
    taken."""

    failed: dict[str, PawnQueueError] = field(default_factory=dict)
    """Not moved, or begun and not confirmed (the next consumer or sweep of the topic finishes it); or the store did not
    tell their reason."""

    missing: list[str] = field(default_factory=list)
    """Ids that were asked for and have no dead letter, with ``missing_ok``."""

    moved_count: int = 0
    """How many were moved."""
    skipped_count: int = 0
    """How many were skipped."""
    failed_count: int = 0
    """How many failed."""
    looked_at: int = 0
    """How many dead letters were compared with what was asked for."""

    complete: bool = False
    """Whether all dead letters were looked at. False: ``max_messages`` was reached before, and more may be left."""

    dry_run: bool = False
    """Whether nothing was changed."""

    def add_moved(self, letter_id: str) -> None:
        """Note a letter that was moved."""
        self.moved_count += 1
        if self.moved_count <= MAX_NAMED_LETTERS:
            self.moved.append(letter_id)

    def add_skipped(self, letter_id: str) -> None:
        """Note a letter that was skipped."""
        self.skipped_count += 1
        if self.skipped_count <= MAX_NAMED_LETTERS:
            self.skipped.append(letter_id)

    def add_failed(self, letter_id: str, why: PawnQueueError) -> None:
        """Note a letter that could not be moved, or not be judged."""
        self.failed_count += 1
        if self.failed_count <= MAX_NAMED_LETTERS:
            self.failed[letter_id] = why


@dataclass(frozen=True, slots=True)
class RedriveProgress:
    """How far a redrive has come."""

    topic: str
    """The topic."""
    looked_at: int
    """How many dead letters were compared with what was asked for."""
    moved: int
    """How many are in the queue again."""
    skipped: int
    """How many were left: being buried, being redriven by another process, or gone."""
    failed: int
    """How many could not be moved now."""
    seconds: float
    """For how long it has been going on."""


#: What ``redrive(on_progress=...)`` takes. It is called in the thread of the queue's loop, and must not block.
OnProgress = Callable[[RedriveProgress], object]


@dataclass(frozen=True, slots=True)
class RedriveTerms:
    """Which letters a redrive moves, and how."""

    wanted: LetterFilter
    """What they are like."""
    pace: Pace
    """How many begin in a second."""
    most: float = math.inf
    """How many at most."""
    packs: bool = False
    """Whether the topic may have packs, and so letters of their messages: each takes one more GET."""
    missing_ok: bool = False
    """Whether ids without a letter are left out. Else they are an error."""
    dry_run: bool = False
    """Change nothing."""


async def redrive(
    context: Context,
    topic: str,
    terms: RedriveTerms,
    *,
    only: Collection[str] | None,
    on_progress: OnProgress | None = None,
) -> RedriveResult:
    """Move dead letters back into the queue, in the order of their listing.

    ⚑ §5.7: a letter that cannot be moved delays the others by no more than a few seconds.

    :param only: the ids of these letters, or of their messages.
    :raises InvalidArgumentError: some are not dead letters of this topic.
    """
    work = _Redrive(context, topic, terms, on_progress)
    if only is not None:
        kept, missing = await find_letter_ids(context, topic, only)
        if missing and not terms.missing_ok:
            raise unknown_ids_error(topic, missing)
        work.done.missing = sorted(missing)
        only = kept
    try:
        await work.move_all(only)
    finally:
        work.tell()
    return work.done


class _Redrive:
    """One call of redrive."""

    def __init__(self, context: Context, topic: str, terms: RedriveTerms, on_progress: OnProgress | None) -> None:
        self.done = RedriveResult(dry_run=terms.dry_run)
        self._context = context
        self._with_retries, self._without = context.with_budget(), context.with_budget(0.0)
        self._topic = topic
        self._terms = terms
        self._on_progress = on_progress
        self._began = self._told = self._sent = context.clock.elapsed()
        self._began_at: float | None = None

    async def move_all(self, only: Collection[str] | None) -> None:
        """Go through the letters, a page at a time."""
        if only is not None and not only:
            self.done.complete = True
            return
        async for page in letters.pages(self._context.store, self._topic):
            here = [letter for letter in page.letters if only is None or letter.id in only]
            if not here:
                continue
            if not await self._move(await self._of_age(here)):
                return
        self.done.complete = True

    async def _of_age(self, page: list[ListedLetter]) -> list[ListedLetter]:
        """Leave out those that were buried since the redrive began, and those that have not the age asked for.

        ⚑ §5: what a slow redrive has given back may be buried again while it goes on. It would never end.
        """
        if self._began_at is None:
            self._began_at = await self._context.now()
        began, latest = self._began_at, self._began_at + self._context.margin
        here = [letter for letter in page if letter.written_at.timestamp() <= latest]
        found = [letter for letter in here if self._terms.wanted.has_age(letter, began)]
        self.done.looked_at += len(here) - len(found)
        return found

    async def _move(self, wanted_letters: list[ListedLetter]) -> bool:
        """Move letters; return whether more may be moved."""
        done, most = self.done, self._terms.most
        # Reasons are read before it is known how many letters have the right one.
        at_once = math.inf if self._terms.wanted.reason is None else self._context.at_once
        while wanted_letters and done.moved_count < most:
            # Skipped letters do not count: the next ones take their places.
            wanted = int(min(at_once, most - done.moved_count, len(wanted_letters)))
            some, wanted_letters = wanted_letters[:wanted], wanted_letters[wanted:]
            outcomes = await for_each(self._judge_and_move, some, at_once=self._context.at_once)
            for letter, moved in zip(some, outcomes, strict=True):
                if moved:
                    done.moved += [letter.id] if len(done.moved) < MAX_NAMED_LETTERS else []
        return done.moved_count < most

    async def _judge_and_move(self, letter: ListedLetter) -> bool:
        context = self._with_retries if self.done.failed_count < MAX_RETRIED_MOVES else self._without
        moved = False
        try:
            # ⚑ §5: the letter was listed before its reason is read, and the move looks at the lease of its burial after
            # that. So the reason of another message that is buried over it is never taken for this letter's.
            if await self._terms.wanted.has_reason(context, self._topic, letter):
                moved = self._terms.dry_run or await self._move_one(context, letter)
                if moved:
                    self.done.moved_count += 1
                else:
                    self.done.add_skipped(letter.id)
        except PawnQueueError as error:
            self.done.add_failed(letter.id, error)
        self.done.looked_at += 1
        self._progress()
        return moved

    async def _move_one(self, context: Context, letter: ListedLetter) -> bool:
        await self._terms.pace.turn()
        return await _move(context, self._topic, letter, packs=self._terms.packs)

    def _progress(self) -> None:
        """Report how far it has come, if that was not done just now."""
        now = self._context.clock.elapsed()
        if now - self._told >= PROGRESS_SECONDS:
            self._told = now
            self._call_back(now)
        if now - self._sent >= PROGRESS_EVENT_SECONDS and not self._terms.dry_run:
            self._sent = now
            self._context.events.tell(
                RedriveContinued(topic=self._topic, looked_at=self.done.looked_at, **self._counts)
            )

    def tell(self) -> None:
        """Report how it ended, also if it was cut off."""
        self._call_back(self._context.clock.elapsed())
        if (self.done.moved_count or self.done.failed_count) and not self._terms.dry_run:
            self._context.events.tell(LettersRedriven(topic=self._topic, complete=self.done.complete, **self._counts))

    def _call_back(self, now: float) -> None:
        if self._on_progress is None:
            return
        progress = RedriveProgress(
            topic=self._topic, looked_at=self.done.looked_at, seconds=now - self._began, **self._counts
        )
        try:
            self._on_progress(progress)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - as with on_event, it changes nothing
            logger.error("on_progress failed, and is not called again: %s: %s", type(error).__name__, error)  # noqa: TRY400 - its own text tells
            self._on_progress = None

    @property
    def _counts(self) -> dict[str, int]:
        done = self.done
        return {"moved": done.moved_count, "skipped": done.skipped_count, "failed": done.failed_count}


async def _is_being_buried(context: Context, topic: str, letter: ListedLetter) -> bool:
    """Say whether a letter was in a pack that is still held by the claim that buried it.

    ⚑ §5: that claim, or a process that finishes its work, would create the letter once more if it were moved now.
    """
    reason = await read_reason(context, topic, letter.id)
    if reason is None or not layout.is_unit_id(reason.unit):
        return False
    lease = await context.lease(topic, reason.unit).read()
    return lease is not None and leases.is_held_by(lease.value, reason.claim)


async def is_buried(context: Context, topic: str, letter: ListedLetter, *, packs: bool) -> bool:
    """Say whether the burial of a letter is finished.

    ⚑ §5: a burial that is not finished would copy the dead letter a second time, or another one over it. Its lease is
    held until the burial is finished. A released lease belongs to another message under this uuid, which any publisher
    may have sent: it does not keep the letter here.

    :param packs: whether the topic may have packs, and so letters of their messages.
    """
    burial = await context.lease(topic, letter.id).read()
    if burial is not None and burial.value.state != "released":
        return False
    return not (packs and await _is_being_buried(context, topic, letter))


def new_name(letter: ListedLetter) -> str:
    """Return the name that this version of a letter gets in the queue: two redrivers aim at one place."""
    # Whole seconds, as stores differ in how finely they tell them, and between LIST and HEAD.
    seconds = letter.written_at.replace(microsecond=0).timestamp()
    return units.redriven_name(letter.id, letter.version, seconds)


async def _move(context: Context, topic: str, letter: ListedLetter, *, packs: bool) -> bool:
    if not await is_buried(context, topic, letter, packs=packs):
        return False
    name = new_name(letter)
    now = await context.now()
    parsed = units.parse(name)
    if parsed is None:
        return False
    lock = context.lease(topic, parsed.id)
    # ⚑ §5: lock the new place first, look for the source only then (in finish_move).
    taken = await lock.create(
        leases.moving(parsed.id, name, source=letter.id, until=now + REDRIVE_LOCK_SECONDS, ttl=REDRIVE_LOCK_SECONDS)
    )
    if taken is not None:
        return await finish_redrive.finish_move(context, topic, parsed.id, taken)
    # Another process has the lock. ⚑ §5: a redriver that finds it overdue finishes the move.
    found = await lock.read()
    if found is None or found.value.state != "moving":
        return False
    due = context.is_due(found.value, await context.now())
    return due and await finish_redrive.finish_move(context, topic, parsed.id, found)
