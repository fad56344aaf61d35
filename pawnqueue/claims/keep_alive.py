"""Keep a claim in the background over long work, and never stop keeping it in silence."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pawnqueue.claims import renewing
from pawnqueue.errors import LeaseLostError, PawnQueueError
from pawnqueue.events import logger_of

if TYPE_CHECKING:
    from pawnqueue.claims.held import HeldClaim
    from pawnqueue.context import Context

logger = logger_of("claims")

#: When the block is left, a renewal under way is waited for so long, and so is ``on_lost``; then they are cut.
GRACE = 5.0
#: So long a renewal may go without an answer before that is worth a warning.
PATIENCE = 5.0
#: The shortest pause between two renewals: whatever is asked for, and whatever fails, it is no busy loop.
LEAST_PAUSE = 0.05


class KeepAlive:
    """Renews a claim in the background for the length of an ``async with`` block, and says when it is lost.

    ``.lost`` is set then, ``.error`` says why, and ``on_lost`` is called once, with that error; the block goes on, as
    only it knows how to stop. The renewals end in silence only where there is nothing to keep any more: all messages
    are settled, the claim was handed over, or the block is left.
    """

    def __init__(  # noqa: PLR0913 - the parts of one thing, made in one place
        self,
        context: Context,
        claim: HeldClaim,
        *,
        ttl: float,
        interval: float,
        on_lost: Callable[[LeaseLostError], Awaitable[None] | None] | None,
        kept: list[KeepAlive],
    ) -> None:
        self._context = context
        self._claim = claim
        self._ttl = ttl
        self._interval = interval
        self._on_lost = on_lost
        self._kept = kept  # those of the same queue whose blocks are not left: it ends them when it is closed
        self._is_left = False
        self._task: asyncio.Task[None] | None = None
        self._renewal: asyncio.Future[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None  # of the last attempt
        self.lost = asyncio.Event()
        self.error: LeaseLostError | None = None

    async def __aenter__(self) -> Self:
        self._is_left = False
        self._task = asyncio.create_task(self._run(), name=f"pawnqueue-keep-{self._claim.claim_id}")
        self._task.add_done_callback(self._ended)
        self._kept.append(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._let_finish()
            if self._telling is not None:
                await self._wait(GRACE, self._telling)
        finally:
            if self in self._kept:
                self._kept.remove(self)
            await self._cut(self._task, self._renewal, self._telling)

    async def end(self, why: str) -> None:
        """Keep the claim no longer although its block goes on, and tell so."""
        if not self._is_over():
            self._tell(_kept_no_longer(self._claim, why))
        try:
            await self._let_finish()
        finally:
            await self._cut(self._task, self._renewal)

    async def _run(self) -> None:
        pause = self._interval
        while not self._is_over():
            await self._wait(self._until_next(pause))
            if self._is_over():
                return
            error = await self._renew()
            if isinstance(error, LeaseLostError) and not self._is_over():
                self._tell(error)
            if isinstance(error, LeaseLostError) or self._is_left:
                return
            self._failure = error
            if error is None:
                pause = self._interval
            else:
                # Whatever it was, the claim is trusted until its deadline: try again soon, and give up only then.
                self._warn(error)
                pause = self._interval / 4

    def _is_over(self) -> bool:
        """Whether there is nothing to keep any more: all is settled, or another process has it by our own leave."""
        record = self._claim.record
        # What the janitor gave back after it had ended the claim is in the record too, and was lost.
        was_taken = any(decision.lost for decision in record.settled.values())
        return self._claim.given_away or not (record.unsettled or was_taken)

    def _left(self) -> float:
        return self._claim.trusted_until(in_doubt=False) - self._context.clock.elapsed()

    def _until_next(self, pause: float) -> float:
        """Return how long to wait before a renewal: rather less than asked for than until there is no time for two."""
        left = self._left()
        return min(max(min(pause, left / 2), LEAST_PAUSE), left)

    async def _renew(self) -> BaseException | None:
        """Renew, but not for longer than the claim is trusted: a store that is silent must not delay the bad news.

        Returns what went wrong, whatever it was.
        """
        renewal = asyncio.ensure_future(renewing.renew(self._context, self._claim, self._ttl))
        renewal.add_done_callback(_fault)  # it may be cut below, and nobody asks it any more
        self._renewal = renewal
        slow = False
        try:
            while not renewal.done():
                left = self._left()
                if left <= 0:
                    return None if self._is_left or self._is_over() else self._too_late()
                await self._wait(left if slow else min(left / 2, PATIENCE), renewal)
                if not (slow or renewal.done()):
                    slow = True
                    logger.warning(
                        "Claim %s could not be renewed yet, as the store does not answer; it is trusted for %.0f more "
                        "seconds.",
                        self._claim.claim_id,
                        max(0.0, self._left()),
                    )
        finally:
            renewal.cancel()
        self._renewal = None
        return _fault(renewal)

    def _too_late(self) -> LeaseLostError:
        record = self._claim.record
        why = "its time was over before it was renewed"
        if renewing.lengthened(self._context, record, math.inf) <= record.until:
            why = "it has come to the age of claims.max_claim_age_seconds, past which none is renewed"
        elif self._failure is None:
            why = f"{why}, as the store has not answered since"
        else:
            why = f"{why}; the last attempt ended with {type(self._failure).__name__}: {self._failure}"
        error = renewing.lost_error(self._claim, why)
        error.cause = self._failure
        return error

    def _warn(self, error: BaseException) -> None:
        what = "Claim %s could not be renewed, and is tried again until its time is over: %s: %s"
        trace = None if isinstance(error, PawnQueueError) else error
        logger.warning(what, self._claim.claim_id, type(error).__name__, error, exc_info=trace)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Tell, where the renewals came to an end that nobody asked for: somebody cancelled them, or they died."""
        fault = _fault(task)
        if fault is not None and not self._is_left and not self._is_over():
            self._tell(_kept_no_longer(self._claim, f"its renewals came to an end by {fault!r}"))

    def _tell(self, error: LeaseLostError) -> None:
        if self.error is not None:
            return
        self.error = error
        self.lost.set()
        if self._claim.lost is None:  # else it was told of when it was lost
            logger.warning("%s", error)
        if self._on_lost is None:
            return
        try:
            told = self._on_lost(error)
        except (Exception, asyncio.CancelledError):
            logger.exception("on_lost of claim %s failed.", self._claim.claim_id)
            return
        if inspect.isawaitable(told):
            # Beside the renewals: it may never return.
            self._telling = asyncio.ensure_future(self._hear_out(told))

    async def _hear_out(self, told: Awaitable[None]) -> None:
        try:
            await told
        except Exception:
            logger.exception("on_lost of claim %s failed.", self._claim.claim_id)
        except asyncio.CancelledError:
            logger.warning("on_lost of claim %s had not come to its end, and was cancelled.", self._claim.claim_id)
            raise

    async def _let_finish(self) -> None:
        """Wait for the renewal that is under way: a request that is cut may land all the same, and nobody would know.

        But not for long, and not past the claim's time.
        """
        self._is_left = True
        if self._task is not None and self._renewal is not None:
            await self._wait(min(GRACE, self._left()), self._task)

    async def _cut(self, *parts: asyncio.Future[Any] | None) -> None:
        """Cancel what still runs, and wait until it has ended, but for nothing that does not want to end."""
        running = [part for part in parts if part is not None and not part.done()]
        for part in running:
            part.cancel()
        if running:
            await self._wait(GRACE, asyncio.gather(*running, return_exceptions=True))
        if not all(part.done() for part in running):
            logger.warning("What kept claim %s does not end, and is left behind.", self._claim.claim_id)

    async def _wait(self, seconds: float, *others: asyncio.Future[Any]) -> None:
        """Wait until so much time has passed, or one of the others is done."""
        alarm = asyncio.ensure_future(self._context.clock.sleep(max(seconds, 0.0)))
        try:
            await asyncio.wait((alarm, *others), return_when=asyncio.FIRST_COMPLETED)
        finally:
            alarm.cancel()
            await asyncio.gather(alarm, return_exceptions=True)
        if not alarm.cancelled():
            alarm.result()


def _fault(task: asyncio.Future[None]) -> BaseException | None:
    """Return what a task that has ended was ended by, or None if it came to its own end."""
    return asyncio.CancelledError("it was cancelled") if task.cancelled() else task.exception()


def _kept_no_longer(claim: HeldClaim, why: str) -> LeaseLostError:
    """Make the error that says that nobody renews the claim any more, though it is not lost before its time is over."""
    return LeaseLostError(
        f"Claim {claim.claim_id} of topic {claim.topic!r} is kept no longer: {why}. Stop working on its {len(claim)} "
        "messages: others may have them as soon as it is given back, or its time is over.",
        topic=claim.topic,
        operation="keep_alive",
    )
