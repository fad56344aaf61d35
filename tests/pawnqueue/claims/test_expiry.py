"""A topic's ``max_age_seconds``: what is older is buried as expired, and handed out to nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pawnqueue import ConfigError
from pawnqueue.catalog import units
from pawnqueue.domain import layout
from tests.pawnqueue.virtual import MARGIN, OVERDUE, TOPIC, World, numbered, numbers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.pawnqueue.virtual import Process

MAX_AGE = 100.0
#: By then nobody doubts that it is over.
EXPIRED = MAX_AGE + 2 * MARGIN + 1


@pytest.fixture(params=["conditional_write", "csprng_verify"])
async def aging(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A bucket of either strategy, with a topic whose messages expire."""
    async with World(request.param) as world:
        world.topic(packs=True, max_age_seconds=MAX_AGE)
        yield world


@pytest.fixture(params=[False, True], ids=["single", "packs"])
def how(request: pytest.FixtureRequest) -> dict[str, bool]:
    """How messages are published: singly, or in packs."""
    return {"pack": request.param}


async def _letters(process: Process) -> list[tuple[int, str]]:
    page = await process.queue.dead_letters(TOPIC, max_messages=2000)
    return sorted((each.message.payload["n"], each.reason) for each in page if each.message is not None)


async def test_what_is_too_old_is_buried_and_not_handed_out(aging: World, how: dict[str, bool]) -> None:
    """What is younger comes, in the same claim; the dead letters say why, and can be redriven."""
    ann = await aging.process()
    await ann.queue.publish(TOPIC, numbered(5), **how)
    await aging.later(EXPIRED)
    await ann.queue.publish(TOPIC, numbered(3, 5), **how)
    got = numbers(await ann.queue.claim(TOPIC, "c", max_messages=10))
    while claim := await ann.queue.claim(TOPIC, "c", max_messages=10):
        got += numbers(claim)
    assert got == [5, 6, 7]
    assert await _letters(ann) == [(n, "expired") for n in range(5)]
    [letter, *_] = await ann.queue.dead_letters(TOPIC)
    assert "max_age_seconds, 100" in letter.error
    assert (letter.deliveries, letter.max_deliveries) == (0, None)


async def test_nothing_is_buried_before_its_time(aging: World, how: dict[str, bool]) -> None:
    """Until the age is reached, and by any clock, a message is handed out."""
    ann = await aging.process()
    await ann.queue.publish(TOPIC, numbered(2), **how)
    await aging.later(MAX_AGE - 1)
    assert numbers(await ann.queue.claim(TOPIC, "c")) == [0, 1]


async def test_a_claim_goes_on_with_what_it_was_given(aging: World, how: dict[str, bool]) -> None:
    """A retry by the same id, and a process that attaches, get all of it, however old it is by then."""
    ann, bob = await aging.process(), await aging.process()
    await ann.queue.publish(TOPIC, numbered(4), **how)
    claim = await ann.queue.claim(TOPIC, "c", claim_id="job", ttl=1000, session_ttl=20)
    await aging.later(EXPIRED)
    again = await bob.queue.claim(TOPIC, "c", claim_id="job", ttl=1000)
    assert numbers(again) == [0, 1, 2, 3]
    assert (await bob.queue.ack(again, again.ids[:1])).complete
    assert numbers(await ann.queue.attach(await bob.queue.leave(again))) == [1, 2, 3]
    del claim


async def test_what_was_given_back_expires(aging: World, how: dict[str, bool]) -> None:
    """Its requeue does not make it younger, and its letter keeps the reason of that beside its own."""
    ann = await aging.process()
    await ann.queue.publish(TOPIC, numbered(4), **how)
    claim = await ann.queue.claim(TOPIC, "c")
    first, second, *rest = claim.ids
    await ann.queue.ack(claim, first)
    await ann.queue.requeue(claim, [second], reason="no stock")
    await ann.queue.requeue(claim, rest)
    await aging.later(EXPIRED)
    assert not await ann.queue.claim(TOPIC, "c")
    assert await _letters(ann) == [(n, "expired") for n in (1, 2, 3)]
    assert {each.deliveries for each in await ann.queue.dead_letters(TOPIC)} == {1}
    await aging.later(OVERDUE)
    await ann.queue.sweep(TOPIC)
    assert aging.bucket.below("messages/") == aging.bucket.below("packs/") == []


