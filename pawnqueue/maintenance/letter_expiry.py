"""Remove dead letters that are past a limit of their topic, after a warning (§5, Dead letters with a limit)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pawnqueue.catalog import letters, units
from pawnqueue.domain import layout
from pawnqueue.domain import lease as leases
from pawnqueue.domain.object_sizes import MAX_SMALL_RECORD_BYTES
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.domain.records import LetterNotice, LetterNotices
from pawnqueue.domain.times import iso
from pawnqueue.errors import ObjectTooLargeError
from pawnqueue.events import LettersExpiring, LettersRemoved
from pawnqueue.maintenance.redrive import REDRIVE_LOCK_SECONDS, is_buried, new_name
from pawnqueue.registers.strategy import Step
from pawnqueue.runtime.concurrency import for_each
from pawnqueue.stores.port import Done, Expect, Unknown

if TYPE_CHECKING:
    from pawnqueue.catalog.letters import LetterPage, ListedLetter
    from pawnqueue.domain.identifiers import Version
    from pawnqueue.domain.records import TopicRecord
    from pawnqueue.domain.topic_limits import DeadLetterLimits
    from pawnqueue.maintenance.sweep_scope import SweepScope

#: How many letters one sweep removes at most, and how many of them at once.
MAX_REMOVED_LETTERS = 10_000
BATCH_LETTERS = 200
#: Warnings about further letters are at least this part of the notice apart: a note has some two dozen of them.
NOTICE_PARTS = 24
#: The dates of objects are whole seconds.
DATE_RESOLUTION_SECONDS = 1.0
#: It comes before each letter.
_NO_LETTER = (-math.inf, "")


class LetterExpiry:
    """The dead letters of one topic that are past its limits, in one sweep."""

    def __init__(self, scope: SweepScope, record: TopicRecord) -> None:
        self._scope = scope
        self._report = scope.report
        self._record = record
        self._topic = record.name
        self._began = 0.0

    async def begin(self) -> None:
        """Note the time, right before the letters are listed: later ones are not judged by that listing."""
        if self._record.settings.dead_letters is not None:
            self._began = await self._scope.context.now()

    async def sweep(self, dead: LetterPage) -> None:
        """Warn of letters that will go, and remove those of which a warning is old enough."""
        limits = self._record.settings.dead_letters
        if limits is not None:
            work = self._sweep(sorted(dead.letters, key=_key), limits)
            await self._scope.isolate(layout.letter_notices(self._topic), work, None)

    async def _sweep(self, oldest_first: Sequence[ListedLetter], limits: DeadLetterLimits) -> None:
        now, margin = self._began, self._scope.context.margin
        beyond = 0 if limits.max_count is None else max(0, len(oldest_first) - limits.max_count)
        age = math.inf if limits.max_age_seconds is None else limits.max_age_seconds
        interval = limits.notice_seconds / NOTICE_PARTS
        # ⚑ §5: a letter that this listing may not show is neither warned of nor removed by it.
        latest = now - margin - DATE_RESOLUTION_SECONDS
        soon = now + limits.notice_seconds + interval - age
        going = [
            letter
            for number, letter in enumerate(oldest_first)
            if _date(letter) <= latest and (number < beyond or _date(letter) <= soon)
        ]
        if not going:
            return
        notices = await self._notices()
        # ⚑ §5: what was warned of long enough ago, in an earlier sweep, and is past a limit now.
        old_enough = now - limits.notice_seconds - 2 * margin
        covered = max((each.last for each in notices if each.at <= old_enough), default=_NO_LETTER)
        past = [
            letter
            for number, letter in enumerate(going)
            if _key(letter) <= covered and (number < beyond or _date(letter) <= now - margin - age)
        ]
        removed = await self._remove(past[:MAX_REMOVED_LETTERS], limits)
        self._report.removed_letters += removed
        self._report.expiring_letters += len(going) - removed
        await self._warn(going, notices, limits, interval)

    async def _notices(self) -> list[LetterNotice]:
        """Return the warnings that were given under the limits of today."""
        key = layout.letter_notices(self._topic)
        try:
            found = await self._scope.context.store.get(key, MAX_SMALL_RECORD_BYTES)
            if found is None:
                return []
            note = LetterNotices.decode(found.body, key)
        except (ObjectTooLargeError, UnreadableRecordError):
            return []
        return note.notices if note.limits_id == self._record.limits_id else []

    async def _warn(
        self, going: Sequence[ListedLetter], notices: Sequence[LetterNotice], limits: DeadLetterLimits, interval: float
    ) -> None:
        # ⚑ §5: by date and id, as many letters may have one date, and only some of them be past a limit.
        warned = max((each.last for each in notices), default=_NO_LETTER)
        count = sum(_key(letter) > warned for letter in going)
        if not count or self._report.dry_run:
            return
        context = self._scope.context
        now = await context.now()
        if notices and now - max(each.at for each in notices) < interval:
            return  # with the next warning
        # ⚑ §5: it is given before it is noted. If this process dies in between, it is given once more.
        removal = iso(now + limits.notice_seconds)
        context.events.tell(LettersExpiring(topic=self._topic, count=count, removal=removal, limits=_sentence(limits)))
        new = LetterNotice(at=now, through=_date(going[-1]), through_id=going[-1].id)
        kept = [*_still_needed(notices, now - limits.notice_seconds - 2 * context.margin), new]
        note = LetterNotices(topic=self._topic, limits_id=self._record.limits_id, notices=kept)
        await context.store.overwrite(layout.letter_notices(self._topic), note.encode())

    async def _remove(self, past: Sequence[ListedLetter], limits: DeadLetterLimits) -> int:
        if self._report.dry_run or not past:
            return len(past)
        removed = 0
        for start in range(0, len(past), BATCH_LETTERS):
            removed += await self._remove_batch(past[start : start + BATCH_LETTERS])
        if removed:
            event = LettersRemoved(topic=self._topic, count=removed, limits=_sentence(limits))
            self._scope.context.events.tell(event)
        return removed

    async def _remove_batch(self, some: Sequence[ListedLetter]) -> int:
        """Remove letters that nobody buries or redrives at this moment; return how many are gone."""
        context = self._scope.context

        async def is_at_rest(letter: ListedLetter) -> bool:
            work = is_buried(context, self._topic, letter, packs=self._record.may_have_packs)
            return await self._scope.isolate(letters.key_of(self._topic, letter.id), work, otherwise=False)

        at_rest = await for_each(is_at_rest, some, at_once=context.at_once)
        began = context.clock.elapsed()
        locks = await self._lock([letter for letter, yes in zip(some, at_rest, strict=True) if yes])

        async def is_the_same(letter: ListedLetter) -> bool:
            # ⚑ §5: after the lock was taken, as a redriver that had it before may have moved the letter.
            info = await context.store.head(letters.key_of(self._topic, letter.id))
            return info is not None and info.version == letter.version

        async def look(letter: ListedLetter) -> bool:
            key = letters.key_of(self._topic, letter.id)
            return await self._scope.isolate(key, is_the_same(letter), otherwise=False)

        locked = [letter for letter in some if letter.id in locks]
        present = await for_each(look, locked, at_once=context.at_once)
        if context.clock.elapsed() - began > REDRIVE_LOCK_SECONDS / 2:
            return 0  # the locks may be over before a request lands: they are left to the process that finds them so
        gone = await self._delete([letter for letter, yes in zip(locked, present, strict=True) if yes])
        # ⚑ §5: only the lock of a letter that is gone is taken away: another process may have locked the others by the
        # time at which the request lands.
        if gone:
            await self._scope.without_retries.registers.delete_versions(dict(locks[letter.id] for letter in gone))
        return len(gone)

    async def _lock(self, some: Sequence[ListedLetter]) -> Mapping[str, tuple[str, Version]]:
        """Take the locks of redrives; return of each letter that was locked its lock's key and version.

        ⚑ §5: no redrive begins until the letter is gone. A lock that stays behind, as this process dies, names a letter
        that does not exist. So the process that finds it overdue moves nothing, and deletes it.
        """
        context = self._scope.context
        until = await context.now() + REDRIVE_LOCK_SECONDS
        steps, ids = [], []
        for letter in some:
            name = new_name(letter)
            parsed = units.parse(name)
            if parsed is not None:
                lock = leases.moving(parsed.id, name, source=parsed.id, until=until, ttl=REDRIVE_LOCK_SECONDS)
                steps.append(Step(layout.lease(self._topic, parsed.id), lock, Expect.NOTHING))
                ids.append(letter.id)
        outcomes = await context.registers.write(steps) if steps else []
        return {
            letter_id: (step.key, outcome.version)
            for letter_id, step, outcome in zip(ids, steps, outcomes, strict=True)
            if isinstance(outcome, Done)
        }

    async def _delete(self, going: Sequence[ListedLetter]) -> list[ListedLetter]:
        """Delete letters by the versions that were listed, then their reasons; return those that are gone."""
        if not going:
            return []
        context = self._scope.context
        versions = {letters.key_of(self._topic, letter.id): letter.version for letter in going}
        failed = await self._scope.without_retries.registers.delete_versions(versions)
        for key, outcome in failed.items():
            if isinstance(outcome, Unknown):  # else another letter is stored there by now
                self._scope.report_failure(key, outcome.fault)
        gone = [letter for letter in going if letters.key_of(self._topic, letter.id) not in failed]
        # Behind the letters, so that none is left without its reason; a reason alone is swept up in time.
        await context.store.delete([letters.reason_key_of(self._topic, letter.id) for letter in gone])
        return gone


def _key(letter: ListedLetter) -> tuple[float, str]:
    return _date(letter), letter.id


def _date(letter: ListedLetter) -> float:
    return letter.written_at.timestamp()


def _still_needed(notices: Sequence[LetterNotice], old_enough: float) -> list[LetterNotice]:
    """Return the warnings that are not old enough, and of the others the one that has most letters."""
    old = [each for each in notices if each.at <= old_enough]
    return [*([max(old, key=lambda each: each.last)] if old else []), *(each for each in notices if each not in old)]


def _sentence(limits: DeadLetterLimits) -> str:
    parts = []
    if limits.max_age_seconds is not None:
        parts.append(f"keeps them for {limits.max_age_seconds:g} seconds")
    if limits.max_count is not None:
        parts.append(f"keeps the latest {limits.max_count}")
    return " and ".join(parts)
