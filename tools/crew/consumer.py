"""A consumer: ``python -m tools.crew.consumer``, in a folder with its job. It writes down whatever it believes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pawnqueue import Claim, Message, PawnQueue, PawnQueueError, Settlement
from pawnqueue.claims.held import HeldClaim
from pawnqueue.runtime.clock import SystemClock
from pawnqueue.stores.connect import connect
from tools.crew.jobs import DIARY, Consuming
from tools.crew.orders import can_be_fulfilled
from tools.crew.stopping import told_to_stop
from tools.kit.history import Diary
from tools.kit.settlements import settlement_of
from tools.kit.stores import CountingStore

logger = logging.getLogger(__name__)

#: How long one call looks for messages; the consumer asks itself between two whether to go on.
LOOK = 2.0
#: How long it leaves the store alone after a failure.
BREATHER = 0.2
#: How much longer than it may, a saboteur trusts a claim.
OVERSTAY = 3600.0


class Consumer:
    """Claims, works, acks and buries, and keeps a diary of it, by the clock that claims are timed with."""

    def __init__(self, job: Consuming, queue: PawnQueue, store: CountingStore, diary: Diary) -> None:
        self._job = job
        self._queue = queue
        self._store = store
        self._diary = diary
        self._clock = SystemClock()
        self._in_vain = 0
        self._forgetful = job.sabotage == "forget-ack"

    async def run(self, stop: asyncio.Event) -> None:
        """Consume until told to stop; what was begun by then is finished."""
        while not stop.is_set():
            try:
                await self._take_a_batch()
            except PawnQueueError as error:
                logger.warning("%s", error)
                await asyncio.sleep(BREATHER)
        self._note("dropped", ids=[], ended=True)

    async def _take_a_batch(self) -> None:
        job = self._job
        begun, before = self._clock.elapsed(), self._store.total
        claim = await self._queue.claim(job.topic, job.name, max_messages=job.batch, ttl=job.ttl, wait=LOOK)
        if not claim:
            self._in_vain += self._store.total - before
            return
        with self._holding(claim, begun):
            async with self._queue.keep_alive(claim, ttl=job.ttl):
                done, hopeless = await self._work(claim)
            if hopeless:
                await self._settle(claim, lambda: self._queue.nack(claim, hopeless, reason="it orders nothing"))
            if done:
                await self._ack(claim, done)

    async def _work(self, claim: Claim) -> tuple[list[str], list[str]]:
        """Fulfil one order after the other, as long as they are ours; return what can be acked and what cannot."""
        done: list[str] = []
        hopeless: list[str] = []
        trusted = HeldClaim.of(claim, "demo").trusted_until()
        for message in claim:
            await self._fulfil(message)
            if HeldClaim.of(claim, "demo").trusted_until() != trusted:
                trusted = HeldClaim.of(claim, "demo").trusted_until()
                self._note("renewed", claim, deadline=self._believed(claim))
            # Time may have passed unnoticed: a signal that stops this process stops its renewals too.
            if self._clock.elapsed() >= self._believed(claim):
                break
            (done if can_be_fulfilled(message.payload) else hopeless).append(message.id)
        return done, hopeless

    async def _fulfil(self, message: Message) -> None:
        del message
        if self._job.seconds_per_order:
            await asyncio.sleep(self._job.seconds_per_order)

    async def _ack(self, claim: Claim, ids: Sequence[str]) -> None:
        if self._forgetful:
            self._forgetful = False
            await self._queue.ack(claim, ids[:1])
            ids = ids[1:]
        self._note("acking", claim, ids=ids)
        await self._settle(claim, lambda: self._queue.ack(claim, ids))

    async def _settle(self, claim: Claim, ask: Callable[[], Awaitable[Settlement]]) -> None:
        settlement = await settlement_of(ask())
        while settlement.unknown:
            await asyncio.sleep(BREATHER)
            settlement = await settlement_of(ask())
        if settlement.acked:
            self._note("settled", claim, how="acked", ids=settlement.acked)
        if settlement.buried:
            self._note("settled", claim, how="dead", ids=settlement.buried)
        if settlement.lost:
            self._note("dropped", claim, ids=settlement.lost, refused=len(settlement.lost))

    @contextmanager
    def _holding(self, claim: Claim, begun: float) -> Iterator[None]:
        self._note("held", claim, begun=begun, ids=claim.ids, deadline=self._believed(claim))
        try:
            yield
        finally:
            self._note("dropped", claim)

    def _believed(self, claim: Claim) -> float:
        return HeldClaim.of(claim, "demo").trusted_until() + (OVERSTAY if self._job.sabotage == "overstay" else 0.0)

    def _note(self, event: str, claim: Claim | None = None, **details: Any) -> None:
        if claim is not None:
            details |= {"claim": claim.claim_id, "session": claim.session}
        self._diary.write(event, at=self._clock.elapsed(), requests=self._store.total, in_vain=self._in_vain, **details)


async def consume(job: Consuming) -> None:
    """Open the queue by a store that counts, and consume."""
    settings = job.settings
    stop = told_to_stop()
    store = CountingStore(await asyncio.to_thread(connect, settings.s3))
    diary = Diary(Path(DIARY), job.name)
    async with PawnQueue.open(settings, store=store) as queue:
        await Consumer(job, queue, store, diary).run(stop)
    await store.aclose()
    diary.close()


if __name__ == "__main__":
    asyncio.run(consume(Consuming.read()))
