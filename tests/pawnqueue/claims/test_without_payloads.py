"""Attaching without payloads: two requests for a claim of any size, which is settled, kept and left as ever."""

from __future__ import annotations

from typing import Any

import pytest

from pawnqueue import InvalidArgumentError, LeaseLostError, Settlement
from pawnqueue.catalog import units
from tests.pawnqueue.virtual import OVERDUE, TOPIC, TTL, Process, World, numbered, numbers
from tests.support.claims import late

BODIES = f"{TOPIC}/messages/*"


async def redriven(process: Process, count: int = 1) -> list[str]:
    """Put messages into the topic that are kept under other ids than their own; return their own."""
    ids = await process.queue.publish(TOPIC, numbered(count, 70))
    await process.queue.nack(await process.queue.claim(TOPIC, "undertaker", max_messages=count))
    await process.queue.redrive(TOPIC)
    return ids


@pytest.mark.parametrize("count", [1, 500])
async def test_it_is_two_requests_whatever_its_size(ann: Process, bob: Process, count: int) -> None:
    """The record is read and written, and no message is."""
    ids = await ann.queue.publish(TOPIC, numbered(count))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=count)
    reference = claim.hand_over()
    with bob.client.counting() as requests:
        again = await bob.queue.attach(reference, payloads=False)
    assert requests == {"GET": 1, "PUT": 1}
    assert (len(again), bool(again), again.ids) == (count, True, ids)
    with bob.client.counting() as requests:
        await bob.queue.renew(again)
        done = await bob.queue.ack(again)
    assert (done.complete, done.acked, requests["GET"]) == (True, ids, 0)


async def test_its_messages_are_not_there_and_it_says_so(ann: Process, bob: Process) -> None:
    """Asking for them raises an error that says how to get them; its ids, length and text are as ever."""
    ids = await ann.queue.publish(TOPIC, numbered(3))
    claim = await ann.queue.claim(TOPIC, "c")
    assert claim.has_payloads
    again = await bob.queue.attach(claim.hand_over(), payloads=False)
    assert not again.has_payloads
    looks: list[Any] = [lambda: again.messages, lambda: list(again), lambda: again[0], lambda: again[:2]]
    for look in looks:
        with pytest.raises(InvalidArgumentError, match=r"attached to without payloads.*payloads=True"):
            look()
    assert again.ids == ids
    assert "3 messages, open" in repr(again)


async def test_where_nothing_is_left_there_is_nothing_to_read(ann: Process, bob: Process) -> None:
    """One that has ended is empty, as with payloads, and iterating over it is no error."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    await ann.queue.ack(claim)
    again = await bob.queue.attach(claim.hand_over(), payloads=False)
    assert (list(again), len(again), again.ids, again.state, again.has_payloads) == ([], 0, [], "closed", True)
    assert again.decided == dict.fromkeys(claim.ids, "acked")


async def test_it_is_settled_kept_and_left_as_ever(world: World, ann: Process, bob: Process) -> None:
    """By ids: acked, buried, given back; kept alive past its time, left, and had again with payloads."""
    ids = await ann.queue.publish(TOPIC, numbered(5))
    again = await bob.queue.attach((await ann.queue.claim(TOPIC, "c")).hand_over(), payloads=False)
    async with bob.queue.keep_alive(again) as kept:
        await world.later(3 * TTL)
        assert not kept.lost.is_set()
    before = len(bob.client.requests)
    assert (await bob.queue.ack(again, ids[0])).acked == ids[:1]
    assert (await bob.queue.nack(again, ids[1:2], reason="bad")).buried == ids[1:2]
    assert (await bob.queue.nack(again, ids[2], requeue=True)).released == ids[2:3]
    assert not any(kind == "GET" and "/messages/" in key for kind, key in bob.client.requests[before:])
    assert again.decided == dict(zip(ids, ["acked", "dead", "released"], strict=False))
    assert len(again) == 5
    third = await ann.queue.attach(await bob.queue.leave(again))
    assert numbers(third) == [3, 4]


async def test_closing_gives_back_what_it_has(ann: Process, bob: Process) -> None:
    """As with payloads: nobody waits for its time to end."""
    await ann.queue.publish(TOPIC, numbered(2))
    await bob.queue.attach((await ann.queue.claim(TOPIC, "c")).hand_over(), payloads=False)
    await bob.queue.aclose()
    assert numbers(await ann.queue.claim(TOPIC, "d", wait=20)) == [0, 1]


async def test_it_is_lost_like_any_other(world: World, ann: Process, bob: Process) -> None:
    """Whose time is over neither renews nor settles."""
    await ann.queue.publish(TOPIC, numbered(2))
    again = await bob.queue.attach((await ann.queue.claim(TOPIC, "c")).hand_over(), payloads=False)
    await world.later(OVERDUE)
    assert await ann.queue.claim(TOPIC, "d")
    assert (await late(bob.queue.ack(again))).lost == again.ids
    assert again.lost
    with pytest.raises(LeaseLostError):
        await bob.queue.renew(again)


async def test_a_claim_that_comes_too_late_hands_out_nothing(world: World, ann: Process, bob: Process) -> None:
    """If writing the record took longer than the session's time, it is empty and lost."""
    await ann.queue.publish(TOPIC, numbered(2))
    reference = (await ann.queue.claim(TOPIC, "c", ttl=500)).hand_over()

    async def sleep(kind: str, key: str) -> None:
        if kind == "PUT" and "/claims/" in key:
            await world.clock.sleep(30)

    bob.client.meanwhile = sleep
    again = await bob.queue.attach(reference, payloads=False, session_ttl=20, ttl=400)
    assert (bool(again), again.ids) == (False, [])
    assert again.lost


