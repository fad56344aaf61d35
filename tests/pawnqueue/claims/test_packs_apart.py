"""Claims of packs: bad messages beside good ones, more than one pack in a claim, and claims that begin once more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pawnqueue.catalog import letters
from pawnqueue.domain import layout, share
from pawnqueue.domain import lease as leases
from tests.pawnqueue.claims.test_packs import drained, is_empty
from tests.pawnqueue.virtual import TOPIC, Died, Fault, numbers

if TYPE_CHECKING:
    from tests.pawnqueue.virtual import World


@pytest.fixture
def world(packed_world: World) -> World:
    """A bucket with a topic that allows packs."""
    return packed_world


def plant_bad_pack(world: World, lines: list[bytes]) -> None:
    """Put a pack with these lines before all others."""
    world.plant_lines(lines, seconds=world.clock.server() - 60)


@pytest.mark.parametrize("bad", [3, 4, 5, 6, 7])
async def test_after_bad_packs_nobody_is_given_more_than_was_asked_for(world: World, bad: int) -> None:
    """⚑ §5.7: after bad batches a claim wins more than it wants, and gives the surplus back unseen."""
    for _ in range(bad):
        plant_bad_pack(world, [b"bad"] * 3)
    for first in (0, 3, 6):
        world.plant_pack(3, first)
    ann = await world.process()
    had: list[int] = []
    while len(had) < 9:
        claim = await ann.queue.claim(TOPIC, "c", max_messages=4)
        assert len(claim) <= 4
        assert [message.deliveries for message in claim] == [1] * len(claim)
        had += numbers(claim)
        await ann.queue.ack(claim)
        await world.later(15)
    assert sorted(had) == list(range(9))
    assert is_empty(world)


async def test_a_retry_that_wants_fewer_is_given_fewer(world: World) -> None:
    """What a dead attempt has won is adopted as far as its successor wants it, and the rest is given back unseen."""
    world.plant_pack(4)
    ann, bob = await world.process(), await world.process()
    ann.client.faults.append(Fault("dies", "PUT", layout.claims(TOPIC) + "*"))
    with pytest.raises(Died):
        await ann.queue.claim(TOPIC, "c", max_messages=4, claim_id="run")
    await world.later(3)
    claim = await bob.queue.claim(TOPIC, "c", max_messages=2, claim_id="run")
    assert numbers(claim) == [0, 1]
    await bob.queue.ack(claim)
    assert await drained(bob) == {2: 1, 3: 1}


async def test_a_settlement_tells_of_what_was_given(world: World) -> None:
    """Neither a line that was buried before the hand-out nor what a former session has settled is in it."""
    lines = [b'{"id":"a","payload":{"n":0}}', b"bad", b'{"id":"c","payload":{"n":2}}']
    plant_bad_pack(world, lines)
    ann, bob = await world.process(), await world.process()
    claim = await ann.queue.claim(TOPIC, "c", max_messages=10, claim_id="run")
    first = await ann.queue.ack(claim, claim[0])
    assert (first.acked, first.buried) == (["a"], [])
    again = await bob.queue.attach(claim.hand_over())
    second = await bob.queue.ack(again)
    assert (second.acked, second.buried) == (["c"], [])


@pytest.mark.parametrize("most", [2, 3, 10])
@pytest.mark.parametrize("wanted", [7, 100])
async def test_one_poison_message_ends_alone_among_packs(world: World, most: int, wanted: int) -> None:
    """⚑ §5.6: at its last delivery a message is alone in its claim, whatever other packs were in it before."""
    world.topic(packs=True, max_deliveries=most)
    for first in (0, 5, 10):
        world.plant_pack(5, first)
    poison = 0
    acked: set[int] = set()
    for _ in range(120):
        ann = await world.process()
        claim = await ann.queue.claim(TOPIC, "c", max_messages=wanted)
        if poison in numbers(claim):
            await world.later()  # its consumer is gone
        else:
            acked.update(numbers(claim))
            await ann.queue.ack(claim)
    assert acked == set(range(15)) - {poison}
    [letter] = await (await world.process()).queue.dead_letters(TOPIC)
    assert letter.message is not None
    assert (letter.message.payload, letter.deliveries) == ({"n": poison}, most)
    assert is_empty(world)


async def test_a_poison_message_that_is_never_buried_keeps_no_other_back(world: World) -> None:
    """⚑ §5.7: those that were in its claims are tried before it."""
    world.topic(packs=True, max_deliveries=None)
    world.plant_pack(4)
    acked: set[int] = set()
    for _ in range(8):
        ann = await world.process()
        claim = await ann.queue.claim(TOPIC, "c", max_messages=100)
        if 0 in numbers(claim):
            await world.later()  # its consumer is gone
        else:
            acked.update(numbers(claim))
            await ann.queue.ack(claim)
            await world.later(15)
    assert acked == {1, 2, 3}


async def test_a_poison_message_that_is_never_buried_is_alone_in_its_claims(world: World) -> None:
    """⚑ §5.7: while it has a claim, others have the messages of other packs that were in its claims before."""
    world.topic(packs=True, max_deliveries=None)
    for first in (0, 2, 4):
        world.plant_pack(2, first)
    acked: set[int] = set()
    for _ in range(12):
        ann = await world.process()
        claim = await ann.queue.claim(TOPIC, "c", max_messages=100)
        if not claim:
            await world.later()
        elif 0 not in numbers(claim):  # else its consumer is gone, and the next one begins at once
            acked.update(numbers(claim))
            await ann.queue.ack(claim)
    assert acked == set(range(1, 6))


async def test_requeued_messages_are_alone_at_their_last_delivery_too(world: World) -> None:
    """⚑ §5.6: what was given back before has fewer deliveries left than lapses."""
    world.topic(packs=True, max_deliveries=4)
    world.plant_pack(9)
    ann = await world.process()
    for _ in range(2):
        await ann.queue.requeue(await ann.queue.claim(TOPIC, "c", max_messages=9))
        await world.later(15)
    assert len(await ann.queue.claim(TOPIC, "c", max_messages=9)) == 9
    await world.later()
    bob = await world.process()
    claims = [await bob.queue.claim(TOPIC, "c", max_messages=9) for _ in range(2)]
    assert [len(claim) for claim in claims if claim] == [1]
    assert [message.deliveries for message in claims[0]] == [4]


@pytest.mark.parametrize("decided", ["nothing", "in part", "all"])
async def test_a_claim_that_begins_once_more_is_not_a_hand_out(world: World, decided: str) -> None:
    """⚑ §5.4: its leases are newer than its record, which tells nothing of them."""
    unit_id = world.plant_pack(4)
    ann, bob = await world.process(), await world.process()
    claim = await ann.queue.claim(TOPIC, "c", max_messages=4, claim_id="run")
    if decided != "nothing":
        await ann.queue.bury(claim, claim[0], reason="bad")
    if decided == "all":
        await ann.queue.requeue(claim, claim[1:])
    await world.later()
    cat = await world.process()
    while not (other := await cat.queue.claim(TOPIC, "c", max_messages=4)):  # it carries out what was decided
        await world.later(15)
    await cat.queue.requeue(other)
    await bob.queue.redrive(TOPIC)
    # The very claim has won it again, and died before it could find its record.
    found = world.bucket.lease(unit_id)
    until, of = world.clock.server() + 5, share.union(found.shares)
    again = leases.held_pack(unit_id, found.key, found.shares, of, consumer="c", claim="run.0", until=until, ttl=5)
    world.bucket.plant(layout.lease(TOPIC, unit_id), again.encode())
    await world.later()
    had: dict[int, int] = {}
    for _ in range(12):
        claim = await bob.queue.claim(TOPIC, "c", max_messages=4)
        had.update({message.payload["n"]: message.deliveries for message in claim})
        await bob.queue.ack(claim)
        await world.later(15)
    assert had == ({0: 3, 1: 3, 2: 3, 3: 2} if decided == "nothing" else {0: 1, 1: 3, 2: 3, 3: 3})
    assert not world.bucket.below(letters.folder(TOPIC).removeprefix(f"{TOPIC}/"))
    assert is_empty(world)


async def test_a_lease_of_a_split_pack_that_cannot_be_read_is_set_aside(world: World) -> None:
    """⚑ §5.6: it is read again after longer and longer pauses, and not by every look."""
    world.plant_pack(10)
    ann, bob = await world.process(), await world.process()
    await ann.queue.ack(await ann.queue.claim(TOPIC, "c", max_messages=2))
    denied = bob.client.inject("denied", "GET", "*.0-10.lease")
    for _ in range(100):
        assert not await bob.queue.claim(TOPIC, "c", max_messages=2)
        await world.later(3)
    assert 0 < denied.hits < 15
    await ann.queue.ack(await ann.queue.claim(TOPIC, "c", max_messages=10))
    assert is_empty(world)


async def test_a_pack_whose_lease_cannot_be_looked_at_fails_no_claim(world: World) -> None:
    """⚑ §5.6: a consumer that wants to split it is given nothing, and no error."""
    world.plant_pack(10)
    ann = await world.process()
    ann.client.inject("denied", "HEAD", "*.0-10.lease")
    ann.client.inject("denied", "GET", "*.0-10.lease")
    assert len(await ann.queue.claim(TOPIC, "c", max_messages=2)) in {0, 2}


async def test_a_delayed_slice_keeps_no_other_back(world: World) -> None:
    """Of a pack that is split, what is given back is claimed at once, whatever else of the pack is delayed."""
    world.plant_pack(10)
    ann, bob = await world.process(), await world.process()
    claim = await ann.queue.claim(TOPIC, "c", max_messages=10)
    await ann.queue.requeue(claim, claim[5:], delay=3600)
    await ann.queue.requeue(claim, claim[:5])
    had = [await ann.queue.claim(TOPIC, "c", max_messages=2, ttl=1000) for _ in range(3)]
    assert [len(each) for each in had] == [2, 2, 1]
    for _ in range(60):
        assert not await bob.queue.claim(TOPIC, "c", max_messages=2)
        await world.later(5)
    await ann.queue.requeue(had[0])
    await world.later(15)
    assert numbers(await bob.queue.claim(TOPIC, "c", max_messages=2)) == [0, 1]
