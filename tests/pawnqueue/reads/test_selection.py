"""What a selection of a topic's messages or dead letters reads, and what it does not even fetch."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import InvalidArgumentError, Selection, StoreError
from pawnqueue.catalog import letters, units
from pawnqueue.domain.envelope import Envelope
from pawnqueue.domain.records import DeadReason
from pawnqueue.domain.times import iso
from tests.pawnqueue.virtual import TOPIC, Process, World, numbered

if TYPE_CHECKING:
    from collections.abc import Mapping

HOUR = timedelta(hours=1)
ID = "00000000-0000-4000-8000-00000000000{}"


async def read(process: Process, only: Selection, **how: Any) -> tuple[list[Any], Mapping[str, int]]:
    """Read what is selected, and count the requests beside the checks of the topic."""
    await process.queue.portions(TOPIC)  # which reads the topic
    with process.client.counting() as done:
        portions = pickle.loads(pickle.dumps(await process.queue.portions(TOPIC, only=only, **how)))  # noqa: S301
        found = [each for portion in portions for each in await process.queue.read(portion)]
    return found, done


def numbers(found: list[Any]) -> list[int]:
    """Return the payloads of messages."""
    return [each.payload["n"] for each in found]


async def now(process: Process) -> datetime:
    """Return the server time."""
    return datetime.fromtimestamp(await process.queue._context.now(), UTC)


# --- messages ---


async def test_old_messages_are_not_fetched(world: World, ann: Process, bob: Process) -> None:
    """A name tells when a message was published. A LIST passes over names that are over an hour older."""
    await ann.queue.publish(TOPIC, numbered(1200))
    await world.later(3 * 3600)
    then = await now(ann)
    await ann.queue.publish(TOPIC, numbered(5))
    await bob.queue.peek(TOPIC, 1)

    found, done = await read(bob, Selection(created_after=then), parts=1)
    assert numbers(found) == [0, 1, 2, 3, 4]
    assert done == {"LIST": 2, "GET": 5}
    found, done = await read(bob, Selection(created_after=then + HOUR))
    assert (found, done["GET"]) == ([], 5), "they are within the hour, so they are read"
    found, _ = await read(bob, Selection(created_before=then), max_messages=7)
    assert len(found) == 7


async def test_times_are_exact(world: World, ann: Process) -> None:
    """A selection begins with its first time, and ends before its second one."""
    moments = []
    for number in range(3):
        await world.later(10)
        await ann.queue.publish(TOPIC, [{"n": number}])
        moments.append((await ann.queue.peek(TOPIC, 10))[-1].created_at)
    for after, before, wanted in ((0, None, [0, 1, 2]), (1, 2, [1]), (1, 1, []), (None, 2, [0, 1]), (2, None, [2])):
        only = Selection(
            created_after=None if after is None else moments[after],
            created_before=None if before is None else moments[before],
        )
        assert numbers((await read(ann, only))[0]) == wanted


async def test_priorities_and_delays(world: World, ann: Process) -> None:
    """Names of other lanes do not hide what is in them."""
    await ann.queue.update_topic(TOPIC, priorities=True, delays=True)
    for number, how in enumerate(({"priority": 9}, {}, {"priority": -9}, {"delay": 5 * 3600}, {"priority": 1})):
        await ann.queue.publish(TOPIC, [{"n": number}], **how)
    await world.later(4 * 3600)
    then = await now(ann)
    for number, how in enumerate(({"priority": 9}, {}, {"priority": -9}, {"delay": 60}, {"priority": 1}), start=10):
        await ann.queue.publish(TOPIC, [{"n": number}], **how)

    found, done = await read(ann, Selection(created_after=then))
    assert sorted(numbers(found)) == [10, 11, 12, 13, 14]
    assert done["GET"] == 5
    assert sorted(numbers((await read(ann, Selection(created_before=then)))[0])) == [0, 1, 2, 3, 4]


async def test_packs(world: World, ann: Process) -> None:
    """A pack's name tells of all its lines. One that is partly within the times is read in part."""
    await ann.queue.update_topic(TOPIC, packs=True)
    await ann.queue.publish(TOPIC, numbered(200), pack=True)
    await world.later(3 * 3600)
    await ann.queue.publish(TOPIC, numbered(200), pack=True)
    messages = await ann.queue.peek(TOPIC, 400)
    await world.later(3 * 3600)
    await ann.queue.publish(TOPIC, numbered(200), pack=True)

    only = Selection(created_after=messages[250].created_at, created_before=messages[300].created_at)
    found, done = await read(ann, only)
    assert [each.id for each in found] == [each.id for each in messages[250:300]]
    assert done["GET"] == 2, "of one pack: its lease and its body"


