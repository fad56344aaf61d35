"""Redrive by filter: only what was named is given back, no faster than asked for, and it goes on where it was cut."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pawnqueue import InvalidArgumentError, MemoryStore, PawnQueue, RedriveProgress, RedriveResult, events
from pawnqueue.catalog import letters as dead_letters
from pawnqueue.domain.reasons import is_reason
from pawnqueue.maintenance import redrive as redriving
from pawnqueue.reads import dead_letters as reading
from tests.pawnqueue.virtual import TOPIC, Process, World, numbered

REASONS = ("expired", "ValueError: no amount", "ValueErrors", "bad")


async def bury(process: Process, *reasons: str, pack: bool = False) -> list[str]:
    """Publish a message for each reason and bury it; return the ids under which the letters are kept, in order."""
    before = {letter.id for letter in await process.queue.dead_letters(TOPIC, max_messages=1000, payloads=False)}
    await process.queue.publish(TOPIC, numbered(len(reasons)), pack=pack)
    claim = await process.queue.claim(TOPIC, "c", max_messages=len(reasons))
    for message, reason in zip(claim, reasons, strict=True):
        await process.queue.bury(claim, message, reason=reason)
    found = await process.queue.dead_letters(TOPIC, max_messages=1000)
    of_number = {each.message.payload["n"]: each.id for each in found if each.message and each.id not in before}
    return [of_number[number] for number in range(len(reasons))]


def left(world: World) -> set[str]:
    """The uuids of the dead letters."""
    parsed = (dead_letters.parse(key) for key in world.bucket.below() if "/dead-letter/" in key)
    return {one[0] for one in parsed if one is not None and not one[1]}


@pytest.mark.parametrize(
    ("reason", "wanted", "yes"),
    [
        ("ValueError: no amount", "ValueError", True),
        ("ValueError", "ValueError", True),
        ("ValueErrors", "ValueError", False),
        ("ValueErrors", "ValueError*", True),
        ("a ValueError", "ValueError", False),
        ("HTTP 503", "HTTP ", True),
        ("", "", True),
        ("bad", "", False),
        ("bad", "*", True),
        ("Bad", "bad", False),
        ("work: KeyError: 'total'", "*KeyError", True),
        ("work: KeyErrors, KeyError", "*KeyError", True),
        ("work: KeyErrors", "*KeyError", False),
        ("work: KeyErrors", "w*:*KeyE*", True),
        ("work: KeyErrors", "w*x*KeyE*", False),
    ],
)
def test_a_reason_is_the_wanted_one_or_begins_with_it(reason: str, wanted: str, *, yes: bool) -> None:
    """A word is not cut in two, unless a star says so."""
    assert is_reason(reason, wanted) is yes


@pytest.mark.parametrize("pack", [False, True])
async def test_only_the_reason_that_was_named(world: World, ann: Process, *, pack: bool) -> None:
    """Of single messages and of those of packs, the others stay."""
    await ann.queue.update_topic(TOPIC, packs=True)
    ids = await bury(ann, *REASONS, pack=pack)
    done = await ann.queue.redrive(TOPIC, reason="ValueError")
    assert (done.moved, done.skipped, done.failed, done.complete) == ([ids[1]], [], {}, True)
    assert left(world) == {ids[0], ids[2], ids[3]}
    assert (await ann.queue.redrive(TOPIC, reason="expired")).moved == [ids[0]]


async def test_filters_are_joined(world: World, ann: Process) -> None:
    """A letter has to have the id, the reason and the age; what is not named stays."""
    old = await bury(ann, "bad", "bad", "worse")
    await world.later(100)
    new = await bury(ann, "bad", "worse")
    assert (await ann.queue.redrive(TOPIC, [*old, new[0]], reason="bad", older_than=50)).moved == sorted(old[:2])
    assert (await ann.queue.redrive(TOPIC, younger_than=50, reason="worse")).moved == [new[1]]
    assert (await ann.queue.redrive(TOPIC, older_than=500)).moved == []
    assert left(world) == {old[2], new[0]}


async def test_an_age_needs_no_reason(world: World, ann: Process) -> None:
    """The LIST tells the age: no letter that is left is read, and a redrive without filters reads no reason."""
    await bury(ann, "bad", "bad")
    with ann.client.counting() as requests:
        await ann.queue.redrive(TOPIC, older_than=1000)
    assert requests == {"GET": 1, "LIST": 1}  # of the topic, and of its letters
    ann.client.requests.clear()
    await ann.queue.redrive(TOPIC)
    assert not [key for kind, key in ann.client.requests if kind == "GET" and key.endswith(".reason.json")]


async def test_a_letter_without_a_reason_has_none_that_is_looked_for(world: World, ann: Process) -> None:
    """Nor has one whose reason is garbage. Without a filter both are given back."""
    ids = await bury(ann, "bad", "bad", "bad")
    world.bucket.remove(dead_letters.reason_key_of(TOPIC, ids[0]))
    world.bucket.plant(dead_letters.reason_key_of(TOPIC, ids[1]), "garbage")
    assert (await ann.queue.redrive(TOPIC, reason="*")).moved == [ids[2]]
    assert (await ann.queue.redrive(TOPIC)).moved == sorted(ids[:2])


async def test_a_reason_that_the_store_does_not_give_is_named(world: World, ann: Process) -> None:
    """Such a letter is not moved, and the result has the error under its id; the others are moved."""
    ids = await bury(ann, "bad", "bad")
    ann.client.inject("denied", "GET", f"*{ids[0]}.reason.json")
    done = await ann.queue.redrive(TOPIC, reason="bad")
    assert (done.moved, list(done.failed), done.failed_count) == ([ids[1]], [ids[0]], 1)
    assert left(world) == {ids[0]}


async def test_no_faster_than_asked_for(world: World, ann: Process) -> None:
    """Moves begin evenly, at most so many a second."""
    await bury(ann, *["bad"] * 10)
    started: list[float] = []

    def note(kind: str, key: str) -> None:
        if kind == "COPY":
            started.append(world.clock.elapsed())

    ann.client.meanwhile = note
    began = world.clock.elapsed()
    assert (await ann.queue.redrive(TOPIC, per_second=2)).moved_count == 10
    assert [round(at - began, 3) for at in started] == [number / 2 for number in range(10)]


async def test_progress_is_told_at_most_once_a_second(world: World, ann: Process) -> None:
    """And the event comes once a minute, beside the last one."""
    told: list[RedriveProgress] = []
    heard: list[events.Event] = []
    ann.queue._context.events._listener = heard.append
    await bury(ann, *["bad"] * 130)
    done = await ann.queue.redrive(TOPIC, per_second=2, on_progress=told.append)
    assert done.moved_count == 130
    assert 60 <= len(told) <= 66
    assert [each.moved for each in told] == sorted(each.moved for each in told)
    assert (told[-1].moved, told[-1].looked_at, told[-1].failed) == (130, 130, 0)
    assert len([each for each in heard if isinstance(each, events.RedriveContinued)]) == 1
    [last] = [each for each in heard if isinstance(each, events.LettersRedriven)]
    assert (last.moved, last.complete) == (130, True)


async def test_a_callback_that_fails_changes_nothing(world: World, ann: Process) -> None:
    """It is called once, and the letters are moved."""
    await bury(ann, "bad", "bad")
    calls: list[RedriveProgress] = []

    def fail(progress: RedriveProgress) -> None:
        calls.append(progress)
        raise ValueError("no room")

    assert (await ann.queue.redrive(TOPIC, per_second=0.5, on_progress=fail)).moved_count == 2
    assert len(calls) == 1


async def test_it_goes_on_where_it_was_cut_off(world: World, ann: Process) -> None:
    """A second call with the same filter moves what is left, each letter once."""
    ids = await bury(ann, *["bad"] * 8, "worse")
    heard: list[events.Event] = []
    ann.queue._context.events._listener = heard.append
    running = asyncio.create_task(ann.queue.redrive(TOPIC, ids[:8], reason="bad", per_second=1))
    await world.later(3.5)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    [told] = [each for each in heard if isinstance(each, events.LettersRedriven)]
    assert (told.moved, told.complete) == (4, False)
    with pytest.raises(InvalidArgumentError, match="missing_ok"):
        await ann.queue.redrive(TOPIC, ids[:8], reason="bad")
    done = await ann.queue.redrive(TOPIC, ids[:8], reason="bad", missing_ok=True)
    assert (done.moved_count, len(done.missing), done.complete) == (4, 4, True)
    assert left(world) == {ids[8]}
    claim = await ann.queue.claim(TOPIC, "c", max_messages=20)
    assert len({message.id for message in claim}) == len(claim) == 8


async def test_max_messages_over_several_calls(world: World, ann: Process) -> None:
    """What does not match does not count, and the result says whether more may be left."""
    ids = await bury(ann, *["bad", "worse"] * 5)
    bad = {ids[number] for number in range(0, 10, 2)}
    done = [await ann.queue.redrive(TOPIC, reason="bad", max_messages=2) for _ in range(3)]
    assert [(len(each.moved), each.complete) for each in done] == [(2, False), (2, False), (1, True)]
    assert {one for each in done for one in each.moved} == bad


async def test_what_is_buried_meanwhile_is_left(world: World, ann: Process, bob: Process) -> None:
    """A slow redrive gives each message back once, although its consumer buries it again at once."""
    world.bucket.page_size = 4  # later pages show what was buried meanwhile
    await bury(ann, *["bad"] * 20)
    await world.later(10)
    running = asyncio.create_task(ann.queue.redrive(TOPIC, per_second=0.2))
    for _ in range(60):
        await world.later(5)
        claim = await bob.queue.claim(TOPIC, "c", max_messages=20)
        if claim:
            await bob.queue.bury(claim, reason="again")
        if running.done():
            break
    assert (await running).moved_count == 20
    claim = await bob.queue.claim(TOPIC, "c", max_messages=20)
    if claim:
        await bob.queue.bury(claim, reason="again")
    assert len(left(world)) == 20


async def test_a_dry_run_names_what_would_be_moved(world: World, ann: Process) -> None:
    """It changes nothing, and is not slowed down."""
    ids = await bury(ann, *REASONS)
    before, began = world.bucket.snapshot(), world.clock.elapsed()
    done = await ann.queue.redrive(TOPIC, reason="ValueError*", per_second=0.001, dry_run=True)
    assert (sorted(done.moved), done.dry_run, done.complete) == (sorted(ids[1:3]), True, True)
    assert (world.bucket.snapshot(), world.clock.elapsed()) == (before, began)


async def test_results_and_searches_are_bounded(world: World, ann: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result names some and counts all; a search for ids lists again rather than remember all."""
    monkeypatch.setattr(redriving, "MAX_NAMED_LETTERS", 2)
    monkeypatch.setattr(reading, "MAX_REMEMBERED_LETTERS", 1)
    ids = await bury(ann, *["bad"] * 5)
    done = await ann.queue.redrive(TOPIC, [*ids, "gone"], missing_ok=True)
    assert (len(done.moved), done.moved_count, done.missing) == (2, 5, ["gone"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"reason": 5},
        {"older_than": -1},
        {"older_than": "soon"},
        {"younger_than": -0.5},
        {"older_than": 20, "younger_than": 10},
        {"per_second": 0},
        {"per_second": -1},
        {"per_second": float("inf")},
        {"per_second": True},
        {"dry_run": 1},
        {"missing_ok": "yes"},
        {"on_progress": "print"},
    ],
)
async def test_wrong_arguments_are_refused(ann: Process, wrong: Any) -> None:  # noqa: ANN401 - anything
    """Each is one sentence, before any request."""
    with ann.client.counting() as requests, pytest.raises(InvalidArgumentError):
        await ann.queue.redrive(TOPIC, **wrong)
    assert not requests


@pytest.mark.parametrize("strategy", ["conditional_write", "csprng_verify"])
async def test_with_either_strategy(strategy: str) -> None:
    """Filters mean the same."""
    async with World(strategy) as world:
        ann = await world.process()
        ids = await bury(ann, *REASONS)
        assert (await ann.queue.redrive(TOPIC, reason="bad")).moved == [ids[3]]
        assert left(world) == set(ids[:3])


def test_the_twin_has_them() -> None:
    """The synchronous queue takes the same arguments, and calls back."""
    from pawnqueue import SyncPawnQueue  # noqa: PLC0415 - of this test alone

    told: list[RedriveProgress] = []
    with SyncPawnQueue.open({"s3": {"bucket_name": "bucket"}}, store=MemoryStore()) as queue:
        queue.create_topic(TOPIC)
        queue.publish(TOPIC, numbered(2))
        queue.bury(queue.claim(TOPIC, "c", max_messages=2), reason="bad")
        done: RedriveResult = queue.redrive(TOPIC, reason="bad", older_than=0, on_progress=told.append)
    assert (done.moved_count, told[-1].moved) == (2, 2)
    assert PawnQueue.redrive.__doc__ == SyncPawnQueue.redrive.__doc__
