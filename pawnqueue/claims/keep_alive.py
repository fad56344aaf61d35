"""Renewal of a claim in the background while its consumer works, which never stops without saying so."""

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

#: When the block is left, a renewal under way may take this long, and so may ``on_lost``. Then they are cancelled.
LEAVE_TIMEOUT_SECONDS = 5.0
#: A renewal that has had no answer for this long is logged as a warning.
SLOW_RENEWAL_SECONDS = 5.0
#: The shortest pause between two renewals, whatever interval is asked for and whatever fails.
MIN_RENEWAL_PAUSE_SECONDS = 0.05


class KeepAlive:
    """Renews a claim in the background for the length of an ``async with`` block, and says when it is lost.

    When it is lost, ``.lost`` is set, ``.error`` says why, and ``on_lost`` is called once with that error. The block
    goes on, as only its code knows how to stop. The renewals end without a word only where nothing is left to renew:
    all messages are settled, the claim was handed over, or the block was left.
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
        self._kept = kept  # the running ones of the same queue, which ends them when it is closed
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
                await self._wait(LEAVE_TIMEOUT_SECONDS, self._telling)
        finally:
            if self in self._kept:
                self._kept.remove(self)
            await self._cut(self._task, self._renewal, self._telling)

    async def end(self, why: str) -> None:
        """Stop renewing the claim although its block goes on, and report it as lost."""
        if not self._is_over():
            self._tell(_no_longer_renewed_error(self._claim, why))
        try:
            await self._let_finish()
        finally:
            await self._cut(self._task, self._renewal)

    def stop_between_renewals(self) -> bool:
        """Stop renewing without waiting, if no renewal is under way; return whether it has stopped."""
        if self._renewal is not None or self._telling is not None:
            return False
        self._is_left = True
        if self in self._kept:
            self._kept.remove(self)
        if self._task is not None:
            self._task.cancel()
        return True

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
                # Whatever the error was, the claim is trusted until its deadline. Try again soon until then.
                self._warn(error)
                pause = self._interval / 4

    def _is_over(self) -> bool:
        """Say whether nothing is left to renew: all is settled, or the claim was handed over."""
        record = self._claim.record
        # Messages that the janitor gave back after it had ended the claim are settled in the record too, and are lost.
        was_taken = any(decision.by == "other" for decision in record.all_decisions())
        return self._claim.given_away or not (record.unsettled or was_taken)

    def _left(self) -> float:
        return self._claim.trusted_until(in_doubt=False) - self._context.clock.elapsed()

    def _until_next(self, pause: float) -> float:
        """Return how long to wait before a renewal: at most half of the time left, so that a second one is possible."""
        left = self._left()
        return min(max(min(pause, left / 2), MIN_RENEWAL_PAUSE_SECONDS), left)

    async def _renew(self) -> BaseException | None:
        """Renew the claim, at most until its deadline: a silent store must not delay the report of its loss.

        Return what went wrong, if anything did.
        """
        renewal = asyncio.ensure_future(renewing.renew(self._context, self._claim, self._ttl))
        renewal.add_done_callback(_fault)  # it may be cancelled below, where its exception is not retrieved
        self._renewal = renewal
        slow = is_sent = False
        try:
            while not renewal.done():
                left = self._left()
                if left <= 0:
                    return None if self._is_left or self._is_over() else self._too_late_error(is_sent=is_sent)
                is_sent = True
                await self._wait(left if slow else min(left / 2, SLOW_RENEWAL_SECONDS), renewal)
                if not (slow or renewal.done()):
                    slow = True
                    logger.warning(
                        "Claim %s is not renewed yet: the store is slow, or other processes change its record. It is "
                        "trusted for %.0f more seconds.",
                        self._claim.claim_id,
                        max(0.0, self._left()),
                    )
        finally:
            renewal.cancel()
        self._renewal = None
        return _fault(renewal)

    def _too_late_error(self, *, is_sent: bool) -> LeaseLostError:
        record = self._claim.record
        why = "its time was over before it was renewed"
        if renewing.lengthened(self._context, record, math.inf) <= record.until:
            why = "it has reached claims.max_claim_age_seconds, and no older claim is renewed"
        elif self._failure is not None:
            why = f"{why}; the last attempt ended with {type(self._failure).__name__}: {self._failure}"
        elif is_sent:
            why = f"{why}, as a renewal was under way and did not succeed in time"
        else:
            why = f"{why}, as this process did not run in time: it was stopped, or its event loop was blocked"
        error = renewing.lost_error(self._claim, why)
        error.cause = self._failure
        return error

    def _warn(self, error: BaseException) -> None:
        what = "Claim %s could not be renewed. The renewal is tried again until its time is over: %s: %s"
        trace = None if isinstance(error, PawnQueueError) else error
        logger.warning(what, self._claim.claim_id, type(error).__name__, error, exc_info=trace)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Report that the renewals have ended although they should not: they were cancelled, or failed."""
        fault = _fault(task)
        if fault is not None and not self._is_left and not self._is_over():
            self._tell(_no_longer_renewed_error(self._claim, f"its renewals ended with {fault!r}"))

    def _tell(self, error: LeaseLostError) -> None:
        if self.error is not None:
            return
        self.error = error
        self.lost.set()
        if self._claim.lost is None:  # otherwise its loss was logged when it was noticed
            logger.warning("%s", error)
        if self._on_lost is None:
            return
        try:
            returned = self._on_lost(error)
        except (Exception, asyncio.CancelledError):
            logger.exception("The callback on_lost of claim %s failed.", self._claim.claim_id)
            return
        if inspect.isawaitable(returned):
            # In a task of its own, as it may never return.
            self._telling = asyncio.ensure_future(self._hear_out(returned))

    async def _hear_out(self, returned: Awaitable[None]) -> None:
        try:
            await returned
        except Exception:
            logger.exception("The callback on_lost of claim %s failed.", self._claim.claim_id)
        except asyncio.CancelledError:
            logger.warning(
                "The callback on_lost of claim %s did not end in time and was cancelled.", self._claim.claim_id
            )
            raise

    async def _let_finish(self) -> None:
        """Wait for the renewal that is under way, but not for long, and not past the claim's time.

        A request that is cancelled may land all the same, and nobody would know.
        """
        self._is_left = True
        if self._task is not None and self._renewal is not None:
            await self._wait(min(LEAVE_TIMEOUT_SECONDS, self._left()), self._task)

    async def _cut(self, *parts: asyncio.Future[Any] | None) -> None:
        """Cancel the tasks that still run, and wait at most :data:`LEAVE_TIMEOUT_SECONDS` for their end."""
        running = [part for part in parts if part is not None and not part.done()]
        for part in running:
            part.cancel()
        if running:
            await self._wait(LEAVE_TIMEOUT_SECONDS, asyncio.gather(*running, return_exceptions=True))
        if not all(part.done() for part in running):
            logger.warning("A task that renewed claim %s does not end and is left running.", self._claim.claim_id)

    async def _wait(self, seconds: float, *others: asyncio.Future[Any]) -> None:
        """Wait until this time has passed, or one of the others is done."""
        alarm = asyncio.ensure_future(self._context.clock.sleep(max(seconds, 0.0)))
        try:
            await asyncio.wait((alarm, *others), return_when=asyncio.FIRST_COMPLETED)
        finally:
            alarm.cancel()
            await asyncio.gather(alarm, return_exceptions=True)
        if not alarm.cancelled():
            alarm.result()


def _fault(task: asyncio.Future[None]) -> BaseException | None:
    """Return the exception of a task that has ended, or None if it returned."""
    return asyncio.CancelledError("it was cancelled") if task.cancelled() else task.exception()


def _no_longer_renewed_error(claim: HeldClaim, why: str) -> LeaseLostError:
    """Make the error for a claim that is no longer renewed, though its time is not over."""
    return LeaseLostError(
        f"Claim {claim.claim_id} of topic {claim.topic!r} is no longer renewed: {why}. Stop working on its "
        f"{len(claim)} messages: others may have them as soon as it is given back, or its time is over.",
        topic=claim.topic,
        operation="keep_alive",
    )
