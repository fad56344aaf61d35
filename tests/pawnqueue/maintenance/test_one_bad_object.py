"""A fault of one object concerns that object: a sweep goes on with all others, and tells what it could not do."""

from __future__ import annotations

import json
import logging

import pytest

from pawnqueue import StoreError
from pawnqueue.catalog import letters, units
from pawnqueue.domain import layout
from tests.pawnqueue.maintenance.swept import AN_HOUR, OTHER, UUID, abandoned, abandoned_under, orphan, report
from tests.pawnqueue.virtual import TOPIC, Effect, Kind, Process, World, numbered, numbers


def newer(world: World, key: str) -> None:
    """Write an object anew, as a version of ours would that does not exist yet."""
    body = world.bucket.body(key)
    changed = json.dumps({**json.loads(body), "v": 99}).encode()
    size = next(size for size in range(len(body), 10_000, 64) if size >= len(changed))
    world.bucket.plant(key, changed.ljust(size))  # LIST tells of it what it did before


@pytest.mark.parametrize("effect", ["lost", "denied"])
@pytest.mark.parametrize("kind", ["GET", "PUT"])
async def test_a_record_that_cannot_be_read_or_written_stops_no_other(
    world: World, ann: Process, kind: Kind, effect: Effect, caplog: pytest.LogCaptureFixture
) -> None:
    """The claims beside it are finished; it is reported by its key and logged once, and finished by the next sweep."""
    await abandoned_under(world, "a", "b", "c")
    await world.later()
    ann.client.inject(effect, kind, "*/claims/b.0.json")
    with caplog.at_level(logging.WARNING):
        report_ = await ann.queue.sweep(TOPIC)
    assert [world.bucket.record(f"{one}.0").state for one in "abc"] == ["closed", "open", "closed"]
    assert (report_.finished_effects, report_.given_back, report_.closed_claims) == (2, 2, 2)
    [failure] = report_.failures
    assert failure.startswith(f"{TOPIC}/claims/b.0.json: ")
    [line] = [one for one in caplog.records if "b.0.json" in one.getMessage()]
    assert line.levelname == "WARNING"
    ann.client.heal()
    assert await ann.queue.sweep(TOPIC) == report(fenced_claims=1, finished_effects=1, given_back=1, closed_claims=1)


@pytest.mark.parametrize("effect", ["lost", "denied"])
@pytest.mark.parametrize("kind", ["GET", "PUT"])
async def test_a_lease_that_cannot_be_read_or_written_stops_no_other(
    world: World, ann: Process, kind: Kind, effect: Effect
) -> None:
    """The other messages of its own claim are given back, and its claim is closed when it is given back too."""
    await abandoned(world)
    [first, *_] = [one.id for name in world.bucket.below("messages/") if (one := units.parse(name))]
    await world.later()
    ann.client.inject(effect, kind, f"*/leases/{first}.lease")
    report_ = await ann.queue.sweep(TOPIC)
    assert (report_.given_back, report_.closed_claims, len(report_.failures)) == (5, 0, 1)
    [(stuck, why)] = report_.stuck.items()
    assert first in stuck
    assert why in report_.failures[0]
    assert report_.failures[0].startswith(f"{stuck}: ")
    ann.client.heal()
    assert await ann.queue.sweep(TOPIC) == report(given_back=1, closed_claims=1)
    assert numbers(await ann.queue.claim(TOPIC, "d")) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("effect", ["lost", "denied"])
@pytest.mark.parametrize(("kind", "folder"), [("GET", "leases"), ("HEAD", "messages"), ("DELETE", "leases")])
async def test_an_orphan_that_cannot_be_judged_or_removed_stops_no_other(
    world: World, ann: Process, kind: Kind, folder: str, effect: Effect
) -> None:
    """Its lease stays, and is reported by its key."""
    keys = [orphan(world, one) for one in (UUID, OTHER)]
    ann.client.inject(effect, kind, f"*/{folder}/*{UUID}*")
    report_ = await ann.queue.sweep(TOPIC)
    assert report_.removed_leases == 1
    assert [failure.partition(": ")[0] for failure in report_.failures] == [keys[0]]
    ann.client.heal()
    assert await ann.queue.sweep(TOPIC) == report(removed_leases=1)


@pytest.mark.parametrize("effect", ["lost", "denied"])
async def test_an_orphan_of_a_claim_that_cannot_be_read_stops_no_other(
    world: World, ann: Process, effect: Effect
) -> None:
    """Whether it is free nobody can tell; the orphans of other claims are removed."""
    await ann.queue.publish(TOPIC, numbered(2))
    for claim_id in ("a", "b"):
        await ann.queue.claim(TOPIC, "c", max_messages=1, claim_id=claim_id)
    world.bucket.remove(*(units.key_of(TOPIC, name) for name in world.bucket.below("messages/")))
    await world.later()
    ann.client.inject(effect, "GET", "*/claims/a.0.json")
    report_ = await ann.queue.sweep(TOPIC)
    assert report_.removed_leases == 1
    assert [failure.partition(": ")[0] for failure in report_.failures] == [f"{TOPIC}/claims/a.0.json"]
    ann.client.heal()
    assert (await ann.queue.sweep(TOPIC)).removed_leases == 1


