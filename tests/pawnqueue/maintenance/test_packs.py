"""Packs to those that look after a topic: swept, purged, deleted with it, and their letters redriven."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from pawnqueue import TopicNotEmptyError
from pawnqueue.catalog import units
from pawnqueue.domain import layout
from pawnqueue.maintenance.removal import Removed
from tests.pawnqueue.virtual import TOPIC, World
from tests.pawnqueue.virtual import numbers as shown

if TYPE_CHECKING:
    from pawnqueue import OpenClaim
    from tests.pawnqueue.virtual import Process

STRANGER = f"{TOPIC}/packs/notes.txt"


@pytest.fixture
def world(packed_world: World) -> World:
    """A bucket with a topic that allows packs."""
    return packed_world


async def fill(world: World, process: Process) -> None:
    """Leave packs of ten, whole and split: 14 pending, 5 in flight, 10 delayed, 1 dead, and some that are finished."""
    for first in (0, 10, 20, 30):
        world.plant_pack(10, first)
    whole = await process.queue.claim(TOPIC, "c", max_messages=10)
    await process.queue.requeue(whole, delay=5000)
    part = await process.queue.claim(TOPIC, "c", max_messages=5)
    await process.queue.nack(part, [part[0]], reason="bad")
    await process.queue.ack(part)
    await process.queue.claim(TOPIC, "c", max_messages=5, ttl=600)
    rest = await process.queue.claim(TOPIC, "c", max_messages=10)
    await process.queue.requeue(rest, list(rest[:4]))
    await process.queue.ack(rest)


# --- sweep ---


async def test_a_sweep_leaves_what_is_in_use(world: World, ann: Process) -> None:
    """Whatever leases packs and slices have, they stay as long as their pack, and so does all that they tell."""
    await fill(world, ann)
    before = world.bucket.snapshot()
    report = await ann.queue.sweep(TOPIC)
    assert (report.removed_leases, report.failures) == (0, [])
    after = world.bucket.snapshot()
    assert {key: after[key] for key in before} == before


async def test_a_sweep_counts_messages(world: World, ann: Process, bob: Process) -> None:
    """The question about a claim's owner and the report tell how many messages, whatever packs these are in."""
    for first in (0, 10, 20):
        world.plant_pack(10, first)
    claim = await ann.queue.claim(TOPIC, "c", max_messages=30, ttl=600)
    await ann.queue.ack(claim, claim.ids[:13])
    await ann.queue.nack(claim, [claim.ids[13]], reason="bad")
    asked: list[int] = []

    def ask(open_claim: OpenClaim) -> Literal["ended"]:
        asked.append(open_claim.messages)
        return "ended"

    await bob.queue.sweep(TOPIC, ask=ask)
    assert asked == [16]
    await world.later(700)
    for dry_run in (True, False):
        report = await bob.queue.sweep(TOPIC, dry_run=dry_run)
        assert (report.finished_effects, report.given_back, report.failures) == (14, 16, [])
    assert (await bob.queue.stats(TOPIC)).pending == 16


async def test_leases_of_packs_that_are_gone_are_removed(world: World, ann: Process) -> None:
    """Held, given back, split and finished ones: a purge leaves them."""
    await fill(world, ann)
    await ann.queue.purge(TOPIC)
    assert len(world.bucket.below("leases/")) > 4
    await world.later(700)
    for _ in range(2):
        assert not (await ann.queue.sweep(TOPIC)).failures
        await world.later(6000)  # a delay holds its lease
    assert world.bucket.below("leases/") == []


async def test_a_sweep_knows_packs_that_were_allowed_a_moment_ago(world: World) -> None:
    """⚑ §5: what it read of the topic a minute ago does not count."""
    world.topic()
    late = await world.process()
    await late.queue.stats(TOPIC)
    world.topic(packs=True)
    ann = await world.process()
    await fill(world, ann)
    leases = world.bucket.below("leases/")
    await late.queue.sweep(TOPIC)
    assert world.bucket.below("leases/") == leases


async def test_strangers_between_packs_are_told_and_left_alone(world: World, ann: Process) -> None:
    """Also one whose name counts more messages than a pack can have."""
    large = units.key_of(TOPIC, units.pack_name_at(1e9, world.clock.uuid(), 5000))
    for key in (STRANGER, large):
        world.bucket.plant(key, b"")
    assert set((await ann.queue.sweep(TOPIC)).strangers) == {STRANGER, large}
    assert (await ann.queue.purge(TOPIC)).messages == 0
    assert {STRANGER, large} <= world.bucket.snapshot().keys()


