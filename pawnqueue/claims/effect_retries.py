"""Retries of effects that claims have decided and the store has not carried out, while their queue is open (§5.5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from pawnqueue.claims import settling
from pawnqueue.claims.set_aside import MAX_PAUSE_SECONDS
from pawnqueue.events import logger_of
from pawnqueue.runtime.cancellation import shield_and_wait

if TYPE_CHECKING:
    from pawnqueue.claims.held import HeldClaim
    from pawnqueue.context import Context

logger = logger_of("claims")

#: The first pause. Each following one is twice as long, up to the longest pause with which anything is tried again.
FIRST_RETRY_PAUSE_SECONDS = 2.0


class EffectRetries:
    """The claims of one open queue that have decided something which is not carried out.

    Without it, a message that was given back would be nobody's until its claim's time is over, which may be hours.
    """

    def __init__(self, context: Context, finished: Callable[[str], None]) -> None:
        """:param finished: called with a topic when all is carried out that one of its claims had decided."""
        self._context = context
        self._finished = finished
        self._tasks: dict[HeldClaim, asyncio.Task[None]] = {}

    def go_on_with(self, claim: HeldClaim) -> None:
        """Try again, with growing pauses, until all that the claim has decided is carried out."""
        if claim in self._tasks or not claim.is_unfinished():
            return
        task = asyncio.create_task(self._go_on(claim), name=f"pawnqueue-finish-{claim.stem}")
        self._tasks[claim] = task
        task.add_done_callback(lambda _: self._tasks.pop(claim, None))

    async def close(self) -> None:
        """Stop. What is under way ends first."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _go_on(self, claim: HeldClaim) -> None:
        context = self._context.with_budget()
        pause = FIRST_RETRY_PAUSE_SECONDS
        while claim.is_unfinished():
            await context.clock.sleep(context.clock.uniform(pause / 2, pause))
            pause = min(pause * 2, MAX_PAUSE_SECONDS)
            if not claim.is_unfinished():
                return  # another settlement has done it meanwhile
            try:
                await shield_and_wait(settling.carry_out_decided(context, claim, again=True), context.clock)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
                logger.warning("What claim %s has decided could not be carried out: %r", claim.claim_id, error)
        self._finished(claim.topic)
