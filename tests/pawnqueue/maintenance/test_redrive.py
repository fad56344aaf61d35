"""Redrive: a dead letter becomes one message again, whichever process does it, and wherever it stops (§5)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pawnqueue import InvalidArgumentError, QueueClosedError, TopicNotFoundError
from pawnqueue.catalog import letters as dead_letters
from pawnqueue.catalog import units
from pawnqueue.claims.candidates import FULL_LISTING_SECONDS
from pawnqueue.domain import layout
from tests.pawnqueue.virtual import OVERDUE, TOPIC, Died, Effect, Kind, Process, World, numbered, numbers

#: After so long, a redriver's lock is over.
LOCK_OVER = 70.0


async def bury(process: Process, count: int) -> list[str]:
    """Publish and bury messages."""
    ids = await process.queue.publish(TOPIC, numbered(count))
    claim = await process.queue.claim(TOPIC, "c", max_messages=count)
    assert (await process.queue.nack(claim, reason="bad")).buried == ids
    return ids


def letters(world: World) -> list[str]:
    """The uuids of the dead letters."""
    parsed = (dead_letters.parse(key) for key in world.bucket.below() if "/dead-letter/" in key)
    return [one[0] for one in parsed if one is not None and not one[1]]


async def test_a_redriven_message_is_delivered_again(world: World, ann: Process) -> None:
    """Same id, same payload, same envelope, deliveries at zero, under a new key; letter and reason are gone."""
    [one] = await ann.queue.publish(TOPIC, [{"a": 1}], producer="shop", headers={"h": "1"})
    body = world.bucket.body(units.key_of(TOPIC, world.bucket.below("messages/")[0]))
    for _ in range(3):
        await ann.queue.nack(await ann.queue.claim(TOPIC, "c"), requeue=True)
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"))
    await world.later(5)
    result = await ann.queue.redrive(TOPIC)
    assert (result.moved, result.skipped, result.failed) == ([one], [], {})
    assert world.bucket.below("dead-letter/") == []
    [name] = world.bucket.below("messages/")
    assert one not in name
    assert world.bucket.body(units.key_of(TOPIC, name)) == body
    claim = await ann.queue.claim(TOPIC, "c")
    [message] = claim
    assert (message.id, message.payload, message.deliveries, dict(message.headers)) == (one, {"a": 1}, 1, {"h": "1"})
    assert (await ann.queue.ack(claim)).acked == [one]
    assert claim.decided == {one: "acked"}
    assert world.bucket.below("messages/") == world.bucket.below("leases/") == []


async def test_a_redriven_message_may_be_buried_again(world: World, ann: Process) -> None:
    """It can die and come back as often as it likes, and is one message all the time."""
    [one] = await bury(ann, 1)
    for _ in range(4):
        await world.later(5)
        assert len((await ann.queue.redrive(TOPIC)).moved) == 1
        claim = await ann.queue.claim(TOPIC, "c")
        assert claim.ids == [one]
        await ann.queue.nack(claim)
        assert len(letters(world)) == 1


async def test_the_order_is_that_of_the_burials(world: World, ann: Process) -> None:
    """Redriven messages are delivered in the order in which they died, behind what was published before."""
    first = await bury(ann, 1)
    await world.later(5)
    second = await bury(ann, 1)
    await world.later(5)
    await ann.queue.publish(TOPIC, numbered(1, 99))
    await ann.queue.redrive(TOPIC)
    claim = await ann.queue.claim(TOPIC, "c")
    assert claim.ids[:2] == first + second


async def test_only_the_ids_that_were_asked_for(world: World, ann: Process) -> None:
    """``ids`` names dead letters by the uuid under which they are kept; a lone one may be given as it is."""
    ids = await bury(ann, 5)
    assert sorted((await ann.queue.redrive(TOPIC, ids[1:3])).moved) == sorted(ids[1:3])
    assert (await ann.queue.redrive(TOPIC, ids[0])).moved == [ids[0]]
    assert (await ann.queue.redrive(TOPIC, [])).moved == []
    with pytest.raises(InvalidArgumentError, match=r"has no dead letter unheard of: nothing was redriven"):
        await ann.queue.redrive(TOPIC, [ids[3], "unheard of"])
    assert sorted(letters(world)) == sorted(ids[3:])


async def test_no_more_than_was_asked_for(world: World, ann: Process) -> None:
    """``max_messages`` is the most; over several calls all come back."""
    await bury(ann, 10)
    assert [len((await ann.queue.redrive(TOPIC, max_messages=4)).moved) for _ in range(4)] == [4, 4, 2, 0]
    assert len(await ann.queue.claim(TOPIC, "c", max_messages=20)) == 10


async def test_what_is_skipped_does_not_count(world: World, ann: Process) -> None:
    """Letters that cannot be moved now do not keep those behind them from being moved."""
    ids = sorted(await bury(ann, 6))
    for one in ids[:3]:
        world.bucket.plant(layout.lease(TOPIC, one), "{}")
    result = await ann.queue.redrive(TOPIC, max_messages=2)
    assert (sorted(result.skipped), sorted(result.moved)) == (ids[:3], ids[3:5])


@pytest.mark.parametrize("most", [0, -1, 1.5, "3"])
async def test_a_number_that_is_none_is_refused(ann: Process, most: Any) -> None:  # noqa: ANN401 - anything
    """A wrong number of messages is an InvalidArgumentError without a request."""
    with ann.client.counting() as requests, pytest.raises(InvalidArgumentError):
        await ann.queue.redrive(TOPIC, max_messages=most)
    assert not requests


async def test_an_unknown_topic_and_a_closed_queue(ann: Process) -> None:
    """Redriving nothing says that it is nothing."""
    with pytest.raises(TopicNotFoundError):
        await ann.queue.redrive("nowhere")
    await ann.queue.aclose()
    with pytest.raises(QueueClosedError):
        await ann.queue.redrive(TOPIC)


async def test_many_pages_of_dead_letters(world: World, ann: Process) -> None:
    """More than a page holds is redriven in one call."""
    await bury(ann, 1200)
    assert len((await ann.queue.redrive(TOPIC)).moved) == 1200
    assert letters(world) == []
    assert len(await ann.queue.claim(TOPIC, "c", max_messages=2000)) == 1200


@pytest.mark.parametrize("seed", range(10))
async def test_redrivers_at_once_make_one_message_of_a_letter(world: World, ann: Process, seed: int) -> None:
    """However many redrive at the same time, each letter is one message afterwards."""
    ids = await bury(ann, 5)
    redrivers = [await world.process() for _ in range(4)]
    world.stagger(redrivers, seed, at_most=2)
    results = await asyncio.gather(*(process.queue.redrive(TOPIC) for process in redrivers))
    assert sorted(one for result in results for one in result.moved) == sorted(ids)
    assert len(world.bucket.below("messages/")) == 5
    assert letters(world) == []
    assert sorted((await ann.queue.claim(TOPIC, "c")).ids) == sorted(ids)


async def test_a_letter_that_is_still_being_buried_is_skipped(world: World, ann: Process, bob: Process) -> None:
    """While its old lease exists the burial is not finished: the process that finishes it makes it ready."""
    [one] = await ann.queue.publish(TOPIC, numbered(1))
    claim = await ann.queue.claim(TOPIC, "c")
    ann.client.inject("dies", "DELETE")
    with pytest.raises(Died):
        await ann.queue.nack(claim)
    result = await bob.queue.redrive(TOPIC)
    assert (result.moved, result.skipped) == ([], [one])
    await world.later()
    await bob.queue.sweep(TOPIC)
    assert (await bob.queue.redrive(TOPIC)).moved == [one]
    assert len(world.bucket.below("messages/")) == 1


@pytest.mark.parametrize("again", [False, True], ids=["another name", "its own name"])
async def test_a_message_under_a_letters_uuid_does_not_keep_it(world: World, ann: Process, again: bool) -> None:  # noqa: FBT001
    """A message that nobody here can take is given back, and its lease stays: the letter is redriven all the same."""
    await ann.queue.publish(TOPIC, numbered(1))
    [name] = world.bucket.below("messages/")
    claim = await ann.queue.claim(TOPIC, "c")
    [one] = claim.ids
    await ann.queue.bury(claim, reason="bad")
    newer = world.bucket.plant(units.key_of(TOPIC, name if again else f"x-{one}.json"), {"v": 2})
    await world.later(FULL_LISTING_SECONDS)
    assert not await ann.queue.claim(TOPIC, "c")
    assert world.bucket.lease(one).state == "released"
    assert (await ann.queue.redrive(TOPIC)).moved == [one]
    assert numbers(await ann.queue.claim(TOPIC, "c")) == [0]
    assert newer in {version for version, _ in world.bucket.snapshot().values()}


async def test_a_letter_waits_while_a_message_under_its_uuid_is_claimed(world: World, ann: Process) -> None:
    """Its claim may bury it, over the letter that is being moved."""
    [one] = await bury(ann, 1)
    world.bucket.plant(units.key_of(TOPIC, f"x-{one}.json"), {"id": "other", "payload": {"n": 1}})
    await world.later(FULL_LISTING_SECONDS)
    claim = await ann.queue.claim(TOPIC, "c")
    assert numbers(claim) == [1]
    assert (await ann.queue.redrive(TOPIC)).skipped == [one]
    await ann.queue.ack(claim)
    assert (await ann.queue.redrive(TOPIC)).moved == [one]


@pytest.mark.parametrize("finisher", ["redriver", "consumer", "janitor"])
@pytest.mark.parametrize("effect", ["dies", "dies after"])
@pytest.mark.parametrize("step", range(9))
async def test_a_redrive_that_stopped_anywhere_is_finished(  # noqa: PLR0913, PLR0917 - a matrix
    world: World, ann: Process, bob: Process, step: int, effect: str, finisher: str
) -> None:
    """Whichever request was its last, there is exactly one message in the end, and nothing else is left."""
    [one] = await bury(ann, 1)
    ann.client.inject(effect, passed=step)
    try:
        await ann.queue.redrive(TOPIC)
    except Died:
        pass
    else:
        assert step > 7, "a redrive is more requests than that"
    found: list[int] = []
    for _ in range(3):
        await world.later(LOCK_OVER)
        if finisher == "redriver":
            await bob.queue.redrive(TOPIC)
        elif finisher == "janitor":
            assert not (await bob.queue.sweep(TOPIC)).failures
            await bob.queue.redrive(TOPIC)
        claim = await bob.queue.claim(TOPIC, "d")
        found += numbers(claim)
        assert set(claim.ids) <= {one}
        assert (await bob.queue.ack(claim)).complete
        if finisher == "consumer":
            await bob.queue.redrive(TOPIC)  # a letter that was not touched yet is no consumer's business
    await world.later(4000)
    await bob.queue.sweep(TOPIC)
    assert found == [0]
    assert world.bucket.below("messages/") == world.bucket.below("leases/") == world.bucket.below("dead-letter/") == []


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("PUT", "*/leases/*"),
        ("COPY", "*"),
        ("DELETE", "*/dead-letter/*"),
        ("HEAD", "*/dead-letter/*"),
        ("HEAD", "*/messages/*"),
    ],
)
@pytest.mark.parametrize("effect", ["lost", "denied"])
async def test_what_could_not_be_confirmed_is_named_as_failed(  # noqa: PLR0913, PLR0917 - a matrix
    world: World, ann: Process, bob: Process, kind: str, key: str, effect: str
) -> None:
    """A letter whose move was begun and not confirmed is neither moved nor skipped, and somebody finishes it."""
    [one] = await bury(ann, 1)
    ann.client.inject(effect, kind, key)
    result = await ann.queue.redrive(TOPIC)
    assert (result.moved, result.skipped, list(result.failed)) == ([], [], [one])
    await world.later(LOCK_OVER)
    await bob.queue.sweep(TOPIC)
    await bob.queue.redrive(TOPIC)
    assert (await bob.queue.claim(TOPIC, "d")).ids == [one]


async def test_a_move_that_cannot_be_finished_keeps_no_delivery_waiting(
    world: World, ann: Process, bob: Process
) -> None:
    """A consumer that meets a move that it cannot finish is given other messages; the janitor tells of it."""
    await bury(ann, 1)
    ann.client.inject("dies", "DELETE", "*/dead-letter/*")
    with pytest.raises(Died):
        await ann.queue.redrive(TOPIC)
    await world.later(LOCK_OVER)
    await bob.queue.publish(TOPIC, numbered(1, 5))
    bob.client.inject("denied", "COPY")
    assert numbers(await bob.queue.claim(TOPIC, "d")) == [5]
    report = await bob.queue.sweep(TOPIC)
    assert (report.finished_moves, len(report.failures)) == (0, 1)
    bob.client.heal()
    assert (await bob.queue.sweep(TOPIC)).finished_moves == 1


async def test_pawn_queues_dead_letters_have_no_reason(world: World, ann: Process) -> None:
    """A letter without a reason beside it is redriven like any other."""
    uuid = "11111111-2222-4333-8444-555555555555"
    world.bucket.plant(dead_letters.key_of(TOPIC, uuid), json.dumps({"id": "theirs", "payload": {"n": 7}}))
    assert (await ann.queue.redrive(TOPIC)).moved == [uuid]
    claim = await ann.queue.claim(TOPIC, "c")
    assert (claim.ids, numbers(claim)) == (["theirs"], [7])


async def test_a_letter_that_is_gone_before_it_is_moved_leaves_no_trace(world: World, ann: Process) -> None:
    """Somebody deletes the letter after it was listed: nothing is moved, and the lock is taken away again."""
    [one] = await bury(ann, 1)

    def vanish(kind: str, key: str) -> None:
        if kind == "HEAD" and key == dead_letters.key_of(TOPIC, one) and letters(world):
            world.bucket.remove(dead_letters.key_of(TOPIC, one), dead_letters.reason_key_of(TOPIC, one))

    ann.client.meanwhile = vanish
    result = await ann.queue.redrive(TOPIC)
    assert (result.moved, result.skipped) == ([], [one])
    assert world.bucket.below("messages/") == world.bucket.below("leases/") == []


async def test_a_message_is_not_delivered_while_it_is_moved(world: World, ann: Process, bob: Process) -> None:
    """From its COPY until its lock is opened, a redriven message is nobody's."""
    await bury(ann, 1)
    seen: list[int] = []

    async def look(kind: str, key: str) -> None:
        if kind == "DELETE" and "/dead-letter/" in key:
            assert len(world.bucket.below("messages/")) == 1
            seen.append(len(await bob.queue.claim(TOPIC, "d")))

    ann.client.meanwhile = look
    await ann.queue.redrive(TOPIC)
    assert set(seen) == {0}
    ann.client.heal()
    await world.later(FULL_LISTING_SECONDS)
    assert len(await bob.queue.claim(TOPIC, "d")) == 1


