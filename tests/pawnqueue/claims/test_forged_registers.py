"""Leases and claim records that somebody with a consumer's rights has forged: what they do to a claim, and what not."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator

import pytest

from pawnqueue import ClaimBusyError, LeaseLostError
from pawnqueue.catalog import units
from pawnqueue.domain import layout
from pawnqueue.domain.bounds import LATEST_TIME, MAX_HOLDER_CHARACTERS, MAX_REASON_CHARACTERS
from pawnqueue.domain.claim_record import ClaimRecord, Decision, Member
from pawnqueue.domain.lease import Lease
from pawnqueue.domain.object_sizes import MAX_SMALL_RECORD_BYTES
from tests.pawnqueue.virtual import TOPIC, Process, World, numbered, numbers

TTL = 30.0


@pytest.fixture(params=["conditional_write", "csprng_verify"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A bucket with a topic, by each strategy."""
    async with World(request.param) as world:
        yield world


def fat_lease(name: str, text: str) -> bytes:
    """Return a lease as large as one may be, with a reason and an error of this text, whose time is long over."""
    body = Lease(state="released", key=name, until=1.0, deliveries=1).encode().rstrip()
    most = (MAX_SMALL_RECORD_BYTES - len(body)) // (2 * len(text.encode()))
    made = body.replace(b'"error":""', f'"error":"{text * most}"'.encode())
    return made.replace(b'"reason":""', f'"reason":"{text * most}"'.encode())


@pytest.mark.parametrize("text", ["x", "\\u0001", "\U0001f980"])
async def test_a_lease_as_large_as_one_may_be_is_taken_over(world: World, ann: Process, text: str) -> None:
    """Its message is delivered, to be buried with what the texts began with: no copy of them is too large."""
    [uuid] = await ann.queue.publish(TOPIC, numbered(1))
    [name] = world.bucket.below("messages/")
    world.bucket.plant(layout.lease(TOPIC, uuid), fat_lease(name, text))
    claim = await ann.queue.claim(TOPIC, "c")
    assert numbers(claim) == [0]
    await ann.queue.bury(claim, reason="bad")
    [letter] = await ann.queue.dead_letters(TOPIC)
    assert letter.given_reason == json.loads(f'"{text}"') * MAX_REASON_CHARACTERS


async def test_what_one_lease_is_denied_is_not_the_error_of_a_claim(world: World, ann: Process) -> None:
    """The store has written the lease of another message, which was bad: nothing is left to claim, and that is all."""
    world.fill([b"x", b"not JSON either"])
    [first, _] = world.bucket.below("messages/")
    uuid = units.parse(first).id  # type: ignore[union-attr]
    ann.client.inject("denied", "PUT", layout.lease(TOPIC, uuid))
    assert not await ann.queue.claim(TOPIC, "c", max_messages=2)


def forge(world: World, stem: str, **fields: object) -> None:
    """Rewrite a claim's record as somebody else would who leaves its session in it."""
    world.alter(stem, nonce="forged", **fields)


@pytest.mark.parametrize("verb", ["ack", "requeue"])
@pytest.mark.parametrize("left", [0, 2])
async def test_what_the_record_lists_no_more_is_lost(world: World, ann: Process, verb: str, left: int) -> None:
    """The settlement says so, the others are settled, and the record that it writes is one that is read."""
    await ann.queue.publish(TOPIC, numbered(3))
    claim = await ann.queue.claim(TOPIC, "c", ttl=TTL, claim_id="mine")
    units = [message.unit for message in claim]
    members = world.bucket.record("mine.0").members
    forge(world, "mine.0", members={uuid: members[uuid] for uuid in units[:left]})
    with pytest.raises(LeaseLostError) as told:
        await (ann.queue.ack(claim) if verb == "ack" else ann.queue.requeue(claim, reason="r"))
    done = told.value.settlement
    assert done is not None
    assert done.lost == claim.ids[left:]
    assert len(done.acked if verb == "ack" else done.released) == left
    assert set(world.bucket.record("mine.0").settled) == set(units[:left])


