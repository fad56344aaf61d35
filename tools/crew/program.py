"""A publisher, consumer or janitor: ``python -m tools.crew.program``, in a folder with its job.

It keeps a diary of what it believes, by the clock that claims are timed with.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pawnqueue import Claim, PawnQueue, PawnQueueError, Settlement, StoreError
from pawnqueue.claims.held import HeldClaim
from pawnqueue.runtime.clock import SystemClock
from pawnqueue.stores.connect import connect
from tools.crew import plan
from tools.kit.history import Diary
from tools.kit.settlements import settlement_of
from tools.kit.stores import CountingStore

logger = logging.getLogger(__name__)

#: How many orders one call publishes.
ORDERS_PER_CALL = 100
#: How long one claim call waits for messages. Between two calls the consumer looks whether it has to stop.
CLAIM_WAIT_SECONDS = 2.0
#: How long a consumer leaves the store alone after a failure.
PAUSE_AFTER_FAILURE_SECONDS = 0.2
#: How much longer than it may, a saboteur trusts a claim.
OVERSTAY_SECONDS = 3600.0
SWEEP_EVERY_SECONDS = 0.5


class Program(ABC):
    """One process of a crew, which works until it is asked to stop."""

    def __init__(self, job: plan.Job, queue: PawnQueue, store: CountingStore, diary: Diary) -> None:
        self.job = job
        self.plan = job.plan
        self.queue = queue
        self.store = store
        self.clock = SystemClock()
        #: How many requests looked for messages and found none.
        self.in_vain = 0
        self._diary = diary

    @abstractmethod
    async def work(self, stop: asyncio.Event) -> None:
        """Work until there is nothing to do, or the event is set. What was begun by then is finished."""

    def note(self, event: str, **details: Any) -> None:
        """Write an event into the diary."""
        self._diary.write(event, at=self.clock.elapsed(), requests=self.store.total, in_vain=self.in_vain, **details)


class Publisher(Program):
    """Publishes its share of the orders, and writes down the ids that were confirmed."""

    async def work(self, stop: asyncio.Event) -> None:
        """Publish until all are published."""
        numbers = self.plan.share(self.job.number)
        for start in range(0, len(numbers), ORDERS_PER_CALL):
            if stop.is_set():
                return
            payloads = [self.plan.order(number) for number in numbers[start : start + ORDERS_PER_CALL]]
            begun = self.clock.elapsed()
            ids = await self.queue.publish(plan.TOPIC, payloads, producer=self.job.name)
            self.note("published", begun=begun, ids=ids)


class Consumer(Program):
    """Claims, works, acks and buries."""

    _forgot_an_ack = False

    async def work(self, stop: asyncio.Event) -> None:
        """Consume until asked to stop."""
        while not stop.is_set():
            try:
                await self._take_a_batch()
            except PawnQueueError as error:
                logger.warning("%s", error)
                await asyncio.sleep(PAUSE_AFTER_FAILURE_SECONDS)

    async def _take_a_batch(self) -> None:
        begun, before = self.clock.elapsed(), self.store.total
        ttl = self.plan.ttl
        claim = await self.queue.claim(
            plan.TOPIC, self.job.name, max_messages=self.plan.batch, ttl=ttl, wait=CLAIM_WAIT_SECONDS
        )
        if not claim:
            self.in_vain += self.store.total - before
            return
        with self._holding(claim, begun):
            async with self.queue.keep_alive(claim, ttl=ttl):
                done, hopeless = await self._fulfil(claim)
            if hopeless:
                await self._settle(claim, lambda: self.queue.nack(claim, hopeless, reason="it orders nothing"))
            if done:
                await self._ack(claim, done)

    async def _fulfil(self, claim: Claim) -> tuple[list[str], list[str]]:
        """Fulfil one order after the other while the claim holds. Return what can be acked, and what cannot."""
        done: list[str] = []
        hopeless: list[str] = []
        deadline = self._deadline(claim)
        for message in claim:
            await asyncio.sleep(self.plan.seconds_per_batch / self.plan.batch)
            if (now_until := self._deadline(claim)) != deadline:
                deadline = now_until
                self._note_claim("renewed", claim, deadline=deadline)
            # Time may have passed unnoticed: a signal that stops this process stops its renewals too.
            if self.clock.elapsed() >= self._deadline(claim):
                break
            (done if message.payload["quantity"] > 0 else hopeless).append(message.id)
        return done, hopeless

    async def _ack(self, claim: Claim, ids: Sequence[str]) -> None:
        if self.plan.sabotage == "forget-ack" and not self._forgot_an_ack:
            self._forgot_an_ack = True
            await self.queue.ack(claim, ids[:1])
            ids = ids[1:]
        self._note_claim("acking", claim, ids=ids)
        await self._settle(claim, lambda: self.queue.ack(claim, ids))

    async def _settle(self, claim: Claim, ask: Callable[[], Awaitable[Settlement]]) -> None:
        settlement = await settlement_of(ask())
        while settlement.unknown:
            await asyncio.sleep(PAUSE_AFTER_FAILURE_SECONDS)
            settlement = await settlement_of(ask())
        if settlement.acked:
            self._note_claim("settled", claim, how="acked", ids=settlement.acked)
        if settlement.buried:
            self._note_claim("settled", claim, how="dead", ids=settlement.buried)
        if settlement.lost:
            self._note_claim("dropped", claim, ids=settlement.lost, refused=len(settlement.lost))

    @contextmanager
    def _holding(self, claim: Claim, begun: float) -> Iterator[None]:
        self._note_claim("held", claim, begun=begun, ids=claim.ids, deadline=self._deadline(claim))
        try:
            yield
        finally:
            self._note_claim("dropped", claim)

    def _deadline(self, claim: Claim) -> float:
        """Return until when this consumer trusts the claim."""
        overstay = OVERSTAY_SECONDS if self.plan.sabotage == "overstay" else 0.0
        return HeldClaim.of(claim, "demo").trusted_until() + overstay

    def _note_claim(self, event: str, claim: Claim, **details: Any) -> None:
        self.note(event, claim=claim.claim_id, session=claim.session, **details)


class Janitor(Program):
    """Sweeps the topic again and again, while others work on it."""

    async def work(self, stop: asyncio.Event) -> None:
        """Sweep until asked to stop."""
        while not stop.is_set():
            try:
                report = await self.queue.sweep(plan.TOPIC)
            except StoreError as error:
                logger.warning("%s", error)
            else:
                for failure in report.failures:
                    logger.warning("%s", failure)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), SWEEP_EVERY_SECONDS)


_PROGRAMS: Mapping[plan.Program, type[Program]] = {"publisher": Publisher, "consumer": Consumer, "janitor": Janitor}


async def run(job: plan.Job) -> None:
    """Open the queue by a store that counts, and work until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    store = CountingStore(await asyncio.to_thread(connect, job.settings.s3))
    diary = Diary(Path(plan.DIARY), job.name)
    async with PawnQueue.open(job.settings, store=store) as queue:
        program = _PROGRAMS[job.program](job, queue, store, diary)
        await program.work(stop)
        program.note("dropped", ids=[], ended=True)
    await store.aclose()
    diary.close()


if __name__ == "__main__":
    asyncio.run(run(plan.Job.read()))
