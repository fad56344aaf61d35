"""Bad messages are buried with the reason, and never block good ones (§5.6)."""

from __future__ import annotations

import json

import pytest

from pawnqueue.catalog import letters
from pawnqueue.claims.claiming import MAX_BAD_BATCHES
from tests.pawnqueue.virtual import TOPIC, Process, World, numbered, numbers

BAD = {
    "not JSON": ("{", "malformed"),
    "empty": ("", "malformed"),
    "binary": (b"\xff\xfe\x00", "malformed"),
    "a list": ("[1]", "malformed"),
    "null": ("null", "malformed"),
    "another shape": ('{"a": 1}', "malformed"),
    "no payload": ('{"id": "x"}', "malformed"),
    "a payload that is no object": ('{"id": "x", "payload": [1]}', "malformed"),
    "an id that is no text": ('{"id": 1, "payload": {}}', "malformed"),
    "headers that are no text": ('{"id": "x", "payload": {}, "headers": {"a": [1]}}', "malformed"),
    "nested without end": ("[" * 200_000, "malformed"),
    "a number without end": ('{"id": "x", "payload": {"n": ' + "9" * 5000 + "}}", "malformed"),
    "a version that is none": ('{"id": "x", "payload": {}, "v": "one"}', "malformed"),
}


@pytest.mark.parametrize(("body", "reason"), BAD.values(), ids=BAD)
async def test_a_bad_message_is_buried_and_the_good_ones_delivered(
    world: World, ann: Process, body: str, reason: str
) -> None:
    """It goes to dead-letter byte for byte, with the reason; the messages around it are handed out."""
    await ann.queue.publish(TOPIC, numbered(1))
    await world.later(1)
    [uuid] = world.fill([body])
    await world.later(1)
    await ann.queue.publish(TOPIC, numbered(1, 1))
    claim = await ann.queue.claim(TOPIC, "c")
    assert numbers(claim) == [0, 1]
    letter = world.bucket.body(letters.key_of(TOPIC, uuid))
    assert letter == (body.encode() if isinstance(body, str) else body)
    told = json.loads(world.bucket.body(letters.reason_key_of(TOPIC, uuid)))
    assert told["reason"] == reason
    assert told["error"]
    assert claim.decided == {uuid: "dead"}
    assert (await ann.queue.ack(claim)).acked == claim.ids
    assert claim.state == "closed"
    assert world.bucket.below("messages/") == world.bucket.below("leases/") == []


