"""Dead letters with a limit: the oldest go, never without a warning, and never while they are buried or redriven."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pawnqueue import ConfigError, DeadLetterLimits, RedriveResult, TopicExistsError, events
from pawnqueue.catalog import letters as dead_letters
from pawnqueue.domain import layout
from pawnqueue.maintenance import letter_expiry
from tests.pawnqueue.virtual import TOPIC, Died, Kind, Process, World, numbered

DAY = 86_400.0
NOTE = layout.letter_notices(TOPIC)
MARKER = layout.topic_marker(TOPIC)


def left(world: World) -> list[str]:
    """The uuids of the dead letters."""
    parsed = (dead_letters.parse(key) for key in world.bucket.below() if "/dead-letter/" in key)
    return [one[0] for one in parsed if one is not None and not one[1]]


async def bury(world: World, process: Process, count: int = 1, *, pack: bool = False) -> list[str]:
    """Publish and bury messages; return the ids of their letters."""
    before = set(left(world))
    await process.queue.publish(TOPIC, numbered(count), pack=pack)
    claim = await process.queue.claim(TOPIC, "c", max_messages=count)
    await process.queue.bury(claim, reason="bad")
    return [one for one in left(world) if one not in before]


def heard(process: Process) -> list[events.Event]:
    """What a process says from now on."""
    told: list[events.Event] = []
    process.queue._context.events._listener = told.append
    return told


def warnings(told: list[events.Event]) -> list[int]:
    """How many letters each warning was about."""
    return [each.count for each in told if isinstance(each, events.LettersExpiring)]


async def limit(process: Process, **limits: Any) -> None:
    """Set the topic's limits."""
    await process.queue.update_topic(TOPIC, dead_letters=limits or None)


async def test_all_are_kept_by_default(world: World, ann: Process) -> None:
    """However old, and a sweep without limits sends no request for them."""
    await bury(world, ann, 3)
    with ann.client.counting() as before:
        await ann.queue.sweep(TOPIC)
    await world.later(1000 * DAY)
    with ann.client.counting() as after:
        report = await ann.queue.sweep(TOPIC)
    assert (len(left(world)), report.removed_letters, report.expiring_letters) == (3, 0, 0)
    assert after["LIST"] <= before["LIST"]
    assert NOTE not in world.bucket.below()
    assert "dead_letters" not in json.loads(world.bucket.body(MARKER))["settings"]


@pytest.mark.parametrize("pack", [False, True])
async def test_the_old_go_after_a_warning(world: World, ann: Process, *, pack: bool) -> None:
    """A day before a letter is a month old it is warned of. Then it goes, and its reason; younger ones stay."""
    await ann.queue.update_topic(TOPIC, packs=True)
    await limit(ann, max_age_seconds=30 * DAY)
    told = heard(ann)
    old = await bury(world, ann, 3, pack=pack)
    await world.later(28 * DAY)
    young = await bury(world, ann, 2, pack=pack)
    assert (await ann.queue.sweep(TOPIC)).expiring_letters == 0
    assert warnings(told) == []
    await world.later(1.01 * DAY)
    assert (await ann.queue.sweep(TOPIC)).expiring_letters == 3
    await world.later(0.5 * DAY)
    report = await ann.queue.sweep(TOPIC)
    assert (warnings(told), report.expiring_letters, report.removed_letters) == ([3], 3, 0)
    await world.later(0.51 * DAY)
    assert (await ann.queue.sweep(TOPIC)).removed_letters == 3
    assert set(left(world)) == set(young)
    assert not any(one in key for one in old for key in world.bucket.below())
    assert [each.count for each in told if isinstance(each, events.LettersRemoved)] == [3]
    assert world.bucket.below("leases/") == []


async def test_the_oldest_beyond_a_number_go(world: World, ann: Process) -> None:
    """The latest stay, and no more are removed than are too many."""
    await limit(ann, max_count=3)
    told = heard(ann)
    letters = []
    for _ in range(5):
        letters += await bury(world, ann)
        await world.later(60)
    await ann.queue.sweep(TOPIC)
    assert warnings(told) == [2]
    await world.later(DAY + 10)
    newest = await bury(world, ann)
    await world.later(60)
    report = await ann.queue.sweep(TOPIC)
    # A third one is too many now. It was not warned of before.
    assert (report.removed_letters, report.expiring_letters, warnings(told)) == (2, 1, [2, 1])
    assert set(left(world)) == {*letters[2:], *newest}
    await world.later(DAY + 10)
    assert (await ann.queue.sweep(TOPIC)).removed_letters == 1
    assert set(left(world)) == {*letters[3:], *newest}
    assert (await ann.queue.sweep(TOPIC)).removed_letters == 0


