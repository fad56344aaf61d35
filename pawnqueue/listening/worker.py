"""A worker: it claims messages, has its handler work on them, and settles what the handler has done.

It has one loop that claims, one task for each message that is handled, and one task for each claim that settles. What
they share is in :class:`Batch` and :class:`Worker`.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from pawnqueue.claims.claim import OneMessage
from pawnqueue.claims.held import HeldClaim
from pawnqueue.errors import LeaseLostError, QueueClosedError, QueueDrainedError, StoreError
from pawnqueue.events import MAX_LOGGED_IDS, HandlerFailed, logger_of
from pawnqueue.listening.handlers import check_returned
from pawnqueue.listening.outage import MAX_ENDING_PAUSE_SECONDS, MAX_PAUSE_SECONDS, Outage
from pawnqueue.listening.outcomes import ACKED, GIVEN_BACK, Outcome, is_on_purpose, outcome_of, place_of
from pawnqueue.listening.report import Listened
from pawnqueue.runtime.cancellation import shield_and_wait
from pawnqueue.runtime.concurrency import wait_at_most

if TYPE_CHECKING:
    from pawnqueue.arguments import OnLost
    from pawnqueue.claims import Claim, Claims, KeepAlive, Message
    from pawnqueue.claims.claim import Meant
    from pawnqueue.context import Context
    from pawnqueue.domain.claim_record import Decision
    from pawnqueue.domain.settlement import Settlement
    from pawnqueue.listening.handlers import Handler
    from pawnqueue.listening.retry import Retry

logger = logger_of("listening")

#: How long a claim waits for messages. Each call begins with a look: longer calls cost less.
WAIT_SECONDS: Final = 3600.0
#: A round of work is what the handlers do in this time, or one message for each of them if that takes longer.
ROUND_SECONDS: Final = 1.0
#: How many times as large as the one before a claim is at most.
MAX_GROWTH: Final = 4
#: How many rounds of work may be unsettled, those included that are handled and wait for the store.
MAX_UNSETTLED_ROUNDS: Final = 4
#: How often a settlement lets others run, as long as more messages are finished meanwhile.
TURNS_A_LOOK: Final = 3
#: How long a worker that is cancelled tries to give back what it has.
CANCELLED_SECONDS: Final = 5.0
#: The part of a drain's time that giving back has at least, after the handlers' time.
GIVE_BACK_SHARE: Final = 0.25
MAX_GIVE_BACK_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Until when a worker ends, in elapsed time."""

    handlers: float
    """Handlers are cancelled then."""
    all: float
    """What was not given back by then is left to the end of its claim's time."""

    @classmethod
    def within(cls, now: float, seconds: float) -> Deadlines:
        """Return those of a drain that takes at most these seconds."""
        return cls(now + seconds - min(seconds * GIVE_BACK_SHARE, MAX_GIVE_BACK_SECONDS), now + seconds)

    def sooner(self, other: Deadlines) -> Deadlines:
        """Return the earlier one of each."""
        return Deadlines(min(self.handlers, other.handlers), min(self.all, other.all))


@dataclass(eq=False, slots=True)
class Work:
    """A message that waits for its handler, or is handled."""

    message: Message
    batch: Batch

    @property
    def unit(self) -> str:
        """What its claim names it by, and no other message of it."""
        return self.message.unit


@dataclass(eq=False, slots=True)
class Batch:
    """What a worker has of one claim."""

    claim: HeldClaim
    left: dict[str, Work] = field(default_factory=dict)
    """Its messages that are neither settled nor lost, by their units."""
    finished: dict[str, Outcome] = field(default_factory=dict)
    """Those of which it is known what becomes of them, and which are to be settled."""
    taken: dict[str, Outcome] = field(default_factory=dict)
    """Those that are being settled."""
    running: dict[asyncio.Task[object], Work] = field(default_factory=dict)
    settler: asyncio.Task[None] | None = None
    keeper: KeepAlive | None = None
    waits_for_the_store: bool = False
    """Whether its last settlement has failed, and waits until it is tried again."""
    is_lost: bool = False
    """⚑ Whether the claim was lost: what its handlers do after that does not count."""

    def has_outcome(self, work: Work) -> bool:
        """Say whether it is known what becomes of a message."""
        return work.unit in self.finished or work.unit in self.taken


