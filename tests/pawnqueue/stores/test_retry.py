"""Trying again: what is repeated, how often, and what is never repeated."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from pawnqueue import MemoryStore, Settings
from pawnqueue.errors import RetryBudgetExceededError, StoreError
from pawnqueue.settings import RetrySettings
from pawnqueue.stores.connect import connect
from pawnqueue.stores.port import NO_VERSION, Done, Expect, ObjectInfo, Refusal, Refused, Unknown
from pawnqueue.stores.retry import ResilientStore
from tests.pawnqueue.opened import BUCKET
from tests.support.bucket import resume
from tests.support.clock import VirtualClock
from tests.support.faults import Dropped, Effect, Fault, FaultServer, MalformedBody, PartialDelete, Status
from tools.kit.stores import ALL, Answer, CarryOut, HookedStore, Request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from pawnqueue.stores.port import Store
    from tests.support.faults import RecordedRequest

BUSY = StoreError("The store is too busy.", transient=True, operation="GetObject")
DENIED = StoreError("The store denied it.", operation="GetObject")


class KeyByKey(MemoryStore):
    """A bucket whose listings have a key on each page."""

    async def pages(self, folder: str, *, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """See the port."""
        async for page in super().pages(folder, start_after=start_after):
            for info in page:
                yield [info]


class Failing(HookedStore):
    """A bucket whose next calls fail, once for each fault that is left in the list; puts and copies end unknown.

    A page is a call, and that there is no other is found out by one. A fault of a DELETE spares the last key.
    """

    def __init__(self, *faults: StoreError) -> None:
        super().__init__(KeyByKey())
        self.faults = list(faults)
        self.calls: list[str] = []
        self.deleted: list[list[str]] = []

    async def answer(self, request: Request, carry_out: CarryOut) -> Answer:
        """Fail if it is time to."""
        self.calls.append(request.call)
        if request.call == "delete":
            self.deleted.append(list(request.keys))
        fault = self.fault()
        if fault is None:
            return await carry_out()
        if request.call == "delete":
            await self.below.delete(request.keys[:-1])
            return {request.keys[-1]: fault}
        if request.call in ("put", "copy") and fault.transient:
            return Unknown(fault)
        raise fault

    def fault(self) -> StoreError | None:
        """Return what the next call meets."""
        return self.faults.pop(0) if self.faults else None


def resilient(store: Store, clock: VirtualClock | None = None, **retry: Any) -> ResilientStore:
    """Return the store with retries, in virtual time."""
    return ResilientStore(store, RetrySettings(**retry), clock or VirtualClock())


async def keys_of(store: Store, folder: str = "") -> list[str]:
    """List everything."""
    return [info.key async for page in store.pages(folder) for info in page]


READS = {
    "get": lambda store: store.get("a/x", ALL),
    "head": lambda store: store.head("a/x"),
    "folders": lambda store: store.folders(),
    "pages": keys_of,
}
every_read = pytest.mark.parametrize("name", READS)


@every_read
async def test_reads_are_repeated(name: str) -> None:
    """A read that failed for the moment is made again, until it says the same as an undisturbed one."""
    store = Failing(*[BUSY] * 5)
    await store.below.put("a/x", b"1")
    answer = await READS[name](resilient(store))
    assert store.faults == []
    assert answer == await READS[name](store)
    assert answer


@every_read
async def test_a_permanent_error_is_not_repeated(name: str) -> None:
    """An error that no repetition mends is raised as it is, after one attempt."""
    store = Failing(DENIED, BUSY)
    with pytest.raises(StoreError) as caught:
        await READS[name](resilient(store))
    assert caught.value is DENIED
    assert store.calls == [name]


@every_read
async def test_no_budget_is_one_attempt(name: str) -> None:
    """With retry.budget_seconds=0 the first error is the last, and is raised as it is."""
    store = Failing(BUSY, BUSY)
    with pytest.raises(StoreError) as caught:
        await READS[name](resilient(store, budget_seconds=0))
    assert caught.value is BUSY
    assert store.calls == [name]


@every_read
async def test_a_budget_ends(name: str) -> None:
    """After the budget comes an error that says what failed and how often it was tried, in one sentence."""
    store, clock = Failing(*[BUSY] * 100), VirtualClock()
    with pytest.raises(RetryBudgetExceededError) as caught:
        await READS[name](resilient(store, clock, budget_seconds=10))
    error = caught.value
    assert 2 < len(store.calls) < 100
    assert str(error).startswith("The store is too busy; given up after ")
    assert f"{store.calls.count(name)} attempts" in str(error)
    assert "retry.budget_seconds" in str(error)
    assert str(error).count(".") == 2
    assert (error.transient, error.operation, error.cause) == (True, "GetObject", BUSY)
    assert clock.now - 1000 < 10
    assert error.__suppress_context__


async def torn(request: Request, carry_out: CarryOut) -> Answer:
    """Show every object without a version, and read none: rclone's, after two writers at once."""
    if request.call == "get":
        raise BUSY
    answer = await carry_out()
    return replace(answer, version=NO_VERSION) if isinstance(answer, ObjectInfo) else answer


