"""A message under a dead letter's uuid, which any publisher may send, is buried while the letter is moved (§5)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pawnqueue.catalog import letters, units
from pawnqueue.claims.candidates import FULL_LISTING_SECONDS
from pawnqueue.domain import layout
from pawnqueue.domain.records import BucketRecord
from tests.pawnqueue.virtual import TOPIC, Died, Process, World, numbered, numbers

if TYPE_CHECKING:
    from collections.abc import Callable

#: After this time, a redriver's lock is over.
LOCK_OVER = 70.0

both = pytest.mark.parametrize("able", [True, False], ids=["with ETags", "without"])


async def bury_first(world: World, process: Process) -> str:
    """Bury a message with the number 0; return the uuid of its letter."""
    [uuid] = await process.queue.publish(TOPIC, numbered(1))
    await process.queue.bury(await process.queue.claim(TOPIC, "c"), reason="bad")
    await world.later(FULL_LISTING_SECONDS)
    return uuid


async def bury_another(world: World, process: Process, uuid: str) -> None:
    """Bury a message with the number 1 under the same uuid."""
    world.bucket.plant(units.key_of(TOPIC, f"x-{uuid}.json"), {"id": "other", "payload": {"n": 1}})
    claim = await process.queue.claim(TOPIC, "d")
    assert numbers(claim) == [1]
    assert (await process.queue.bury(claim, reason="bad too")).complete


async def redriven(world: World, process: Process) -> list[int]:
    """Redrive, consume and sweep until nothing is left; return the numbers of the messages that were delivered."""
    had: list[int] = []
    for _ in range(3):
        await world.later(LOCK_OVER)
        await process.queue.redrive(TOPIC)
        await world.later(FULL_LISTING_SECONDS)
        claim = await process.queue.claim(TOPIC, "e")
        had += numbers(claim)
        await process.queue.ack(claim)
        await process.queue.sweep(TOPIC)
    assert world.bucket.below("messages/") == world.bucket.below("leases/") == []
    return sorted(had)


def after_the_copy(world: World, redriver: Process, other: Process, uuid: str, kind: str = "") -> Callable[..., object]:
    """Return a hook that buries another message before the redriver's next request for the letter, of this kind."""
    letter = letters.key_of(TOPIC, uuid)

    async def hook(asked: str, key: str) -> None:
        if key == letter and kind in ("", asked) and world.bucket.below("messages/"):
            redriver.client.meanwhile = None
            await bury_another(world, other, uuid)

    return hook


async def test_a_letter_that_is_buried_after_the_copy_stays(world: World, ann: Process, bob: Process) -> None:
    """The redriver has copied the first letter: it deletes no other one, and both messages are delivered."""
    uuid = await bury_first(world, ann)
    ann.client.meanwhile = after_the_copy(world, ann, bob, uuid)
    assert (await ann.queue.redrive(TOPIC)).moved == [uuid]
    assert sorted(world.bucket.below("dead-letter/")) == [f"{uuid}.json", f"{uuid}.reason.json"]
    assert await redriven(world, bob) == [0, 1]


@both
async def test_where_the_store_minds_etags_a_letter_stays_until_the_delete(able: bool) -> None:  # noqa: FBT001
    """Without ETags a letter that is buried between HEAD and DELETE is lost, which is what is left (§5, Redrive)."""
    async with World() as world:
        record = BucketRecord(strategy="conditional_write", conditional_deletes=able)
        world.bucket.plant(layout.BUCKET_RECORD, record.encode())
        ann, bob = [await world.process() for _ in range(2)]
        uuid = await bury_first(world, ann)
        ann.client.meanwhile = after_the_copy(world, ann, bob, uuid, "DELETE")
        assert (await ann.queue.redrive(TOPIC)).moved == [uuid]
        assert await redriven(world, bob) == ([0, 1] if able else [0])


@pytest.mark.parametrize("finisher", ["redriver", "consumer", "janitor"])
@pytest.mark.parametrize("died_at", ["COPY", "DELETE"])
async def test_a_late_finisher_moves_no_other_letter(
    world: World, ann: Process, bob: Process, died_at: str, finisher: str
) -> None:
    """A new place that was made for one letter gets no other one, whichever process goes on with the move.

    The other message was buried over the first one's letter. If that was not copied before, it is gone.
    """
    uuid = await bury_first(world, ann)
    ann.client.inject("dies", died_at, "*/messages/*" if died_at == "COPY" else "*/dead-letter/*")
    with pytest.raises(Died):
        await ann.queue.redrive(TOPIC)
    await bury_another(world, bob, uuid)
    await world.later(LOCK_OVER)
    if finisher == "janitor":
        report = await bob.queue.sweep(TOPIC)
        assert (report.finished_moves, report.failures) == (1, [])
    elif finisher == "consumer":
        await bob.queue.claim(TOPIC, "e")
        await world.later(1)
    else:
        assert (await bob.queue.redrive(TOPIC)).moved == [uuid]
    assert await redriven(world, bob) == ([1] if died_at == "COPY" else [0, 1])


async def test_a_copy_that_is_sent_again_does_not_overwrite_the_first(world: World, ann: Process, bob: Process) -> None:
    """Its answer was lost, and another message was buried before the next attempt: that attempt looks first."""
    uuid = await bury_first(world, ann)
    ann.client.inject("answer lost", "COPY", times=1)
    ann.client.meanwhile = after_the_copy(world, ann, bob, uuid)
    await ann.queue.redrive(TOPIC)
    assert await redriven(world, bob) == [0, 1]


async def test_a_delete_that_is_sent_again_removes_no_other_letter(world: World, ann: Process, bob: Process) -> None:
    """The first DELETE was carried out, and its answer lost: the letter is looked at before the next."""
    uuid = await bury_first(world, ann)
    ann.client.inject("answer lost", "DELETE", "*dead-letter*", times=1)
    moved = asyncio.ensure_future(ann.queue.redrive(TOPIC))
    while f"{uuid}.json" in world.bucket.below("dead-letter/"):
        await world.later(0.001)
    await bury_another(world, bob, uuid)
    assert (await moved).moved == [uuid]
    assert f"{uuid}.json" in world.bucket.below("dead-letter/")
    assert await redriven(world, bob) == [0, 1]


async def test_a_redrive_costs_one_look_before_the_delete(world: World, ann: Process) -> None:
    """Of the requests for one letter, one alone is for the case that another one is buried over it."""
    await bury_first(world, ann)
    with ann.client.counting() as requests:
        await ann.queue.redrive(TOPIC)
    # The topic; a LIST; the burial's lease; the lock; look, COPY, look, DELETE and the reason's; look at the new place,
    # and open.
    assert requests == {"LIST": 1, "GET": 2, "PUT": 2, "HEAD": 3, "COPY": 1, "DELETE": 2}
