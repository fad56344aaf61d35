"""The simulated world itself: it repeats, its processes die and sleep as real ones do, and the engine runs in it."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pawnqueue import PawnQueue, StoreError
from tests.sim.bucket import EPOCH
from tests.sim.prepared import SETTINGS, establish
from tests.sim.weather import CALM, STORMY
from tests.sim.world import World

if TYPE_CHECKING:
    from tests.sim.processes import Process

ROOT = Path(__file__).parents[2]


# --- it repeats ---


async def _use_topics(process: Process) -> None:
    while True:
        try:
            async with PawnQueue.open(SETTINGS, store=process.store, clock=process.clock) as queue:
                for number in range(3):
                    await queue.create_topic(f"t{number}")
                    await queue.update_topic(f"t{number}", max_deliveries=number + 1)
                    await queue.register_consumer(f"{process.name}{number}")
                    await queue.list_topics()
                return
        except StoreError:
            await process.clock.sleep(1)


async def _troubled(world: World) -> None:
    establish(world.bucket, "t0")
    for name in "ABC":
        process = world.process(name)
        process.spawn(_use_topics(process))
        process.trouble(30, 100)
    await world.until_idle()
    await world.calm()


def digest_of_runs() -> str:
    """Run some troubled schedules, and return a digest of all that happened."""
    digest = hashlib.sha256()
    for seed in range(10):
        world = World(seed, weather=STORMY)
        world.run(_troubled)
        digest.update("\n".join(world.lines()).encode())
    return digest.hexdigest()


def test_a_seed_repeats_everything() -> None:
    """In other interpreters, in which strings hash otherwise, exactly the same happens."""
    program = "from tests.sim.test_world import digest_of_runs; print(digest_of_runs())"
    digests = {digest_of_runs()}
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment, cwd=ROOT, check=True, capture_output=True, text=True
        )
        digests.add(run.stdout.strip())
    assert len(digests) == 1


def test_another_seed_is_another_world() -> None:
    """Weather, delays and ids follow from the seed."""
    worlds = [World(seed) for seed in range(30)]
    for world in worlds:
        world.run(_troubled)
    assert len({"\n".join(world.lines()) for world in worlds}) == 30
    assert len({world.weather for world in (World(seed) for seed in range(30))}) > 2


def test_streams_do_not_shift_each_other() -> None:
    """More draws in one place leave all others as they were, and a process's nature does not depend on the others."""
    one, other = World(7), World(7)
    one.stream("x").random()
    other.process("B").clock.nonce()
    assert one.stream("y").random() == other.stream("y").random()
    assert one.process("A").clock.elapsed() == other.process("A").clock.elapsed()
    assert one.processes["A"].clock.uuid() == other.processes["A"].clock.uuid()


def test_a_failure_tells_how_to_repeat_it() -> None:
    """The seed, the weather and what happened last are in the error's notes."""

    async def fail(world: World) -> None:
        process = world.process("A")
        await process.spawn(process.store.put("some/key", b""))
        raise ValueError

    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the notes are what matters
        World(4711, weather=CALM).run(fail)
    note = "\n".join(raised.value.__notes__)
    assert "4711" in note
    assert "PUT some/key" in note


def test_an_error_that_nobody_asked_for_is_not_lost() -> None:
    """A task of a process that ends in an error fails the run."""

    async def fail() -> None:
        raise ValueError("of a background task")

    async def scenario(world: World) -> None:
        process = world.process("A")
        process.spawn(fail())
        await world.until_idle(process)

    with pytest.raises(ValueError, match="background"):
        World(1).run(scenario)


# --- waiting ---


def test_waiting_for_a_condition() -> None:
    """A predicate is asked at events; it may have an end, too."""

    async def scenario(world: World) -> None:
        process = world.process("A")
        process.spawn(process.store.put("x", b""))
        assert await world.until(lambda: "x" in world.bucket.objects)
        assert world.loop.now == world.events[-1][0]
        before = world.loop.now
        assert not await world.until(lambda: "y" in world.bucket.objects, at_most=7)
        assert world.loop.now == before + 7
        process.spawn(process.clock.sleep(10))
        assert not await world.until_idle(process, at_most=3)
        assert await world.until_idle(process, at_most=20)
        assert world.loop.now == pytest.approx(before + 17, abs=0.01)

    World(1, weather=CALM).run(scenario)


# --- clocks ---


def test_clocks_are_wrong_as_real_ones_are() -> None:
    """Dates differ by hours, speeds by parts of a million, and all of them run on."""

    async def scenario(world: World) -> None:
        clocks = [world.process(str(number)).clock for number in range(20)]
        walls, starts = [clock.wall() for clock in clocks], [clock.elapsed() for clock in clocks]
        assert max(walls) - min(walls) > 3600
        assert all(abs(wall - EPOCH) <= 12 * 3600 for wall in walls)
        await world.sleep(100_000)
        passed = [clock.elapsed() - start for clock, start in zip(clocks, starts, strict=True)]
        assert len(set(passed)) == 20
        assert 10 < max(abs(seconds - 100_000) for seconds in passed) <= 20.01

    World(1).run(scenario)


def test_ids_look_like_ids() -> None:
    """A uuid is of version 4, a nonce has 256 bits, and no two are the same."""
    clock = World(1).process("A").clock
    uuids, nonces = {clock.uuid() for _ in range(100)}, {clock.nonce() for _ in range(100)}
    assert len(uuids) == len(nonces) == 100
    assert all(re.fullmatch("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", u) for u in uuids)
    assert all(re.fullmatch("[0-9a-f]{64}", nonce) for nonce in nonces)
