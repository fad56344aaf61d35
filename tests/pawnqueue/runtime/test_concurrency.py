"""Many requests at once, but not too many: in order, bounded, and ended together."""

from __future__ import annotations

import asyncio

import pytest

from pawnqueue.runtime.cancellation import finish_despite_cancellation
from pawnqueue.runtime.concurrency import SharedWork, for_each


class Work:
    """Items under way, which end when a test says so."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.cancelled: list[int] = []
        self.most_at_once = 0
        self.may_end = asyncio.Event()
        self._changed = asyncio.Event()

    @property
    def under_way(self) -> int:
        """How many have begun and not ended."""
        return len(self.begun) - len(self.ended) - len(self.cancelled)

    async def __call__(self, item: int) -> str:
        """Work until the test lets it end."""
        self.begun.append(item)
        self.most_at_once = max(self.most_at_once, self.under_way)
        self._changed.set()
        try:
            await self.may_end.wait()
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.append(item)
            raise
        self.ended.append(item)
        return f"result {item}"

    async def until_under_way(self, count: int) -> None:
        """Wait until so many are."""
        while self.under_way < count:
            self._changed.clear()
            await self._changed.wait()


@pytest.mark.parametrize("at_once", [1, 2, 7, 100, 1000])
async def test_results_are_in_the_items_order(at_once: int) -> None:
    """Whichever ends first, results are where their items were."""

    async def work(item: int) -> int:
        for _ in range((item * 7) % 5):
            await asyncio.sleep(0)
        return item * 2

    assert await for_each(work, range(100), at_once=at_once) == [item * 2 for item in range(100)]


@pytest.mark.parametrize("items", [0, 1])
async def test_few_items(items: int) -> None:
    """Nothing gives nothing, and one gives one."""
    work = Work()
    work.may_end.set()
    assert await for_each(work, range(items), at_once=5) == [f"result {item}" for item in range(items)]


async def test_no_more_are_under_way_than_allowed() -> None:
    """As many begin as may, and each that ends makes room for one."""
    work = Work()
    running = asyncio.ensure_future(for_each(work, range(20), at_once=4))
    await work.until_under_way(4)
    assert work.begun == [0, 1, 2, 3]
    work.may_end.set()
    await running
    assert work.most_at_once == 4
    assert work.ended == sorted(work.ended)


async def test_an_error_ends_the_others() -> None:
    """The first error is raised, once those under way have been cancelled; what waited never begins."""
    work = Work()
    failing = asyncio.Event()

    async def function(item: int) -> str:
        if item == 2:
            await failing.wait()
            raise ValueError("item 2")
        return await work(item)

    running = asyncio.ensure_future(for_each(function, range(20), at_once=4))
    await work.until_under_way(3)
    failing.set()
    with pytest.raises(ValueError, match="item 2"):
        await running
    assert (work.begun, sorted(work.cancelled), work.ended) == ([0, 1, 3], [0, 1, 3], [])
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_cancelling_it_cancels_all() -> None:
    """A caller that gives up waiting leaves nothing running."""
    work = Work()
    running = asyncio.ensure_future(for_each(work, range(20), at_once=4))
    await work.until_under_way(4)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (sorted(work.cancelled), work.under_way) == ([0, 1, 2, 3], 0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_an_error_waits_for_what_cannot_be_stopped() -> None:
    """Work that needs a moment to end after its cancellation has ended when the error is raised."""
    cleaned = []
    begun = asyncio.Event()

    async def function(item: int) -> None:
        if item:
            await begun.wait()
            raise ValueError("item 1")
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(10):
                await asyncio.sleep(0)
            cleaned.append(item)

    with pytest.raises(ValueError, match="item 1"):
        await for_each(function, range(2), at_once=2)
    assert cleaned == [0]


# --- shared ---


async def ended(*tasks: asyncio.Task[object]) -> list[object]:
    """What became of them."""
    return await asyncio.gather(*tasks, return_exceptions=True)


def ask(shared: SharedWork[str, str], work: Work, key: str = "a") -> asyncio.Task[str]:
    """Ask for the work."""
    return asyncio.create_task(shared.do(key, lambda: work(1)))


async def test_work_that_many_ask_for_is_done_once() -> None:
    """All get its result; a call after its end begins it anew, and other keys are other work."""
    shared, work = SharedWork[str, str](), Work()
    asked = [ask(shared, work) for _ in range(100)]
    other = ask(shared, work, "b")
    await work.until_under_way(2)
    assert shared.is_running("a")
    work.may_end.set()
    assert await ended(*asked) == ["result 1"] * 100
    await other
    assert len(work.begun) == 2
    assert not shared.is_running("a")
    await ask(shared, work)
    assert len(work.begun) == 3


async def test_an_error_of_shared_work_is_everybodys() -> None:
    """All callers that share it get the error."""
    shared = SharedWork[str, str]()

    async def fail() -> str:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    outcomes = await asyncio.gather(*(shared.do("a", fail) for _ in range(5)), return_exceptions=True)
    assert [type(one) for one in outcomes] == [ZeroDivisionError] * 5


async def test_who_is_cancelled_leaves_the_others_to_the_work() -> None:
    """It goes on while anybody waits, also where he who began it has gone."""
    shared, work = SharedWork[str, str](), Work()
    first, second, third = (ask(shared, work) for _ in range(3))
    await work.until_under_way(1)
    first.cancel()
    third.cancel()
    assert [type(one) for one in await ended(first, third)] == [asyncio.CancelledError] * 2
    assert work.under_way == 1
    work.may_end.set()
    assert await second == "result 1"


async def test_work_that_nobody_waits_for_is_ended() -> None:
    """When the last caller is cancelled the work ends before the call does, and the next call begins it anew."""
    shared, work = SharedWork[str, str](), Work()
    first, second = ask(shared, work), ask(shared, work)
    await work.until_under_way(1)
    first.cancel()
    second.cancel()
    await ended(first, second)
    assert work.cancelled == [1]
    assert not shared.is_running("a")
    third = ask(shared, work)
    work.may_end.set()
    assert await third == "result 1"


async def test_who_asks_after_a_new_beginning_shares_nothing_older() -> None:
    """What has begun goes on for those who share it, and the next one is another."""
    shared, work = SharedWork[str, str](), Work()
    first = ask(shared, work)
    await work.until_under_way(1)
    shared.stop_sharing("a")
    second = ask(shared, work)
    third = ask(shared, work)
    await work.until_under_way(2)
    work.may_end.set()
    await ended(first, second, third)
    assert len(work.ended) == 2


# --- in full ---


async def test_what_must_not_be_left_half_done_ends_before_its_caller() -> None:
    """However often he is cancelled; and only then is he."""
    work = Work()
    task = asyncio.create_task(finish_despite_cancellation(lambda: work(1)))
    await work.until_under_way(1)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    work.may_end.set()
    assert [type(one) for one in await ended(task)] == [asyncio.CancelledError]
    assert work.ended == [1]
    assert await finish_despite_cancellation(lambda: work(2)) == "result 2"


async def test_an_error_of_what_is_done_in_full_is_told() -> None:
    """It is raised, or, where the caller was cancelled, heard and dropped."""

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await finish_despite_cancellation(fail)
    task = asyncio.create_task(finish_despite_cancellation(fail))
    await asyncio.sleep(0)
    task.cancel()
    assert [type(one) for one in await ended(task)] == [asyncio.CancelledError]


def test_a_loop_that_ends_does_not_cut_it() -> None:
    """Where the loop cancels every task there is, the work is begun once more."""
    done = []

    async def work() -> None:
        await asyncio.sleep(0.01)
        done.append(1)

    async def main() -> None:
        task = asyncio.create_task(finish_despite_cancellation(work))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()

    asyncio.run(main())
    assert done == [1]


async def test_what_is_cancelled_again_and_again_from_within_is_given_up() -> None:
    """Work that cancels itself does not run for ever."""
    begun = []

    async def cancelled() -> None:
        begun.append(1)
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await finish_despite_cancellation(cancelled)
    assert len(begun) == 3