async def test_a_redriven_message_counts_from_its_redrive(aging: World, how: dict[str, bool]) -> None:
    """Its name tells when it was buried. However long ago that was, it is delivered."""
    ann = await aging.process()
    await ann.queue.publish(TOPIC, numbered(2), **how)
    await aging.later(EXPIRED)
    assert not await ann.queue.claim(TOPIC, "c")
    for _ in range(2):
        await aging.later(10 * MAX_AGE)
        assert len((await ann.queue.redrive(TOPIC)).moved) == 2
        await aging.later(MAX_AGE / 2)
        assert (await ann.queue.sweep(TOPIC)).expired == 0
        claim = await ann.queue.claim(TOPIC, "c")
        assert sorted(numbers(claim)) == [0, 1]
        await ann.queue.requeue(claim)
        await aging.later(EXPIRED)
        assert not await ann.queue.claim(TOPIC, "c")
        assert len(await _letters(ann)) == 2


async def test_a_redrive_that_another_process_finishes_counts_from_its_last_copy(aging: World) -> None:
    """Until the move is finished nobody can be given the message, so it does not expire meanwhile."""
    ann, bob = await aging.process(), await aging.process()
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.bury(await ann.queue.claim(TOPIC, "c"), reason="r")
    bob.client.inject("dies", "DELETE", f"{TOPIC}/dead-letter/*")
    with pytest.raises(Exception, match=r"^$"):
        await bob.queue.redrive(TOPIC)
    assert len(aging.bucket.below("messages/")) == 1
    await aging.later(EXPIRED)
    assert (await ann.queue.sweep(TOPIC)).finished_moves == 1
    await aging.later(MAX_AGE / 2)
    assert numbers(await ann.queue.claim(TOPIC, "c")) == [0]


async def test_many_that_are_too_old_hold_up_no_good_one(aging: World, how: dict[str, bool]) -> None:
    """A claim for a single message gets past hundreds, on a slow strategy the second one; no pack is split for it."""
    ann = await aging.process()
    for first in range(0, 600, 200):
        await ann.queue.publish(TOPIC, numbered(200, first), **how)
    await aging.later(EXPIRED)
    await ann.queue.publish(TOPIC, numbered(1, 600), **how)
    with ann.client.counting() as counted:
        claim = await ann.queue.claim(TOPIC, "c", max_messages=1)
        if not claim and ann.queue.strategy == "csprng_verify":
            claim = await ann.queue.claim(TOPIC, "c", max_messages=1)
        assert numbers(claim) == [600]
        await ann.queue.ack(claim)
        await aging.later(120)
        await ann.queue.aclose()
    assert not [key for key in aging.bucket.below("leases/") if key.count(".") > 2]
    bob = await aging.process()
    assert len(await _letters(bob)) == 600
    a_message = {"conditional_write": 5.2, "csprng_verify": 8}[bob.queue.strategy]
    assert sum(counted.values()) <= 600 * a_message + 50


async def test_a_topic_that_nobody_consumes_is_swept(aging: World, how: dict[str, bool]) -> None:
    """The janitor buries what was never claimed and is too old, and counts it; a dry run counts it only."""
    ann = await aging.process()
    await ann.queue.publish(TOPIC, numbered(30), **how)
    await aging.later(MAX_AGE - 1)
    assert (await ann.queue.sweep(TOPIC)).expired == 0
    await aging.later(2 * MARGIN + 2)
    await ann.queue.publish(TOPIC, numbered(3, 30), **how)
    await ann.queue.pause(TOPIC)  # sweeps go on
    assert (await ann.queue.sweep(TOPIC, dry_run=True)).expired == 30
    assert await _letters(ann) == []
    assert (await ann.queue.sweep(TOPIC)).expired == 30
    assert await _letters(ann) == [(n, "expired") for n in range(30)]
    assert (await ann.queue.sweep(TOPIC)).expired == 0
    await ann.queue.resume(TOPIC)
    assert [message.deliveries for message in await ann.queue.claim(TOPIC, "c")] == [1, 1, 1]


