"""Each library leaves alone what the other one holds, and takes what a dead process of the other one held."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

import pytest

from tests.e2e.backends import CONDITIONAL, claim_until, settled
from tests.support.claims import trusted_until

if TYPE_CHECKING:
    from pawnqueue import Claim, PawnQueue
    from tests.interop.conftest import Bucket
    from tests.interop.driver import Peer

pytestmark = [pytest.mark.servers, pytest.mark.peer]


def numbers(count: int) -> list[dict[str, int]]:
    """Return payloads, numbered from 0."""
    return [{"n": n} for n in range(count)]


async def test_we_leave_what_it_holds(ours: PawnQueue, peer: Peer, topic: str) -> None:
    """Of ten messages, five of which its consumer holds, we are given the other five, in order, and no more."""
    ids = await ours.publish(topic, numbers(10))
    held = [message["id"] for message in await peer.poll(topic, most=5)]
    assert held == ids[:5]
    [claim] = await claim_until(ours, topic, 5)

    assert claim.ids == ids[5:]
    assert not await ours.claim(topic, "another of ours")
    stats = await ours.stats(topic)
    assert (stats.pending, stats.in_flight) == (0, 10)
    found = await ours.find(topic, held[0])
    assert found is not None
    assert (found.state, found.consumer) == ("in_flight", await peer.register("consumers", "theirs"))
    await peer.ack(held)
    assert (await settled(ours.ack, claim)).complete
    assert (await ours.stats(topic)).in_flight == 0


async def test_it_leaves_what_we_hold(ours: PawnQueue, peer: Peer, bucket: Bucket, topic: str) -> None:
    """Of ten messages, five of which we hold, its consumer is given the other five, and no lease of ours changes."""
    ids = await peer.publish(topic, numbers(10))
    [claim] = await claim_until(ours, topic, 5)
    assert claim.ids == ids[:5]
    before = bucket.leases(topic)

    assert [message["id"] for message in await peer.poll(topic)] == ids[5:]
    assert await peer.poll(topic, consumer="another of theirs") == []
    after = bucket.leases(topic)
    assert {key: after.get(key) for key in before} == before
    assert (await settled(ours.ack, claim)).complete
    await peer.ack(ids[5:])
    assert bucket.keys(f"{topic}/") == [".topic"]


@pytest.mark.parametrize("backend", [CONDITIONAL], ids=str)
async def test_our_lease_survives_its_janitor_while_we_work_on(
    ours: PawnQueue, peer: Peer, bucket: Bucket, topic: str
) -> None:
    """Past the visibility timeout of both, its janitor deletes what expired of its own, and nothing of ours."""
    await peer.open(bucket.config(visibility_timeout_seconds=1.0))
    ids = await peer.publish(topic, numbers(4))
    [claim] = await claim_until(ours, topic, 3, ttl=2.5)
    async with ours.keep_alive(claim, ttl=2.5) as kept:
        [forgotten] = await peer.poll(topic)
        assert forgotten["id"] == ids[3]
        given = trusted_until(claim)
        # Longer than it was first given, by either clock: ours is the store's, known to half a second.
        await asyncio.sleep(3.2)
        assert trusted_until(claim) > given
        again = await peer.poll(topic, consumer="another of theirs")

        assert [message["id"] for message in again] == [forgotten["id"]], "its janitor was at work"
        assert not kept.lost.is_set()
    assert set(bucket.leases(topic)) == {f"{one}.lease" for one in ids}
    assert sorted((await settled(ours.ack, claim)).acked) == sorted(ids[:3])
    await peer.ack([forgotten["id"]])
    assert bucket.keys(f"{topic}/messages/") == []


@pytest.mark.parametrize("backend", [CONDITIONAL], ids=str)
async def test_we_take_what_its_killed_process_held(
    ours: PawnQueue, peer: Peer, mortal: Peer, bucket: Bucket, topic: str
) -> None:
    """Its process dies by kill -9: when its leases expire, and not before, we are given its messages once more."""
    await mortal.open(bucket.config(visibility_timeout_seconds=1.0))
    ids = await ours.publish(topic, numbers(3))
    assert len(await mortal.poll(topic)) == 3
    mortal.kill()

    assert not await ours.claim(topic, "ours")
    claims = await claim_until(ours, topic, 3)
    assert sorted(one for claim in claims for one in claim.ids) == sorted(ids)
    assert {message.deliveries for claim in claims for message in claim} == {2}
    for claim in claims:
        assert (await settled(ours.ack, claim)).complete
    assert bucket.keys(f"{topic}/") == [".topic"]


@pytest.mark.parametrize("backend", [CONDITIONAL], ids=str)
async def test_consumers_of_both_at_once_are_given_each_message_once(
    ours: PawnQueue, peer: Peer, mortal: Peer, topic: str
) -> None:
    """Two consumers of ours and two of theirs race for sixty messages: while all hold, nobody has another's.

    Our consumers want at most forty: however the race goes, messages are left for theirs, which poll until they have
    some.
    """
    ids = await ours.publish(topic, numbers(60))
    claims: list[Claim] = []
    theirs: list[str] = []

    async def of_ours(name: str) -> None:
        claims.extend([await ours.claim(topic, name, max_messages=10, ttl=30) for _ in range(2)])

    async def of_theirs(process: Peer) -> None:
        for tries in itertools.count(1):
            theirs.extend(message["id"] for message in await process.poll(topic, consumer="theirs"))
            if (theirs and tries >= 3) or tries == 30:
                return

    await asyncio.gather(of_ours("a"), of_ours("b"), of_theirs(peer), of_theirs(mortal))
    mine = [one for claim in claims for one in claim.ids]
    assert theirs
    assert mine
    assert len(mine) + len(theirs) == len({*mine, *theirs})
    for claim in claims:
        assert (await ours.ack(claim)).complete
    stats = await ours.stats(topic)
    assert stats.pending + stats.in_flight == len(ids) - len(mine)


@pytest.mark.parametrize("backend", [CONDITIONAL], ids=str)
async def test_what_we_settled_stays_so_when_it_comes_late(
    ours: PawnQueue, peer: Peer, bucket: Bucket, topic: str
) -> None:
    """Its consumer slept over its leases; we took the messages and acked: its own ack and nack change nothing."""
    await peer.open(bucket.config(visibility_timeout_seconds=0.2))
    acked, nacked = await ours.publish(topic, numbers(2))
    assert len(await peer.poll(topic)) == 2
    for claim in await claim_until(ours, topic, 2):
        assert (await ours.ack(claim)).complete

    await peer.ack([acked])
    await peer.nack([nacked])
    assert bucket.keys(f"{topic}/") == [".topic"]