async def test_nothing_goes_without_its_warning(world: World, ann: Process, bob: Process) -> None:
    """Letters that are past every limit are warned of first, whichever process sweeps, and however late."""
    await bury(world, ann, 2)
    await world.later(100 * DAY)
    await limit(ann, max_age_seconds=DAY, max_count=1)
    for process, passed, removed in ((ann, 0.5, 0), (bob, 0.51, 0), (ann, 10, 2), (bob, 10, 0)):
        assert (await process.queue.sweep(TOPIC)).removed_letters == removed
        await world.later(passed * DAY)


async def test_a_letter_that_comes_later_has_a_warning_of_its_own(world: World, ann: Process) -> None:
    """A warning is about what existed when it was given, also where the limit is shorter than the notice."""
    await limit(ann, max_age_seconds=60)
    told = heard(ann)
    await bury(world, ann)
    await world.later(60)
    await ann.queue.sweep(TOPIC)
    later = await bury(world, ann)
    await world.later(DAY + 10)
    assert (await ann.queue.sweep(TOPIC)).removed_letters == 1
    assert (warnings(told), left(world)) == ([1, 1], later)


async def one_second(world: World, process: Process) -> list[str]:
    """Bury ten letters within one second, of which five are too many; warn of those; return all by their ids."""
    first = sorted(await bury(world, process, 10))
    assert len({world.bucket.date(dead_letters.key_of(TOPIC, one)) for one in first}) == 1
    await limit(process, max_count=5)
    await world.later(60)
    await process.queue.sweep(TOPIC)
    return first


async def test_letters_of_one_second_are_warned_of_before_they_go(world: World, ann: Process) -> None:
    """Of ten letters of one second five are beyond the limit, and go. The other five have a warning of their own."""
    told = heard(ann)
    first = await one_second(world, ann)
    assert warnings(told) == [5]
    await world.later(DAY + 60)
    assert (await ann.queue.sweep(TOPIC)).removed_letters == 5
    assert sorted(left(world)) == first[5:]
    new = await bury(world, ann, 5)
    await world.later(60)
    report = await ann.queue.sweep(TOPIC)
    assert (report.removed_letters, report.expiring_letters, warnings(told)) == (0, 5, [5, 5])
    assert sorted(left(world)) == sorted([*first[5:], *new])
    await world.later(DAY + 60)
    assert (await ann.queue.sweep(TOPIC)).removed_letters == 5
    assert sorted(left(world)) == sorted(new)


async def test_a_note_without_an_id_covers_the_seconds_before(world: World, ann: Process) -> None:
    """An earlier version has written it. Nobody knows which letters of its second it meant: they are warned of anew."""
    earlier = await bury(world, ann)
    await world.later(60)
    told = heard(ann)
    await one_second(world, ann)
    assert warnings(told) == [6]
    note = json.loads(world.bucket.body(NOTE))
    del note["notices"][0]["through_id"]
    world.bucket.plant(NOTE, note)
    await world.later(DAY + 60)
    report = await ann.queue.sweep(TOPIC)
    assert (report.removed_letters, report.expiring_letters, warnings(told)) == (1, 5, [6, 5])
    assert not {*earlier} & {*left(world)}
    await world.later(DAY + 60)
    assert (await ann.queue.sweep(TOPIC)).removed_letters == 5


async def test_it_is_given_before_it_is_noted(world: World, ann: Process, bob: Process) -> None:
    """A process that dies in between, or whose note does not arrive, has removed nothing: the next one warns again."""
    await bury(world, ann)
    await limit(ann, max_age_seconds=60)
    await world.later(120)
    first, second = heard(ann), heard(bob)
    ann.client.inject("dies", "PUT", NOTE)
    with pytest.raises(Died):
        await ann.queue.sweep(TOPIC)
    await world.later(2 * DAY)
    assert (await bob.queue.sweep(TOPIC)).removed_letters == 0
    assert (warnings(first), warnings(second)) == ([1], [1])


