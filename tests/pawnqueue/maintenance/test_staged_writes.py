"""The janitor and staged writes: what was decided is finished, what never was goes, and so do records in time."""

from __future__ import annotations

import asyncio

import pytest

from pawnqueue import StagedGoneError
from pawnqueue.domain import layout
from pawnqueue.maintenance import sweep_writes as sweeping_writes
from pawnqueue.publish import decided_writes
from tests.pawnqueue.maintenance.swept import RETENTION, report, unnoted
from tests.pawnqueue.publish.written import (
    A_DAY,
    COUNT,
    OVER,
    SMALL,
    WRITE,
    committed,
    cut,
    left,
    record,
    staged,
    visible,
)
from tests.pawnqueue.virtual import TOPIC, Died, Process, World, numbered

EVERY = list(range(COUNT))


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handful of messages has several notes of progress."""
    monkeypatch.setattr(decided_writes, "PIECES_PER_NOTE", SMALL)


async def test_what_was_decided_is_finished(world: World, ann: Process, bob: Process) -> None:
    """Once its committer's time is over, and not before; a dry run says so and changes nothing."""
    await cut(ann, "dies after", 5)
    before = visible(world)
    assert await bob.queue.sweep(TOPIC) == report()
    assert visible(world) == before != EVERY
    await world.later(OVER)
    stored = unnoted(world)
    assert await bob.queue.sweep(TOPIC, dry_run=True) == report(dry_run=True, finished_writes=1)
    assert unnoted(world) == stored
    assert await bob.queue.sweep(TOPIC) == report(finished_writes=1)
    assert visible(world) == EVERY
    assert left(world) == []
    assert await bob.queue.sweep(TOPIC) == report()


async def test_what_was_never_decided_goes_after_a_day(world: World, ann: Process, bob: Process) -> None:
    """Counted from when the last of it was staged; a commit that relies on it then raises an error."""
    parts = await staged(ann)
    await world.later(A_DAY - 100)
    late = await ann.queue.stage(TOPIC, WRITE, 2, numbered(1))
    await world.later(200)
    assert await bob.queue.sweep(TOPIC) == report()
    await world.later(A_DAY)
    assert await bob.queue.sweep(TOPIC, dry_run=True) == report(dry_run=True, dropped_writes=1, removed_leftovers=3)
    assert len(left(world)) == 3
    assert await bob.queue.sweep(TOPIC) == report(dropped_writes=1, removed_leftovers=3)
    assert left(world) == []
    with pytest.raises(StagedGoneError, match="for a day"):
        await ann.queue.commit_write(TOPIC, WRITE, [*parts, late])
    assert visible(world) == []
    assert not (await committed(ann)).already
    assert visible(world) == EVERY


async def test_what_is_dropped_is_never_relied_on(world: World, ann: Process, bob: Process) -> None:
    """A janitor that dies before it has removed what it dropped: no commit decides by it, and the next sweep does."""
    parts = await staged(ann)
    await world.later(A_DAY + 100)
    bob.client.inject("denied", "DELETE", "*/staged/*")
    assert len((await bob.queue.sweep(TOPIC)).failures) == 2
    assert len(left(world)) == 2
    with pytest.raises(StagedGoneError):
        await ann.queue.commit_write(TOPIC, WRITE, parts)
    bob.client.heal()
    assert await bob.queue.sweep(TOPIC) == report(dropped_writes=1, removed_leftovers=2)
    assert left(world) == []


async def test_a_commit_that_is_faster_is_left_alone(world: World, ann: Process, bob: Process) -> None:
    """Decided between the janitor's lists and its note: nothing of it is removed."""
    parts = await staged(ann)
    await world.later(A_DAY + 100)

    async def commit(kind: str, key: str) -> None:
        if (kind, key) == ("PUT", layout.write(TOPIC, WRITE)):
            bob.client.meanwhile = None
            ann.client.inject("dies after", "PUT", "*/messages/*", times=1)
            with pytest.raises(Died):
                await ann.queue.commit_write(TOPIC, WRITE, parts)

    bob.client.meanwhile = commit
    assert await bob.queue.sweep(TOPIC) == report()
    assert len(left(world)) == 2
    await world.later(OVER)
    assert (await bob.queue.sweep(TOPIC)).finished_writes == 1
    assert visible(world) == EVERY


async def test_an_attempt_that_came_too_late_is_removed(world: World, ann: Process, bob: Process) -> None:
    """What is staged for a write that is done goes after an hour: its writer may still be at work."""
    await committed(ann)
    await staged(ann)
    assert await bob.queue.sweep(TOPIC) == report()
    await world.later(sweeping_writes.MIN_LATE_AGE_SECONDS + 100)
    assert await bob.queue.sweep(TOPIC) == report(removed_leftovers=2)
    assert left(world) == []


async def test_records_go_when_nobody_asks_for_them_any_more(world: World, ann: Process, bob: Process) -> None:
    """Past the retention of claim records, and only when nothing is staged for them."""
    await committed(ann)
    await ann.queue.abort_write(TOPIC, "given-up", [await ann.queue.stage(TOPIC, "given-up", 0, numbered(1))])
    await world.later(RETENTION - 100)
    assert await bob.queue.sweep(TOPIC) == report()
    await staged(ann)
    await world.later(200)
    assert await bob.queue.sweep(TOPIC) == report(removed_records=1)
    assert record(world) is not None
    await world.later(sweeping_writes.MIN_LATE_AGE_SECONDS)
    assert await bob.queue.sweep(TOPIC) == report(removed_leftovers=2)
    assert await bob.queue.sweep(TOPIC) == report(removed_records=1)
    assert world.bucket.below("writes/") == []


async def test_a_bad_record_keeps_no_other_from_the_sweep(world: World, ann: Process, bob: Process) -> None:
    """Garbage under a record's key is reported, and strangers too; a write beside them is finished."""
    await cut(ann, "dies after", 5)
    await world.later(OVER)
    world.bucket.plant(layout.write(TOPIC, "garbage"), "x")
    world.bucket.plant(f"{TOPIC}/writes/stranger", "x")
    world.bucket.plant(f"{TOPIC}/staged/stranger", "x")
    found = await bob.queue.sweep(TOPIC)
    assert (found.finished_writes, len(found.failures), len(found.strangers)) == (1, 1, 2)
    assert "garbage" in found.failures[0]
    assert visible(world) == EVERY


async def test_two_janitors_finish_a_write_once(world: World, ann: Process, bob: Process) -> None:
    """Both sweep at once: each message is there once, and one of them says that it did it."""
    await cut(ann, "dies after", 5)
    await world.later(OVER)
    eve = await world.process()
    world.stagger([bob, eve], 3, at_most=0.5)
    reports = await asyncio.gather(bob.queue.sweep(TOPIC), eve.queue.sweep(TOPIC))
    assert sum(each.finished_writes for each in reports) == 1
    assert visible(world) == EVERY
