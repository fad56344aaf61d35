"""``csprng_verify`` attacked: exclusive while its assumption holds, and never losing a message when it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import pytest

from airflow_provider_pawnqueue.engine.leases.cas import Step
from airflow_provider_pawnqueue.engine.leases.csprng_verify import CsprngVerify
from airflow_provider_pawnqueue.engine.records import Record
from airflow_provider_pawnqueue.engine.settings import RetrySettings
from airflow_provider_pawnqueue.engine.settings.sections import CsprngVerifySettings
from airflow_provider_pawnqueue.engine.store.port import Done, Expect
from airflow_provider_pawnqueue.engine.store.retry import ResilientStore
from tests.sim.duel import duel
from tests.sim.scenario import schedule
from tests.sim.weather import STORMY, Weather
from tests.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider_pawnqueue.engine.store.port import Outcome
    from tests.sim.processes import Process

#: Requests are refused, answered with errors, and their senders die and freeze; but none lands after its time-out.
FAIR = Weather(latency=0.02, busy=0.02, error=0.02, partial=0.05, kill=0.3, pause=0.4)
#: Some requests take seconds. They are answered, so it can be measured.
SLOW_BUT_ANSWERED = Weather(latency=0.05, lateness=3.0, late=0.2, busy=0.02, kill=0.2, pause=0.3)
#: Requests land when nobody counts on them any more: the assumption is broken, and nobody can measure it.
BROKEN = STORMY.times(1.5)
KEYS = tuple(f"orders/leases/{number}.lease" for number in range(3))


def registers(process: Process) -> CsprngVerify:
    """The strategy of one process, with the published library's parameters."""
    store = ResilientStore(process.store, RetrySettings(), process.clock)
    return CsprngVerify(store, process.clock, CsprngVerifySettings(), at_once=64)


def winners(world: World, expect: Sequence[str] | None = None) -> list[int]:
    """Let ten processes write the same registers, starting within a second; return how many won each of them."""

    async def contend(process: Process) -> list[Outcome]:
        await process.clock.sleep(world.stream(process.name).uniform(0, 1))
        versions = expect or [Expect.NOTHING] * len(KEYS)
        steps = [Step(key, Record(), version) for key, version in zip(KEYS, versions, strict=True)]
        return await registers(process).write(steps)

    async def scenario(world: World) -> list[list[Outcome]]:
        processes = [world.process(f"C{number}") for number in range(10)]
        tasks = [process.spawn(contend(process)) for process in processes]
        await world.until_idle()
        return [task.result() for task in tasks if task.done()]

    outcomes = world.run(scenario)
    return [sum(isinstance(one[position], Done) for one in outcomes) for position in range(len(KEYS))]


@pytest.mark.parametrize("replaced", [False, True])
def test_of_ten_contenders_one_wins(replaced: bool) -> None:  # noqa: FBT001 - a parameter
    """Of ten processes that create, or replace, one register at about one time, exactly one is told that it did."""
    for seed in range(150):
        world = World(seed, weather=Weather(latency=0.02), conditional=False, kept=0)
        versions = [world.bucket.plant(key, key.encode()) for key in KEYS] if replaced else None
        assert winners(world, versions) == [1, 1, 1], f"seed {seed}"


def test_in_bad_weather_never_two_win() -> None:
    """Where requests fail, or are slow and answered, one of ten wins or none: what cannot be known is not claimed."""
    for weather in (FAIR, SLOW_BUT_ANSWERED):
        for seed in range(150):
            world = World(seed, weather=weather, conditional=False, kept=0)
            assert max(winners(world)) <= 1, f"seed {seed}, {weather}"


def broken_promises(weather: Weather | None, arena: Callable[[World], list[str]], seeds: Sequence[int]) -> list[str]:
    """Run schedules on a store without conditions, and return what was broken."""
    broken = []
    for seed in seeds:
        broken += [f"seed {seed}: {one}" for one in arena(World(seed, weather=weather, conditional=False, kept=0))]
    return broken


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("weather", [FAIR, SLOW_BUT_ANSWERED])
def test_every_promise_is_kept_under_the_assumption(weather: Weather) -> None:
    """Leases, renewals, settlements and fences: everything that holds with conditional writes holds here too."""
    assert broken_promises(weather, schedule, range(400)) == []
    assert broken_promises(weather, lambda world: duel(world, weather), range(400)) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_without_the_assumption_nothing_is_lost() -> None:
    """Where requests land long after their time-out, a message may be delivered twice, and none is lost."""
    broken = broken_promises(BROKEN, schedule, range(600))
    assert [one for one in broken if "lost" in one] == []


def test_who_trusts_a_slow_put_is_caught() -> None:
    """Without the measurement of look to answer two processes win one register."""

    async def trusting(self: CsprngVerify, write: object) -> None:
        write.looked = self._clock.elapsed() + 1e9
        await original(self, write)

    original = CsprngVerify._put
    with mock.patch.object(CsprngVerify, "_put", trusting):
        worlds = (World(seed, weather=SLOW_BUT_ANSWERED, conditional=False, kept=0) for seed in range(150))
        assert any(max(winners(world)) > 1 for world in worlds)
