"""Dead letters: listed by time, a page at a time, and read with why each was given up on; and how they are purged."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pawnqueue import DeadLetterPage, Removed, TopicNotEmptyError
from pawnqueue.catalog import letters as dead_letters
from tests.pawnqueue.virtual import TOPIC, Process, World, numbered, numbers


async def bury(world: World, process: Process, count: int, *, each_after: float = 3.0) -> list[str]:
    """Publish and bury messages, one after another; return their ids in that order."""
    ids = await process.queue.publish(TOPIC, numbered(count))
    claim = await process.queue.claim(TOPIC, "c", max_messages=count, ttl=600)
    for message in claim:
        await process.queue.nack(claim, message, reason="bad", error=f"number {message.payload['n']}")
        await world.later(each_after)
    return ids


async def all_pages(process: Process, *, most: int, newest_first: bool) -> list[DeadLetterPage]:
    """Go through all pages."""
    pages: list[DeadLetterPage] = []
    after: str | None = None
    while True:
        page = await process.queue.dead_letters(TOPIC, max_messages=most, newest_first=newest_first, after=after)
        pages.append(page)
        after = page.next
        if after is None:
            return pages


async def test_a_dead_letter_tells_all_about_itself(world: World, ann: Process) -> None:
    """Reason, error, deliveries, consumer, claim, when; what it was given back for before; and the message."""
    [one] = await ann.queue.publish(TOPIC, [{"a": 1}], headers={"h": "1"})
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"), requeue=True, reason="not yet", error="E1")
    claim = await ann.queue.claim(TOPIC, "billing")
    before = datetime.fromtimestamp(world.clock.server() - 5, UTC)
    await ann.queue.nack(claim, reason="hopeless", error="E2")
    [letter] = await ann.queue.dead_letters(TOPIC)
    assert (letter.id, letter.topic, letter.reason, letter.error) == (one, TOPIC, "hopeless", "E2")
    assert (letter.deliveries, letter.consumer, letter.claim) == (2, "billing", claim.stem)
    assert (letter.given_reason, letter.given_error, letter.fault) == ("not yet", "E1", "")
    assert before < letter.buried_at < datetime.fromtimestamp(world.clock.server() + 5, UTC)
    assert letter.message is not None
    assert (letter.message.id, letter.message.payload, dict(letter.message.headers)) == (one, {"a": 1}, {"h": "1"})
    assert letter.message.deliveries == 2


@pytest.mark.parametrize("newest_first", [True, False])
async def test_they_are_listed_by_time_a_page_at_a_time(world: World, ann: Process, *, newest_first: bool) -> None:
    """Every one once, in order, whichever end comes first; each page says how many there are."""
    ids = await bury(world, ann, 7)
    pages = await all_pages(ann, most=3, newest_first=newest_first)
    assert [len(page) for page in pages] == [3, 3, 1]
    assert [letter.id for page in pages for letter in page] == (ids[::-1] if newest_first else ids)
    assert {page.total for page in pages} == {7}
    assert pages[0][0].error == ("number 6" if newest_first else "number 0")


async def test_those_of_one_second_are_each_listed_once(world: World, ann: Process) -> None:
    """Times are in whole seconds: within one the ids decide."""
    ids = await bury(world, ann, 9, each_after=0.0)
    pages = await all_pages(ann, most=2, newest_first=True)
    assert sorted(letter.id for page in pages for letter in page) == sorted(ids)


async def test_what_is_buried_meanwhile_shows_on_the_first_page(world: World, ann: Process) -> None:
    """The pages behind it do not shift."""
    ids = await bury(world, ann, 4)
    first = await ann.queue.dead_letters(TOPIC, max_messages=2)
    more = await bury(world, ann, 1)
    second = await ann.queue.dead_letters(TOPIC, max_messages=2, after=first.next)
    assert [letter.id for letter in second] == ids[1::-1]
    assert [letter.id for letter in await ann.queue.dead_letters(TOPIC, max_messages=1)] == more


async def test_reasons_alone_cost_half(world: World, ann: Process) -> None:
    """Without payloads each letter is one GET, beside the LIST."""
    await bury(world, ann, 5)
    with ann.client.counting() as requests:
        letters = await ann.queue.dead_letters(TOPIC, payloads=False)
    assert dict(requests) == {"LIST": 1, "GET": 5}
    assert {letter.message for letter in letters} == {None}
    with ann.client.counting() as requests:
        await ann.queue.dead_letters(TOPIC)
    assert dict(requests) == {"LIST": 1, "GET": 10}


async def test_a_letter_that_cannot_be_read_concerns_itself(world: World, ann: Process) -> None:
    """It is shown with what is known of it and its fault; the others are as ever."""
    ids = await bury(world, ann, 4)
    world.bucket.remove(dead_letters.reason_key_of(TOPIC, ids[0]))
    world.bucket.plant(dead_letters.key_of(TOPIC, ids[1]), "garbage")
    ann.client.inject("denied", "GET", dead_letters.reason_key_of(TOPIC, ids[2]))
    letters = {letter.id: letter for letter in await ann.queue.dead_letters(TOPIC)}
    assert set(letters) == set(ids)
    assert letters[ids[0]].reason == ""
    assert "does not exist" in letters[ids[0]].fault
    assert letters[ids[0]].message is not None
    assert (letters[ids[1]].message, letters[ids[1]].reason) == (None, "bad")
    assert "garbage" not in letters[ids[1]].fault
    assert "is not JSON" in letters[ids[1]].fault
    assert "denied" in letters[ids[2]].fault
    assert letters[ids[3]].fault == ""


async def test_a_letter_with_neither_a_reason_nor_a_message(world: World, ann: Process) -> None:
    """Both are shown: the object in its place is not a valid message, and has no reason."""
    world.bucket.plant(dead_letters.key_of(TOPIC, "0b8a7f3c-7a51-4b4f-9d6e-0a4c9f5b2e11"), "garbage")
    [letter] = await ann.queue.dead_letters(TOPIC)
    assert letter.message is None
    assert letter.fault.count("; ") == 1
    assert "reason.json does not exist; " in letter.fault
    assert "is not JSON" in letter.fault


async def test_they_are_redriven_by_their_own_ids_and_by_their_messages(world: World, ann: Process) -> None:
    """A message that came back under a new key and died again is found by the id that its publisher knows."""
    [one] = await bury(world, ann, 1)
    await ann.queue.redrive(TOPIC)
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"), reason="again")
    await world.later(5)
    [letter] = await ann.queue.dead_letters(TOPIC)
    assert letter.id != one
    assert letter.message is not None
    assert letter.message.id == one
    assert (await ann.queue.redrive(TOPIC, one)).moved == [letter.id]
    assert numbers(await ann.queue.claim(TOPIC, "c")) == [0]


async def test_an_id_means_all_letters_whose_messages_have_it(world: World, ann: Process) -> None:
    """A publisher may give several messages one id: all of them are redriven, and a letter's own id means that one."""
    world.fill({"id": "same", "payload": {"n": number}} for number in range(3))
    await ann.queue.bury(await ann.queue.claim(TOPIC, "c", max_messages=3), reason="bad")
    kept = [letter.id for letter in await ann.queue.dead_letters(TOPIC)]
    assert (await ann.queue.redrive(TOPIC, kept[0])).moved == [kept[0]]
    assert sorted((await ann.queue.redrive(TOPIC, "same")).moved) == sorted(kept[1:])
    assert sorted(numbers(await ann.queue.claim(TOPIC, "c", max_messages=3))) == [0, 1, 2]