class Worker:
    """Runs once, by :meth:`run`. :meth:`stop` ends it in good order.

    :param take: claims at most this many messages, and waits for them for as many seconds.
    :param probe: raises if the store does not answer.
    :param keep: renews a claim in the background, and calls back if it is lost.
    :param most: how many messages a claim has at most.
    """

    def __init__(  # noqa: PLR0913 - the parts of one thing, made in one place
        self,
        context: Context,
        claims: Claims,
        *,
        take: Callable[[int, float], Awaitable[Claim]],
        probe: Callable[[], Awaitable[object]],
        keep: Callable[[Claim, OnLost], KeepAlive],
        handle: Handler,
        concurrency: int,
        most: int,
        retry: Retry,
    ) -> None:
        self._context = context
        self._claims = claims
        self._take = take
        self._probe = probe
        self._keep = keep
        self._handle = handle
        self._concurrency = concurrency
        self._most = most
        self._retry = retry
        self._size = min(concurrency, most)  # of the next claim
        self._batches: dict[HeldClaim, Batch] = {}
        self._waiting: deque[Work] = deque()
        self._running = 0
        self._busy = 0.0  # for how many seconds handlers ran since the size of claims was adapted, until _busy_since
        self._busy_since = 0.0
        self._handled_messages = 0  # since then
        self._unsettled = 0
        s3 = context.settings.s3
        self._secrets = [each.get_secret_value() for each in (s3.aws_secret_access_key, s3.aws_session_token) if each]
        self._outage = Outage(context)
        self._ending_renewals: list[asyncio.Future[None]] = []
        self._changed = asyncio.Event()
        self._stop: Deadlines | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_abandoned = False
        self.report = Listened()

    @property
    def claims(self) -> list[HeldClaim]:
        """The claims that it works on."""
        return list(self._batches)

    async def run(self, seconds: float) -> Listened:
        """Listen until the queue is drained or closed, or this call is cancelled.

        :param seconds: how long handlers and giving back may take after an error that ends it.
        """
        clock = self._context.clock
        try:
            try:
                await self._claim_on()
            except (QueueDrainedError, QueueClosedError):
                if self._stop is None:  # the worker learns it in the same step, or the queue is being closed
                    self.stop(Deadlines.within(clock.elapsed(), seconds))
            except Exception:
                self.stop(Deadlines.within(clock.elapsed(), seconds))
                await self._wind_up()
                raise
            await self._wind_up()
        except asyncio.CancelledError:
            now = clock.elapsed()
            self.stop(Deadlines(now, now + CANCELLED_SECONDS))
            await shield_and_wait(self._wind_up(), clock, CANCELLED_SECONDS)
            raise
        finally:
            self._end()
        return self.report

    def stop(self, deadlines: Deadlines) -> None:
        """Claim no more, and end by these deadlines. A second call can only make them earlier."""
        self._stop = deadlines if self._stop is None else self._stop.sooner(deadlines)
        self._changed.set()

    async def ended(self) -> None:
        """Wait until it has ended."""
        await asyncio.wait((self._ended,))

    def _end(self) -> None:
        self._is_abandoned = True
        for batch in self._batches.values():
            if batch.settler is not None:
                batch.settler.cancel()
            for task in batch.running:
                task.cancel()
        if not self._ended.done():
            self._ended.set_result(None)

    # --- claiming ---

    async def _claim_on(self) -> None:
        """Claim whenever there is room, until the queue refuses it or the worker is stopped."""
        failures = 0
        while True:
            await self._until(self._has_room)
            if self._stop is not None:
                return
            size = self._size
            try:
                if failures:
                    await self._probe()
                    await self._settle_first()
                # After an outage the first answer ends it, also where it is that there are no messages.
                claim = await self._take(size, 0.0 if self._outage.is_on else WAIT_SECONDS)
            except (StoreError, LeaseLostError) as error:
                failures += 1
                self._outage.note(error)
                await self._until(lambda: False, self._outage.pause(failures))
                continue
            failures = 0
            self._outage.end()
            if claim:
                self._learn_size()
                await self._receive(HeldClaim.of(claim, "listen", self._context))

    async def _settle_first(self) -> None:
        """Have settlements that failed tried once more, when the store answers and before anything is claimed.

        Else this worker would take over claims of its own whose time was over meanwhile, and work on them once more.
        """
        failed = [batch for batch in self._batches.values() if batch.waits_for_the_store]
        for batch in failed:
            batch.waits_for_the_store = False
        self._changed.set()
        await self._until(lambda: all(batch.settler is None or batch.waits_for_the_store for batch in failed))

    def _has_room(self) -> bool:
        """Say whether to claim now: while there is at most one round of work, and not too much waits for the store."""
        a_round = max(self._size, self._concurrency)
        unfinished = len(self._waiting) + self._running
        return unfinished <= a_round and self._unsettled + self._size <= MAX_UNSETTLED_ROUNDS * a_round

    def _learn_size(self) -> None:
        """Adapt the size of claims to what the handlers do in a second, but to one message for each at least.

        Larger claims cost less, and messages that wait here for longer than that could be worked on elsewhere.
        """
        now = self._context.clock.elapsed()
        busy, done = self._busy + (now - self._busy_since if self._running else 0.0), self._handled_messages
        if 2 * done < self._size and busy < ROUND_SECONDS:
            return  # too few to learn from
        rate = done / busy if busy else math.inf
        wanted = min(rate * ROUND_SECONDS, self._size * MAX_GROWTH, self._most)
        self._size = min(max(int(wanted), self._concurrency), self._most)
        self._busy, self._busy_since, self._handled_messages = 0.0, now, 0

    async def _receive(self, claim: HeldClaim) -> None:
        """Hand the messages of a claim to handlers, as far as these are free."""
        batch = self._batches[claim] = Batch(claim)
        for message in claim:
            work = batch.left[message.unit] = Work(message, batch)
            self._waiting.append(work)
        self._unsettled += len(batch.left)
        keeper = self._keep(claim, lambda error: self._lose(batch, error))
        batch.keeper = await keeper.__aenter__()
        self._start_handlers()

    # --- handling ---

    def _start_handlers(self) -> None:
        while self._waiting and self._running < self._concurrency and self._stop is None:
            work = self._waiting.popleft()
            if not work.batch.claim.seconds_left:
                # ⚑ Its time is over, and its renewals have not said so yet: this process was stopped, say.
                self._waiting.appendleft(work)
                self._lose(work.batch, "its time was over before its messages were begun")
                return
            if not self._running:
                self._busy_since = self._context.clock.elapsed()
            task: asyncio.Task[object] = asyncio.ensure_future(self._call(work.message))
            work.batch.running[task] = work
            self._running += 1
            task.add_done_callback(partial(self._handled, work))

    async def _call(self, message: Message) -> None:
        # Called here, so that what a handler raises before its first await is its own failure too.
        check_returned(await self._handle(message))

    def _handled(self, work: Work, task: asyncio.Task[object]) -> None:
        """Note what becomes of a message whose handler has ended."""
        batch = work.batch
        del batch.running[task]
        self._running -= 1
        self._handled_messages += 1
        if not self._running:
            self._busy += self._context.clock.elapsed() - self._busy_since
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        # ⚑ What a handler did after its claim was lost, or its message was given back, does not count.
        if work.unit in batch.left and not batch.is_lost and not batch.has_outcome(work):
            self._finish(work, ACKED if error is None else self._judge(work.message, error))
        elif error is not None and not isinstance(error, asyncio.CancelledError):
            logger.info("The handler of lost message %s ended with %s.", work.message.id, type(error).__name__)
        if batch.is_lost:
            self._forget_if_done(batch)
        self._start_handlers()
        if self._stop is not None or self._has_room():
            self._changed.set()

    def _judge(self, message: Message, error: BaseException) -> Outcome:
        """Return what becomes of a message whose handler has raised this, and log it."""
        if isinstance(error, asyncio.CancelledError) and self._stop is not None:
            return GIVEN_BACK
        is_failure = not is_on_purpose(error)
        try:
            outcome = outcome_of(error, message.deliveries, self._retry, self._context.clock, self._secrets)
        except Exception as problem:  # noqa: BLE001 - whatever a user's class raises, its message has to be settled
            is_failure = True
            logger.error(  # noqa: TRY400 - a stack trace may quote a payload
                "The handler's %s decides nothing, as its reason or its delay cannot be read (%s in %s): let the class "
                "call super().__init__ with valid ones.",
                type(error).__name__,
                type(problem).__name__,
                place_of(problem),
            )
            delay = self._retry.seconds(message.deliveries, self._context.clock.uniform)
            outcome = Outcome("requeued", delay, type(error).__name__)
        if is_failure:
            self._context.events.tell(
                HandlerFailed(
                    topic=message.topic,
                    message=message.id,
                    error=type(error).__name__,
                    where=place_of(error),
                    deliveries=message.deliveries,
                    delay=outcome.delay,
                )
            )
        return outcome

    def _lose(self, batch: Batch, why: LeaseLostError | str) -> None:
        """Cancel the handlers of a claim that was lost, and forget its messages."""
        if batch.is_lost:
            return
        batch.is_lost = True
        # What was finished before is settled if nobody else has it: the claim's record decides.
        self._drop(batch, [unit for unit in batch.left if not batch.has_outcome(batch.left[unit])])
        for task in batch.running:
            task.cancel()
        logger.debug("The handlers of claim %s are cancelled: %s", batch.claim.stem, why)
        self._forget_if_done(batch)
        self._start_handlers()
        self._changed.set()

    def _drop(self, batch: Batch, lost: Iterable[str]) -> None:
        """Count messages as lost. Those that wait for a handler do not get one."""
        gone = [batch.left.pop(unit) for unit in lost if unit in batch.left]
        self.report.lost += len(gone)
        self._unsettled -= len(gone)
        if gone and self._waiting:
            dropped = set(map(id, gone))
            self._waiting = deque(work for work in self._waiting if id(work) not in dropped)

    # --- settling ---

    def _finish(self, work: Work, outcome: Outcome) -> None:
        """Have a message settled: with all others of its claim that are finished when the store has time for it."""
        batch = work.batch
        batch.finished[work.unit] = outcome
        if batch.settler is None and not self._is_abandoned:
            batch.settler = asyncio.ensure_future(self._settle(batch))

    async def _settle(self, batch: Batch) -> None:
        """Settle what is finished, as long as anything is. During an outage it is tried again and again."""
        failures = 0
        try:
            while batch.finished:
                await self._let_others_finish(batch)
                batch.taken, batch.finished = batch.finished, {}
                settled, why = await self._send(batch)
                if why is None:
                    failures = 0
                    self._outage.end()
                self._count(batch, settled)
                if batch.claim.lost is not None:
                    self._lose(batch, batch.claim.lost)
                self._changed.set()
                if why is not None:
                    failures += 1
                    self._outage.note(why)
                    batch.waits_for_the_store = True
                    await self._pause_settling(batch, failures)
                    batch.waits_for_the_store = False
        finally:
            batch.settler = None
            self._changed.set()
        self._forget_if_done(batch)

    async def _pause_settling(self, batch: Batch, failures: int) -> None:
        """Wait after a settlement that failed, until the worker has it tried again or begins to end."""
        ended = self._stop is not None
        most = MAX_ENDING_PAUSE_SECONDS if ended else MAX_PAUSE_SECONDS

        def is_over() -> bool:
            return not batch.waits_for_the_store or (self._stop is not None and not ended)

        await self._until(is_over, self._outage.pause(failures, most), is_stopped=False)

    async def _let_others_finish(self, batch: Batch) -> None:
        """Wait while other handlers of the claim end without waiting for anything: one request settles them all."""
        seen = -1
        while seen < len(batch.finished) < len(batch.left):
            seen = len(batch.finished)
            for _ in range(TURNS_A_LOOK):
                await asyncio.sleep(0)

    async def _send(self, batch: Batch) -> tuple[dict[str, str], object]:
        """Settle what is taken; return what became of each that is known, by id, and why that of others is not."""
        done: Settlement | None
        try:
            needs_time = any(each.delay or each.how == "buried" for each in batch.taken.values())
            now = await self._context.now() if needs_time else 0.0
            decisions: dict[Meant, Decision] = {
                OneMessage(batch.left[unit].message.id, unit): each.decided(now) for unit, each in batch.taken.items()
            }
            done = await self._claims.settle(batch.claim, decisions, "listen", tells_unknown=False)
        except LeaseLostError as error:
            done = error.settlement
        except StoreError as error:
            return {}, error
        except Exception as error:
            logger.exception("Messages of claim %s could not be settled.", batch.claim.stem)
            return {}, repr(error)
        settled = {} if done is None else {each: how for each, how in done if how != "unknown"}
        return settled, None if done is None or not done.unknown else done.fault

    def _count(self, batch: Batch, settled: dict[str, str]) -> None:
        """Count what was settled, and keep the rest for the next attempt."""
        taken, batch.taken = batch.taken, {}
        report = self.report
        lost = []
        for unit, outcome in taken.items():
            work = batch.left[unit]
            how = settled.get(work.message.id)
            if how is None:
                batch.finished.setdefault(unit, outcome)
            elif how == "lost":
                lost.append(unit)
            else:
                del batch.left[unit]
                self._unsettled -= 1
                match outcome.how:
                    case "acked":
                        report.acked += 1
                    case "requeued":
                        report.requeued += 1
                    case "buried":
                        report.buried += 1
                    case "given_back":
                        report.given_back.append(work.message.id)
        self._drop(batch, lost)

    def _forget_if_done(self, batch: Batch) -> None:
        """Forget a claim of which nothing is left."""
        if batch.left or batch.running or batch.claim not in self._batches:
            return
        del self._batches[batch.claim]
        self._stop_renewing(batch)

    def _stop_renewing(self, batch: Batch) -> None:
        """End the renewals of a claim of which nothing is left, or which is given up."""
        if batch.keeper is not None and not batch.keeper.stop_between_renewals():
            ending = asyncio.ensure_future(batch.keeper.__aexit__(None, None, None))
            self._ending_renewals.append(ending)
            ending.add_done_callback(self._renewals_ended)

    def _renewals_ended(self, ending: asyncio.Future[None]) -> None:
        self._ending_renewals.remove(ending)
        self._changed.set()

    # --- the end ---

    async def _wind_up(self) -> None:
        """Give back what nobody has begun, let handlers finish, and give back the rest, each in its time."""
        self._give_back_waiting()
        await self._until(lambda: not self._running, lambda stop: stop.handlers)
        for batch in list(self._batches.values()):
            for task in list(batch.running):
                task.cancel()
        # Handlers clean up before others get their messages.
        await self._until(lambda: not self._running, lambda stop: (stop.handlers + stop.all) / 2)
        for batch in list(self._batches.values()):
            for work in list(batch.running.values()):
                if not batch.is_lost and not batch.has_outcome(work):
                    logger.warning("The handler of message %s does not end. It is given back.", work.message.id)
                    self._finish(work, GIVEN_BACK)
        await self._until(lambda: not any(batch.left for batch in self._batches.values()), lambda stop: stop.all)
        left = [work.message.id for batch in self._batches.values() for work in batch.left.values()]
        self.report.left += left
        if left:
            more = ", …" if len(left) > MAX_LOGGED_IDS else ""
            logger.warning(
                "The worker ended before the store said what became of %d of its messages: %s. Those that it did not "
                "settle are delivered again when their claims' time is over.",
                len(left),
                ", ".join(left[:MAX_LOGGED_IDS]) + more,
            )
        for batch in self._batches.values():
            self._stop_renewing(batch)
        await self._until(lambda: not self._ending_renewals, lambda stop: stop.all)

    def _give_back_waiting(self) -> None:
        """⚑ Give back what nobody has begun."""
        while self._waiting:
            self._finish(self._waiting.popleft(), GIVEN_BACK)

    async def _until(
        self,
        condition: Callable[[], bool],
        limit: float | Callable[[Deadlines], float] = math.inf,
        *,
        is_stopped: bool = True,
    ) -> None:
        """Wait until the condition holds.

        :param limit: for how many seconds at most, or until when, by the deadlines as they are then.
        :param is_stopped: a number of seconds ends when the worker is stopped.
        """
        clock = self._context.clock
        began = clock.elapsed()
        while not condition():
            if callable(limit):
                left = (limit(self._stop) if self._stop else math.inf) - clock.elapsed()
            else:
                left = began + limit - clock.elapsed()
                if self._stop is not None and is_stopped:
                    return
            if left <= 0:
                return
            self._changed.clear()
            if left == math.inf:
                await self._changed.wait()
            else:
                before = clock.elapsed()
                if not await wait_at_most(self._changed.wait(), clock, left) and clock.elapsed() <= before:
                    return  # nothing can be waited for any more, as the event loop ends
