"""Requeue and bury, the outcomes by their own names: what becomes of messages that were not done (§4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pawnqueue import InvalidArgumentError, Settlement, SyncPawnQueue
from tests.pawnqueue.virtual import TOPIC, Process, World, numbered, numbers

if TYPE_CHECKING:
    from pawnqueue import Claim

BAD = {
    "requeue={'id'}": (lambda q, c: q.settle(c, requeue={"id"}), "settle takes requeue as a dict"),
    "bury={'id': 5}": (lambda q, c: q.settle(c, bury={"id": 5}), "settle takes bury as a dict"),
    "bury={'id': ''}": (lambda q, c: q.settle(c, bury={"id": ""}), "bury takes a reason"),
    "the same in both": (
        lambda q, c: q.settle(c, requeue={c.ids[0]: "a"}, bury={c.ids[0]: "b"}),
        "is in both requeue and bury",
    ),
    "delay=-1": (lambda q, c: q.settle(c, requeue={c.ids[0]: "b"}, delay=-1), "delay is a number of seconds"),
}


async def claimed(process: Process, count: int = 3) -> Claim:
    """Publish messages and claim all of them."""
    await process.queue.publish(TOPIC, numbered(count))
    return await process.queue.claim(TOPIC, "c", max_messages=count)


async def test_requeued_messages_are_delivered_again(world: World, ann: Process) -> None:
    """All of a claim, or some: after the delay, and with a count that goes on."""
    claim = await claimed(ann)
    assert await ann.queue.requeue(claim, claim[0]) == Settlement(released=claim.ids[:1])
    first = await ann.queue.claim(TOPIC, "c")
    assert numbers(first) == [0]
    await ann.queue.ack(first)
    assert await ann.queue.requeue(claim, claim.ids[1:], delay=60, reason="not yet") == Settlement(
        released=claim.ids[1:]
    )
    assert not await ann.queue.claim(TOPIC, "c")
    await world.later(61)
    again = await ann.queue.claim(TOPIC, "c")
    assert [message.deliveries for message in again] == [2, 2]
    assert world.bucket.below("dead-letter/") == []


async def test_buried_messages_are_dead_letters(ann: Process) -> None:
    """With the reason and the error that were given, after one delivery."""
    claim = await claimed(ann, 2)
    assert await ann.queue.bury(claim, reason="no item", error="KeyError: 'item'") == Settlement(buried=claim.ids)
    letters = await ann.queue.dead_letters(TOPIC)
    assert [(letter.reason, letter.error, letter.deliveries) for letter in letters] == [
        ("no item", "KeyError: 'item'", 1)
    ] * 2


async def test_a_reason_given_with_a_requeue_is_in_the_dead_letter(world: World) -> None:
    """The last reason is what the letter begins with, if the message is delivered too often."""
    world.topic(max_deliveries=1)
    ann = await world.process()
    await ann.queue.requeue(await claimed(ann, 1), reason="no stock", error="E7")
    assert not await ann.queue.claim(TOPIC, "c")
    [letter] = await ann.queue.dead_letters(TOPIC)
    assert letter.given_reason == "no stock"


async def test_one_settlement_decides_of_both_kinds(ann: Process) -> None:
    """Some are given back, some are buried, each with its own reason, and the rest is acked: in one request."""
    claim = await claimed(ann, 4)
    with ann.client.counting() as sent:
        done = await ann.queue.settle(
            claim, requeue={claim.ids[0]: "no stock"}, bury={claim.ids[1]: "no item", claim.ids[3]: "no price"}
        )
    assert done == Settlement(released=[claim.ids[0]], buried=[claim.ids[1], claim.ids[3]], acked=[claim.ids[2]])
    assert sent["COPY"] == 2
    letters = await ann.queue.dead_letters(TOPIC)
    assert {letter.id: letter.reason for letter in letters} == {claim.ids[1]: "no item", claim.ids[3]: "no price"}


@pytest.mark.parametrize("misuse", BAD)
async def test_a_settlement_of_both_kinds_is_checked(ann: Process, misuse: str) -> None:
    """What contradicts itself is refused in a sentence, and nothing is decided."""
    claim = await claimed(ann)
    call, told = BAD[misuse]
    with pytest.raises(InvalidArgumentError, match=told):
        await call(ann.queue, claim)
    assert claim.decided == {}


async def test_a_nack_without_a_word_buries(ann: Process) -> None:
    """As pawn-queue's does, and with the reason that pawn-queue gives; its docstring names the other two."""
    claim = await claimed(ann, 1)
    assert (await ann.queue.nack(claim)).buried == claim.ids
    [letter] = await ann.queue.dead_letters(TOPIC)
    assert letter.reason == "nack"
    for word in ("buries", "requeue", "bury", "pawn-queue"):
        assert word in (SyncPawnQueue.nack.__doc__ or "")
