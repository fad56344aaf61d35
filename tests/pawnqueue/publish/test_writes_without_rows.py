"""Writes whose staged rows are gone come to an end."""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from pawnqueue import StagedGoneError, TopicNotEmptyError, TopicNotFoundError
from pawnqueue.catalog import units
from pawnqueue.domain import layout
from pawnqueue.domain.bounds import LATEST_PLACE, MOST_COUNT, MOST_RANGES
from pawnqueue.domain.write_record import TICKS_PER_SECOND, Rows, WriteRecord
from pawnqueue.maintenance.sweep_report import SweepReport
from pawnqueue.publish.write_outcome import merge_ranges
from tests.pawnqueue.publish.written import (
    EVERY,
    OVER,
    WRITE,
    committed,
    cut,
    left,
    record,
    requests_of_a_commit,
    staged,
    visible,
)
from tests.pawnqueue.virtual import TOPIC, Process, World

if TYPE_CHECKING:
    from tests.pawnqueue.virtual import Effect, Kind


pytestmark = pytest.mark.usefixtures("small_chunks")


async def test_what_was_changed_after_the_decision_is_told(world: World, ann: Process, bob: Process) -> None:
    """Somebody removes a staged object of a write that is decided: it cannot be finished, and says what is missing."""
    await cut(ann, "dies after", 2)
    world.bucket.remove(f"{TOPIC}/staged/{left(world)[-1]}")
    await world.later(OVER)
    with pytest.raises(StagedGoneError, match="Nothing was published: stage its rows again"):
        await bob.queue.commit_write(TOPIC, WRITE, [])
    assert visible(world) == left(world) == []
    assert not (await committed(bob)).already
    assert visible(world) == EVERY


@pytest.mark.parametrize("finisher", ["commit", "commit anew", "sweep"])
@pytest.mark.parametrize("effect", ["dies", "dies after"])
@pytest.mark.parametrize("part", [0, 1])
async def test_a_write_whose_rows_are_gone_comes_to_an_end(finisher: str, effect: Effect, part: int) -> None:
    """Nothing of it is visible: it is dropped. Else it is done without the rows that are gone, which are named."""
    seen: Counter[str] = Counter()
    for number in range(await requests_of_a_commit()):
        async with World() as world:
            ann, bob = await world.process(), await world.process()
            await cut(ann, effect, number)
            if (decided := record(world)) is None or decided.state == "done":
                continue
            before = visible(world)
            world.bucket.remove(f"{TOPIC}/staged/{left(world)[part]}")
            await world.later(OVER)
            told = ""
            try:
                if finisher == "sweep":
                    assert not (await bob.queue.sweep(TOPIC)).failures
                else:
                    await bob.queue.commit_write(TOPIC, WRITE, await staged(bob) if finisher == "commit anew" else [])
            except StagedGoneError as error:
                told = str(error)
            ended = record(world)
            assert ended is not None
            seen[ended.state] += 1
            rows = [set(range(each.first, each.first + each.count)) for each in ended.lost]
            if before:
                assert ended.state == "done"
                assert set(visible(world)) == set(EVERY).difference(*rows)
                assert left(world) == []
                assert ("another write id" in told) == bool(rows and finisher != "sweep")
            else:
                assert visible(world) == (EVERY if finisher == "commit anew" else [])
                assert ("Nothing was published" in told) == (finisher == "commit")
            await world.later(OVER)
            assert (await bob.queue.sweep(TOPIC)) == SweepReport(TOPIC)
    assert seen["done"]
    assert seen["dropped"] or finisher == "commit anew"


async def test_rows_that_are_missing_everywhere_are_told_in_a_sentence(world: World, ann: Process) -> None:
    """Of many runs of rows it names the first, and the record that has the others."""
    count = 2 * MOST_RANGES
    lost = [Rows(first=2 * n, count=1) for n in range(MOST_RANGES)]
    forged = WriteRecord(write_id=WRITE, state="done", count=count, published=count, begun=count, lost=lost)
    world.bucket.plant(layout.write(TOPIC, WRITE), forged.encode())
    told = r"done without 10,000 of its 20,000 .*They are rows 0, 2, 4.* and 9,990 more"
    with pytest.raises(StagedGoneError, match=told) as caught:
        await ann.queue.commit_write(TOPIC, WRITE, [])
    assert layout.write(TOPIC, WRITE) in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_record_names_no_more_runs_of_rows_than_are_read() -> None:
    """Beyond the bound, the last one has all from there on: rows in it are published again rather than lost."""
    lost = merge_ranges([], [range(2 * n, 2 * n + 1) for n in range(MOST_RANGES + 3)])
    assert len(lost) == MOST_RANGES
    assert (lost[-1].first, lost[-1].count) == (2 * MOST_RANGES - 2, 7)
    assert lost[:2] == [Rows(first=0, count=1), Rows(first=2, count=1)]