async def test_the_body_of_a_torn_object_is_nothing() -> None:
    """What no GET will ever read, and has no version, is read as nothing long before the budget ends."""
    store, clock = HookedStore(hook=torn), VirtualClock()
    await store.put("x", b"1")
    found = await resilient(store, clock, budget_seconds=1000).get("x", ALL)
    assert found is not None
    assert (found.body, found.info.version) == (b"", NO_VERSION)
    assert len(clock.slept) == 2


async def test_writes_are_never_repeated() -> None:
    """A put, conditional or not, is one attempt, whatever comes of it: only who sent it knows how to look for it."""
    for expect in (Expect.ANYTHING, Expect.NOTHING, '"0"'):
        store = Failing(BUSY)
        assert await resilient(store).put("x", b"1", expect=expect) == Unknown(BUSY)
        assert store.calls == ["put"]


async def test_an_overwrite_is_repeated_until_it_is_done() -> None:
    """Where the last write may win, an unknown one is sent again, and the version is that of the one answered."""
    store = Failing(BUSY, BUSY, BUSY)
    version = await resilient(store).overwrite("x", b"1")
    assert store.calls == ["put"] * 4
    found = await store.get("x", ALL)
    assert found is not None
    assert (found.body, found.info.version) == (b"1", version)
    with pytest.raises(RetryBudgetExceededError):
        await resilient(Failing(*[BUSY] * 100)).overwrite("x", b"1")
    with pytest.raises(StoreError) as caught:
        await resilient(Failing(DENIED)).overwrite("x", b"1")
    assert caught.value is DENIED


async def test_a_copy_is_repeated_while_it_is_unknown() -> None:
    """A copy ends done, refused for want of a source, or unknown after the budget; it never counts as done unseen."""
    store = Failing(BUSY, BUSY)
    await store.below.put("from", b"1")
    assert isinstance(await resilient(store).copy("from", "to"), Done)
    assert store.calls == ["copy"] * 3
    assert await resilient(Failing(BUSY)).copy("none", "to") == Refused(Refusal.MISSING)
    hopeless = Failing(*[BUSY] * 100)
    assert await resilient(hopeless, budget_seconds=5).copy("from", "to") == Unknown(BUSY)
    assert 1 < len(hopeless.calls) < 100
    with pytest.raises(StoreError) as caught:
        await resilient(Failing(DENIED)).copy("from", "to")
    assert caught.value is DENIED


async def test_a_delete_repeats_what_failed() -> None:
    """Only keys that were not confirmed are sent again; what is not there at the end is gone."""
    store = Failing(BUSY, BUSY)
    for key in "abc":
        await store.below.put(key, b"")
    assert await resilient(store).delete(["a", "b", "c"]) == {}
    assert store.deleted == [["a", "b", "c"], ["c"], ["c"]]
    assert await keys_of(store) == []


async def test_a_delete_reports_what_failed_to_the_end() -> None:
    """A key that could not be deleted is named with its error: at once where it is permanent, else after the budget."""
    store = Failing(DENIED)
    assert await resilient(store).delete(["a", "b"]) == {"b": DENIED}
    assert store.deleted == [["a", "b"]]
    failed = await resilient(Failing(*[BUSY] * 100), budget_seconds=3).delete(["a", "b"])
    assert isinstance(failed["b"], RetryBudgetExceededError)
    assert list(failed) == ["b"]