# --- messages that are kept under other ids than their own ---


async def test_redriven_messages_are_settled_all_at_once_without_reading(ann: Process, bob: Process) -> None:
    """All of them are all of them, whatever their ids; those under which they are kept are what it tells."""
    own = await redriven(ann, 3)
    claim = await ann.queue.claim(TOPIC, "c")
    assert sorted(claim.ids) == sorted(own)
    again = await bob.queue.attach(claim.hand_over(), payloads=False)
    assert not set(again.ids) & set(own)
    with bob.client.counting() as requests:
        assert (await bob.queue.ack(again)).acked == again.ids
    assert requests["GET"] == 0


async def test_the_id_of_a_redriven_message_is_looked_for_in_what_may_be_meant(
    world: World, ann: Process, bob: Process
) -> None:
    """Its own id is settled, once the messages that may be meant are read; ids that the caller passed are known too."""
    own = await redriven(ann, 3)
    plain = await ann.queue.publish(TOPIC, numbered(3))
    claim = await ann.queue.claim(TOPIC, "c", max_messages=6)
    assert sorted(claim.ids) == sorted(plain + own)
    again = await bob.queue.attach(claim.hand_over(), payloads=False)
    kept = again.ids
    with bob.client.counting() as requests:
        done = await bob.queue.ack(again, [own[0], plain[0]])
    assert sorted(done.acked) == sorted([own[0], plain[0]])
    assert requests["GET"] == 5  # all but the one that was named by the id under which it is kept
    # From now on they are known, and none is read twice.
    before = len(bob.client.requests)
    assert (await bob.queue.nack(again, own[1])).buried == [own[1]]
    assert not any(kind == "GET" and "/messages/" in key for kind, key in bob.client.requests[before:])
    assert again.ids == kept
    assert again.decided == {own[0]: "acked", plain[0]: "acked", own[1]: "dead"}
    record = world.bucket.record(again.stem)
    assert sorted(record.settled[uuid].id for uuid in record.settled if uuid not in plain) == sorted(own[:2])
    rest = await bob.queue.ack(again, kept)
    assert sorted(rest.acked) == sorted(set(kept) - {uuid for uuid, one in record.settled.items() if one.how == "dead"})
    assert rest.complete


async def test_two_copies_of_one_message_are_both_meant(world: World, ann: Process, bob: Process) -> None:
    """An id that two of its messages have settles both."""
    [own] = await redriven(ann)
    [name] = world.bucket.below("messages/")
    copy = units.name_at(world.clock.server() + 1, world.clock.uuid())
    world.bucket.plant(units.key_of(TOPIC, copy), world.bucket.body(units.key_of(TOPIC, name)))
    again = await bob.queue.attach((await ann.queue.claim(TOPIC, "c")).hand_over(), payloads=False)
    assert len(again) == 2
    assert (await bob.queue.ack(again, own)).acked == [own]
    assert world.bucket.below("messages/") == []


async def test_an_id_of_nothing_is_not_in_the_claim(world: World, ann: Process, bob: Process) -> None:
    """After its messages were read, which tells; malformed ones and those that are gone have no id."""
    ids = await ann.queue.publish(TOPIC, numbered(3))
    claim = await ann.queue.claim(TOPIC, "c")
    names = world.bucket.below("messages/")
    world.bucket.plant(units.key_of(TOPIC, names[1]), "garbage")
    world.bucket.remove(units.key_of(TOPIC, names[2]))
    again = await bob.queue.attach(claim.hand_over(), payloads=False)
    for gets in (3, 0):
        with bob.client.counting() as requests, pytest.raises(InvalidArgumentError, match="has no message 'nothing'"):
            await bob.queue.ack(again, "nothing")
        assert requests["GET"] == gets
    assert (await bob.queue.ack(again)).acked == ids


@pytest.mark.parametrize("effect", ["lost", "denied"])
async def test_what_cannot_be_read_makes_an_id_unknown(ann: Process, bob: Process, effect: Any) -> None:  # noqa: ANN401
    """No wrong answer is given: it may be the one that the store does not give, and is found when it does."""
    own = await redriven(ann, 2)
    again = await bob.queue.attach((await ann.queue.claim(TOPIC, "c")).hand_over(), payloads=False)
    bob.client.inject(effect, "GET", BODIES)
    assert await bob.queue.ack(again, own) == Settlement(unknown=own)
    assert (await bob.queue.ack(again, again.ids[:1])).acked == again.ids[:1]
    bob.client.heal()
    with pytest.raises(InvalidArgumentError, match="has no message"):  # one was settled under another name, and is gone
        await bob.queue.ack(again, own)
    assert (await bob.queue.ack(again)).complete


async def test_an_attachment_without_payloads_that_is_no_flag(ann: Process) -> None:
    """It is refused before any request."""
    reference = (await ann.queue.claim(TOPIC, "c")).hand_over()
    with ann.client.counting() as requests, pytest.raises(InvalidArgumentError, match="payloads is True or False"):
        await ann.queue.attach(reference, payloads="no")  # type: ignore[arg-type]
    assert not requests