async def test_an_abort_keeps_the_place_of_a_write_that_was_dropped(world: World, ann: Process, bob: Process) -> None:
    """A request of the dead committer that lands late meets the message's own key, and makes no second message."""
    await cut(ann, "dies after", 2)  # the record is written
    decided = record(world)
    world.bucket.remove(f"{TOPIC}/staged/{left(world)[0]}")
    await world.later(OVER)
    assert (await bob.queue.sweep(TOPIC)).dropped_writes == 1
    await staged(bob)
    assert await bob.queue.abort_write(TOPIC, WRITE)
    dropped = record(world)
    assert decided is not None
    assert dropped is not None
    assert (dropped.state, dropped.place) == ("dropped", decided.place)
    await committed(bob)
    assert units.published_at(world.bucket.below("messages/")[0]) == decided.place / TICKS_PER_SECOND


@pytest.mark.parametrize("place", [LATEST_PLACE, LATEST_PLACE // 2])
async def test_a_write_is_not_published_far_behind_all_others(world: World, ann: Process, place: int) -> None:
    """A place that a dropped write never had, years ahead, is not inherited: nobody would ever come to its messages."""
    forged = WriteRecord(write_id=WRITE, state="dropped", place=place)
    world.bucket.plant(layout.write(TOPIC, WRITE), forged.encode())
    await committed(ann)
    assert visible(world) == EVERY
    stamps = [units.published_at(name) or 0.0 for name in world.bucket.below("messages/")]
    assert max(stamps) < world.clock.server() + 60


def test_the_last_places_have_names_in_their_order() -> None:
    """Seconds in a float tell all ticks apart, up to the last message of the largest write."""
    for first in (LATEST_PLACE, LATEST_PLACE + MOST_COUNT - 1000):
        stamps = [layout.timestamp(place / TICKS_PER_SECOND) for place in range(first, first + 1000)]
        assert stamps == sorted(set(stamps))


async def test_a_topic_that_is_made_anew_meanwhile_has_no_immortal_write() -> None:
    """Deleted and created again at whichever request of a commit: the write ends, and its id can be used again."""
    for number in range(await requests_of_a_commit()):
        await _made_anew_at(number)


async def _made_anew_at(number: int) -> None:
    async with World() as world:
        ann, bob = await world.process(), await world.process()
        parts = await staged(ann)
        count = itertools.count()

        async def anew(_kind: Kind, _key: str) -> None:
            if next(count) == number:
                ann.client.meanwhile = None
                with suppress(TopicNotEmptyError):
                    await bob.queue.delete_topic(TOPIC)
                    await bob.queue.create_topic(TOPIC, packs=False)

        ann.client.meanwhile = anew
        with suppress(StagedGoneError, TopicNotFoundError):
            await ann.queue.commit_write(TOPIC, WRITE, parts)
        await world.later(OVER)
        assert not (await bob.queue.sweep(TOPIC)).failures
        found = record(world)
        assert found is None or found.state != "begun"
        assert visible(world) in ([], EVERY)
        await committed(bob)
        assert visible(world) == EVERY


async def test_a_decision_that_lands_in_a_topic_made_anew_is_dropped(world: World, ann: Process, bob: Process) -> None:
    """What was staged for it went with the earlier topic: the next sweep ends it, and no later one fails."""
    await cut(ann, "dies after", 2)
    late = world.bucket.body(layout.write(TOPIC, WRITE))
    await bob.queue.delete_topic(TOPIC, force=True)
    await bob.queue.create_topic(TOPIC, packs=False)
    world.bucket.plant(layout.write(TOPIC, WRITE), late)
    await world.later(OVER)
    assert await bob.queue.sweep(TOPIC) == SweepReport(TOPIC, dropped_writes=1)
    assert await bob.queue.sweep(TOPIC) == SweepReport(TOPIC)
    await committed(bob)
    assert visible(world) == EVERY


async def test_what_is_staged_is_dropped_before_its_topic_is_deleted(world: World, ann: Process, bob: Process) -> None:
    """A deletion that is about to remove staged objects is decided against a commit: one of them is refused."""
    parts = await staged(ann)

    async def commit(kind: Kind, key: str) -> None:
        if kind == "DELETE" and "/staged/" in key:
            bob.client.meanwhile = None
            world.topic()  # somebody creates it anew
            with pytest.raises(StagedGoneError):
                await ann.queue.commit_write(TOPIC, WRITE, parts)

    bob.client.meanwhile = commit
    await bob.queue.delete_topic(TOPIC)
    assert bob.client.meanwhile is None
    assert visible(world) == []
