"""The drain of a queue: no new claims, handlers and consumers finish, and the rest is given back, all in its time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pawnqueue.errors import QueueDrainedError
from pawnqueue.events import QueueDrained
from pawnqueue.listening.report import Drained
from pawnqueue.listening.worker import Deadlines
from pawnqueue.runtime.cancellation import cancel_after
from pawnqueue.runtime.concurrency import all_of, for_each

if TYPE_CHECKING:
    from pawnqueue.claims import Claims
    from pawnqueue.claims.held import HeldClaim
    from pawnqueue.context import Context
    from pawnqueue.listening.worker import Worker

#: How long a drain takes at most by default. Kubernetes kills a process 30 seconds after its SIGTERM.
DRAIN_SECONDS: Final = 25.0
#: How long a worker takes to give back what it has after a second signal.
AT_ONCE_SECONDS: Final = 2.0


class Drain:
    """Of one open queue: its workers, and what was given back since its drain began."""

    def __init__(self, context: Context, claims: Claims) -> None:
        self._context = context
        self._claims = claims
        self._given_back: dict[str, None] = {}
        self.workers: list[Worker] = []

    def stop(self, deadlines: Deadlines) -> None:
        """End claims that wait, and have all workers end by these deadlines."""
        self._claims.stop_claiming(QueueDrainedError)
        for worker in self.workers:
            worker.stop(deadlines)

    async def run(self, deadlines: Deadlines, *, keep: bool) -> Drained:
        """Drain the queue, in which no new claims are made any more. It may be called again, with earlier deadlines.

        :param keep: leave claims whose ids were not made up for the next claims by their ids.
        """
        clock = self._context.clock
        self.stop(deadlines)
        workers = list(self.workers)
        seconds = max(0.0, deadlines.all - clock.elapsed())
        await cancel_after(self._give_back(workers, deadlines, keep=keep), clock, seconds)
        for worker in workers:
            self._note(worker.report.given_back)
        done = Drained(list(self._given_back), [claim.stem for claim in self._claims.held_now()])
        self._context.events.tell(QueueDrained(given_back=tuple(done.given_back), left=tuple(done.left)))
        return done

    async def _give_back(self, workers: Sequence[Worker], deadlines: Deadlines, *, keep: bool) -> None:
        async def of_others() -> None:
            await self._claims.until_stopped()
            await self._claims.until_unheld(deadlines.handlers, self._of_workers)
            ours = self._of_workers()
            rest = [claim for claim in self._claims.held_now() if claim not in ours]
            await for_each(give_back, rest, at_once=self._context.at_once)

        async def give_back(claim: HeldClaim) -> None:
            self._note(await self._claims.give_back(claim, keep=keep))

        await all_of(of_others(), *(worker.ended() for worker in workers))

    def _of_workers(self) -> set[HeldClaim]:
        return {claim for worker in self.workers for claim in worker.claims}

    def _note(self, ids: Sequence[str]) -> None:
        self._given_back.update(dict.fromkeys(ids))


async def end_workers(workers: Sequence[Worker], deadlines: Deadlines, context: Context) -> None:
    """Stop workers because their queue is being closed, and wait for them until the last deadline."""
    if not workers:
        return
    for worker in workers:
        worker.stop(deadlines)
    seconds = max(0.0, deadlines.all - context.clock.elapsed())
    await cancel_after(_all_ended(workers), context.clock, seconds)


async def _all_ended(workers: Sequence[Worker]) -> None:
    await asyncio.gather(*(worker.ended() for worker in workers))
