"""Another message under a row's uuid is no trace of the row: nothing that was committed is left out because of it."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import pytest

from pawnqueue.catalog import letters, units
from pawnqueue.domain import layout
from tests.pawnqueue.publish.written import A_DAY, OVER, WRITE, consumed, ids, of_strategy, record, staged, visible
from tests.pawnqueue.virtual import TOPIC, Died, Process, World, numbered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pawnqueue import Staged

ROWS: Final = 3
UUID: Final = layout.written_id(TOPIC, WRITE, 0, 1)
STRANGER: Final = f"20200101T000000_000000-{UUID}.json"
Trace: TypeAlias = Literal["dead letter", "lease", "claim record"]
TRACES: Final[Sequence[Trace]] = ("dead letter", "lease", "claim record")


@pytest.mark.parametrize("strategy", ["conditional_write", "csprng_verify"])
@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("effect", ["lost", "dies"])
async def test_a_row_is_published_whatever_another_message_under_its_uuid_left(
    strategy: str, trace: Trace, effect: Literal["lost", "dies"]
) -> None:
    """The row's PUT never arrives. A stranger's message, which anybody can publish, has left a trace of its own."""
    async with of_strategy(strategy) as world:
        ann, bob = await world.process(), await world.process()
        parts = [await ann.queue.stage(TOPIC, WRITE, 0, numbered(ROWS))]
        await _leave(trace, world, bob)
        ann.client.inject(effect, "PUT", f"*/messages/*{UUID}*", times=1)
        await _commit_or_die(ann, parts)
        await world.later(OVER)
        await bob.queue.sweep(TOPIC)
        assert visible(world) == [0, 1, 2]


@pytest.mark.parametrize("effect", ["lost", "dies"])
async def test_an_earlier_run_under_the_same_id_left_no_trace_of_this_one(
    world: World, ann: Process, bob: Process, effect: Literal["lost", "dies"]
) -> None:
    """A row of the first run is a dead letter, and its record is past its retention: the second publishes anew."""
    await ann.queue.commit_write(TOPIC, WRITE, await staged(ann, ROWS, parts=1))
    first = await bob.queue.claim(TOPIC, "c", max_messages=ROWS)
    await bob.queue.bury(first, first[1], reason="bad row")
    await bob.queue.ack(first, [first[0], first[2]])
    for _ in range(3):
        await world.later(A_DAY)
        await bob.queue.sweep(TOPIC)
    assert record(world) is None
    parts = [await ann.queue.stage(TOPIC, WRITE, 0, numbered(ROWS, 100))]
    ann.client.inject(effect, "PUT", f"*/messages/*{UUID}*", times=1)
    await _commit_or_die(ann, parts)
    await world.later(OVER)
    await bob.queue.sweep(TOPIC)
    assert visible(world) == [100, 101, 102]


async def test_a_row_that_is_buried_again_replaces_its_earlier_dead_letter(world: World, ann: Process) -> None:
    """Dead letters are kept by uuid, and a write whose id is used again has the same ones."""
    for run in (0, 100):
        await ann.queue.commit_write(TOPIC, WRITE, [await ann.queue.stage(TOPIC, WRITE, 0, numbered(1, run))])
        await ann.queue.bury(await ann.queue.claim(TOPIC, "c"), reason=f"run {run}")
        for _ in range(3):
            await world.later(A_DAY)
            await ann.queue.sweep(TOPIC)
    [letter] = await ann.queue.dead_letters(TOPIC)
    assert letter.message is not None
    assert (letter.reason, letter.message.payload) == ("run 100", {"n": 100})


@pytest.mark.parametrize("trace", TRACES)
async def test_a_trace_under_the_rows_own_name_counts(world: World, ann: Process, bob: Process, trace: Trace) -> None:
    """Each of the three alone tells that the row was published: it is not sent again."""
    await _cut_after(ann)
    name = _taken_away(world)
    if trace == "dead letter":
        world.bucket.plant(letters.reason_key_of(TOPIC, UUID), json.dumps({"v": 1, "reason": "r", "name": name}))
        world.bucket.plant(letters.key_of(TOPIC, UUID), "x")
    elif trace == "lease":
        world.bucket.plant(layout.lease(TOPIC, UUID), json.dumps({"v": 1, "claim": "c.0", "key": name}))
    else:
        await world.later(OVER)
        world.bucket.plant(layout.claim(TOPIC, "c.0"), _record_of(name))
    await world.later(OVER)
    await bob.queue.sweep(TOPIC)
    assert visible(world) == [0, 2]


@pytest.mark.parametrize(
    "body",
    [
        {"consumer_id": "c", "message_id": UUID, "expires_at": "2020-01-01T00:00:00+00:00"},  # pawn-queue's
        {"v": 1, "key": STRANGER, "claim": "c.0"},
        {"v": 2},
        "garbage",
        "x" * 200_000,
    ],
    ids=["pawn-queue", "another name", "newer", "garbage", "too large"],
)
@pytest.mark.parametrize("key", [layout.lease(TOPIC, UUID), letters.reason_key_of(TOPIC, UUID)])
async def test_a_trace_that_names_no_message_does_not_count(
    world: World, ann: Process, bob: Process, key: str, body: dict[str, object] | str
) -> None:
    """A row that may have been published comes twice rather than never, under one id."""
    await _cut_after(ann)
    _taken_away(world)
    world.bucket.plant(letters.key_of(TOPIC, UUID), "x")
    world.bucket.plant(key, body)
    await world.later(OVER)
    await bob.queue.sweep(TOPIC)
    assert visible(world) == [0, 1, 2]
    assert Counter(ids(world))[UUID] == 1


async def _leave(trace: Trace, world: World, consumer: Process) -> None:
    """Let somebody publish a message under the uuid of a row, and a consumer leave a trace of it."""
    is_bad = trace == "dead letter"
    world.bucket.plant(units.key_of(TOPIC, STRANGER), "x" if is_bad else {"id": "i", "payload": {"n": 7}})
    if trace == "claim record":
        assert await consumed(consumer, "strangers") == {7: 1}
        return
    await consumer.queue.claim(TOPIC, "c", ttl=3000)
    world.bucket.remove(*(f"{TOPIC}/messages/{name}" for name in world.bucket.below("messages/")))
    assert world.bucket.below("dead-letter/" if is_bad else "leases/")


async def _commit_or_die(process: Process, parts: list[Staged]) -> None:
    try:
        await process.queue.commit_write(TOPIC, WRITE, parts)
    except Died:
        assert process.client.dead


async def _cut_after(process: Process) -> None:
    """Commit with a process that dies when all is sent and not noted."""
    parts = await staged(process, ROWS, parts=1)
    process.client.inject("dies", "PUT", layout.write(TOPIC, WRITE), passed=1)
    with pytest.raises(Died):
        await process.queue.commit_write(TOPIC, WRITE, parts)


def _taken_away(world: World) -> str:
    """Take the row's message out of the topic, and return its name."""
    [name] = [name for name in world.bucket.below("messages/") if UUID in name]
    world.bucket.remove(units.key_of(TOPIC, name))
    return name


def _record_of(name: str) -> str:
    members, settled = {UUID: {"name": name}}, {UUID: {"how": "acked"}}
    return json.dumps({"v": 1, "claim_id": "c", "state": "closed", "members": members, "settled": settled})
