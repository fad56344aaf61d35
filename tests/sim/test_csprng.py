"""``csprng_verify`` attacked: exclusive while its assumption holds, and never losing a message when it does not."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from pawnqueue.domain.record import Record
from pawnqueue.errors import StoreError
from pawnqueue.registers.csprng_verify import CsprngVerify
from pawnqueue.registers.one_object import stored
from pawnqueue.registers.strategy import Step
from pawnqueue.settings import RetrySettings
from pawnqueue.settings.sections import CsprngVerifySettings
from pawnqueue.stores.port import Done, Expect, Refusal, Refused
from pawnqueue.stores.retry import ResilientStore
from tests.sim.csprng import BROKEN, FAIR, HARSH, KINDS, SLOW_BUT_ANSWERED
from tests.sim.prepared import WITHIN
from tests.sim.weather import Weather
from tests.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pawnqueue.stores.port import Outcome, StoredObject
    from tests.sim.processes import Process

SETTINGS = CsprngVerifySettings()
KEYS = tuple(f"orders/leases/{number}.lease" for number in range(3))

#: Seeds that once broke a promise, beyond and within the assumption: what they were found by, and why.
ONCE_BROKEN = (
    # A fence was read by a taker, and then overwritten by a session that had not seen it, and that won.
    (FAIR, "duel", (504, 3791)),
    # A lease's PUT landed seconds late, over one that was won; a claim by the id in it adopted it, or took it over.
    (SLOW_BUT_ANSWERED, "duel", (2111, 2254, 2491)),
    (SLOW_BUT_ANSWERED, "schedule", (415, 1637)),
    # A record's PUT, of a fence or a renewal, landed seconds late, over a renewal that was won.
    (SLOW_BUT_ANSWERED, "duel", (2379, 2859)),
    (SLOW_BUT_ANSWERED, "schedule", (1848, 2724)),
)


def registers(process: Process) -> CsprngVerify:
    """The strategy of one process, with the published library's parameters."""
    store = ResilientStore(process.store, RetrySettings(), process.clock)
    return CsprngVerify(store, process.clock, SETTINGS, at_once=64)


# --- registers ---

_NOT_WON = Refused(Refusal.CONDITION)


def winners(world: World, expect: Sequence[str] | None = None) -> list[int]:
    """Let ten processes write the same registers, starting within a second; return how many won each of them."""
    return [len(won) for won in winning_versions(world, expect)]


def winning_versions(world: World, expect: Sequence[str] | None = None) -> list[set[str]]:
    """Return the versions that were reported as winners, for each register."""

    async def contend(process: Process) -> list[Outcome]:
        await process.clock.sleep(world.stream(process.name).uniform(0, 1))
        versions = expect or [Expect.NOTHING] * len(KEYS)
        steps = [Step(key, Record(), version) for key, version in zip(KEYS, versions, strict=True)]
        with suppress(StoreError):
            return await registers(process).write(steps)
        return [_NOT_WON] * len(KEYS)

    async def scenario(world: World) -> list[list[Outcome]]:
        processes = [world.process(f"C{number}") for number in range(10)]
        tasks = [process.spawn(contend(process)) for process in processes]
        for process in processes:
            process.trouble(3, 8)
        await world.until_idle()
        await world.calm()
        return [task.result() for task in tasks if task.done()]

    outcomes = world.run(scenario)
    return [
        {one[position].version for one in outcomes if isinstance(one[position], Done)} for position in range(len(KEYS))
    ]


@pytest.mark.parametrize("replaced", [False, True])
def test_of_ten_contenders_one_wins(replaced: bool) -> None:  # noqa: FBT001 - a parameter
    """Of ten processes that create, or replace, one register at about one time, exactly one is answered that it did."""
    for seed in range(150):
        world = World(seed, weather=Weather(latency=0.02), conditional=False, kept=0)
        versions = [world.bucket.plant(key, key.encode()) for key in KEYS] if replaced else None
        assert winners(world, versions) == [1, 1, 1], f"seed {seed}"


def test_in_bad_weather_never_two_win() -> None:
    """Where requests fail, or are slow and answered, one of ten wins or none: what cannot be known is not claimed."""
    for weather in (FAIR, SLOW_BUT_ANSWERED):
        for seed in new_seeds(150):
            world = World(seed, weather=weather, conditional=False, kept=0)
            assert max(winners(world)) <= 1, f"seed {seed}, {weather}"


@pytest.mark.parametrize("weather", [FAIR, SLOW_BUT_ANSWERED, HARSH])
def test_what_was_won_stands(weather: Weather) -> None:
    """Under the assumption nobody overwrites what was won without having seen it, dead and frozen writers included."""
    for seed in new_seeds(150):
        world = World(seed, weather=weather, conditional=False, within=WITHIN, kept=0)
        for key, won in zip(KEYS, winning_versions(world), strict=True):
            assert len(won) <= 1, f"seed {seed}"
            assert not won or won == {world.bucket.objects[key].info.version}, f"seed {seed}"


