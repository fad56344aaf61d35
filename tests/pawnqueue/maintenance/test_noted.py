"""A topic knows when it was last swept (§1): what is noted, by which requests, and what becomes of the note."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pawnqueue import StoreError, TopicNotFoundError
from pawnqueue.catalog import letters
from pawnqueue.domain import layout
from pawnqueue.domain.records import SweptRecord, TopicRecord
from pawnqueue.maintenance.removal import Removed
from tests.pawnqueue.maintenance.swept import report
from tests.pawnqueue.virtual import TOPIC, Process, World, numbered

NOTE = layout.swept(TOPIC)


def now(world: World) -> datetime:
    """The store's time, as it dates objects."""
    return datetime.fromtimestamp(int(world.clock.server()), UTC)


async def test_a_sweep_is_noted(world: World, ann: Process, bob: Process) -> None:
    """The topic shows when the last one was, in the store's time; before the first it shows none."""
    assert (await bob.queue.topic(TOPIC)).swept_at is None
    for _ in range(2):
        await world.later(100)
        await ann.queue.sweep(TOPIC)
        assert (await bob.queue.topic(TOPIC)).swept_at == now(world)
    assert SweptRecord.decode(world.bucket.body(NOTE), NOTE) == SweptRecord(topic=TOPIC)


async def test_what_it_costs(ann: Process) -> None:
    """A sweep, one GET, one HEAD and one PUT; a look at one topic, one HEAD; whatever else it is asked for, nothing."""
    with ann.client.counting() as requests:
        await ann.queue.sweep(TOPIC)
    assert requests == {"GET": 1, "LIST": 7, "HEAD": 1, "PUT": 1}
    with ann.client.counting() as requests:
        await ann.queue.topic(TOPIC)
    assert requests == {"GET": 1, "HEAD": 1}
    with ann.client.counting() as requests:
        assert (await ann.queue.update_topic(TOPIC)).swept_at is None
        assert (await ann.queue.create_topic(TOPIC)).swept_at is None
    assert requests == {"GET": 2}


async def test_what_is_no_sweep_is_not_noted(world: World, ann: Process) -> None:
    """Neither a dry run nor a sweep that did not come to its end."""
    await ann.queue.sweep(TOPIC, dry_run=True)
    ann.client.inject("denied", "LIST", layout.leases(TOPIC))
    with pytest.raises(StoreError):
        await ann.queue.sweep(TOPIC)
    assert NOTE not in world.bucket.snapshot()


async def test_a_note_that_is_denied_is_a_failure_of_its_own(world: World, ann: Process) -> None:
    """All else is swept, and the report tells."""
    world.bucket.plant("_probe/old.probe", "x")
    await world.later(4000)
    ann.client.inject("denied", "PUT", NOTE)
    found = await ann.queue.sweep(TOPIC)
    assert found == report(removed_leftovers=1, failures=[f"{NOTE}: The virtual store denied PUT {NOTE}."])


async def test_a_note_whose_answer_is_lost_is_written_again(world: World, ann: Process) -> None:
    """Twice is as good as once."""
    ann.client.inject("answer lost", "PUT", NOTE, times=1)
    assert await ann.queue.sweep(TOPIC) == report()
    assert (await ann.queue.topic(TOPIC)).swept_at is not None


async def test_it_is_no_message_and_no_stranger(world: World, ann: Process) -> None:
    """Purging leaves it, a sweep does not report it, and it neither makes a topic nor keeps one from being deleted."""
    await ann.queue.publish(TOPIC, numbered(2))
    await ann.queue.sweep(TOPIC)
    await ann.queue.purge(TOPIC, dead_letters=True)
    assert await ann.queue.sweep(TOPIC) == report()
    assert NOTE in world.bucket.snapshot()
    world.bucket.plant(layout.swept("ghost"), "{}")
    assert await ann.queue.list_topics() == [TOPIC]
    assert await ann.queue.delete_topic(TOPIC) == Removed()
    assert [key for key in world.bucket.below() if key.startswith(f"{TOPIC}/")] == []


async def test_a_topic_that_is_deleted_meanwhile_has_no_note(world: World, ann: Process, bob: Process) -> None:
    """The janitor looks for the marker first."""

    async def deleted(kind: str, key: str) -> None:
        if (kind, key) == ("LIST", letters.folder(TOPIC)):
            ann.client.heal()
            await bob.queue.delete_topic(TOPIC)

    ann.client.meanwhile = deleted
    await ann.queue.sweep(TOPIC)
    assert [key for key in world.bucket.below() if key.startswith(f"{TOPIC}/")] == []
    with pytest.raises(TopicNotFoundError):
        await bob.queue.topic(TOPIC)


async def test_an_earlier_topics_note_says_nothing(world: World, ann: Process) -> None:
    """A note that has landed after its topic's deletion is older than the topic that has its name now."""
    await ann.queue.sweep(TOPIC)
    created = now(world) + timedelta(seconds=100)
    record = TopicRecord(topic=TOPIC, created_at=created.isoformat())
    world.bucket.plant(layout.topic_marker(TOPIC), record.encode())
    assert (await ann.queue.topic(TOPIC)).swept_at is None
    await world.later(200)
    await ann.queue.sweep(TOPIC)
    assert (await ann.queue.topic(TOPIC)).swept_at == now(world)
