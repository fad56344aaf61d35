"""Deliveries are counted, whoever delivers, and poison ends in dead-letter (§4, §5.6)."""

from __future__ import annotations

import json

import pytest

from pawnqueue.catalog import letters
from pawnqueue.domain import layout
from tests.pawnqueue.virtual import OVERDUE, TOPIC, Process, World, numbered


async def deliveries(world: World, processes: list[Process], ends: str, most: int) -> list[int]:
    """What consumers see of one message while each of them ends in this way."""
    seen = []
    for turn in range(most):
        process = processes[turn % len(processes)]
        claim = await process.queue.claim(TOPIC, "c")
        if not claim:
            break
        seen += [message.deliveries for message in claim]
        if ends == "release":
            await process.queue.nack(claim, requeue=True)
        else:
            await world.later()
    return seen


@pytest.mark.parametrize("ends", ["release", "crash"])
@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_poison_is_buried_after_so_many_deliveries(world: World, ends: str, limit: int) -> None:
    """A message is delivered ``max_deliveries`` times, however its consumers end, and then buried with that reason."""
    world.topic(max_deliveries=limit)
    processes = [await world.process(), await world.process()]
    [uuid] = await processes[0].queue.publish(TOPIC, numbered(1))
    assert await deliveries(world, processes, ends, limit + 3) == list(range(1, limit + 1))
    assert world.bucket.below("messages/") == world.bucket.below("leases/") == []
    told = json.loads(world.bucket.body(letters.reason_key_of(TOPIC, uuid)))
    assert told["reason"] == "max_deliveries"
    assert told["max_deliveries"] == told["deliveries"] == limit
    assert str(limit) in told["error"]


@pytest.mark.parametrize("crashes", [False, True])
async def test_the_dead_letter_begins_with_the_reason_of_the_last_requeue(world: World, *, crashes: bool) -> None:
    """That deliveries ran out has a field of its own beside it; a crash in between does not hide the reason."""
    world.topic(max_deliveries=3)
    ann = await world.process()
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.requeue(await ann.queue.claim(TOPIC, "c"), reason="no stock", error="E1")
    await ann.queue.requeue(await ann.queue.claim(TOPIC, "c"), reason="no warehouse", error="E2")
    last = await ann.queue.claim(TOPIC, "c")
    await (world.later() if crashes else ann.queue.requeue(last))
    assert not await ann.queue.claim(TOPIC, "c")
    [letter] = await ann.queue.dead_letters(TOPIC)
    assert (letter.reason, letter.error) == ("no warehouse", "E2")
    assert (letter.max_deliveries, letter.deliveries) == (3, 3)
    found = await ann.queue.find(TOPIC, letter.id)
    assert found is not None
    assert (found.reason, found.max_deliveries) == ("no warehouse", 3)


async def test_what_its_consumer_buried_has_no_limit_beside_its_reason(world: World) -> None:
    """The field says that deliveries ran out, and they did not, even where it was the last one."""
    world.topic(max_deliveries=1)
    ann = await world.process()
    await ann.queue.publish(TOPIC, numbered(1))
    await ann.queue.bury(await ann.queue.claim(TOPIC, "c"), reason="no item")
    [letter] = await ann.queue.dead_letters(TOPIC)
    assert (letter.reason, letter.deliveries, letter.max_deliveries) == ("no item", 1, None)


@pytest.mark.parametrize("ends", ["release", "crash"])
async def test_without_a_limit_nothing_is_buried(world: World, ends: str) -> None:
    """With ``max_deliveries=None`` a message is delivered again and again."""
    world.topic(max_deliveries=None)
    process = await world.process()
    await process.queue.publish(TOPIC, numbered(1))
    assert await deliveries(world, [process], ends, 30) == list(range(1, 31))
    assert world.bucket.below("dead-letter/") == []


async def test_ten_deliveries_are_the_default(world: World, ann: Process) -> None:
    """A topic of which nothing was said buries after ten."""
    await ann.queue.publish(TOPIC, numbered(1))
    assert len(await deliveries(world, [ann], "release", 30)) == 10


async def test_a_poisoned_message_does_not_take_others_along(world: World) -> None:
    """Of a batch, only the message that was delivered too often is buried; the others are handed out."""
    world.topic(max_deliveries=2)
    process = await world.process()
    ids = await process.queue.publish(TOPIC, numbered(1))
    for _ in range(2):
        await process.queue.nack(await process.queue.claim(TOPIC, "c"), requeue=True)
    ids += await process.queue.publish(TOPIC, numbered(2, 1))
    claim = await process.queue.claim(TOPIC, "c")
    assert claim.ids == ids[1:]
    assert claim.decided == {ids[0]: "dead"}


@pytest.mark.parametrize("limit", [3, None])
async def test_nothing_is_buried_by_a_limit_that_was_raised(world: World, ann: Process, limit: int | None) -> None:
    """Another process that has used the topic a moment ago buries by what is set now, and asks for it once a batch."""
    world.topic(max_deliveries=1)
    bob = await world.process()
    ids = await bob.queue.publish(TOPIC, numbered(5))
    await bob.queue.nack(await bob.queue.claim(TOPIC, "c", max_messages=5), requeue=True)
    await ann.queue.update_topic(TOPIC, max_deliveries=limit)
    before = bob.client.requests.count(("GET", layout.topic_marker(TOPIC)))
    claim = await bob.queue.claim(TOPIC, "c", max_messages=5)
    assert claim.ids == ids
    assert bob.client.requests.count(("GET", layout.topic_marker(TOPIC))) == before + 1


async def test_nothing_is_buried_by_a_limit_that_cannot_be_read(world: World) -> None:
    """It is given back, and buried once the store tells the limit again; others are handed out meanwhile."""
    world.topic(max_deliveries=1)
    bob = await world.process()
    [poison] = await bob.queue.publish(TOPIC, numbered(1))
    await bob.queue.nack(await bob.queue.claim(TOPIC, "c"), requeue=True)
    [good] = await bob.queue.publish(TOPIC, numbered(1, 1))
    bob.client.inject("denied", "GET", layout.topic_marker(TOPIC))
    claim = await bob.queue.claim(TOPIC, "c", max_messages=2)
    assert claim.ids == [good]
    await bob.queue.ack(claim)
    assert world.bucket.below("dead-letter/") == []
    bob.client.heal()
    await world.later(700)
    assert not await bob.queue.claim(TOPIC, "c")
    assert any(poison in name for name in world.bucket.below("dead-letter/"))


async def test_finding_a_claim_again_is_no_delivery(world: World, ann: Process, bob: Process) -> None:
    """Handing a claim over, and claiming again by its id, do not count."""
    await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    claim = await bob.queue.attach(claim.hand_over())
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", wait=OVERDUE)
    assert [message.deliveries for message in claim] == [1]
