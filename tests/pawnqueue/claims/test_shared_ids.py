"""Settle one of several messages that share an id: a message means itself, an id all that have it."""

from __future__ import annotations

import pytest

from pawnqueue import InvalidArgumentError, Settlement
from pawnqueue.claims.held import HeldClaim
from tests.pawnqueue.virtual import TOPIC, Process, World, numbers


async def test_two_redriven_copies_of_one_message_are_settled_together(world: World, ann: Process) -> None:
    """Where two objects hold one message's id, settling the id settles both."""
    body = {"id": "same", "payload": {"n": 1}}
    world.fill([body, body])
    claim = await ann.queue.claim(TOPIC, "c")
    assert claim.ids == ["same", "same"]
    assert (await ann.queue.ack(claim, ["same"])).acked == ["same"]
    assert world.bucket.below("messages/") == []
    assert claim.state == "closed"


@pytest.mark.parametrize("how", ["ack", "bury", "requeue"])
@pytest.mark.parametrize("chosen", [0, 1])
async def test_a_message_means_itself(world: World, ann: Process, how: str, chosen: int) -> None:
    """Another message under its id, which anybody may publish, is not settled with it."""
    uuids = world.fill([{"id": "same", "payload": {"n": n}} for n in range(2)])
    claim = await ann.queue.claim(TOPIC, "c")
    reason = {"reason": "forged"} if how == "bury" else {}
    done = await getattr(ann.queue, how)(claim, [claim[chosen]], **reason)
    assert [outcome for _, outcome in done] == [{"ack": "acked", "bury": "buried", "requeue": "released"}[how]]
    assert list(world.bucket.record(claim.stem).settled) == [uuids[chosen]]
    assert claim.state == "open"
    rest = await ann.queue.ack(claim, claim[1 - chosen])
    assert (rest.acked, claim.state) == (["same"], "closed")


async def test_a_message_is_withheld_for_itself(world: World, ann: Process) -> None:
    """Where others have one of two messages that share an id, the other one is handed out all the same."""
    uuids = world.fill([{"id": "same", "payload": {"n": n}} for n in range(2)])
    claim = await ann.queue.claim(TOPIC, "c")
    HeldClaim.of(claim, "test").withhold([uuids[0]])
    assert numbers(claim) == [1]
    assert (await ann.queue.ack(claim)).acked == ["same"]
    assert list(world.bucket.record(claim.stem).settled) == [uuids[1]]


async def test_all_that_share_an_id_are_counted(world: World, ann: Process) -> None:
    """Settling all of a claim returns each message; settling by an id returns the id."""
    body = {"id": "same", "payload": {}}
    world.fill([body, body])
    claim = await ann.queue.claim(TOPIC, "c")
    assert (await ann.queue.ack(claim)).acked == ["same", "same"]
    world.fill([body, body])
    claim = await ann.queue.claim(TOPIC, "c")
    assert (await ann.queue.ack(claim, [claim[0], claim[1]])).acked == ["same", "same"]
    world.fill([body, body, {"id": "other", "payload": {}}])
    claim = await ann.queue.claim(TOPIC, "c")
    assert await ann.queue.settle(claim, bury={"same": "bad"}) == Settlement(acked=["other"], buried=["same"])
    assert world.bucket.below("messages/") == []


async def test_a_message_of_no_claim_is_not_settled_by_its_id(world: World, ann: Process) -> None:
    """A message that another claim has, or had, means itself: this claim's message under its id stays."""
    body = {"id": "same", "payload": {}}
    world.fill([body])
    first = await ann.queue.claim(TOPIC, "c")
    world.fill([body])
    second = await ann.queue.claim(TOPIC, "c")
    with pytest.raises(InvalidArgumentError, match="has no message 'same'"):
        await ann.queue.ack(second, first[0])
    assert (await ann.queue.ack(second, [first[0], "same"])).acked == ["same"]
