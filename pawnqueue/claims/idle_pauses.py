"""The pauses of claims that wait for messages of a topic."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING, Final

from pawnqueue.runtime.concurrency import wait_at_most

if TYPE_CHECKING:
    from pawnqueue.runtime.clock import Clock

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