async def test_limits_can_be_changed_in_each_direction(world: World, ann: Process) -> None:
    """Lowered, raised, taken away and set again: each time what goes was warned of under the limits of that time."""
    told = heard(ann)
    [one] = await bury(world, ann)
    await world.later(10 * DAY)
    steps: list[tuple[dict[str, Any], int, list[int]]] = [
        ({"max_age_seconds": 100 * DAY}, 0, []),
        ({"max_age_seconds": 5 * DAY}, 0, [1]),  # lowered
        ({"max_age_seconds": 80 * DAY}, 0, []),  # raised
        ({"max_age_seconds": 5 * DAY}, 0, [1]),  # lowered again
        ({}, 0, []),  # taken away
        ({"max_age_seconds": 5 * DAY}, 0, [1]),  # the same as before: its warning is too old to count
        ({"max_age_seconds": 5 * DAY, "notice_seconds": 3600}, 0, [1]),
        ({"max_count": 1}, 0, []),
    ]
    for limits, removed, warned in steps:
        await limit(ann, **limits)
        told.clear()
        assert ((await ann.queue.sweep(TOPIC)).removed_letters, warnings(told)) == (removed, warned), limits
        await world.later(2 * DAY)
    await limit(ann, max_age_seconds=5 * DAY)
    await ann.queue.sweep(TOPIC)
    await limit(ann, max_age_seconds=5 * DAY)  # nothing changes, and the warning still counts
    await ann.queue.update_topic(TOPIC, max_deliveries=3)
    await world.later(DAY + 10)
    assert left(world) == [one]
    assert (await ann.queue.sweep(TOPIC)).removed_letters == 1


async def test_a_topic_that_was_created_again_warns_again(world: World, ann: Process) -> None:
    """A note that an earlier topic of the same name left, or that anybody has written, counts for nothing."""
    await limit(ann, max_age_seconds=60)
    await bury(world, ann)
    await world.later(120)
    await ann.queue.sweep(TOPIC)
    note = world.bucket.body(NOTE)
    await ann.queue.delete_topic(TOPIC, force=True)
    assert world.bucket.below("") == [layout.BUCKET_RECORD]
    await ann.queue.create_topic(TOPIC, dead_letters={"max_age_seconds": 60})
    await bury(world, ann)
    world.bucket.plant(NOTE, note)
    await world.later(10 * DAY)
    assert (await ann.queue.sweep(TOPIC)).removed_letters == 0
    for garbage in (
        "",
        "[]",
        '{"topic":"other"}',
        '{"topic":"orders","notices":[{"at":-1,"through":1}]}',
        "x" * 200_000,
    ):
        world.bucket.plant(NOTE, garbage)
        assert (await ann.queue.sweep(TOPIC)).removed_letters == 0
    world.bucket.plant(NOTE, '{"topic":"orders","v":99}')
    report = await ann.queue.sweep(TOPIC)
    assert (report.removed_letters, len(report.failures)) == (0, 1)
    assert json.loads(world.bucket.body(NOTE))["v"] == 99


async def test_a_dry_run_shows_what_would_go(world: World, ann: Process) -> None:
    """It neither warns nor notes nor removes."""
    await limit(ann, max_age_seconds=60)
    await bury(world, ann, 2)
    await world.later(120)
    told, before = heard(ann), world.bucket.snapshot()
    assert (await ann.queue.sweep(TOPIC, dry_run=True)).expiring_letters == 2
    assert (warnings(told), world.bucket.snapshot()) == ([], before)
    await ann.queue.sweep(TOPIC)
    await world.later(DAY + 10)
    before = world.bucket.snapshot()
    report = await ann.queue.sweep(TOPIC, dry_run=True)
    assert (report.removed_letters, report.expiring_letters, world.bucket.snapshot()) == (2, 0, before)


