"""The memory store, beyond what every adapter does: queues in several threads have one."""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from pawnqueue import MemoryStore
from pawnqueue.stores.port import Done, Expect

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS = 1500


@pytest.fixture
def _restless() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_restless")
def test_threads_have_one_store() -> None:
    """Each key is created by one of them, and a concurrent listing is not disturbed."""
    store, together = MemoryStore(), threading.Barrier(4)

    async def create(_: int) -> int:
        won = 0
        for number in range(KEYS):
            won += isinstance(await store.put(f"keys/{number}", b"{}", expect=Expect.NOTHING), Done)
            if number % 50 == 0:
                assert [len(page) async for page in store.pages("keys/")]
                assert await store.folders() == ["keys/"]
        return won

    def run(number: int) -> int:
        together.wait(20)
        return asyncio.run(create(number))

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(run, range(4))) == KEYS
