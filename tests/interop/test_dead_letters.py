"""Dead letters lie where the other library looks for them, and hold what was published."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.backends import CONDITIONAL, claim_until, patiently, settled

if TYPE_CHECKING:
    from pawnqueue import PawnQueue
    from tests.interop.conftest import Bucket
    from tests.interop.driver import Peer

pytestmark = [pytest.mark.servers, pytest.mark.peer]


async def test_its_dead_letters_are_ours_to_find_and_to_redrive(
    ours: PawnQueue, peer: Peer, bucket: Bucket, topic: str
) -> None:
    """What its consumer nacks we count, find, give back, are given under the same id, and ack."""
    ids = await peer.publish(topic, [{"n": n} for n in range(3)])
    await peer.poll(topic)
    await peer.nack(ids[:2])
    await peer.ack(ids[2:])

    assert (await ours.stats(topic)).dead == 2
    found = await ours.find(topic, ids[0])
    assert found is not None
    assert (found.state, found.reason) == ("dead", "")
    redriven = await patiently(lambda: ours.redrive(topic))
    assert sorted(redriven.moved) == sorted(ids[:2])
    claims = await claim_until(ours, topic, 2)
    messages = {message.id: message for claim in claims for message in claim}
    assert {one: message.payload for one, message in messages.items()} == {ids[0]: {"n": 0}, ids[1]: {"n": 1}}
    assert {message.deliveries for message in messages.values()} == {1}
    for claim in claims:
        assert (await settled(ours.ack, claim)).complete
    assert bucket.keys(f"{topic}/") == [".topic"]


@pytest.mark.parametrize("backend", [CONDITIONAL], ids=str)
async def test_our_dead_letters_have_its_layout(ours: PawnQueue, peer: Peer, bucket: Bucket, topic: str) -> None:
    """What we bury is byte for byte what it published, under its name for it; our reason lies beside it."""
    [one] = await peer.publish(topic, [{"text": "Überweisung ✓"}])
    [name] = bucket.keys(f"{topic}/messages/")
    published = bucket.body(f"{topic}/messages/{name}")
    [claim] = await claim_until(ours, topic, 1)
    assert (await settled(ours.nack, claim, reason="no such account")).buried == [one]

    assert sorted(bucket.keys(f"{topic}/dead-letter/")) == [f"{one}.json", f"{one}.reason.json"]
    assert bucket.body(f"{topic}/dead-letter/{one}.json") == published
    assert bucket.json(f"{topic}/dead-letter/{one}.reason.json")["name"] == name
    assert bucket.keys(f"{topic}/messages/") == bucket.keys(f"{topic}/leases/") == []
    assert await peer.poll(topic) == []
