"""Settle by an id or a message that is none of the claim's: nothing is settled, and the error names it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pawnqueue import Claim, InvalidArgumentError, Settlement, SyncPawnQueue
from pawnqueue.domain import layout
from pawnqueue.stores.memory import MemoryStore
from tests.pawnqueue.virtual import TOPIC, Process, World, numbered
from tests.support.claims import late

BODIES = "*/messages/*"

#: Each settles one message of the claim, and what is none of its messages.
CALLS: dict[str, Callable[[Any, Claim, Any], Awaitable[Settlement]]] = {
    "ack": lambda q, c, stranger: q.ack(c, [c.ids[0], stranger]),
    "requeue": lambda q, c, stranger: q.requeue(c, [c.ids[0], stranger]),
    "bury": lambda q, c, stranger: q.bury(c, {c.ids[0], stranger}, reason="bad"),
    "nack": lambda q, c, stranger: q.nack(c, [c.ids[0], stranger]),
    "settle by requeue": lambda q, c, stranger: q.settle(c, requeue={stranger: "later"}),
    "settle by bury": lambda q, c, stranger: q.settle(c, bury={stranger: "bad"}),
}


async def claimed(process: Process, count: int = 3) -> Claim:
    """Publish messages and claim all of them."""
    await process.queue.publish(TOPIC, numbered(count))
    return await process.queue.claim(TOPIC, "c", max_messages=count)


@pytest.mark.parametrize("call", CALLS)
async def test_an_id_of_nothing_is_refused_before_anything_is_settled(ann: Process, call: str) -> None:
    """The error names the claim and the id, and no request is sent: a misspelled id acks nothing."""
    claim = await claimed(ann)
    with ann.client.counting() as requests, pytest.raises(InvalidArgumentError) as told:
        await CALLS[call](ann.queue, claim, "mispelled")
    assert str(told.value) == (
        f"Claim {claim.claim_id} of topic 'orders' has no message 'mispelled', so nothing was settled: pass messages "
        "of this claim, or ids from its .ids."
    )
    assert (told.value.message, told.value.operation) == ("mispelled", call.split(maxsplit=1)[0])
    assert not requests
    assert claim.decided == {}


@pytest.mark.parametrize("call", CALLS)
async def test_a_message_of_another_claim_is_refused(world: World, ann: Process, call: str) -> None:
    """A message means itself, although this claim has one under its id."""
    body = {"id": "same", "payload": {}}
    world.fill([body])
    first = await ann.queue.claim(TOPIC, "c")
    world.fill([{"id": "other", "payload": {}}, body])
    claim = await ann.queue.claim(TOPIC, "c", max_messages=2)
    assert "same" in claim.ids
    with pytest.raises(InvalidArgumentError, match="has no message 'same', so nothing was settled"):
        await CALLS[call](ann.queue, claim, first[0])
    assert claim.decided == {}


async def test_an_id_is_named_in_short(ann: Process) -> None:
    """An id is what a publisher has written: of a long one, and of many, the error shows the beginning."""
    claim = await claimed(ann)
    with pytest.raises(InvalidArgumentError) as told:
        await ann.queue.ack(claim, ["x" * 10_000, *(f"n{number}" for number in range(100))])
    assert "x…', and 100 more" in str(told.value)
    assert len(str(told.value)) < 300


async def test_what_was_settled_before_is_no_stranger(ann: Process) -> None:
    """The first decision counts, as ever."""
    claim = await claimed(ann)
    await ann.queue.ack(claim, claim[0])
    assert (await ann.queue.settle(claim, bury={claim[0]: "bad"})).acked == claim.ids


async def test_messages_are_settled_by_themselves(world: World, ann: Process) -> None:
    """As keys of settle and in sets: of two that share an id each has its own fate."""
    uuids = world.fill([{"id": each, "payload": {"n": 1}} for each in ("same", "same", "other", "last")])
    claim = await ann.queue.claim(TOPIC, "c", max_messages=4)
    assert len({*claim}) == 4
    done = await ann.queue.settle(claim, requeue={claim[0]: "later"}, bury={claim[1]: "bad", "other": "bad"})
    assert done == Settlement(released=["same"], buried=["same", "other"], acked=["last"])
    settled = world.bucket.record(claim.stem).settled if claim.recorded and claim.state == "open" else {}
    assert not settled or settled[uuids[0]].how == "released"


@pytest.mark.parametrize(
    ("requeue", "bury"),
    [((0,), (0,)), (("same",), (0,)), ((1,), ("same",)), (("same",), ("same",))],
)
async def test_one_message_has_one_fate(world: World, ann: Process, requeue: Any, bury: Any) -> None:  # noqa: ANN401
    """By its id or by itself: what is in both is refused."""
    world.fill([{"id": "same", "payload": {}}] * 2)
    claim = await ann.queue.claim(TOPIC, "c", max_messages=2)
    again, dead = ({each if each == "same" else claim[each]: "why" for each in some} for some in (requeue, bury))
    with pytest.raises(InvalidArgumentError, match="'same' is in both requeue and bury"):
        await ann.queue.settle(claim, requeue=again, bury=dead)
    assert claim.decided == {}


@pytest.mark.parametrize("wrong", [{5: "why"}, {("a",): "why"}, ["a"], {"a"}, "a", 5])
async def test_what_settle_takes_is_said(ann: Process, wrong: Any) -> None:  # noqa: ANN401
    """Whatever else is passed, the sentence says how a message and its reason are passed."""
    claim = await claimed(ann)
    with pytest.raises(InvalidArgumentError, match=r"settle takes bury as a dict, .*: settle\(claim, bury=\{message"):
        await ann.queue.settle(claim, bury=wrong)
    assert claim.decided == {}


def test_the_synchronous_queue_says_the_same() -> None:
    """It is the same door."""
    with SyncPawnQueue.open(store=MemoryStore()) as queue:
        queue.create_topic(TOPIC)
        queue.publish(TOPIC, numbered(2))
        claim = queue.claim(TOPIC, "c", max_messages=2)
        for settle in (
            lambda: queue.ack(claim, (each for each in ["nobody"])),
            lambda: queue.settle(claim, bury={"nobody": "bad"}),
        ):
            with pytest.raises(InvalidArgumentError, match="has no message 'nobody', so nothing was settled"):
                settle()
        assert queue.settle(claim, bury={claim[0]: "bad"}).buried == claim.ids[:1]


async def test_a_claim_whose_record_is_gone_is_lost(world: World, ann: Process, bob: Process) -> None:
    """What it was given stays its own to name, although the record that fences it lists nothing."""
    claim = await claimed(ann)
    world.bucket.remove(layout.claim(TOPIC, claim.stem))
    await world.later()
    assert await bob.queue.claim(TOPIC, "d")
    for given in (claim.ids, list(claim), None):
        assert (await late(ann.queue.ack(claim, given))).lost == claim.ids


# --- without payloads: the ids of redriven messages are in their bodies ---


async def redriven(ann: Process, bob: Process, count: int = 3) -> tuple[list[str], Claim]:
    """Messages that are kept under other ids than their own, claimed and attached to without payloads."""
    own = await ann.queue.publish(TOPIC, numbered(count))
    await ann.queue.bury(await ann.queue.claim(TOPIC, "c", max_messages=count), reason="x")
    await ann.queue.redrive(TOPIC)
    claim = await ann.queue.claim(TOPIC, "c", max_messages=count)
    return own, await bob.queue.attach(claim.hand_over(), payloads=False)


async def test_a_message_that_was_not_read_is_settled_as_its_id_says(ann: Process, bob: Process) -> None:
    """What settle decides by a message's own id is done, and only the rest is acked."""
    own, again = await redriven(ann, bob)
    done = await bob.queue.settle(again, bury={own[1]: "bad"})
    assert (done.buried, len(done.acked), done.complete) == ([own[1]], 2, True)
    [letter] = await bob.queue.dead_letters(TOPIC)
    assert letter.message is not None
    assert letter.message.id == own[1]


@pytest.mark.parametrize("effect", ["lost", "denied"])
async def test_what_cannot_be_read_is_not_acked_with_the_rest(ann: Process, bob: Process, effect: Any) -> None:  # noqa: ANN401
    """It may be the very message that is to be buried: nothing is known of it, and the next settlement does it."""
    own, again = await redriven(ann, bob)
    bob.client.inject(effect, "GET", BODIES)
    done = await bob.queue.settle(again, bury={own[1]: "bad"})
    assert (done.acked, done.buried) == ([], [])
    assert set(done.unknown) == {own[1], *again.ids}
    assert "could not be read" in done.fault
    bob.client.heal()
    done = await bob.queue.settle(again, bury={own[1]: "bad"})
    assert (done.buried, len(done.acked), done.complete) == ([own[1]], 2, True)
