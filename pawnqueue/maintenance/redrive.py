"""Redrive: move dead letters back into the queue, under a new key (§5)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pawnqueue.catalog import letters, units
from pawnqueue.claims import finish_redrive
from pawnqueue.domain import layout
from pawnqueue.domain import lease as leases
from pawnqueue.domain.object_sizes import MAX_SMALL_RECORD_BYTES
from pawnqueue.domain.record import UnreadableRecordError
from pawnqueue.domain.records import DeadReason
from pawnqueue.errors import CompatibilityError, ObjectTooLargeError, PawnQueueError
from pawnqueue.events import LettersRedriven
from pawnqueue.reads.dead_letters import find_letter_ids
from pawnqueue.runtime.concurrency import for_each

if TYPE_CHECKING:
    from pawnqueue.catalog.letters import ListedLetter
    from pawnqueue.context import Context

#: How long a redriver holds the lock of a dead letter. After that, any process that finds the lock finishes the move.
REDRIVE_LOCK_SECONDS = 60.0
#: After this many failures the store is to blame rather than the letters: nothing is retried, so that the call ends.
MAX_RETRIED_MOVES = 10


@dataclass(slots=True)
class RedriveResult:
    """What a redrive did, by the ids of the dead letters."""

    moved: list[str] = field(default_factory=list)
    """They are in the queue again."""
    skipped: list[str] = field(default_factory=list)
    """Still being buried, being redriven by another process, or gone meanwhile; or their new place is taken."""

    failed: dict[str, PawnQueueError] = field(default_factory=dict)
    """Not moved, or begun and not confirmed: the next consumer or sweep of the topic finishes it."""


async def redrive(
    context: Context, topic: str, *, only: Collection[str] | None, most: int | None, packs: bool
) -> RedriveResult:
    """Move dead letters back into the queue, in the order of their listing.

    ⚑ §5.7: a letter that cannot be moved delays the others by no more than a few seconds.

    :param only: the ids of these letters, or of their messages.
    :param packs: whether the topic may have packs, and so letters of their messages: each takes one more GET.
    :raises InvalidArgumentError: some are not dead letters of this topic.
    """
    kept = None if only is None else await find_letter_ids(context, topic, only)
    done = await _move_letters(context, topic, only=kept, most=most, packs=packs)
    if done.moved or done.failed:
        counts = {"moved": len(done.moved), "skipped": len(done.skipped), "failed": len(done.failed)}
        context.events.tell(LettersRedriven(topic=topic, **counts))
    return done


async def _move_letters(
    context: Context, topic: str, *, only: Collection[str] | None, most: int | None, packs: bool
) -> RedriveResult:
    done = RedriveResult()
    with_retries, without = context.with_budget(), context.with_budget(0.0)

    async def move(letter: ListedLetter) -> bool:
        try:
            patient = with_retries if len(done.failed) < MAX_RETRIED_MOVES else without
            return await _move(patient, topic, letter, packs=packs)
        except PawnQueueError as error:
            done.failed[letter.id] = error
            return False

    async for page in letters.pages(context.store, topic):
        wanted_letters = [letter for letter in page.letters if only is None or letter.id in only]
        while wanted_letters and (most is None or len(done.moved) < most):
            # Skipped letters do not count: the next ones take their places.
            wanted = len(wanted_letters) if most is None else most - len(done.moved)
            some, wanted_letters = wanted_letters[:wanted], wanted_letters[wanted:]
            for letter, moved in zip(some, await for_each(move, some, at_once=context.at_once), strict=True):
                if letter.id not in done.failed:
                    (done.moved if moved else done.skipped).append(letter.id)
        if most is not None and len(done.moved) >= most:
            break
    return done


async def _is_being_buried(context: Context, topic: str, letter: ListedLetter) -> bool:
    """Say whether a letter was in a pack that is still held by the claim that buried it.

    ⚑ §5: that claim, or a process that finishes its work, would create the letter once more if it were moved now.
    """
    key = letters.reason_key_of(topic, letter.id)
    try:
        found = await context.store.get(key, MAX_SMALL_RECORD_BYTES)
        reason = None if found is None else DeadReason.decode(found.body, key)
    except (ObjectTooLargeError, UnreadableRecordError, CompatibilityError):
        return False
    if reason is None or not layout.is_unit_id(reason.unit):
        return False
    lease = await context.lease(topic, reason.unit).read()
    return lease is not None and leases.is_held_by(lease.value, reason.claim)


async def _move(context: Context, topic: str, letter: ListedLetter, *, packs: bool) -> bool:
    # ⚑ §5: a burial that is not finished would copy the dead letter a second time, or another one over it. Its lease
    # is held until the burial is finished. A released lease belongs to another message under this uuid, which any
    # publisher may have sent: it does not keep the letter here.
    burial = await context.lease(topic, letter.id).read()
    if burial is not None and burial.value.state != "released":
        return False
    if packs and await _is_being_buried(context, topic, letter):
        return False
    # Whole seconds, as stores differ in how finely they tell them, and between LIST and HEAD.
    seconds = letter.written_at.replace(microsecond=0).timestamp()
    name = units.redriven_name(letter.id, letter.version, seconds)
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