async def test_a_claim_whose_record_lists_it_no_more_is_not_renewed(world: World, ann: Process) -> None:
    """The claim's holder is refused at the next renewal: others may take the missing message."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", ttl=TTL, claim_id="mine", max_messages=2)
    members = world.bucket.record("mine.0").members
    forge(world, "mine.0", members=dict(list(members.items())[:1]))
    with pytest.raises(LeaseLostError, match="does not list"):
        await ann.queue.renew(claim)
    assert claim.lost


@pytest.mark.parametrize("verb", ["ack", "requeue"])
async def test_what_the_record_gave_back_is_lost(world: World, ann: Process, verb: str) -> None:
    """Decided over the head of its holder, in an open claim: it is lost, and all else is settled."""
    await ann.queue.publish(TOPIC, numbered(3))
    claim = await ann.queue.claim(TOPIC, "c", ttl=TTL, claim_id="mine", max_messages=3)
    one = claim[1]
    forge(world, "mine.0", settled={one.unit: Decision(how="released", by="other")})
    with pytest.raises(LeaseLostError) as told:
        await (ann.queue.ack(claim) if verb == "ack" else ann.queue.requeue(claim, reason="r"))
    done = told.value.settlement
    assert done is not None
    assert done.lost == [one.id]
    assert len(done.acked if verb == "ack" else done.released) == 2


async def test_what_was_given_back_is_lost_when_the_rest_is_unknown(ann: Process, world: World) -> None:
    """The record was read once, and then the store answers no more: each message has an answer all the same."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", ttl=TTL, claim_id="mine", max_messages=2)
    key = layout.claim(TOPIC, "mine.0")
    forge(world, "mine.0", settled={claim[0].unit: Decision(how="released", by="other")})
    with pytest.raises(LeaseLostError):
        await ann.queue.ack(claim, claim[0])
    ann.client.inject("lost", None, key)
    with pytest.raises(LeaseLostError) as told:
        await ann.queue.ack(claim)
    done = told.value.settlement
    assert done is not None
    assert (done.lost, done.unknown) == ([claim.ids[0]], [claim.ids[1]])


async def test_messages_that_a_forged_record_names_come_when_it_is_deleted(world: World, ann: Process) -> None:
    """However late its time: nothing of it stays in the leases, so they are had within an ordinary claim's time."""
    ids = await ann.queue.publish(TOPIC, numbered(3))
    names = dict(zip(ids, world.bucket.below("messages/"), strict=True))
    forged = ClaimRecord(
        claim_id="forged",
        session="s",
        until=LATEST_TIME,
        ttl=1e9,
        members={uuid: Member(name=name) for uuid, name in names.items()},
    )
    world.bucket.plant(layout.claim(TOPIC, "forged.0"), forged.encode())
    for _ in range(3):
        claim = await ann.queue.claim(TOPIC, "c", ttl=TTL)
        await ann.queue.ack(claim)
        await world.later(10)
    world.bucket.remove(layout.claim(TOPIC, "forged.0"))
    left = len(world.bucket.below("messages/"))
    await world.later(TTL + 10)
    assert len(await ann.queue.claim(TOPIC, "c", ttl=TTL)) == left


async def test_a_name_as_long_as_one_may_be_is_cut_in_an_error(
    world: World, ann: Process, caplog: pytest.LogCaptureFixture
) -> None:
    """An owner of 1,024 characters is read, and an error shows the beginning; a longer one makes the record garbage."""
    caplog.set_level(logging.DEBUG)
    [uuid] = await ann.queue.publish(TOPIC, numbered(1))
    [name] = world.bucket.below("messages/")
    long = "\n" * MAX_HOLDER_CHARACTERS
    record = ClaimRecord(
        claim_id="mine",
        owner=long,
        consumer=f"{long[1:]}c",
        session=long,
        until=LATEST_TIME,
        members={uuid: Member(name=name)},
    )
    key = layout.claim(TOPIC, "mine.0")
    world.bucket.plant(key, record.encode())
    with pytest.raises(ClaimBusyError) as told:
        await ann.queue.claim(TOPIC, "c", claim_id="mine")
    assert len(str(told.value)) < 1500
    assert str(told.value).isprintable()
    world.bucket.plant(key, record.model_copy(update={"owner": long * 20_000}).encode())
    assert numbers(await ann.queue.claim(TOPIC, "c", claim_id="mine")) == [0]