@pytest.mark.parametrize("what", ["too large", "of a newer format"])
async def test_what_only_this_consumer_cannot_take_is_left_to_others(
    world: World, ann: Process, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """It is never buried, however often it is met; that is said once, and the others are delivered."""
    body = b"x" * 50_000_000 if what == "too large" else b'{"id": "x", "payload": {}, "v": 99}'
    [uuid] = world.fill([body])
    await world.later(1)
    await ann.queue.publish(TOPIC, numbered(30))
    seen: list[int] = []
    with ann.client.counting() as requests:
        for _ in range(30):
            claim = await ann.queue.claim(TOPIC, "c", max_messages=1)
            seen += numbers(claim)
            await ann.queue.ack(claim)
            await world.later(60)
    assert seen == list(range(30))
    # Each message, the topic's record once a minute; and the bad one with its lease, ever more seldom.
    assert requests["GET"] <= 30 + 30 + (0 if what == "too large" else 2 * 9)
    assert world.bucket.below("dead-letter/") == []
    assert [name[-41:-5] for name in world.bucket.below("messages/")] == [uuid]
    told = [record.message for record in caplog.records if uuid in record.message and record.levelname == "WARNING"]
    assert len(told) == 1
    assert ("50,000,000 bytes" if what == "too large" else "format 99") in told[0]


async def test_a_consumer_that_can_take_it_has_it(world: World, ann: Process) -> None:
    """What a consumer with smaller limits has left alone is delivered to one with larger ones, for the first time."""
    small = await world.process(limits={"max_payload_bytes": 1000})
    await ann.queue.publish(TOPIC, [{"n": 0, "pad": "x" * 100_000}])
    assert not await small.queue.claim(TOPIC, "small")
    [message] = await ann.queue.claim(TOPIC, "c")
    assert (message.payload["n"], message.deliveries) == (0, 1)


async def test_the_largest_message_that_may_be_published_is_no_huge_object(ann: Process) -> None:
    """A payload at its limit, with headers at theirs, is delivered."""
    payload = {"a": "x" * (5 * 1024**2 - len('{"a":""}'))}
    await ann.queue.publish(TOPIC, [payload], headers={"h": "y" * 32_000}, producer="p" * 256)
    [message] = await ann.queue.claim(TOPIC, "c")
    assert message.payload == payload


async def test_a_bad_message_is_buried_when_its_claim_is_adopted(world: World, ann: Process) -> None:
    """A claim that is found again buries what must not be handed out, as the first would have done."""
    world.fill(["not JSON"])
    await ann.queue.publish(TOPIC, numbered(1))
    ann.client.inject("lost", "PUT", "*/dead-letter/*")
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", ttl=300)
    ann.client.heal()
    again = await ann.queue.attach(claim.hand_over(), ttl=300)
    assert numbers(again) == [0]
    await ann.queue.ack(again)
    assert again.state == "closed"
    assert len(world.bucket.below("dead-letter/")) == 2


async def test_ten_thousand_bad_messages_are_got_through(world: World, ann: Process) -> None:
    """Each claim does bounded work and makes progress; in the end the good ones have been delivered."""
    world.fill(["bad"] * 10_000)
    await ann.queue.publish(TOPIC, numbered(3))
    await world.later(1)
    seen: list[int] = []
    rounds = 0
    left = len(world.bucket.below("messages/"))
    while left:
        rounds += 1
        with ann.client.counting() as requests:
            claim = await ann.queue.claim(TOPIC, "c", max_messages=500)
        # A lease and a body each, and reason and copy of what is buried; and a page of a listing here and there.
        assert sum(requests.values()) <= MAX_BAD_BATCHES * 4 * 500 + 60
        seen += numbers(claim)
        await ann.queue.ack(claim)
        now = len(world.bucket.below("messages/"))
        assert now < left
        left = now
    assert seen == [0, 1, 2]
    assert rounds <= 5
    assert len(world.bucket.below("dead-letter/")) == 20_000
    assert world.bucket.below("leases/") == []


async def test_waiting_gets_through_bad_messages_in_one_call(world: World, ann: Process) -> None:
    """A claim that waits is not ended by a batch of bad messages: it comes back with the good one behind them."""
    world.fill(["bad"] * 35)
    await ann.queue.publish(TOPIC, numbered(1))
    assert numbers(await ann.queue.claim(TOPIC, "c", wait=1)) == [0]


async def test_a_burial_that_cannot_be_finished_blocks_nobody(world: World, ann: Process, bob: Process) -> None:
    """Bad messages whose dead letters cannot be written stay, and what is behind them is delivered."""
    world.fill(["bad"] * 20)
    await ann.queue.publish(TOPIC, numbered(5))
    for process in (ann, bob):
        process.client.inject("denied", "COPY")
    seen: list[int] = []
    for _ in range(6):
        for process in (ann, bob):
            claim = await process.queue.claim(TOPIC, "c", max_messages=5)
            seen += numbers(claim)
            await process.queue.ack(claim)
        await world.later(20)
    assert sorted(seen) == [0, 1, 2, 3, 4]
    for process in (ann, bob):
        process.client.heal()
    await world.later()
    while world.bucket.below("messages/"):
        await bob.queue.claim(TOPIC, "c", max_messages=5)
    assert len(world.bucket.below("dead-letter/")) == 40
