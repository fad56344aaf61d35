"""The simulated store: in calm weather a store like any other, and what goes wrong goes wrong as it does in reality."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue.errors import StoreError
from pawnqueue.stores.port import Done, Expect, Refusal, Refused, Unknown
from tests.pawnqueue.stores.conformance import KEYS, ConcurrentConformance, ConditionalConformance, PlainConformance
from tests.sim.bucket import EPOCH
from tests.sim.weather import CALM, Weather
from tests.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from tests.sim.store import SimStore


def _calls() -> Iterator[Any]:
    for suite in (PlainConformance, ConditionalConformance, ConcurrentConformance):
        for name, test in inspect.getmembers(suite, inspect.iscoroutinefunction):
            wanted = inspect.signature(test).parameters
            if name == "test_the_time_of_a_write_is_told":
                continue  # it compares with the real time
            for key in KEYS if "key" in wanted else [None]:
                arguments = {"key": key, "bare_etags": False}
                given = {name: value for name, value in arguments.items() if name in wanted}
                yield pytest.param(suite, name, given, id=f"{name}-{key}" if key else name)


@pytest.mark.parametrize(("suite", "name", "given"), list(_calls()))
def test_it_conforms(suite: type, name: str, given: dict[str, Any]) -> None:
    """It passes the suite that every adapter passes, with small pages."""

    async def scenario(world: World) -> None:
        process = world.process("A")
        await process.spawn(getattr(suite(), name)(store=process.store, **given))

    World(1, weather=CALM, page_size=3).run(scenario)


def test_without_conditions_the_last_write_wins() -> None:
    """A store that does not mind conditions overwrites, whatever was expected."""

    async def overwrite(store: SimStore) -> None:
        await store.put("x", b"1")
        assert isinstance(await store.put("x", b"2", expect=Expect.NOTHING), Done)
        assert isinstance(await store.put("x", b"3", expect='"wrong"'), Done)

    world = World(1, weather=CALM, conditional=False)
    _in_one_process(world, overwrite)
    assert world.bucket.body("x") == b"3"


def test_equal_bodies_have_equal_versions() -> None:
    """An ETag identifies the body and not its writer: ABA is possible, as it is with S3."""

    async def write(store: SimStore) -> None:
        first = await store.put("x", b"1")
        await store.put("x", b"2")
        third = await store.put("x", b"1")
        assert first == third
        assert isinstance(first, Done)
        assert isinstance(await store.put("x", b"3", expect=first.version), Done)

    _in_one_process(World(1, weather=CALM), write)


def test_last_modified_is_in_whole_seconds_of_the_stores_time() -> None:
    """The time of landing counts, cut off and not rounded."""

    async def scenario(world: World) -> None:
        await world.sleep(1234.9)
        process = world.process("A")
        await process.spawn(process.store.put("x", b""))
        landed = next(when for when, _, what, _ in world.events if not isinstance(what, str))
        assert world.bucket.objects["x"].info.last_modified.timestamp() == int(EPOCH + landed)

    World(1, weather=CALM).run(scenario)


@pytest.mark.parametrize(
    ("weather", "applied", "soon"),
    [
        (Weather(busy=1), False, True),
        (Weather(vanished=1), False, None),
        (Weather(lost=1), True, False),
        (Weather(error=1), True, True),
        (Weather(dropped=1, lateness=0), True, True),
    ],
    ids=["busy", "vanished", "lost", "error", "dropped"],
)
def test_a_write_that_is_unknown(weather: Weather, applied: bool, soon: bool | None) -> None:  # noqa: FBT001 - parameters
    """The client cannot tell; soon, or when its patience has ended. What happened is another matter."""
    for seed in range(20):
        world = World(seed, weather=weather)

        async def write(store: SimStore, world: World = world) -> float:
            outcome = await store.put("x", b"")
            assert isinstance(outcome, Unknown)
            assert outcome.fault.transient
            heard = world.loop.now
            await world.calm()
            return heard

        heard = _in_one_process(world, write)
        assert (world.bucket.body("x") is not None) is applied
        assert soon is None or (heard < 2) is soon
        assert heard <= 5


def test_a_late_write_lands_after_its_client_gave_up() -> None:
    """It is unknown after five seconds, and there later; calm weather brings it in and adds none."""
    landed: list[float] = []

    async def write(store: SimStore, world: World) -> None:
        outcome = await store.put("x", b"")
        if isinstance(outcome, Unknown):
            assert world.loop.now == pytest.approx(5)
            assert world.bucket.body("x") is None
            await world.calm()
            assert world.bucket.body("x") is not None
            landed.append(world.loop.now)
            assert isinstance(await store.put("y", b""), Done)

    for seed in range(20):
        world = World(seed, weather=Weather(late=1, lateness=45))
        _in_one_process(world, lambda store, world=world: write(store, world))
    assert len(landed) > 10
    assert max(landed) > 30


def test_a_conflict_is_for_conditional_writes() -> None:
    """409 refuses without having looked, and nobody but a conditional write meets it."""

    async def write(store: SimStore) -> None:
        assert await store.put("x", b"", expect=Expect.NOTHING) == Refused(Refusal.CONFLICT)
        assert isinstance(await store.put("y", b""), Done)
        assert isinstance(await store.copy("y", "z"), Done)

    world = World(1, weather=Weather(conflict=1))
    _in_one_process(world, write)
    assert world.bucket.below() == ["y", "z"]


def test_a_bulk_delete_fails_in_part() -> None:
    """What is not reported is gone; of what is reported, some is gone and some is not."""
    reported_and_gone = reported_and_there = 0
    for seed in range(20):
        world = World(seed, weather=Weather(partial=1))
        keys = [f"d/{number}" for number in range(10)]
        for key in keys:
            world.bucket.plant(key, b"")

        async def delete(store: SimStore, keys: list[str] = keys) -> set[str]:
            return set(await store.delete(keys))

        reported, there = _in_one_process(world, delete), set(world.bucket.below())
        assert there <= reported
        reported_and_there += len(there)
        reported_and_gone += len(reported - there)
    assert reported_and_gone
    assert reported_and_there


@pytest.mark.parametrize("fault", ["busy", "vanished", "lost", "error", "dropped"])
def test_a_read_that_fails_raises(fault: str) -> None:
    """Every read ends in a transient error, and a bulk delete in one for each key."""

    async def read(store: SimStore) -> None:
        for call in (store.get("x"), store.head("x"), store.folders(), anext(store.pages(""))):
            with pytest.raises(StoreError) as raised:
                await call
            assert raised.value.transient
        failed = await store.delete(["a", "b"])
        assert [error.transient for error in failed.values()] == [True, True]

    _in_one_process(World(1, weather=Weather(**{fault: 1.0})), read)


def test_requests_are_counted() -> None:
    """By process and kind, each page of a listing by itself."""

    async def ask(store: SimStore) -> None:
        for number in range(7):
            await store.put(f"{number}", b"")
        await store.get("1")
        async for _ in store.pages(""):
            pass
        await store.delete([f"{number}" for number in range(7)])

    world = World(1, weather=CALM, page_size=3)
    _in_one_process(world, ask)
    assert world.bucket.requests == {("A", "PUT"): 7, ("A", "GET"): 1, ("A", "LIST"): 3, ("A", "DELETE"): 1}
    assert world.bucket.requests_of("A") == world.requests == 12


def test_observers_see_every_change() -> None:
    """The process that changed an object, and the object before and after."""
    seen: list[tuple[str, str, bytes | None, bytes | None]] = []
    world = World(1, weather=CALM)
    world.bucket.observers.append(
        lambda who, key, before, after: seen.append((who, key, before and before.body, after and after.body))
    )

    async def change(store: SimStore) -> None:
        await store.put("x", b"1")
        await store.put("x", b"2")
        await store.copy("x", "y")
        await store.delete(["x", "none"])

    _in_one_process(world, change)
    assert seen == [("A", "x", None, b"1"), ("A", "x", b"1", b"2"), ("A", "y", None, b"2"), ("A", "x", b"2", None)]


def _in_one_process(world: World, use: Callable[[SimStore], Coroutine[Any, Any, Any]]) -> Any:  # noqa: ANN401 - theirs
    async def scenario(world: World) -> Any:  # noqa: ANN401 - theirs
        process = world.process("A")
        return await process.spawn(use(process.store))

    return world.run(scenario)