async def test_a_key_that_is_denied_for_good_is_not_sent_again_beside_others() -> None:
    """What no repetition mends is out of the way of what one does."""
    answers = iter([{"b": DENIED, "c": BUSY}, {"c": BUSY}, {}])
    sent: list[list[str]] = []

    async def delete(request: Request, _: CarryOut) -> Answer:
        sent.append(list(request.keys))
        return next(answers)

    assert await resilient(HookedStore(hook=delete)).delete(["a", "b", "c"]) == {"b": DENIED}
    assert sent == [["a", "b", "c"], ["c"], ["c"]]


async def test_pauses_are_random_and_grow_to_a_limit() -> None:
    """Each pause is drawn from nought to a ceiling that doubles up to the longest, by the clock's own chance."""
    clock = VirtualClock()
    store = resilient(Failing(*[BUSY] * 8), clock, initial_delay_seconds=0.1, max_delay_seconds=1, budget_seconds=1000)
    await store.head("x")
    assert clock.asked == [(0, ceiling) for ceiling in (0.1, 0.2, 0.4, 0.8, 1, 1, 1, 1)]
    assert len(set(clock.slept)) == 8
    assert all(slept <= high for slept, (_, high) in zip(clock.slept, clock.asked, strict=True))


async def test_the_same_chance_makes_the_same_pauses() -> None:
    """All of the jitter is the clock's: with its seed a simulation repeats itself."""
    slept = []
    for seed in (1, 1, 2):
        clock = VirtualClock(seed)
        await resilient(Failing(*[BUSY] * 5), clock).get("x", ALL)
        slept.append(clock.slept)
    assert slept[0] == slept[1] != slept[2]


async def test_a_smaller_budget_is_only_ever_smaller() -> None:
    """``with_budget`` may shorten the patience, never lengthen it, and does not close the store."""
    store = Failing(*[BUSY] * 200)
    clock = VirtualClock()
    patient = resilient(store, clock, budget_seconds=5)
    for asked, most in ((2, 2), (50, 5)):
        before = clock.now
        with pytest.raises(RetryBudgetExceededError):
            await patient.with_budget(asked).get("x", ALL)
        assert clock.now - before < most
    await patient.with_budget(1).aclose()
    assert not store.closed
    await patient.aclose()
    assert store.closed


async def test_whoever_watches_is_told_the_dates_of_what_is_shown() -> None:
    """GET and HEAD tell an object's, a page of a listing the latest of its own; copies with another budget tell too."""
    store, told = MemoryStore(), list[datetime]()
    for number, key in enumerate("abc"):
        await store.put(key, b"")
        info = replace(store._objects[key].info, last_modified=_date(7 * (number + 1) % 4))
        store._objects[key] = replace(store._objects[key], info=info)
    watched = resilient(store)
    early = watched.with_budget(1)
    watched.watch(told.append)
    await watched.get("a", ALL)
    await watched.head("b")
    assert told == [_date(3), _date(2)]
    for one in (early, watched.with_budget(1)):
        told.clear()
        await keys_of(one)
        assert told == [_date(3)]
    told.clear()
    assert await watched.get("none", ALL) is await watched.head("none") is None
    assert await keys_of(watched, "none/") == []
    assert told == []


def _date(second: int) -> datetime:
    return datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)


async def test_a_store_of_the_callers_is_not_closed() -> None:
    """A store that was handed in stays open."""
    store = Failing()
    await ResilientStore(store, RetrySettings(), VirtualClock(), owned=False).aclose()
    assert not store.closed


async def test_a_listing_goes_on_where_it_broke_off() -> None:
    """Wherever a listing breaks, and however often, every key comes once and in order."""
    for failing_calls in itertools.product((False, True), repeat=6):
        store = Failing()
        for number in range(5):
            await store.below.put(f"k/{number}", b"")
        pattern = iter(failing_calls)
        store.fault = lambda pattern=pattern: BUSY if next(pattern, False) else None  # type: ignore[method-assign]
        assert await keys_of(resilient(store), "k/") == [f"k/{number}" for number in range(5)]


async def test_a_slow_reader_of_a_listing_keeps_its_budget() -> None:
    """What the caller does between two pages is not counted: a page that fails after that is asked for again."""
    store, clock = Failing(), VirtualClock()
    for key in "abc":
        await store.below.put(key, b"")
    found = []
    async for page in resilient(store, clock, budget_seconds=10).pages(""):
        found += [info.key for info in page]
        clock.now += 3600
        store.faults = [BUSY] if len(found) == 1 else []
    assert found == ["a", "b", "c"]


