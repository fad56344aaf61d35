"""Garbage and strangers: judged by age or left alone, never a crash, and never in anybody's way for ever (§1, §5.7)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue.claims.candidates import MAX_DOUBTFUL_ROUNDS, MAX_LEASE_READS
from pawnqueue.domain import layout
from pawnqueue.domain.object_sizes import MAX_LEASE_BYTES
from tests.pawnqueue.virtual import MARGIN, OVERDUE, TOPIC, TTL, Process, World, numbered, numbers
from tests.support.claims import late
from tests.support.clock import EPOCH

if TYPE_CHECKING:
    from collections.abc import Mapping

UUID = "11111111-2222-4333-8444-555555555555"


def at(seconds: float) -> str:
    """A time after the beginning, as pawn-queue writes it."""
    return datetime.fromtimestamp(EPOCH + seconds, UTC).isoformat()


def theirs(**fields: Any) -> dict[str, Any]:
    """A lease as pawn-queue writes it."""
    lease = {"consumer_id": "c1", "message_id": "m", "claimed_at": at(0), "expires_at": at(30), "nonce": "ab"}
    return {**lease, **fields}


GARBAGE: dict[str, str | bytes | Mapping[str, Any]] = {
    "empty": "",
    "not JSON": "{",
    "binary": b"\xff\x00",
    "a list": "[]",
    "null": "null",
    "an object": "{}",
    "other types": {"v": 1, "until": "tomorrow", "state": 5},
    "unknown state": {"v": 1, "state": "sleeping"},
    "a version that is none": {"v": [], "until": 1},
    "a time that is none": '{"v":1,"until":NaN,"state":"held","claim":"a.0"}',
    "a time without end": '{"v":1,"until":Infinity,"state":"held","claim":"a.0"}',
    "a released one without end": '{"v":1,"until":Infinity,"state":"released"}',
    "a claim that is none": {"v": 1, "until": 1, "state": "held", "claim": "/../"},
    "a claim in a folder": {"v": 1, "until": 1, "state": "held", "claim": "x/y.0"},
    "a claim with a long generation": {"v": 1, "until": 1, "state": "held", "claim": "a." + "9" * 5000},
    "another one": {"v": 1, "until": 1, "state": "held", "claim": "a.99999999999999999999"},
    "a claim in other digits": {"v": 1, "until": 1, "state": "held", "claim": "a.٣"},
    "deliveries that are none": {"v": 1, "until": 1, "state": "released", "deliveries": "x"},
    "a move of nothing": {"v": 1, "until": 1, "state": "moving", "key": "", "source": ""},
    "a long one": "x" * 100_000,
    "one that is larger than any": json.dumps({"v": 1, "until": 1e10, "state": "held"}) + " " * MAX_LEASE_BYTES,
    "of the size of a released one": "x" * (512 + 16),
    "of the size of a moving one": "x" * (512 + 32),
    "theirs, live": theirs(),
    "theirs, over": theirs(expires_at=at(-3600)),
    "theirs, with Z": theirs(expires_at=at(5).replace("+00:00", "Z")),
    "theirs, without a zone": theirs(expires_at=at(5).replace("+00:00", "")),
    "theirs, with no time": theirs(expires_at="soon"),
    "theirs, of the year 1": theirs(expires_at="0001-01-01T00:00:00"),
    "theirs, of the year 1 and a zone": theirs(expires_at="0001-01-01T00:00:00+23:59"),
    "theirs, without a time": {"consumer_id": "c1"},
    "theirs, of another type": theirs(expires_at=5),
}


@pytest.mark.parametrize("body", GARBAGE.values(), ids=GARBAGE)
async def test_a_lease_of_garbage_holds_a_message_for_a_while_only(
    world: World, ann: Process, body: str | bytes | Mapping[str, Any]
) -> None:
    """Whatever is in a lease, no call crashes on it, others are delivered, and in time its message is too."""
    ids = await ann.queue.publish(TOPIC, numbered(3))
    world.bucket.plant(layout.lease(TOPIC, ids[0]), body)
    claim = await ann.queue.claim(TOPIC, "c")
    assert set(numbers(claim)) >= {1, 2}
    await ann.queue.ack(claim)
    await ann.queue.stats(TOPIC)
    await ann.queue.find(TOPIC, ids[0])
    await ann.queue.sweep(TOPIC)
    seen = numbers(claim)
    for _ in range(3):
        await world.later()
        again = await ann.queue.claim(TOPIC, "c")
        seen += numbers(again)
        await ann.queue.ack(again)
    assert sorted(seen) == [0, 1, 2]
    assert world.bucket.below("messages/") == world.bucket.below("leases/") == []


@pytest.mark.parametrize("body", GARBAGE.values(), ids=GARBAGE)
async def test_a_lease_of_garbage_without_a_message_is_swept_up(
    world: World, ann: Process, body: str | bytes | Mapping[str, Any]
) -> None:
    """No garbage stays for ever: when its time is over, whatever that is, the janitor removes it."""
    world.bucket.plant(layout.lease(TOPIC, UUID), body)
    for _ in range(3):
        await ann.queue.sweep(TOPIC)
        await world.later(120)
    assert world.bucket.below("leases/") == []


@pytest.mark.parametrize("body", ["", "garbage", "{}", "x" * 3000])
async def test_garbage_is_judged_by_its_age(world: World, ann: Process, body: str) -> None:
    """A lease that nobody can read holds its message for a usual claim's time since it was written."""
    [one] = await ann.queue.publish(TOPIC, numbered(1))
    world.bucket.plant(layout.lease(TOPIC, one), body)
    await world.later(TTL + MARGIN - 3)
    assert not await ann.queue.claim(TOPIC, "c")
    await world.later(5)
    assert numbers(await ann.queue.claim(TOPIC, "c")) == [0]