async def test_objects_of_a_newer_format_stop_no_other(world: World, ann: Process) -> None:
    """A record and a lease of a version to come are left as they are, and reported."""
    await abandoned_under(world, "a", "b")
    theirs = [layout.claim(TOPIC, "a.0"), orphan(world, UUID)]
    for key in theirs:
        newer(world, key)
    orphan(world, OTHER)
    await world.later()
    before = world.bucket.snapshot()
    report_ = await ann.queue.sweep(TOPIC)
    assert (report_.closed_claims, report_.removed_leases) == (1, 1)
    assert [failure.partition(": ")[0] for failure in report_.failures] == theirs
    assert all("format 99" in failure for failure in report_.failures)
    assert {key: world.bucket.snapshot()[key] for key in theirs} == {key: before[key] for key in theirs}


@pytest.mark.parametrize("effect", ["lost", "denied"])
async def test_a_reason_that_cannot_be_judged_stops_no_other(world: World, ann: Process, effect: Effect) -> None:
    """The other leftovers are removed."""
    for uuid in (UUID, OTHER):
        world.bucket.plant(letters.reason_key_of(TOPIC, uuid), "{}")
    await world.later(AN_HOUR + 10)
    ann.client.inject(effect, "HEAD", f"*{UUID}*")
    report_ = await ann.queue.sweep(TOPIC)
    assert report_.removed_leftovers == 1
    assert [failure.partition(": ")[0] for failure in report_.failures] == [letters.reason_key_of(TOPIC, UUID)]


@pytest.mark.parametrize("effect", ["lost", "denied"])
async def test_a_move_that_cannot_be_finished_stops_no_other(world: World, ann: Process, effect: Effect) -> None:
    """The other dead letter comes back, and what is swept after the moves is swept."""
    await ann.queue.publish(TOPIC, numbered(2))
    await ann.queue.nack(await ann.queue.claim(TOPIC, "c"))
    bob = await world.process()
    bob.client.inject("lost", "COPY")
    await bob.queue.redrive(TOPIC)
    first = world.bucket.below("dead-letter/")[0]
    world.bucket.plant(letters.reason_key_of(TOPIC, UUID), "{}")
    await world.later(AN_HOUR + 70)
    ann.client.inject(effect, "HEAD", f"*/{first}")
    report_ = await ann.queue.sweep(TOPIC)
    assert (report_.finished_moves, report_.removed_leftovers, len(report_.failures)) == (1, 1, 1)
    ann.client.heal()
    assert await ann.queue.sweep(TOPIC) == report(finished_moves=1)


@pytest.mark.parametrize("count", [10, 300])
async def test_objects_that_are_stuck_cost_a_sweep_seconds(world: World, ann: Process, count: int) -> None:
    """Whether ten or hundreds of them answer 500 for ever: no object is worth minutes of the others' time."""
    stuck = [f"{number:08d}-2222-4333-8444-555555555555" for number in range(count)]
    for uuid in stuck:
        orphan(world, uuid)
    await abandoned_under(world, *(f"stuck-{number}" for number in range(10)))
    await world.later()
    ann.client.inject("lost", "GET", "*-2222-4333-*")
    ann.client.inject("lost", "GET", "*/stuck-*")
    started = world.clock.elapsed()
    report_ = await ann.queue.sweep(TOPIC)
    assert world.clock.elapsed() - started < 15
    assert len(report_.failures) == count + 10


async def test_effects_that_cannot_be_finished_are_told_by_message(world: World, ann: Process) -> None:
    """What was decided of which message, and why it is not done: in the report of every sweep, until it is."""
    await abandoned(world, acked=2, buried=1)
    await world.later()
    acked, _, dead = (units.key_of(TOPIC, name) for name in world.bucket.below("messages/")[:3])
    ann.client.inject("denied", "DELETE", acked)
    ann.client.inject("denied", "COPY")
    for expected in ({"finished_effects": 1, "given_back": 3, "fenced_claims": 1}, {"finished_effects": 1}):
        report_ = await ann.queue.sweep(TOPIC)
        assert set(report_.stuck) == {acked, dead}
        assert "DELETE" in report_.stuck[acked]
        assert "COPY" in report_.stuck[dead]
        assert sorted(one.partition(": ")[0] for one in report_.failures) == [acked, dead]
        assert "it is acked by claim left.0" in " ".join(report_.failures)
        assert report_ == report(**expected, stuck=report_.stuck, failures=report_.failures)
    assert numbers(await ann.queue.claim(TOPIC, "d")) == [3, 4, 5]
    ann.client.heal()
    assert await ann.queue.sweep(TOPIC) == report(finished_effects=3, closed_claims=1)


@pytest.mark.parametrize("folder", ["leases", "messages", "claims", "dead-letter"])
async def test_an_outage_ends_the_sweep(ann: Process, folder: str) -> None:
    """A LIST that fails is no fault of one object: nothing is known, and the sweep says so."""
    ann.client.inject("lost", "LIST", f"{TOPIC}/{folder}/")
    with pytest.raises(StoreError):
        await ann.queue.sweep(TOPIC)
