"""Staged rows that a process cannot read hold their write up for a week, and not for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import pytest

from pawnqueue import PawnQueueError, StagedGoneError
from pawnqueue.domain import layout
from pawnqueue.domain.bounds import LATEST_TIME
from pawnqueue.domain.object_sizes import STAGED_OBJECT_BYTES
from pawnqueue.domain.write_record import Rows
from pawnqueue.publish.staging import MAX_WAIT_FOR_ROWS_SECONDS
from tests.pawnqueue.publish.written import (
    A_DAY,
    EVERY,
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

if TYPE_CHECKING:
    from pawnqueue import Staged

pytestmark = pytest.mark.usefixtures("small_chunks")

Fault: TypeAlias = Literal["newer", "too large"]
FAULTS: Final[tuple[Fault, ...]] = ("newer", "too large")
#: A process with small limits reads no staged object of this size.
LARGE: Final = STAGED_OBJECT_BYTES + 200_000
DAYS: Final = int(MAX_WAIT_FOR_ROWS_SECONDS // A_DAY)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_write_is_finished_without_rows_that_nobody_reads(world: World, ann: Process, fault: Fault) -> None:
    """Its sweep fails until then, and says why; afterwards it names the rows, and closed claim records go again."""
    old = await world.process(limits={"max_payload_bytes": 20_000})
    parts = await _cut_before_unreadable_rows(world, ann, fault)
    for _ in range(DAYS):
        await _claim_and_ack(old)
        await world.later(A_DAY - 60)
        assert any(WRITE in failure for failure in (await old.queue.sweep(TOPIC)).failures)
        await world.later(60)
    await world.later(A_DAY)
    report = await old.queue.sweep(TOPIC)
    assert (report.finished_writes, report.failures) == (1, [])
    done = record(world)
    assert done is not None
    rows = [Rows(first=SMALL, count=1)] if fault == "newer" else [Rows(first=SMALL, count=len(EVERY) - SMALL)]
    assert (done.state, done.lost) == ("done", rows)
    assert left(world) == []
    with pytest.raises(StagedGoneError, match=f"rows {SMALL}"):
        await old.queue.commit_write(TOPIC, WRITE, parts)
    await world.later(2 * A_DAY)
    await old.queue.sweep(TOPIC)
    assert world.bucket.below("claims/") == []


@pytest.mark.parametrize("finisher", ["commit", "sweep"])
async def test_a_process_that_can_read_the_rows_publishes_all(
    world: World, ann: Process, bob: Process, finisher: str
) -> None:
    """Until the week is over nothing of the write is given up."""
    old = await world.process(limits={"max_payload_bytes": 20_000})
    parts = await _cut_before_unreadable_rows(world, ann, "too large")
    for _ in range(DAYS - 1):
        await world.later(A_DAY)
        with pytest.raises(PawnQueueError, match="it cannot read rows of"):
            await old.queue.commit_write(TOPIC, WRITE, parts)
    assert visible(world) == EVERY[:SMALL]
    await (bob.queue.commit_write(TOPIC, WRITE, parts) if finisher == "commit" else bob.queue.sweep(TOPIC))
    assert visible(world) == EVERY
    done = record(world)
    assert done is not None
    assert (done.state, done.lost) == ("done", [])


async def test_a_write_that_begins_with_such_rows_is_dropped(world: World, ann: Process, bob: Process) -> None:
    """Nothing of it is visible after the week: its id can be used again, with rows staged anew."""
    await cut(ann, "dies after", 2)
    key = f"{TOPIC}/staged/{left(world)[0]}"
    world.bucket.plant(key, world.bucket.body(key).replace(b'"v":1', b'"v":2', 1))
    await world.later(OVER)
    assert (await bob.queue.sweep(TOPIC)).failures
    await world.later(MAX_WAIT_FOR_ROWS_SECONDS)
    assert (await bob.queue.sweep(TOPIC)).dropped_writes == 1
    assert visible(world) == left(world) == []
    assert not (await committed(bob)).already
    assert visible(world) == EVERY


async def test_the_wait_is_counted_from_the_records_own_date(world: World, ann: Process) -> None:
    """A forged beginning of it, far ahead, makes it no longer."""
    await _cut_before_unreadable_rows(world, ann, "newer")
    decided = record(world)
    assert decided is not None
    forged = decided.model_copy(update={"rows_unread_since": LATEST_TIME})
    world.bucket.plant(layout.write(TOPIC, WRITE), forged.encode())
    await world.later(OVER)
    old = await world.process()
    assert (await old.queue.sweep(TOPIC)).failures
    await world.later(MAX_WAIT_FOR_ROWS_SECONDS)
    assert (await old.queue.sweep(TOPIC)).finished_writes == 1


async def _cut_before_unreadable_rows(world: World, process: Process, fault: Fault) -> list[Staged]:
    """Commit, die behind the first chunk, and let what follows it be what other processes cannot read."""
    if fault == "newer":
        parts = await staged(process)
    else:
        first = await process.queue.stage(TOPIC, WRITE, 0, numbered(SMALL))
        large = [{**row, "x": "x" * (LARGE // 4)} for row in numbered(len(EVERY) - SMALL, SMALL)]
        parts = [first, await process.queue.stage(TOPIC, WRITE, 1, large)]
    process.client.inject("dies", "PUT", layout.write(TOPIC, WRITE), passed=1)
    with pytest.raises(Died):
        await process.queue.commit_write(TOPIC, WRITE, parts)
    if fault == "newer":
        key = f"{TOPIC}/staged/{left(world)[-1]}"
        world.bucket.plant(key, world.bucket.body(key).replace(b'"v":1', b'"v":2', 1))
    return parts


async def _claim_and_ack(process: Process) -> None:
    await process.queue.publish(TOPIC, numbered(1, 1000))
    claim = await process.queue.claim(TOPIC, "c", max_messages=100, claim_id=process.queue._context.clock.uuid())
    await process.queue.ack(claim)
