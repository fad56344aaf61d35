"""Waiting: while there is nothing to be claimed, or while somebody else works for a claim's or a write's id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from pawnqueue.claims.idle_pauses import FIRST_IDLE_PAUSE_SECONDS
from pawnqueue.errors import ClaimBusyError, WriteBusyError

if TYPE_CHECKING:
    from pawnqueue.claims import Claim
    from pawnqueue.claims.idle_pauses import IdlePauses
    from pawnqueue.context import Context

T = TypeVar("T")


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
