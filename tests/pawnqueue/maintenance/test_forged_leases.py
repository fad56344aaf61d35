"""Leases without a message go a day after the store's date of them, whatever they say of their own end (§5.7)."""

from __future__ import annotations

from typing import Any

import pytest

from pawnqueue.catalog import letters, units
from pawnqueue.domain import layout
from pawnqueue.domain.lease import Lease
from pawnqueue.maintenance.sweep_leases import MAX_SECONDS_WITHOUT_MESSAGE
from tests.pawnqueue.maintenance.swept import AN_HOUR, OTHER, UUID, report, unnoted
from tests.pawnqueue.virtual import TOPIC, Process, World, numbered, numbers

#: Of the year 9987.
FAR_FUTURE = 253e9
KINDS: dict[str, dict[str, Any]] = {
    "held, and its claim has no record": {"claim": "forged.0", "deliveries": 1},
    "held by nobody": {},
    "released": {"state": "released"},
    "moving nothing": {"state": "moving", "source": OTHER},
}


def plant(world: World, uuid: str, **fields: Any) -> str:
    """Put a lease for as good as ever there, of a message that never was, and return its key."""
    lease = Lease(v=1, until=FAR_FUTURE, ttl=1e9, key=f"x-{uuid}.json", **fields)
    key = layout.lease(TOPIC, uuid)
    world.bucket.plant(key, lease.encode())
    return key


@pytest.mark.parametrize("kind", KINDS)
async def test_a_lease_without_a_message_goes_a_day_after_its_date(world: World, ann: Process, kind: str) -> None:
    """Before that it is left alone, as it may be of a claim that is about to be recorded, or of a redrive."""
    plant(world, UUID, **KINDS[kind])
    await world.later(MAX_SECONDS_WITHOUT_MESSAGE - AN_HOUR)
    assert await ann.queue.sweep(TOPIC) == report()
    await world.later(AN_HOUR + 10)
    counts = {"finished_moves": 1} if kind.startswith("moving") else {"removed_leases": 1}
    before = unnoted(world)
    assert await ann.queue.sweep(TOPIC, dry_run=True) == report(dry_run=True, **counts)
    assert {key: body for key, body in unnoted(world).items() if not key.startswith("_probe")} == before
    assert await ann.queue.sweep(TOPIC) == report(**counts)
    assert world.bucket.below("leases/") == []


async def test_a_thousand_of_them_cost_sweeps_nothing_for_long(world: World, ann: Process) -> None:
    """After two days a sweep makes as many requests as in a topic without them."""
    with ann.client.counting() as without:
        await ann.queue.sweep(TOPIC)
    for _ in range(1000):
        plant(world, world.clock.uuid(), claim="forged.0")
    for _ in range(2):
        await world.later(MAX_SECONDS_WITHOUT_MESSAGE)
        await ann.queue.sweep(TOPIC)
    with ann.client.counting() as requests:
        await ann.queue.sweep(TOPIC)
    assert requests == without


async def test_a_lease_of_a_live_claim_stays(world: World, ann: Process) -> None:
    """Its message was deleted by hand: that is settled by its claim, which is renewed."""
    ids = await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    world.bucket.remove(units.key_of(TOPIC, world.bucket.below("messages/")[0]))
    plant(world, ids[0], claim="run.0", deliveries=1)
    world.alter(claim.stem, until=FAR_FUTURE, session_until=FAR_FUTURE)
    await world.later(2 * MAX_SECONDS_WITHOUT_MESSAGE)
    assert (await ann.queue.sweep(TOPIC)).removed_leases == 0
    assert len(world.bucket.below("leases/")) == 2


async def test_a_delayed_message_keeps_its_lease(world: World, ann: Process) -> None:
    """A delay may be longer than a day."""
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.requeue(await ann.queue.claim(TOPIC, "c"), delay=3 * MAX_SECONDS_WITHOUT_MESSAGE)
    await world.later(2 * MAX_SECONDS_WITHOUT_MESSAGE)
    assert (await ann.queue.sweep(TOPIC)).removed_leases == 0
    assert not await ann.queue.claim(TOPIC, "c")
    await world.later(MAX_SECONDS_WITHOUT_MESSAGE)
    assert [message.deliveries for message in await ann.queue.claim(TOPIC, "c")] == [2]


@pytest.mark.parametrize("reads", [0, 1], ids=["before it is read", "before it is read again"])
async def test_a_lease_that_is_written_anew_has_a_new_date(world: World, ann: Process, reads: int) -> None:
    """The listing tells an old date of another version: the sweep that saw that leaves the new lease alone."""
    key = plant(world, UUID, state="released")
    await world.later(2 * MAX_SECONDS_WITHOUT_MESSAGE)
    seen: list[str] = []

    def write_anew(kind: str, of: str) -> None:
        if (kind, of) == ("GET", key):
            if len(seen) == reads:
                plant(world, UUID, state="released", deliveries=1)
            seen.append(of)

    ann.client.meanwhile = write_anew
    assert await ann.queue.sweep(TOPIC) == report()
    assert len(seen) == 2
    ann.client.heal()
    assert await ann.queue.sweep(TOPIC) == report()
    await world.later(MAX_SECONDS_WITHOUT_MESSAGE + 10)
    assert await ann.queue.sweep(TOPIC) == report(removed_leases=1)


async def test_a_move_that_never_ends_is_finished(world: World, ann: Process) -> None:
    """The lock of a redrive that was killed says that it ends in the year 9987: its message is had after a day."""
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.bury(await ann.queue.claim(TOPIC, "c"), reason="bad")
    [letter] = await ann.queue.dead_letters(TOPIC)
    version, _ = world.bucket.snapshot()[letters.key_of(TOPIC, letter.id)]
    plant(world, units.redriven_id(letter.id, version), state="moving", source=letter.id)
    await world.later(MAX_SECONDS_WITHOUT_MESSAGE + 10)
    assert (await ann.queue.sweep(TOPIC)).finished_moves == 1
    assert numbers(await ann.queue.claim(TOPIC, "c")) == [0]


async def test_a_lock_at_a_place_that_is_no_letters_moves_nothing(world: World, ann: Process) -> None:
    """Its place was made for no version of the letter that it names: the lock goes, and the letter stays."""
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.bury(await ann.queue.claim(TOPIC, "c"), reason="bad")
    [letter] = await ann.queue.dead_letters(TOPIC)
    plant(world, UUID, state="moving", source=letter.id)
    await world.later(MAX_SECONDS_WITHOUT_MESSAGE + 10)
    await ann.queue.sweep(TOPIC)
    assert world.bucket.below("messages/") == world.bucket.below("leases/") == []
    assert (await ann.queue.redrive(TOPIC)).moved == [letter.id]