async def test_each_page_has_a_budget_of_its_own() -> None:
    """A long listing through a bad hour succeeds, as the budget counts only time without progress."""
    store, clock = Failing(), VirtualClock()
    for number in range(50):
        await store.below.put(f"{number:02d}", b"")
    pattern = itertools.cycle([BUSY, BUSY, None])
    store.fault = lambda: next(pattern)  # type: ignore[method-assign]
    patient = resilient(store, clock, budget_seconds=5, initial_delay_seconds=1, max_delay_seconds=1)
    assert len(await keys_of(patient)) == 50
    assert clock.now > 1005


# --- through the real clients ---


@pytest.fixture(params=["obstore", "boto3"])
async def client(request: pytest.FixtureRequest, server: FaultServer) -> AsyncIterator[ResilientStore]:
    """Each client of the server's bucket, with retries in virtual time."""
    s3 = server.s3.address(BUCKET, client=request.param, key_prefix="p/")
    store = resilient(connect(Settings(s3=s3).s3))
    yield store
    await store.aclose()


def _begins_behind(key: str) -> Callable[[RecordedRequest], bool]:
    def concerns(request: RecordedRequest) -> bool:
        token = request.query.get("continuation-token")
        return (resume(token) if token else request.query.get("start-after")) == key

    return concerns


@pytest.mark.parametrize("effect", [Status(503, "SlowDown"), Dropped(), MalformedBody()], ids=str)
async def test_a_real_listing_goes_on_where_it_broke_off(
    server: FaultServer, client: ResilientStore, effect: Effect
) -> None:
    """Of 2,600 objects every one is listed once, in order, though the second page fails three times."""
    keys = [f"k/{number:04d}" for number in range(2600)]
    for key in keys:
        server.put_object(BUCKET, f"p/{key}", b"")
    hit = server.inject(Fault(effect, operation="ListObjectsV2", where=_begins_behind("p/k/0999"), times=3))
    assert await keys_of(client, "k/") == keys
    assert hit.hits == 3


async def test_a_real_listing_survives_a_storm(server: FaultServer, client: ResilientStore) -> None:
    """Every key is listed once though half of all requests fail."""
    keys = [f"k/{number:04d}" for number in range(2600)]
    for key in keys:
        server.put_object(BUCKET, f"p/{key}", b"")
    server.inject(Fault(Status(503, "SlowDown"), probability=0.5))
    for _ in range(2):
        assert await keys_of(client, "k/") == keys


async def test_a_real_delete_is_repeated_until_all_is_gone(server: FaultServer, client: ResilientStore) -> None:
    """Keys that a bulk delete left are deleted by the next, and nothing else is touched."""
    for number in range(20):
        server.put_object(BUCKET, f"p/d/{number:02d}", b"")
    server.put_object(BUCKET, "p/other", b"")
    spared = server.inject(Fault(PartialDelete("*/*1*", "InternalError"), operation="DeleteObjects", times=2))
    assert await client.delete([f"d/{number:02d}" for number in range(20)]) == {}
    assert list(server.objects(BUCKET)) == ["p/other"]
    assert spared.hits == 2


async def test_a_real_delete_reports_what_is_left(server: FaultServer, client: ResilientStore) -> None:
    """A key that is denied for good is named once, at once and alone: it keeps no other, and is not tried again."""
    for number in range(4):
        server.put_object(BUCKET, f"p/d/{number}", b"")
    server.inject(Fault(PartialDelete("*/2", "AccessDenied"), operation="DeleteObjects"))
    failed = await client.delete([f"d/{number}" for number in range(4)])
    assert list(failed) == ["d/2"]
    assert not failed["d/2"].transient
    assert list(server.objects(BUCKET)) == ["p/d/2"]
    assert len(server.requests) <= 2


async def test_a_real_delete_converges_though_many_keys_fail(server: FaultServer, client: ResilientStore) -> None:
    """Each of 200 keys fails with a chance of 30 % in each request: all are gone after a few rounds."""
    keys = [f"d/{number:03d}" for number in range(200)]
    for key in keys:
        server.put_object(BUCKET, f"p/{key}", b"")
    server.inject(Fault(PartialDelete(chance=0.3), operation="DeleteObjects"))
    assert await client.delete(keys) == {}
    assert server.objects(BUCKET) == {}
    assert len(server.requests) <= 12