async def test_pawn_queues_lease_holds_until_it_expires(world: World, ann: Process) -> None:
    """Theirs is respected for the time that is in it, and counts as one delivery."""
    [one] = await ann.queue.publish(TOPIC, numbered(1))
    world.bucket.plant(layout.lease(TOPIC, one), theirs(expires_at=at(200)))
    await world.later(190)
    assert not await ann.queue.claim(TOPIC, "c")
    await world.later(20)
    [message] = await ann.queue.claim(TOPIC, "c")
    assert message.deliveries == 2


async def test_pawn_queues_expired_lease_is_taken_over_at_once(world: World, ann: Process) -> None:
    """Theirs that is over has no record to fence: its message is delivered."""
    [one] = await ann.queue.publish(TOPIC, numbered(1))
    world.bucket.plant(layout.lease(TOPIC, one), theirs(expires_at=at(-60)))
    claim = await ann.queue.claim(TOPIC, "c")
    assert numbers(claim) == [0]
    assert world.bucket.below("claims/") == [f"{claim.claim_id}.0.json"]


async def test_our_lease_does_not_look_expired_to_pawn_queue(world: World, ann: Process) -> None:
    """What its consumers' janitors read is a day ahead, with +00:00, and names the message."""
    [one] = await ann.queue.publish(TOPIC, numbered(1))
    for settle in (False, True):
        claim = await ann.queue.claim(TOPIC, "c")
        if settle:
            await ann.queue.nack(claim, requeue=True)
        lease = json.loads(world.bucket.body(layout.lease(TOPIC, one)))
        expires = datetime.fromisoformat(lease["expires_at"]).timestamp()
        assert expires - world.clock.server() > 86_000
        assert lease["expires_at"].endswith("+00:00")
        assert lease["message_id"] == one
        assert set(lease) >= {"consumer_id", "message_id", "claimed_at", "expires_at", "nonce"}
        await world.later()


@pytest.mark.parametrize("body", ["", "{", "[]", '{"v":1}', '{"v":1,"claim_id":"run","until":NaN}', "x" * 4000])
async def test_a_claim_record_of_garbage_is_a_claim_that_never_was(
    world: World, ann: Process, bob: Process, body: str
) -> None:
    """Nobody can settle by it, so its messages are delivered when their leases' time is over, and it is swept up."""
    await ann.queue.publish(TOPIC, numbered(2))
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run")
    world.bucket.plant(layout.claim(TOPIC, "run.0"), body)
    assert not await bob.queue.claim(TOPIC, "d")
    assert (await late(ann.queue.ack(claim))).lost == claim.ids
    await world.later()
    taken = await bob.queue.claim(TOPIC, "d")
    assert numbers(taken) == [0, 1]
    await bob.queue.ack(taken)
    for _ in range(2):
        await bob.queue.sweep(TOPIC)
        await world.later(90_000)
    await bob.queue.sweep(TOPIC)
    assert world.bucket.below("claims/") == []


