"""A process that is older than what is in the bucket: it touches nothing that it cannot read, and does the rest."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import CompatibilityError, PawnQueueError
from pawnqueue.catalog import letters, units
from pawnqueue.domain import layout
from pawnqueue.domain.record import FORMAT, NEWEST_FORMAT
from tests.pawnqueue.virtual import TOPIC, Process, World, numbered, numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

NEWER = {"v": NEWEST_FORMAT + 1, "invented": {"later": True}}
UUID = "11111111-2222-4333-8444-555555555555"
NAME = f"20200101T000000_000000-{UUID}.json"
HELD: Mapping[str, Any] = {"state": "held", "until": 1.0, "ttl": 1.0, "key": NAME, "claim": "old.0", "deliveries": 1}
MESSAGE = json.dumps({"v": FORMAT, "id": UUID, "topic": TOPIC, "payload": {"n": 0}})

#: By what is newer: the objects of which one is, and what of it an older process may touch: nothing.
OBJECTS: dict[str, dict[str, str]] = {
    "a message": {units.key_of(TOPIC, NAME): json.dumps(NEWER)},
    "a lease": {units.key_of(TOPIC, NAME): MESSAGE, layout.lease(TOPIC, UUID): json.dumps({**HELD, **NEWER})},
    "a claim's record": {
        units.key_of(TOPIC, NAME): MESSAGE,
        layout.lease(TOPIC, UUID): json.dumps({"v": FORMAT, **HELD}),
        layout.claim(TOPIC, "old.0"): json.dumps(NEWER),
    },
    "a write's record": {
        layout.write(TOPIC, "w"): json.dumps(NEWER),
        layout.staged_object(TOPIC, "w", layout.staged_name(0, "0" * 32, 0)): "{}",
    },
    "a dead letter": {letters.key_of(TOPIC, UUID): json.dumps(NEWER)},
    "a registration": {layout.registration("consumers", UUID): json.dumps(NEWER)},
    "a note of a sweep": {layout.swept("other"): json.dumps(NEWER)},
}


@pytest.mark.parametrize("objects", OBJECTS.values(), ids=OBJECTS)
async def test_an_older_process_leaves_alone_what_is_newer(
    world: World, ann: Process, objects: Mapping[str, str]
) -> None:
    """It delivers, settles, buries and sweeps around it for a day; then all of it is unchanged, byte for byte."""
    for key, body in objects.items():
        world.bucket.plant(key, body)
    await world.later(3600)
    for number in range(24):
        await ann.queue.publish(TOPIC, numbered(2, 2 * number))
        claim = await ann.queue.claim(TOPIC, "c", max_messages=9)
        assert numbers(claim) == [2 * number, 2 * number + 1]
        await ann.queue.ack(claim, claim[0])
        await ann.queue.nack(claim, claim[1])
        await ann.queue.sweep(TOPIC)
        await world.later(3600)

    assert {key: world.bucket.body(key).decode() for key in objects} == objects
    assert len([name for name in world.bucket.below("dead-letter/") if name.endswith(".reason.json")]) == 24


async def test_a_newer_topic_is_refused_and_kept(world: World, ann: Process) -> None:
    """Its settings may be of a kind that an older process would break: it neither publishes there nor claims."""
    world.bucket.plant(layout.topic_marker("later"), json.dumps({"topic": "later", **NEWER}))
    before = world.bucket.snapshot()
    for call in (ann.queue.publish("later", [{}]), ann.queue.claim("later", "c"), ann.queue.create_topic("later")):
        with pytest.raises(CompatibilityError, match=rf"has format {NEWEST_FORMAT + 1}.*upgrade"):
            await call
    assert world.bucket.snapshot() == before


async def test_a_newer_bucket_is_not_opened(world: World) -> None:
    """A process that was open before goes on, and no other of the old version can open."""
    running = await world.process()
    world.bucket.plant(layout.BUCKET_RECORD, json.dumps(NEWER))
    await running.queue.publish(TOPIC, numbered(1))
    with pytest.raises(CompatibilityError, match=rf"has format {NEWEST_FORMAT + 1}.*upgrade"):
        await world.process()
    assert numbers(await running.queue.claim(TOPIC, "c")) == [0]


async def test_a_dead_letter_that_is_newer_is_redriven_unread(world: World, ann: Process) -> None:
    """It moves as it is, byte for byte, and waits in the queue for somebody who can read it."""
    world.bucket.plant(letters.key_of(TOPIC, UUID), json.dumps(NEWER))
    try:
        await ann.queue.redrive(TOPIC)
    except PawnQueueError as error:
        pytest.fail(str(error))
    [name] = world.bucket.below("messages/")
    assert world.bucket.body(units.key_of(TOPIC, name)).decode() == json.dumps(NEWER)
    await world.later(60)
    assert not await ann.queue.claim(TOPIC, "c")
    assert world.bucket.below("messages/") == [name]


async def test_what_is_newer_is_told(world: World, ann: Process) -> None:
    """A dead letter is shown without its message; a sweep names the record that it could not read, and why."""
    world.bucket.plant(letters.key_of(TOPIC, UUID), json.dumps(NEWER))
    world.bucket.plant(layout.write(TOPIC, "w"), json.dumps(NEWER))
    await world.later(3600)
    [letter] = await ann.queue.dead_letters(TOPIC)
    assert (letter.id, letter.message) == (UUID, None)
    report = await ann.queue.sweep(TOPIC)
    assert f"{layout.write(TOPIC, 'w')} has format {NEWEST_FORMAT + 1}" in "\n".join(report.failures)
