"""Simulated processes die and sleep as real ones do: at any await, and without a word."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pawnqueue.stores.port import Done
from tests.sim.weather import CALM, Weather
from tests.sim.world import World

if TYPE_CHECKING:
    from tests.sim.processes import Process


def _ticking(world: World, name: str) -> tuple[Process, list[float]]:
    process, ticks = world.process(name), list[float]()

    async def tick() -> None:
        try:
            while True:
                await process.clock.sleep(1)
                await asyncio.sleep(0)
                ticks.append(world.loop.now)
                await process.store.put(f"{name}/{len(ticks)}", b"")
        finally:
            await process.store.put(f"{name}/last-words", b"")

    async def family() -> None:
        await asyncio.gather(tick(), asyncio.create_task(tick()))

    process.spawn(family())
    return process, ticks


def test_nothing_of_a_dead_process_happens() -> None:
    """Its tasks and those they made stop for ever, and no finally block reaches the bucket; others go on."""

    async def scenario(world: World) -> tuple[list[float], list[float]]:
        (dying, its_ticks), (_, ticks) = _ticking(world, "A"), _ticking(world, "B")
        await world.sleep(10.5)
        dying.kill()
        await world.sleep(10)
        assert dying.idle
        return its_ticks, ticks

    world = World(1, weather=CALM)
    its_ticks, ticks = world.run(scenario)
    assert max(its_ticks) < 10.5
    assert max(ticks) > 19
    assert not [key for key in world.bucket.below() if key.endswith("last-words")]


def test_what_a_dead_process_has_sent_still_lands() -> None:
    """Its requests under way do not know that it died."""

    async def scenario(world: World) -> None:
        process = world.process("A")
        process.spawn(process.store.put("x", b""))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        process.kill()
        assert "x" not in world.bucket.objects
        await world.calm()
        assert "x" in world.bucket.objects

    World(1, weather=Weather(late=1, lateness=45)).run(scenario)


@pytest.mark.parametrize("sent", [False, True])
def test_a_process_dies_at_a_request(sent: bool) -> None:  # noqa: FBT001 - a parameter
    """Just before it is sent, or just after: then it lands, and nobody hears of it."""

    async def write(process: Process, answered: list[int]) -> None:
        for number in range(10):
            await process.store.put(f"{number}", b"")
            answered.append(number)

    async def scenario(world: World) -> list[int]:
        process, answered = world.process("A"), list[int]()
        process.kill_at_request(4, sent=sent)
        process.spawn(write(process, answered))
        await world.until_idle()
        await world.calm()
        return answered

    world = World(1, weather=CALM)
    assert world.run(scenario) == [0, 1, 2]
    assert world.bucket.below() == ["0", "1", "2", "3"][: 4 if sent else 3]
    assert world.requests == world.bucket.requests_of("A") + (not sent)


def test_a_paused_process_finds_out_later() -> None:
    """What it sent lands, its answers and timers wait for the end of the pause, and its clock goes on meanwhile."""

    async def use(process: Process) -> tuple[bool, float]:
        before = process.clock.elapsed()
        outcome = await process.store.put("x", b"")
        return isinstance(outcome, Done), process.clock.elapsed() - before

    async def scenario(world: World) -> tuple[bool, float]:
        process = world.process("A")
        task = process.spawn(use(process))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        process.pause(60)
        await world.until(lambda: "x" in world.bucket.objects)
        assert world.loop.now < 5
        await world.sleep(30)
        assert not task.done()
        return await task

    outcomes = set()
    for seed in range(10):
        done, lasted = World(seed, weather=CALM).run(scenario)
        assert lasted == pytest.approx(60, abs=0.1)
        outcomes.add(done)
    # The answer had come, and the time-out was over: a process may find either first.
    assert outcomes == {True, False}


def test_a_machine_that_stands_still_loses_time() -> None:
    """Nothing of it runs, its clock is stopped, and sleepers sleep on; then it goes on as if nothing had happened."""

    async def use(process: Process, woken: list[tuple[float, float]]) -> None:
        for _ in range(4):
            await process.clock.sleep(10)
            woken.append((process.world.loop.now, process.clock.elapsed()))

    async def scenario(world: World) -> None:
        process, woken = world.process("A"), list[tuple[float, float]]()
        process.spawn(use(process, woken))
        began, wall = process.clock.elapsed(), process.clock.wall()
        await world.sleep(15)
        stood = process.clock.elapsed()
        process.stop_clock(60)
        await world.sleep(30)
        process.stop_clock(50)  # while it is stopped: until 95 in all
        await world.sleep(49.9)
        assert process.clock.elapsed() == stood
        await world.sleep(20)
        process.stop_clock(1)
        await world.until_idle()
        assert [at for at, _ in woken] == pytest.approx([10, 100, 110, 121], abs=0.1)
        assert [elapsed - began for _, elapsed in woken] == pytest.approx([10, 20, 30, 40], abs=0.1)
        assert process.clock.wall() - wall == pytest.approx(40, abs=0.1)

    World(1, weather=CALM).run(scenario)


def test_what_a_machine_that_stands_still_has_sent_lands() -> None:
    """Its requests go on, and it gets their answers afterwards."""

    async def scenario(world: World) -> None:
        process = world.process("A")
        task = process.spawn(process.store.put("x", b""))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        process.stop_clock(3)
        await world.until(lambda: "x" in world.bucket.objects)
        assert world.loop.now < 2
        assert isinstance(await task, Done)
        assert world.loop.now == 3

    World(1, weather=CALM).run(scenario)


def test_a_process_keeps_to_its_own() -> None:
    """The store of a process is refused to code that would not die with it, and a name is used once."""

    async def scenario(world: World) -> None:
        process, other = world.process("A"), world.process("B")
        with pytest.raises(RuntimeError, match="process A"):
            await process.store.get("x")
        with pytest.raises(RuntimeError, match="process A"):
            await other.spawn(process.clock.sleep(1))
        with pytest.raises(ValueError, match="already"):
            world.process("A")

    World(1).run(scenario)


def test_calm_ends_everything_that_goes_wrong() -> None:
    """Deaths and pauses to come are called off, and sleepers are waited for."""

    async def scenario(world: World) -> None:
        processes = [world.process(str(number)) for number in range(20)]
        for process in processes:
            process.trouble(1000, 1000)
        processes[0].pause(20)
        await world.calm()
        assert world.loop.now == 20
        await world.sleep(2000)
        assert all(process.alive for process in processes)
        assert not world.loop.held

    World(1, weather=Weather(kill=1, pause=1)).run(scenario)