async def test_a_redriven_message_is_older_than_its_name(world: World, ann: Process) -> None:
    """It is found by the time at which it was created."""
    await ann.queue.publish(TOPIC, numbered(1))
    await world.later(3 * 3600)
    then = await now(ann)
    await ann.queue.bury(await ann.queue.claim(TOPIC, "c"), reason="unfit")
    await ann.queue.redrive(TOPIC)

    assert numbers((await read(ann, Selection(created_before=then)))[0]) == [0]
    assert (await read(ann, Selection(created_after=then)))[0] == []


async def test_a_name_without_a_time_rules_nothing_out(world: World, ann: Process) -> None:
    """What such a message says of itself counts."""
    time = iso((await now(ann)).timestamp())
    body = Envelope(id="a", topic=TOPIC, payload={"n": 7}, created_at=time).encode()
    world.bucket.plant(units.key_of(TOPIC, f"x-{ID.format(1)}.json"), body)
    assert numbers((await read(ann, Selection(created_after=await now(ann) - HOUR)))[0]) == [7]
    assert (await read(ann, Selection(created_after=await now(ann) + HOUR)))[0] == []


async def test_portions_look_again(world: World, ann: Process) -> None:
    """Each keeps its selection, an empty one too."""
    only = Selection(created_after=await now(ann) + 2 * HOUR)
    await ann.queue.publish(TOPIC, numbered(4))
    assert await ann.queue.portions(TOPIC, only=only) == []
    await world.later(3 * 3600)
    await ann.queue.publish(TOPIC, numbered(4))
    portions = await ann.queue.portions(TOPIC, only=only, parts=2)
    await ann.queue.publish(TOPIC, numbered(3))
    again = [await ann.queue.look_again(portion) for portion in portions]
    assert [len(portion) for portion in again] == [2, 5]


# --- dead letters ---


async def buried(world: World, ann: Process) -> list[str]:
    """Bury six messages for three reasons, two at a time, three hours apart. Return the ids of the letters."""
    ids = await ann.queue.publish(TOPIC, numbered(6))
    for reason in ("unfit: no amount", "late", "unfitting"):
        await ann.queue.bury(await ann.queue.claim(TOPIC, "c", max_messages=2), reason=reason)
        await world.later(3 * 3600)
    return ids


async def test_dead_letters_by_their_ids(world: World, ann: Process) -> None:
    """Others are not fetched, and the listing ends behind the last one."""
    ids = await buried(world, ann)
    found, done = await read(ann, Selection(letter_ids=frozenset(ids[1:3])), dead=True)
    assert {letter.id for letter in found} == set(ids[1:3])
    assert done == {"LIST": 1, "GET": 4}
    assert (await read(ann, Selection(letter_ids=frozenset([ID.format(9)])), dead=True))[0] == []


async def test_dead_letters_by_time(world: World, ann: Process) -> None:
    """A LIST rules out those that were buried too early. The bodies of others that do not fit are not fetched."""
    ids = await buried(world, ann)
    last = (await now(ann)) - timedelta(hours=3.5)
    found, done = await read(ann, Selection(buried_after=last), dead=True)
    assert ({letter.id for letter in found}, done) == (set(ids[4:]), {"LIST": 1, "GET": 4})
    found, done = await read(ann, Selection(buried_before=last), dead=True)
    assert ({letter.id for letter in found}, done) == (set(ids[:4]), {"LIST": 1, "GET": 6 + 4})


async def test_a_burial_that_was_finished_late(world: World, ann: Process) -> None:
    """Its reason says when it was, whatever the date of its object."""
    time = (await now(ann)) - 5 * HOUR
    world.bucket.plant(letters.key_of(TOPIC, ID.format(1)), Envelope(id="a", payload={"n": 1}).encode())
    reason = DeadReason(reason="r", at=iso(time.timestamp())).encode()
    world.bucket.plant(letters.reason_key_of(TOPIC, ID.format(1)), reason)
    assert len((await read(ann, Selection(buried_before=time + HOUR), dead=True))[0]) == 1
    assert (await read(ann, Selection(buried_after=time + HOUR), dead=True))[0] == []


async def test_dead_letters_by_reason(world: World, ann: Process) -> None:
    """As a redrive takes it. The bodies of others are not fetched. A letter without a reason is not found."""
    ids = await buried(world, ann)
    world.bucket.plant(letters.key_of(TOPIC, ID.format(1)), Envelope(id="a", payload={"n": 1}).encode())
    found, done = await read(ann, Selection(reason="unfit"), dead=True)
    assert {letter.id for letter in found} == set(ids[:2])
    assert done["GET"] == 7 + 2
    assert {letter.id for letter in (await read(ann, Selection(reason="unfit*"), dead=True))[0]} == {*ids[:2], *ids[4:]}