async def test_purging_removes_messages_and_leaves_the_topic(world: World, ann: Process, bob: Process) -> None:
    """Claimed messages too, whose holder settles them as ever; dead letters stay unless they are named."""
    await bury(world, ann, 2)
    await ann.queue.publish(TOPIC, numbered(5))
    held = await bob.queue.claim(TOPIC, "c", max_messages=2)
    before = world.bucket.snapshot()
    assert await ann.queue.purge(TOPIC, dry_run=True) == Removed(messages=5)
    assert world.bucket.snapshot() == before
    assert await ann.queue.purge(TOPIC) == Removed(messages=5)
    stats = await ann.queue.stats(TOPIC)
    assert (stats.pending, stats.in_flight, stats.dead) == (0, 0, 2)
    assert (await bob.queue.ack(held)).complete
    assert not await ann.queue.claim(TOPIC, "c")
    assert await ann.queue.purge(TOPIC, messages=False, dead_letters=True) == Removed(dead_letters=2)
    assert world.bucket.below("dead-letter/") == []
    await world.later(100_000)
    await ann.queue.sweep(TOPIC)
    assert world.bucket.below("leases/") == world.bucket.below("claims/") == []
    [again] = await ann.queue.publish(TOPIC, numbered(1))
    assert (await bob.queue.claim(TOPIC, "c")).ids == [again]


async def test_a_strangers_object_is_not_purged(world: World, ann: Process) -> None:
    """What nobody of ours has made is left alone, and not counted."""
    world.bucket.plant(f"{TOPIC}/messages/notes.txt", "x")
    world.bucket.plant(f"{TOPIC}/dead-letter/notes.txt", "x")
    await ann.queue.publish(TOPIC, numbered(1))
    assert await ann.queue.purge(TOPIC, dead_letters=True) == Removed(messages=1)
    assert world.bucket.below("messages/") == world.bucket.below("dead-letter/") == ["notes.txt"]


async def test_a_dry_run_of_a_deletion_counts_and_refuses_as_it_would(world: World, ann: Process) -> None:
    """Without force it raises where the deletion would; with it, it tells how much there is, and deletes nothing."""
    await bury(world, ann, 2)
    await ann.queue.publish(TOPIC, numbered(3))
    before = world.bucket.snapshot()
    with pytest.raises(TopicNotEmptyError, match="3 pending messages and 2 dead letters"):
        await ann.queue.delete_topic(TOPIC, dry_run=True)
    told = await ann.queue.delete_topic(TOPIC, force=True, dry_run=True)
    assert (told.messages, told.dead_letters) == (3, 2)
    assert world.bucket.snapshot() == before
    done = await ann.queue.delete_topic(TOPIC, force=True)
    assert (done.messages, done.dead_letters) == (3, 2)
    assert not [key for key in world.bucket.below() if key.startswith(f"{TOPIC}/")]
