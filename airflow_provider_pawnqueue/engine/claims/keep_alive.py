"""Keep a claim in the background over long work, and tell when it is lost."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from airflow_provider_pawnqueue.engine.claims import keeping
from airflow_provider_pawnqueue.engine.errors import LeaseLostError, PawnQueueError

if TYPE_CHECKING:
    from airflow_provider_pawnqueue.engine.claims.claim import Claim
    from airflow_provider_pawnqueue.engine.context import Context

logger = logging.getLogger(__name__)


class KeepAlive:
    """Renews a claim in the background for the length of an ``async with`` block, and says when it is lost.

    ``.lost`` is set then, and ``on_lost`` called once, with the error; the block goes on, as only it knows how to stop.
    """

    def __init__(
        self,
        context: Context,
        claim: Claim,
        *,
        ttl: float,
        interval: float,
        on_lost: Callable[[LeaseLostError], Awaitable[None] | None] | None,
    ) -> None:
        self._context = context
        self._claim = claim
        self._ttl = ttl
        self._interval = interval
        self._on_lost = on_lost
        self._task: asyncio.Task[None] | None = None
        self.lost = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name=f"pawnqueue-keep-{self._claim.claim_id}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause = self._interval
        while True:
            await self._context.clock.sleep(max(0.0, min(pause, self._left())))
            if self._claim.state == "closed":
                return  # all is settled: there is nothing to keep
            try:
                await self._renew_in_time()
                pause = self._interval
            except LeaseLostError as error:
                await self._tell(error)
                return
            except PawnQueueError as error:
                # The claim is trusted until its deadline: try again soon, and give up only then.
                logger.warning("Claim %s could not be renewed and is tried again: %s", self._claim.claim_id, error)
                pause = self._interval / 4

    def _left(self) -> float:
        return self._claim.deadline - self._context.clock.elapsed()

    async def _renew_in_time(self) -> None:
        """Renew, but not for longer than the claim is trusted: a store that is silent must not delay the bad news."""
        renewal = asyncio.ensure_future(keeping.renew(self._context, self._claim, self._ttl))
        try:
            while not renewal.done():
                left = self._left()
                if left <= 0:
                    raise keeping.lost_error(self._claim, "its time was over before it was renewed")
                await _either(renewal, asyncio.ensure_future(self._context.clock.sleep(left)))
            await renewal
        finally:
            await _end(renewal)

    async def _tell(self, error: LeaseLostError) -> None:
        self.lost.set()
        if self._on_lost is not None:
            told = self._on_lost(error)
            if inspect.isawaitable(told):
                await told


async def _either(task: asyncio.Future[None], alarm: asyncio.Future[None]) -> None:
    """Wait until one of them is done; the alarm ends with that."""
    try:
        await asyncio.wait((task, alarm), return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _end(alarm)


async def _end(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
