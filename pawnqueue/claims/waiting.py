"""Waiting: while there is nothing to be claimed, or while somebody else works for a claim's or a write's id."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
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
        self._looked_at = 0.0  # elapsed: the last look that has found nothing
        self._pause = 0.0
        self._waiting: deque[asyncio.Future[IdlePauses]] = deque()
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
                waiting.set_result(self)
                messages -= 1

    def lengthen(self, longest: float) -> None:
        """Note that a look has found nothing. The next pause is as long as the idle time until now, so it doubles that.

        :param longest: the longest pause, in seconds.
        """
        now = self._clock.elapsed()
        if self._since is None:
            self._since = now
        self._looked_at = now
        self._pause = min(max(now - self._since, FIRST_IDLE_PAUSE_SECONDS), max(longest, FIRST_IDLE_PAUSE_SECONDS))

    def seconds_left(self) -> float:
        """Return for how many seconds the pause goes on: 0 if there is none, or it is over."""
        if self._since is None:
            return 0.0
        return max(0.0, self._pause - (self._clock.elapsed() - self._looked_at))

    def add(self, waiting: asyncio.Future[IdlePauses]) -> None:
        """Let a claim wait for messages of this topic."""
        self._waiting.append(waiting)

    def remove(self, waiting: asyncio.Future[IdlePauses]) -> None:
        """Let it wait no longer."""
        if waiting in self._waiting:
            self._waiting.remove(waiting)


@dataclass(eq=False, slots=True)
class Place:
    """A topic that a claim looks into."""

    idleness: IdlePauses
    """Of the topic, in this queue."""
    attempt: Callable[[], Awaitable[Claim]]
    """Claims there once."""
    news: int = 0
    """What the topic's ``news`` were before the last look. If they have changed since, that look is out of date."""


async def _pause(places: Sequence[Place], clock: Clock, *, at_most: float, jitter: float) -> list[Place]:
    """Wait until one of these topics is to be looked at again, and return which ones are.

    :param jitter: seconds that are added to the pause.
    """
    if any(place.news != place.idleness.news for place in places):
        return [place for place in places if place.news != place.idleness.news]
    left = [place.idleness.seconds_left() for place in places]
    seconds = min(left)
    if seconds + jitter >= at_most:
        due = list(places)  # the last look is at all of them
    else:
        due = [place for place, its in zip(places, left, strict=True) if its <= seconds + jitter]
    waiting: asyncio.Future[IdlePauses] = asyncio.get_running_loop().create_future()
    for place in places:
        place.idleness.add(waiting)
    try:
        if await wait_at_most(waiting, clock, min(seconds + jitter, at_most)):
            woken = waiting.result()
            return [place for place in places if place.idleness is woken]
    except asyncio.CancelledError:
        if waiting.done() and not waiting.cancelled():
            waiting.result().look_again(1)  # it was woken and looks no more, so the next waiting claim is woken
        raise
    finally:
        for place in places:
            place.idleness.remove(waiting)
    return due


async def until_there(
    context: Context,
    places: Sequence[Place],
    *,
    wait: float,
    is_settled: Callable[[Claim], bool],
    check_open: Callable[[], None],
) -> Claim:
    """Claim again and again until there are messages, for at most ``wait`` seconds.

    Each topic has pauses of its own, so several topics cost what claims of each of them cost.

    :param places: the topics, in the order of the first look, which is at all of them.
    :param is_settled: whether a claim without messages is all that there will be.
    :raises ClaimBusyError: somebody else works for the claim, and goes on.
    """
    clock, polling = context.clock, context.settings.polling
    give_up = clock.elapsed() + wait
    pause = FIRST_IDLE_PAUSE_SECONDS
    due = places
    while True:
        busy: ClaimBusyError | None = None
        claim: Claim | None = None
        try:
            claim = await _look(due)
        except ClaimBusyError as error:
            busy = error
        left = give_up - clock.elapsed()
        if busy is not None and left <= 0:
            raise busy
        if claim is not None and (claim or left <= 0 or is_settled(claim)):
            return claim
        check_open()
        jitter = clock.uniform(0, polling.jitter_max_ms / 1000)
        if busy is None:
            # An idle consumer costs one LIST a look, and looks less often the longer there is nothing.
            for place in due:
                place.idleness.lengthen(polling.interval_seconds)
            due = await _pause(places, clock, at_most=left, jitter=jitter)
        else:
            await clock.sleep(min(pause + jitter, left))
            pause = min(pause * 2, max(polling.interval_seconds, FIRST_IDLE_PAUSE_SECONDS))
        check_open()


async def _look(places: Sequence[Place]) -> Claim | None:
    """Claim in one topic after the other until one has messages. If none has, return the last one's empty claim."""
    claim: Claim | None = None
    for place in places:
        place.news = place.idleness.news
        claim = await place.attempt()
        if claim:
            place.idleness.end()
            break
    return claim


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