STRANGERS = [
    f"{TOPIC}/messages/",
    f"{TOPIC}/messages/readme.txt",
    f"{TOPIC}/messages/20260101T000000_000000-nonsense.json",
    f"{TOPIC}/messages/{UUID}.json",
    f"{TOPIC}/messages/old/20260101T000000_000000-{UUID}.json",
    f"{TOPIC}/messages/20260101T000000_000000-{UUID}.json/x",
    f"{TOPIC}/messages/20260101T000000_000000-{UUID}.JSON",
    f"{TOPIC}/leases/",
    f"{TOPIC}/leases/x.lease",
    f"{TOPIC}/leases/{UUID}.txt",
    f"{TOPIC}/leases/old/{UUID}.lease",
    f"{TOPIC}/dead-letter/",
    f"{TOPIC}/dead-letter/x.json",
    f"{TOPIC}/dead-letter/old/{UUID}.json",
    f"{TOPIC}/dead-letter/old/{UUID}.reason.json",
    f"{TOPIC}/dead-letter/{UUID}.txt",
]
CLAIM_STRANGERS = [
    f"{TOPIC}/claims/",
    f"{TOPIC}/claims/x.json",
    f"{TOPIC}/claims/.0.json",
    f"{TOPIC}/claims/run.x.json",
    f"{TOPIC}/claims/run.{'9' * 900}.json",
    f"{TOPIC}/claims/old/run.0.json",
]


@pytest.mark.parametrize("body", ["", "x" * 2000, '{"id":"x","payload":{}}'], ids=["empty", "long", "like a message"])
async def test_strangers_are_left_alone_and_reported(world: World, ann: Process, body: str) -> None:
    """Keys that are none of ours are never touched, whatever is done around them, and statistics name them."""
    for key in STRANGERS + CLAIM_STRANGERS:
        world.bucket.plant(key, body)
    before = world.bucket.snapshot()
    await ann.queue.publish(TOPIC, numbered(3))
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"))
    await world.later(4000)
    assert (await ann.queue.stats(TOPIC)).strangers == len(STRANGERS)
    assert len((await ann.queue.redrive(TOPIC)).moved) == 3
    assert len(await ann.queue.peek(TOPIC, 100)) == 3
    claim = await ann.queue.claim(TOPIC, "c", claim_id="run", max_messages=5)
    assert len(claim) == 3
    await ann.queue.ack(claim)
    await world.later(100_000)
    report = await ann.queue.sweep(TOPIC)
    assert sorted(report.strangers) == sorted(STRANGERS + CLAIM_STRANGERS)
    after = world.bucket.snapshot()
    assert {key: after[key] for key in before} == before
    assert set(after) == {*before, layout.swept(TOPIC)}


@pytest.mark.parametrize("folder", ["leases", "messages"])
async def test_a_strangers_copy_in_a_folder_below_is_in_nobodys_way(world: World, ann: Process, folder: str) -> None:
    """An archive made inside a folder of ours neither hides the stored messages nor takes their place."""
    ids = await ann.queue.publish(TOPIC, numbered(5))
    for name, one in zip(world.bucket.below("messages/"), ids, strict=True):
        key = f"{TOPIC}/leases/old/{one}.lease" if folder == "leases" else f"{TOPIC}/messages/0ld/{name}"
        world.bucket.plant(key, '{"id":"copy","payload":{}}')
    claim = await ann.queue.claim(TOPIC, "c", max_messages=5)
    assert claim.ids == ids
    await ann.queue.ack(claim)
    with ann.client.counting() as requests:
        assert not await ann.queue.claim(TOPIC, "c", max_messages=5)
    assert set(requests) == {"LIST"}


async def test_a_topic_full_of_garbage_leases_is_looked_through_bit_by_bit(world: World, ann: Process) -> None:
    """A thousand unreadable leases: each claim reads a bounded number, and the message behind them is found at once."""
    ids = await ann.queue.publish(TOPIC, numbered(1001))
    for one in ids[:-1]:
        world.bucket.plant(layout.lease(TOPIC, one), "garbage")
    with ann.client.counting() as requests:
        assert numbers(await ann.queue.claim(TOPIC, "c", max_messages=10)) == [1000]
    assert requests["GET"] <= MAX_LEASE_READS + 1
    await world.later(OVERDUE)
    seen: list[int] = []
    for _ in range(110):
        with ann.client.counting() as requests:
            claim = await ann.queue.claim(TOPIC, "c", max_messages=10, ttl=3600)
        assert requests["GET"] <= (1 + MAX_DOUBTFUL_ROUNDS) * MAX_LEASE_READS + 10 + 1
        seen += numbers(claim)
    assert sorted(seen)[:1000] == list(range(1000))


async def test_a_look_never_goes_on_behind_a_strangers_key(world: World, ann: Process) -> None:
    """In a topic of several pages a strange key behind the last message hides nothing that is published before it."""
    world.fill({"id": f"m{number}", "payload": {}} for number in range(1000))
    world.bucket.plant(f"{TOPIC}/messages/~//x", b"")
    await world.later(1)
    claim = await ann.queue.claim(TOPIC, "c", max_messages=1001, ttl=300)
    assert len(claim) == 1000
    await ann.queue.publish(TOPIC, numbered(1))
    with ann.client.counting() as requests:
        assert numbers(await ann.queue.claim(TOPIC, "c")) == [0]
    assert requests["LIST"] == 1
