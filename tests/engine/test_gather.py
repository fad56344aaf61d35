"""Many requests at once, but not too many: in order, bounded, and ended together."""

from __future__ import annotations

import asyncio

import pytest

from airflow_provider_pawnqueue.engine.gather import each


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

    assert await each(work, range(100), at_once=at_once) == [item * 2 for item in range(100)]


@pytest.mark.parametrize("items", [0, 1])
async def test_few_items(items: int) -> None:
    """Nothing gives nothing, and one gives one."""
    work = Work()
    work.may_end.set()
    assert await each(work, range(items), at_once=5) == [f"result {item}" for item in range(items)]


async def test_no_more_are_under_way_than_allowed() -> None:
    """As many begin as may, and each that ends makes room for one."""
    work = Work()
    running = asyncio.ensure_future(each(work, range(20), at_once=4))
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

    running = asyncio.ensure_future(each(function, range(20), at_once=4))
    await work.until_under_way(3)
    failing.set()
    with pytest.raises(ValueError, match="item 2"):
        await running
    assert (work.begun, sorted(work.cancelled), work.ended) == ([0, 1, 3], [0, 1, 3], [])
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_cancelling_it_cancels_all() -> None:
    """Whoever gives up waiting leaves nothing running."""
    work = Work()
    running = asyncio.ensure_future(each(work, range(20), at_once=4))
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
        await each(function, range(2), at_once=2)
    assert cleaned == [0]