async def test_a_sweep_leaves_alone_what_is_held(aging: World, how: dict[str, bool]) -> None:
    """A message that a claim has is its own, however old it is."""
    ann, bob = await aging.process(), await aging.process()
    await ann.queue.publish(TOPIC, numbered(3), **how)
    claim = await ann.queue.claim(TOPIC, "c", ttl=1000)
    await aging.later(EXPIRED)
    assert (await bob.queue.sweep(TOPIC)).expired == 0
    assert (await ann.queue.ack(claim)).complete


async def test_a_topic_without_the_setting_costs_nothing_more(world: World, ann: Process) -> None:
    """Neither a claim of old messages nor a sweep makes a request more; one with it makes none while all are young."""
    counts = []
    for topic, settings in (("plain", {}), ("young", {"max_age_seconds": 1e6})):
        world.topic(topic, **settings)
        await ann.queue.publish(topic, numbered(20))
        await world.later(1000)
        with ann.client.counting() as counted:
            await ann.queue.sweep(topic)
            await ann.queue.ack(await ann.queue.claim(topic, "c", max_messages=20))
        counts.append(counted)
    assert counts[0] == counts[1]


async def test_what_cannot_be_known_is_not_buried(aging: World) -> None:
    """A redriven message whose date the store does not tell is given back; so is all if the settings cannot be read."""
    ann, bob = await aging.process(), await aging.process()
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.bury(await ann.queue.claim(TOPIC, "c"), reason="r")
    await aging.later(EXPIRED)
    await ann.queue.redrive(TOPIC)
    ann.client.inject("denied", "HEAD", f"{TOPIC}/messages/*")
    assert not await ann.queue.claim(TOPIC, "c")
    assert await _letters(bob) == []
    await aging.later(30)
    assert [message.deliveries for message in await bob.queue.claim(TOPIC, "c")] == [1]


@pytest.mark.parametrize("name", ["unreadable", "far ahead"])
async def test_a_message_without_a_time_that_counts_is_delivered(aging: World, name: str) -> None:
    """pawn-queue's names are read as ours; one that tells no time, or one to come, does not expire."""
    ann = await aging.process()
    uuid = aging.clock.uuid()
    stamp = "20250230T000000_000000" if name == "unreadable" else "29990101T000000_000000"
    aging.bucket.plant(units.key_of(TOPIC, f"{stamp}-{uuid}.json"), {"id": uuid, "payload": {"n": 1}})
    await aging.later(EXPIRED)
    assert numbers(await ann.queue.claim(TOPIC, "c")) == [1]


async def test_a_publishers_trace_is_kept(aging: World) -> None:
    """⚑ §7: what was buried unread may belong to a staged write: the record of the claim that buried it stays."""
    ann = await aging.process()
    await ann.queue.publish(TOPIC, numbered(2))
    await aging.later(EXPIRED)
    assert not await ann.queue.claim(TOPIC, "c")
    await aging.later(5)
    assert len(aging.bucket.below("claims/")) == 1


async def test_wrong_ages_are_refused(ann: Process) -> None:
    """The sentence says what to pass."""
    for wrong in (0, -1, "soon", True, float("nan"), float("inf"), 1e12):
        with pytest.raises(ConfigError, match="max_age_seconds of topic 'orders' is wrong: pass a number of seconds"):
            await ann.queue.update_topic(TOPIC, max_age_seconds=wrong)  # type: ignore[arg-type]
    assert (await ann.queue.update_topic(TOPIC, max_age_seconds=60)).settings.max_age_seconds == 60
    assert (await ann.queue.update_topic(TOPIC, max_age_seconds=None)).settings.max_age_seconds is None
    assert b"max_age" not in ann.client.bucket.body(layout.topic_marker(TOPIC))


async def test_a_delayed_message_counts_from_when_it_is_due(world: World) -> None:
    """However long its delay was, it is delivered then, and expires like any other."""
    world.topic(delays=True, max_age_seconds=MAX_AGE)
    ann = await world.process()
    await ann.queue.publish(TOPIC, numbered(2), delay=10 * MAX_AGE)
    await world.later(10 * MAX_AGE + 5)
    assert (await ann.queue.sweep(TOPIC)).expired == 0
    assert numbers(await ann.queue.claim(TOPIC, "c", max_messages=1)) == [0]
    await world.later(EXPIRED)
    assert (await ann.queue.sweep(TOPIC)).expired == 1