@pytest.mark.parametrize("weather", [SLOW_BUT_ANSWERED, HARSH])
def test_the_world_keeps_the_assumption(weather: Weather) -> None:
    """Within the assumption, no PUT of a register lands later after its process's last look; otherwise some do."""

    def latest(seed: int, within: float | None) -> float:
        world = World(seed, weather=weather, conditional=False, within=within, kept=0)
        after_look = [0.0]

        def note(who: str, key: str, _: object, after: object) -> None:
            if who and after and key in KEYS:
                after_look.append(world.loop.now - world.processes[who].store._last_look(key))

        world.bucket.observers.append(note)
        winning_versions(world)
        return max(after_look)

    assert max(latest(seed, WITHIN) for seed in new_seeds(40)) <= WITHIN
    assert max(latest(seed, None) for seed in range(40)) > WITHIN


def readings(world: World) -> list[set[str]]:
    """Let processes read the registers that others write at that time; return the versions that were read of each."""
    read: list[set[str]] = [set() for _ in KEYS]

    async def look(process: Process) -> None:
        chance, strategy = world.stream(process.name), registers(process)
        while world.loop.now < 3:
            await process.clock.sleep(chance.uniform(0, 0.3))
            for position, key in enumerate(KEYS):
                with suppress(StoreError):
                    found = await strategy.read(key)
                    if found is not None:
                        read[position].add(found.info.version)

    for number in range(3):
        reader = world.process(f"R{number}")
        reader.spawn(look(reader))
    winning_versions(world)
    return read


@pytest.mark.parametrize("weather", [FAIR, SLOW_BUT_ANSWERED, HARSH])
def test_what_was_read_stands(weather: Weather) -> None:
    """Under the assumption nobody reads a value that is then overwritten by a writer that had not seen it."""
    for seed in new_seeds(100):
        world = World(seed, weather=weather, conditional=False, within=WITHIN, kept=0)
        for key, read in zip(KEYS, readings(world), strict=True):
            assert not read or read == {world.bucket.objects[key].info.version}, f"seed {seed}"


def test_beyond_the_assumption_what_was_won_is_overwritten() -> None:
    """The assumption is needed, and is all that distinguishes the worlds: without it some PUT lands too late."""
    overwritten = 0
    for seed in range(60):
        world = World(seed, weather=SLOW_BUT_ANSWERED, conditional=False, kept=0)
        won = winning_versions(world)
        overwritten += any(
            one and one != {world.bucket.objects[key].info.version} for key, one in zip(KEYS, won, strict=True)
        )
    assert overwritten


# --- the queue ---


def broken_promises(weather: Weather, arena: str, seeds: Iterable[int], *, within: float | None) -> list[str]:
    """Run schedules on a store without conditions, and return what was broken."""
    broken = []
    for seed in seeds:
        world = World(seed, weather=weather, conditional=False, within=within, kept=0)
        broken += [f"{arena}, seed {seed}: {one}" for one in KINDS[arena](world, weather)]
    return broken


def new_seeds(count: int) -> range:
    """Return seeds that were never used. What fails names its seed."""
    first = int.from_bytes(os.urandom(6))
    return range(first, first + count)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("weather", [FAIR, SLOW_BUT_ANSWERED, HARSH], ids=["fair", "slow", "harsh"])
@pytest.mark.parametrize("arena", KINDS)
def test_every_promise_is_kept_under_the_assumption(weather: Weather, arena: str) -> None:
    """Leases, renewals, settlements and fences: everything that holds with conditional writes holds here too."""
    assert broken_promises(weather, arena, new_seeds(3 if arena == "brawl" else 10), within=WITHIN) == []


def test_what_once_broke_a_promise_is_mended() -> None:
    """What was found keeps every promise under the assumption, and where no PUT was late, without it too."""
    for weather, arena, seeds in ONCE_BROKEN:
        assert broken_promises(weather, arena, seeds, within=WITHIN) == []
    weather, arena, seeds = ONCE_BROKEN[0]
    assert broken_promises(weather, arena, seeds, within=None) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("weather", "count"), [(BROKEN, 60), (HARSH, 20), (SLOW_BUT_ANSWERED, 20)])
def test_without_the_assumption_nothing_is_lost(weather: Weather, count: int) -> None:
    """Where requests land long after their time-out, a message may be delivered twice, and none is lost."""
    broken = broken_promises(weather, "schedule", new_seeds(count), within=None)
    assert [one for one in broken if "lost" in one] == []


# --- it can fail ---


def test_who_trusts_a_slow_put_is_caught() -> None:
    """Without the measurement of look to answer two processes win one register."""

    async def trusting(self: CsprngVerify, write: object) -> None:
        write.looked = self._clock.elapsed() + 1e9
        await original(self, write)

    original = CsprngVerify._put
    with mock.patch.object(CsprngVerify, "_put", trusting):
        worlds = (World(seed, weather=SLOW_BUT_ANSWERED, conditional=False, kept=0) for seed in range(150))
        assert any(max(winners(world)) > 1 for world in worlds)


async def read_at_once(self: CsprngVerify, key: str) -> StoredObject | None:
    """Read the stored value, also while another process may be about to overwrite it."""
    return await stored(self._store, key)


def test_who_reads_at_once_is_caught() -> None:
    """Without waiting whether it stays, a register is read that is then undone."""
    with mock.patch.object(CsprngVerify, "read", read_at_once):
        worlds = (World(seed, weather=FAIR, conditional=False, within=WITHIN, kept=0) for seed in range(20))
        assert any(len(read) > 1 for world in worlds for read in readings(world))
