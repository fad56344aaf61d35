"""The engine's virtual bucket in an event loop whose time is virtual too: code that waits by asyncio waits in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from airflow_provider_pawnqueue.hooks.identity import Owner
from airflow_provider_pawnqueue.triggers.polling import Poll
from pawnqueue.domain.claim_terms import ClaimTerms
from tests.pawnqueue.virtual import TOPIC, Bucket, World
from tests.sim.loop import SimLoop
from tests.support.clock import EPOCH, VirtualClock

P = ParamSpec("P")


class LoopClock(VirtualClock):
    """A clock that shows its loop's time."""

    def elapsed(self) -> float:
        """See the port."""
        return asyncio.get_running_loop().time()

    def server(self) -> float:
        """The store's time."""
        return EPOCH + self.elapsed()

    async def sleep(self, seconds: float) -> None:
        """See the port."""
        await asyncio.sleep(seconds)


class LoopWorld(World):
    """A bucket with a topic, and the processes that use it."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = LoopClock()
        for key, (_, body) in self.bucket.snapshot().items():
            self.bucket.remove(key)
            self._first = (*getattr(self, "_first", ()), (key, body))
        self.bucket = Bucket(self.clock)
        for key, body in self._first:
            self.bucket.plant(key, body)


def virtual(
    test: Callable[Concatenate[LoopWorld, P], Coroutine[Any, Any, None]],
) -> Callable[P, None]:
    """Run a test in a world of its own, in virtual time."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def played() -> None:
            async with LoopWorld() as world:
                await test(world, *args, **kwargs)

        loop = SimLoop()
        try:
            loop.run_until_complete(played())
            errors = loop.unretrieved()
        finally:
            loop.abandon()
        assert not errors

    del run.__wrapped__  # type: ignore[attr-defined]  # pytest would ask for a fixture "world"
    return run


def owner(task: str = "claim", *, clear: int = 0, round_: int = 0) -> Owner:
    """A task of Airflow's."""
    return Owner("here", "dag", "run", task, clear_number=clear, round=round_)


def terms(task: str = "claim", *, clear: int = 0, **more: Any) -> ClaimTerms:
    """The terms of its claim."""
    return ClaimTerms(topic=TOPIC, owner=str(owner(task, clear=clear)), consumer="billing", **more)


async def waited(poll: Poll, asked: ClaimTerms) -> dict[str, Any]:
    """Wait for a claim as a trigger of one topic does, and return its reference."""
    waiter = poll.join(asked)
    try:
        await asyncio.wait((waiter.given,))
        found = waiter.take()
    finally:
        poll.leave(waiter)
    assert found is not None, "nobody has let it go"
    return found