async def test_a_redriven_message_survives_its_consumer(world: World, ann: Process, bob: Process) -> None:
    """Taken and abandoned, it is delivered again, for the second time since its redrive."""
    await bury(ann, 1)
    await ann.queue.redrive(TOPIC)
    await ann.queue.claim(TOPIC, "c")
    await world.later(OVERDUE)
    assert [message.deliveries for message in await bob.queue.claim(TOPIC, "d")] == [2]


@pytest.mark.parametrize(("kind", "key"), [("GET", "leases"), ("HEAD", "dead-letter"), ("COPY", "messages")])
@pytest.mark.parametrize("effect", ["lost", "denied"])
async def test_letters_that_are_stuck_cost_a_redrive_seconds(  # noqa: PLR0913, PLR0917 - a matrix
    world: World, ann: Process, bob: Process, kind: Kind, key: str, effect: Effect
) -> None:
    """Ten that answer 500 for ever, and all the others are moved: each call is over in a moment, and names the ten."""
    ids = await bury(ann, 30)
    stuck = sorted(ids)[:10]
    for one in stuck:
        # Its new key is derived from the letter's uuid: what was moved is known by that.
        info = world.bucket._objects[dead_letters.key_of(TOPIC, one)].info
        name = units.redriven_name(one, info.version, info.last_modified.timestamp())
        target = {"leases": f"*/{one}.lease", "dead-letter": f"*/{one}.json", "messages": f"*/{name}"}[key]
        bob.client.inject(effect, kind, target)
    for moved in (sorted(set(ids).difference(stuck)), []):
        started = world.clock.elapsed()
        result = await bob.queue.redrive(TOPIC)
        assert (sorted(result.moved), sorted([*result.failed, *result.skipped])) == (moved, stuck)
        assert world.clock.elapsed() - started < 10
    bob.client.heal()
    await world.later(LOCK_OVER)
    assert sorted((await bob.queue.redrive(TOPIC)).moved) == stuck


async def test_a_lock_of_a_newer_format_stops_no_other_letter(world: World, ann: Process) -> None:
    """A version of ours that does not exist yet moves one of them: it is named as failed, and the others are moved."""
    ids = sorted(await bury(ann, 3))
    world.bucket.plant(layout.lease(TOPIC, ids[0]), {"v": 99})
    result = await ann.queue.redrive(TOPIC)
    assert (sorted(result.moved), list(result.failed)) == (ids[1:], [ids[0]])


async def test_a_store_that_fails_for_all_letters_ends_a_redrive_soon(world: World, ann: Process) -> None:
    """After some failures each letter is tried once: it is the store, and not the letters."""
    await bury(ann, 300)
    ann.client.inject("lost", "HEAD", "*/dead-letter/*")
    started = world.clock.elapsed()
    assert len((await ann.queue.redrive(TOPIC)).failed) == 300
    assert world.clock.elapsed() - started < 15
