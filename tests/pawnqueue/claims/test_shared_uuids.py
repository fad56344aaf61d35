"""Two messages under one uuid, as any publisher may send them: neither keeps the other from consumers (§5.6, §5.7)."""

from __future__ import annotations

import json
import logging

import pytest

from pawnqueue.catalog import units
from pawnqueue.claims.candidates import FULL_LISTING_SECONDS, KEYS_PER_LIST
from pawnqueue.domain import layout
from tests.pawnqueue.virtual import TOPIC, Process, World, numbered, numbers

#: What only this consumer cannot take, and what it buries.
BAD = {"too large": b"x" * 200_000, "newer": b'{"v":2}', "malformed": b"x"}
LIMITS = {"max_payload_bytes": 10_000}
GOOD = {"id": "good", "payload": {"n": 1}}


def plant(world: World, uuid: str, before: str, body: bytes) -> str:
    """Put another message under a uuid, before or behind the one whose name begins with its time."""
    return world.bucket.plant(units.key_of(TOPIC, f"{before}-{uuid}.json"), body)


async def polled(world: World, process: Process, seconds: float, pause: float = 5.0) -> dict[int, float]:
    """Claim and ack for so long; return after how many seconds each message was delivered."""
    began, had = world.clock.elapsed(), dict[int, float]()
    while world.clock.elapsed() - began < seconds:
        claim = await process.queue.claim(TOPIC, "c", max_messages=10)
        for number in numbers(claim):
            had.setdefault(number, world.clock.elapsed() - began)
        await process.queue.ack(claim)
        await world.later(pause)
    return had


@pytest.mark.parametrize("place", ["0", "z"], ids=["before", "behind"])
@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("met_first", [False, True], ids=["", "met before the good one is published"])
async def test_a_bad_message_under_its_uuid_does_not_delay_a_good_one(
    world: World,
    kind: str,
    place: str,
    met_first: bool,  # noqa: FBT001
) -> None:
    """Whichever comes first, the good one is had after two full looks, and the other one is tried ever more seldom."""
    ann = await world.process(limits=LIMITS)
    uuid = world.clock.uuid()
    good = units.key_of(TOPIC, units.name_at(world.clock.server(), uuid))
    plant(world, uuid, place, BAD[kind])
    if met_first:
        await polled(world, ann, 900)
    world.bucket.plant(good, GOOD)
    before = len(ann.client.requests)
    had = await polled(world, ann, 1200)
    assert had[1] <= 2 * FULL_LISTING_SECONDS + 5
    # A LIST each time, two more in a full look, and at most 5 requests for each try of the bad one.
    assert len(ann.client.requests) - before < 1200 / 5 + 2 * 1200 / 10 + 10 * 5 + 50
    assert (len(world.bucket.below("messages/")) == 0) == (kind == "malformed")


async def test_of_many_under_one_uuid_each_has_its_turn(world: World, ann: Process) -> None:
    """Twenty that nobody here can take, before and behind a good one, and each of them was put aside once."""
    [uuid] = world.fill([GOOD])
    ann.client.inject("denied", "GET", "*/messages/*", times=1)
    for n in range(10):
        plant(world, uuid, f"0{n}", BAD["newer"])
        plant(world, uuid, f"z{n}", BAD["newer"])
    assert (await polled(world, ann, 900))[1] < 600


async def test_a_large_one_pages_before_a_good_one(world: World) -> None:
    """A look that comes to the good one's page has passed the other one by."""
    ann = await world.process(limits=LIMITS)
    uuid = world.clock.uuid()
    plant(world, uuid, "0", BAD["too large"])
    for n in range(KEYS_PER_LIST):
        plant(world, world.clock.uuid(), f"1{n:04}", BAD["too large"])
    plant(world, uuid, "2", b'{"id":"good","payload":{"n":1}}')
    assert 1 in await polled(world, ann, 60)


async def test_rows_of_a_staged_write_are_delivered_beside_planted_ones(world: World, ann: Process) -> None:
    """A row's uuid follows from the write's id: what is planted under it, before the commit, keeps no row."""
    bob = await world.process(limits=LIMITS)
    for n in range(3):
        plant(world, layout.written_id(TOPIC, "load-1", 0, n), "0", BAD["too large"])
    await polled(world, bob, 30)
    staged = await ann.queue.stage(TOPIC, "load-1", 0, numbered(3))
    await ann.queue.commit_write(TOPIC, "load-1", [staged])
    assert set(await polled(world, bob, 60)) == {0, 1, 2}


@pytest.mark.parametrize("place", ["0", "z"], ids=["before", "behind"])
async def test_deliveries_and_reasons_belong_to_one_message(world: World, ann: Process, place: str) -> None:
    """Another message under the uuid of one that was often requeued begins with its own first delivery."""
    [uuid] = await ann.queue.publish(TOPIC, numbered(1))
    for _ in range(9):
        await ann.queue.requeue(await ann.queue.claim(TOPIC, "c"), reason="not yet")
    plant(world, uuid, place, json.dumps({"id": uuid, "payload": {"n": 1}}).encode())
    await world.later(FULL_LISTING_SECONDS)
    deliveries: dict[int, int] = {}
    while len(deliveries) < 2:
        claim = await ann.queue.claim(TOPIC, "c")
        deliveries.update({message.payload["n"]: message.deliveries for message in claim})
        await ann.queue.ack(claim)
        await world.later(FULL_LISTING_SECONDS)
    assert deliveries[1] == 1
    assert not await ann.queue.dead_letters(TOPIC)


async def test_strangers_are_told_in_one_line(world: World, ann: Process, caplog: pytest.LogCaptureFixture) -> None:
    """A thousand objects of somebody's in each folder, and more of them later: one warning a topic, with an example."""
    for folder in ("messages", "leases", "claims"):
        for n in range(1000):
            world.bucket.plant(f"{TOPIC}/{folder}/{n}" + "x" * 900, b"")
    with caplog.at_level(logging.DEBUG):
        await ann.queue.publish(TOPIC, numbered(1))
        assert numbers(await ann.queue.claim(TOPIC, "c")) == [0]
        world.bucket.plant(f"{TOPIC}/messages/another", b"")
        await world.later(FULL_LISTING_SECONDS)
        assert not await ann.queue.claim(TOPIC, "c")
    told = [record for record in caplog.records if "x" * 100 in record.getMessage() or "another" in record.getMessage()]
    assert len(told) == 1
    assert "do not belong to the queue" in told[0].getMessage()
    assert "at least 999 more" in told[0].getMessage()
    assert told[0].levelno == logging.WARNING