async def test_a_sweep_removes_a_bounded_number(world: World, ann: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest first, and the next sweep goes on."""
    monkeypatch.setattr(letter_expiry, "MAX_REMOVED_LETTERS", 3)
    monkeypatch.setattr(letter_expiry, "BATCH_LETTERS", 2)
    await limit(ann, max_age_seconds=60)
    letters = []
    for _ in range(4):
        letters += await bury(world, ann)
        await world.later(60)
    await ann.queue.sweep(TOPIC)
    await world.later(DAY + 3600)
    assert (await ann.queue.sweep(TOPIC)).removed_letters == 3
    assert left(world) == letters[3:]


async def test_a_note_stays_small(world: World, ann: Process) -> None:
    """Letters that come all the time are warned of once an hour, and the note has a few dozen warnings."""
    await limit(ann, max_age_seconds=DAY)
    told = heard(ann)
    for _ in range(240):
        await bury(world, ann)
        await world.later(900)
        await ann.queue.sweep(TOPIC)
    assert len(json.loads(world.bucket.body(NOTE))["notices"]) <= 28
    assert 30 <= len(warnings(told)) <= 60
    assert 90 <= len(left(world)) <= 106


@pytest.fixture
async def due(world: World, ann: Process) -> str:
    """A letter that the next sweep removes."""
    [one] = await bury(world, ann)
    await limit(ann, max_age_seconds=60)
    await world.later(120)
    await ann.queue.sweep(TOPIC)
    await world.later(DAY + 10)
    return one


async def test_a_letter_that_is_being_buried_stays(world: World, ann: Process, due: str) -> None:
    """Its burial may still copy it, or another message over it."""
    world.bucket.plant(layout.lease(TOPIC, due), '{"state":"held"}')
    assert (await ann.queue.sweep(TOPIC)).removed_letters == 0
    assert left(world) == [due]


def at_request(process: Process, kind: str, part: str, work: Callable[[], Any]) -> None:
    """Let something happen, once, before the first such request of a process."""
    done: list[bool] = []

    async def meanwhile(its_kind: str, key: str) -> None:
        if its_kind == kind and part in key and not done:
            done.append(True)
            await work()

    process.client.meanwhile = meanwhile


@pytest.mark.parametrize("strategy", ["conditional_write", "csprng_verify"])
@pytest.mark.parametrize(("kind", "part"), [("HEAD", "/dead-letter/"), ("COPY", ""), ("DELETE", "/dead-letter/")])
async def test_a_letter_that_is_being_redriven_stays(strategy: str, kind: str, part: str) -> None:
    """Wherever the redrive is when a sweep comes, the redrive finds its letter, and says that it moved it."""
    async with World(strategy) as world:
        ann, bob = await world.process(), await world.process()
        [one] = await bury(world, ann)
        await limit(ann, max_age_seconds=60)
        await world.later(120)
        await ann.queue.sweep(TOPIC)
        await world.later(DAY + 10)
        removed: list[int] = []

        async def sweep() -> None:
            removed.append((await ann.queue.sweep(TOPIC)).removed_letters)

        at_request(bob, kind, part, sweep)
        result = await bob.queue.redrive(TOPIC)
        assert (removed, result.moved) == ([0], [one])
        assert len(await ann.queue.claim(TOPIC, "c")) == 1


@pytest.mark.parametrize("kind", ["HEAD", "DELETE"])
async def test_a_letter_that_is_being_removed_is_not_redriven(
    world: World, ann: Process, bob: Process, due: str, kind: str
) -> None:
    """Wherever the removal is when a redrive comes, the redrive skips the letter: it never says that it moved it."""
    results: list[RedriveResult] = []

    async def redrive() -> None:
        results.append(await bob.queue.redrive(TOPIC))

    at_request(ann, kind, "/dead-letter/", redrive)
    assert (await ann.queue.sweep(TOPIC)).removed_letters == 1
    assert (results[0].moved, results[0].skipped) == ([], [due])
    assert world.bucket.below("messages/") == left(world) == world.bucket.below("leases/") == []


@pytest.mark.parametrize("kind", ["HEAD", "DELETE"])
async def test_a_removal_that_was_cut_off_redrives_nothing(
    world: World, ann: Process, bob: Process, due: str, kind: Kind
) -> None:
    """A process that finds its lock overdue takes it away. The letter stays one until it is removed or redriven."""
    ann.client.inject("dies", kind, "*/dead-letter/*")
    with pytest.raises(Died):
        await ann.queue.sweep(TOPIC)
    assert len(world.bucket.below("leases/")) == 1
    assert (await bob.queue.redrive(TOPIC)).skipped == [due]
    await world.later(70)
    await limit(bob)
    await bob.queue.sweep(TOPIC)
    assert (left(world), world.bucket.below("leases/"), world.bucket.below("messages/")) == ([due], [], [])
    assert (await bob.queue.redrive(TOPIC)).moved == [due]


async def test_another_letter_under_the_same_uuid_stays(world: World, ann: Process, due: str) -> None:
    """It is another version, with a date of its own, which was not warned of."""

    async def overwrite() -> None:
        world.bucket.plant(dead_letters.key_of(TOPIC, due), '{"another":"one"}')

    at_request(ann, "HEAD", "/dead-letter/", overwrite)
    assert (await ann.queue.sweep(TOPIC)).removed_letters == 0
    assert left(world) == [due]


async def test_a_delete_that_fails_is_left_to_the_next_sweep(world: World, ann: Process, due: str) -> None:
    """The letter stays, and nothing else fails."""
    fault = ann.client.inject("denied", "DELETE", "*/dead-letter/*")
    report = await ann.queue.sweep(TOPIC)
    assert (report.removed_letters, len(report.failures), left(world)) == (0, 1, [due])
    assert fault.hits
    ann.client.heal()
    await world.later(70)
    report = await ann.queue.sweep(TOPIC)
    assert (report.finished_moves, report.removed_letters) == (1, 1)  # its lock was overdue


async def test_what_it_costs(world: World, ann: Process, due: str) -> None:
    """A sweep with letters near a limit reads the note. A removed letter costs a GET, a PUT and a HEAD."""
    await limit(ann, max_age_seconds=100 * DAY)
    with ann.client.counting() as idle:
        await ann.queue.sweep(TOPIC)
    await limit(ann, max_age_seconds=60)
    await ann.queue.sweep(TOPIC)
    await world.later(DAY + 10)
    with ann.client.counting() as removing:
        assert (await ann.queue.sweep(TOPIC)).removed_letters == 1
    more = {kind: removing[kind] - idle[kind] for kind in removing if removing[kind] != idle[kind]}
    assert more == {"GET": 2, "PUT": 1, "HEAD": 1, "DELETE": 3}


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        ({}, "pass max_age_seconds, max_count, or both"),
        ({"notice_seconds": 60}, "pass max_age_seconds, max_count, or both"),
        ({"max_cout": 5}, "it has no 'max_cout', only"),
        ({"max_count": 0}, "dead_letters.max_count"),
        ({"max_count": "5"}, "dead_letters.max_count"),
        ({"max_count": True}, "dead_letters.max_count"),
        ({"max_age_seconds": -1}, "dead_letters.max_age_seconds"),
        ({"max_age_seconds": float("nan")}, "dead_letters.max_age_seconds"),
        ({"max_count": 5, "notice_seconds": 1}, "dead_letters.notice_seconds"),
        (True, "pass a dict of max_age_seconds, max_count"),
        (5, "pass a dict of"),
    ],
)
async def test_wrong_limits_are_refused(ann: Process, wrong: Any, advice: str) -> None:  # noqa: ANN401 - anything
    """Each is one sentence that says what to pass instead."""
    for call in (ann.queue.update_topic, ann.queue.create_topic):
        with pytest.raises(ConfigError, match=advice):
            await call(TOPIC, dead_letters=wrong)


async def test_creating_a_topic_again_with_its_limits_changes_nothing(world: World, ann: Process) -> None:
    """Other limits are an error, as with every setting."""
    limits = DeadLetterLimits(max_count=5)
    made = await ann.queue.create_topic("new", dead_letters={"max_count": 5})
    before = world.bucket.snapshot()
    assert made.settings.dead_letters == limits
    assert (await ann.queue.create_topic("new", dead_letters={"max_count": 5})).settings.dead_letters == limits
    with pytest.raises(TopicExistsError, match="dead_letters"):
        await ann.queue.create_topic("new", dead_letters={"max_count": 6})
    assert world.bucket.snapshot() == before


async def test_what_an_earlier_version_does_keeps_them(world: World, ann: Process) -> None:
    """It keeps the fields that it does not know when it changes others, and today's version those of a later one."""
    await limit(ann, max_count=5)
    marker = json.loads(world.bucket.body(MARKER))
    marker["settings"]["dead_letters"]["later"] = 1
    world.bucket.plant(MARKER, marker)
    await ann.queue.update_topic(TOPIC, max_deliveries=3)
    after = json.loads(world.bucket.body(MARKER))
    assert after["settings"]["dead_letters"] == marker["settings"]["dead_letters"]
    assert after["limits_id"] == marker["limits_id"]