# --- purge and delete ---


async def test_a_purge_counts_messages(world: World, ann: Process) -> None:
    """A dry run removes nothing, and counts the same. All messages of a pack count: nobody looks into it."""
    await fill(world, ann)
    left = 10 * len(world.bucket.below("packs/"))
    assert left == 40
    assert await ann.queue.purge(TOPIC, dry_run=True) == Removed(messages=left)
    assert await ann.queue.purge(TOPIC, dead_letters=True) == Removed(messages=left, dead_letters=1)
    assert world.bucket.below("packs/") == []
    assert not await ann.queue.peek(TOPIC)


async def test_a_topic_with_packs_is_not_deleted(world: World, ann: Process) -> None:
    """The error tells roughly how many messages there are, by LISTs alone."""
    await fill(world, ann)
    with ann.client.counting() as requests, pytest.raises(TopicNotEmptyError) as caught:
        await ann.queue.delete_topic(TOPIC)
    assert "it holds 20 pending messages, 10 delayed messages, 5 messages in flight and 1 dead letter. " in str(
        caught.value
    )
    assert requests["LIST"] == 4
    report = await ann.queue.delete_topic(TOPIC, force=True)
    assert (report.messages, report.dead_letters) == (40, 1)
    assert world.bucket.below(topic=TOPIC) == [layout.BUCKET_RECORD]


# --- dead letters ---


async def test_a_letter_of_a_pack_reads_well(world: World, ann: Process) -> None:
    """Its reason, its message, and how often that was delivered."""
    world.plant_pack(3)
    await ann.queue.requeue(await ann.queue.claim(TOPIC, "c", max_messages=3))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=3)
    await ann.queue.settle(claim, bury={claim[1]: "bad"})
    [letter] = await ann.queue.dead_letters(TOPIC)
    assert letter.message is not None
    assert (letter.reason, letter.deliveries, letter.claim, letter.fault) == ("bad", 2, claim.stem, "")
    assert (letter.message.id, letter.message.payload) == (claim[1].id, {"n": 1})
    assert letter.message.created_at == claim[1].created_at


async def test_a_letter_of_a_pack_is_redriven_by_either_id(world: World, ann: Process) -> None:
    """By its own, or by its message's; then it is a single message, whose id is what it was."""
    world.plant_pack(3)
    claim = await ann.queue.claim(TOPIC, "c", max_messages=3)
    await ann.queue.nack(claim, [claim[0], claim[2]], reason="bad")
    await ann.queue.ack(claim)
    [first, second] = await ann.queue.dead_letters(TOPIC, newest_first=False)
    assert first.message is not None
    assert second.message is not None
    assert (await ann.queue.redrive(TOPIC, ids=[first.id])).moved == [first.id]
    assert (await ann.queue.redrive(TOPIC, ids=[second.message.id])).moved == [second.id]
    again = await ann.queue.claim(TOPIC, "c", max_messages=10)
    assert sorted(shown(again)) == [0, 2]
    assert set(again.ids) == {claim[0].id, claim[2].id}
    assert {message.deliveries for message in again} == {1}


async def test_a_letter_waits_until_its_pack_is_given_back(world: World) -> None:
    """⚑ §5: while the burying claim holds the pack, the letter may be written once more; so it is not moved."""
    world.topic()
    late = await world.process()
    await late.queue.stats(TOPIC)  # it has read that there are no packs
    world.topic(packs=True)
    unit = world.plant_pack(3)
    ann = await world.process()
    claim = await ann.queue.claim(TOPIC, "c", max_messages=3)
    fault = ann.client.inject("denied", "PUT", f"{layout.lease(TOPIC, unit)}*")
    await ann.queue.settle(claim, bury={claim[0]: "bad"}, requeue={claim[1]: "again"})
    assert fault.hits
    [letter] = await late.queue.dead_letters(TOPIC)
    assert (await late.queue.redrive(TOPIC)).skipped == [letter.id]
    ann.client.heal()
    await world.later()
    await late.queue.sweep(TOPIC)
    assert (await late.queue.redrive(TOPIC)).moved == [letter.id]
    claims = [await ann.queue.claim(TOPIC, "c", max_messages=10) for _ in range(2)]
    assert sorted(number for each in claims for number in shown(each)) == [0, 1]