async def test_only_what_is_needed_of_a_letter(world: World, ann: Process) -> None:
    """Ids need a LIST alone, reasons a GET each, and the times of messages their bodies."""
    ids = await buried(world, ann)
    found, done = await read(ann, Selection(reads_reasons=False, reads_messages=False), dead=True)
    assert ({letter.id for letter in found}, done) == (set(ids), {"LIST": 1})
    found, done = await read(ann, Selection(reads_messages=False), dead=True)
    assert ({letter.reason for letter in found}, done["GET"]) == ({"unfit: no amount", "late", "unfitting"}, 6)
    only = Selection(created_before=await now(ann), reads_reasons=False, reads_messages=False)
    found, done = await read(ann, only, dead=True)
    assert (len(found), done["GET"]) == (6, 12)


@pytest.mark.parametrize("key", ["dead-letter/*.reason.json", "dead-letter/*.json"])
async def test_a_store_that_does_not_tell(world: World, ann: Process, key: str) -> None:
    """A letter is never missing because the store did not answer."""
    await buried(world, ann)
    only = Selection(reason="late", created_before=await now(ann))
    ann.client.inject("lost", "GET", f"{TOPIC}/{key}")
    with pytest.raises(StoreError):
        await read(ann, only, dead=True)


# --- limits ---


async def test_a_limit_counts_what_is_selected(world: World, ann: Process) -> None:
    """Where a LIST does not tell, reading goes on until there are enough, in one portion."""
    ids = await buried(world, ann)
    for only, most, wanted in (
        (Selection(reason="unfitting"), 1, 1),
        (Selection(reason="unfitting"), 9, 2),
        (Selection(buried_before=await now(ann), reason="late"), 2, 2),
    ):
        portions = await ann.queue.portions(TOPIC, only=only, dead=True, max_messages=most, parts=3)
        assert len(portions) == 1
        found = await ann.queue.read(await ann.queue.look_again(portions[0]))
        every, _ = await read(ann, only, dead=True)
        assert found == every[:most]
        assert len(found) == wanted
    only = Selection(letter_ids=frozenset(ids[4:]))
    found, done = await read(ann, only, dead=True, max_messages=1)
    assert ([letter.id for letter in found], done["GET"]) == ([min(ids[4:])], 2), "the LIST tells"


@pytest.mark.parametrize("pack", [False, True])
async def test_a_limit_of_messages_by_their_times(world: World, ann: Process, *, pack: bool) -> None:
    """Messages that are too old do not count, nor do the lines of packs."""
    await ann.queue.update_topic(TOPIC, packs=pack)
    await ann.queue.publish(TOPIC, numbered(150), pack=pack)
    await world.later(60)
    then = await now(ann)
    await ann.queue.publish(TOPIC, numbered(150), pack=pack)
    found, done = await read(ann, Selection(created_after=then), max_messages=5)
    assert numbers(found) == [0, 1, 2, 3, 4]
    assert done["GET"] == (4 if pack else 155)
    assert len((await read(ann, Selection(created_after=then), max_messages=500))[0]) == 150


async def test_what_only_a_read_counts_is_not_fetched(ann: Process) -> None:
    """A fetch would have more than the limit says. The error comes before the first request."""
    await ann.queue.publish(TOPIC, numbered(3))
    [portion] = await ann.queue.portions(TOPIC, only=Selection(created_before=await now(ann) + HOUR), max_messages=2)
    with ann.client.counting() as requests, pytest.raises(InvalidArgumentError, match=r"only read\(\) counts"):
        await ann.queue.fetch(portion)
    assert not requests
    assert len(await ann.queue.read(portion)) == 2


# --- misuse ---


@pytest.mark.parametrize(
    ("only", "sentence"),
    [
        ({"created_after": datetime(2026, 1, 1)}, "created_after is a datetime with a zone"),  # noqa: DTZ001 - misuse
        ({"buried_before": "2026-01-01"}, "buried_before is a datetime with a zone"),
        ({"letter_ids": frozenset(["x"])}, "is not a message id"),
    ],
)
def test_what_cannot_be_compared(only: Any, sentence: str) -> None:  # noqa: ANN401 - misuse
    """The error names it."""
    with pytest.raises(InvalidArgumentError, match=sentence):
        Selection(**only)


@pytest.mark.parametrize(
    ("only", "sentence"), [("x", "only= is a Selection, not a str"), (Selection(reason="x"), "pass dead=True")]
)
async def test_what_selects_nothing(ann: Process, only: Any, sentence: str) -> None:  # noqa: ANN401 - misuse
    """The error comes before the first request."""
    with ann.client.counting() as requests, pytest.raises(InvalidArgumentError, match=sentence):
        await ann.queue.portions(TOPIC, only=only)
    assert not requests
