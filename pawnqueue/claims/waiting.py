"""Waiting: while there is nothing to be claimed, or while somebody else works for a claim's or a write's id."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from pawnqueue.errors import ClaimBusyError, WriteBusyError
from pawnqueue.runtime.concurrency import wait_at_most

if TYPE_CHECKING:
    from pawnqueue.claims.claim import Claim
    from pawnqueue.context import Context
    from pawnqueue.runtime.clock import Clock

T = TypeVar("T")

#: The first pause of a claim that waits.
FIRST_IDLE_PAUSE_SECONDS: Final = 0.25


class IdlePauses:
    """Shared by all claims of one topic in one open queue: the pauses grow from one call to the next."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: float | None = None  # elapsed
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.news = 0
        """How often messages have become claimable here. A waiting claim compares it with its value before its look."""

    def end(self) -> None:
        """Note that a claim has found messages. The pauses are short again."""
        self._since = None

    def look_again(self, messages: float = math.inf) -> None:
        """Note that this process has made this many messages claimable: as many waiting claims look at once."""
        self.end()
        self.news += 1
        while self._waiting and messages > 0:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                messages -= 1

    async def pause(self, news: int, *, at_most: float, longest: float, jitter: float) -> None:
        """Wait before the next look. The pause grows with the time for which nothing was found.

        :param news: what :attr:`news` was before the last look. If it has changed since, that look is out of date.
        :param longest: the longest pause, in seconds.
        :param jitter: seconds that are added to the pause.
        """
        now = self._clock.elapsed()
        if self._since is None:
            self._since = now
        if news != self.news:
            return
        # The pause is as long as the idle time until now, so each pause doubles the idle time.
        seconds = min(max(now - self._since, FIRST_IDLE_PAUSE_SECONDS), max(longest, FIRST_IDLE_PAUSE_SECONDS))
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            await wait_at_most(waiting, self._clock, min(seconds + jitter, at_most))
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():
                self.look_again(1)  # it was woken and looks no more, so the next waiting claim is woken
            raise
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)


async def until_there(  # noqa: PLR0913 - what is tried, and until when
    context: Context,
    idleness: IdlePauses,
    attempt: Callable[[], Awaitable[Claim]],
    *,
    wait: float,
    is_settled: Callable[[Claim], bool],
    check_open: Callable[[], None],
) -> Claim:
    """Claim again and again until there are messages, for at most ``wait`` seconds.

    :param idleness: of the topic in this queue.
    :param is_settled: whether a claim without messages is all that there will be.
    :raises ClaimBusyError: somebody else works for the claim, and goes on.
    """
    clock, polling = context.clock, context.settings.polling
    give_up = clock.elapsed() + wait
    pause = FIRST_IDLE_PAUSE_SECONDS
    while True:
        news = idleness.news
        busy: ClaimBusyError | None = None
        claim: Claim | None = None
        try:
            claim = await attempt()
        except ClaimBusyError as error:
            busy = error
        if claim:
            idleness.end()
        left = give_up - clock.elapsed()
        if busy is not None and left <= 0:
            raise busy
        if claim is not None and (claim or left <= 0 or is_settled(claim)):
            return claim
        check_open()
        jitter = clock.uniform(0, polling.jitter_max_ms / 1000)
        if busy is None:
            # An idle consumer costs one LIST a look, and looks less often the longer there is nothing.
            await idleness.pause(news, at_most=left, longest=polling.interval_seconds, jitter=jitter)
        else:
            await clock.sleep(min(pause + jitter, left))
            pause = min(pause * 2, max(polling.interval_seconds, FIRST_IDLE_PAUSE_SECONDS))
        check_open()


async def until_free(
    context: Context, attempt: Callable[[], Awaitable[T]], *, wait: float, check_open: Callable[[], None]
) -> T:
    """Make an attempt, again and again while another process works on the claim or the write, for ``wait`` seconds.

    :raises ClaimBusyError: somebody else works for the claim, and goes on.
    :raises WriteBusyError: somebody else commits the write, and goes on.
    """
    clock = context.clock
    give_up = clock.elapsed() + wait
    while True:
        try:
            return await attempt()
        except (ClaimBusyError, WriteBusyError) as busy:
            left = give_up - clock.elapsed()
            if left <= 0:
                raise
            pause = min(busy.retry_after + FIRST_IDLE_PAUSE_SECONDS, context.settings.polling.interval_seconds)
            await clock.sleep(min(pause, left))
            check_open()
