"""One poll for all that wait for a topic in this process, however many they are.

Whoever waits is given its turn in the order in which it came. Only the first is looked for: if there is nothing for it,
there is nothing for those behind it either. An idle topic costs one look every ``polling.interval_seconds``.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakKeyDictionary

from airflow_provider_pawnqueue.hooks import claiming
from airflow_provider_pawnqueue.hooks.claiming import UnforeseenError
from airflow_provider_pawnqueue.hooks.patience import OF_A_TRIGGER
from airflow_provider_pawnqueue.triggers.janitor_watch import JanitorWatch
from pawnqueue import ClaimBusyError, LeaseLostError, PawnQueueError, QueueClosedError, StoreError, TopicNotFoundError

if TYPE_CHECKING:
    from pawnqueue import Backlog, Claim, PawnQueue
    from pawnqueue.domain.claim_terms import ClaimTerms

logger = logging.getLogger(__name__)

#: The pause after a look that found something, or after somebody came; it doubles while there is nothing.
FIRST_PAUSE: Final = 0.5
#: The same while the store does not answer, at most.
LONGEST_PAUSE: Final = 30.0
#: The same while the store denies what it has allowed before, until the connection has other keys.
LONGEST_PAUSE_DENIED: Final = 5.0
#: Why a claim is given back that nobody is there to take.
NOBODY_WAITS: Final = "nobody waits for it any more"


@dataclass(eq=False, slots=True)
class Waiter:
    """Somebody who waits for a claim: ``given`` becomes its reference, as XCom carries it; None: it goes without."""

    terms: ClaimTerms
    given: asyncio.Future[dict[str, Any] | None]
    is_new: bool = True  # nobody has looked yet whether its claim is there
    is_known: bool = False  # it is: whatever there is, this one is had by its id
    was_known: bool = False  # what it was given is nothing new: others may have been given it before
    was_seen: bool = False  # a look has found out whether there is something for it
    is_leaving: bool = False  # it goes with what the next look has for it, or without
    is_taken: bool = False  # what it was given has arrived
    busy_until: float = 0.0  # by the loop's time: somebody else works for its claim

    @property
    def has_something_new(self) -> bool:
        """Whether it was given a claim, and one that nobody can have been given before."""
        given = self.given
        if (
            given.cancelled() or given.exception() is not None
        ):  # asked for: one that nobody takes is no error of anybody's
            return False
        return bool(given.result()) and not self.was_known

    def fail(self, error: PawnQueueError) -> None:
        """Give it an error, if nothing was given yet."""
        if not self.given.done():
            self.given.set_exception(error)

    def take(self) -> dict[str, Any] | None:
        """Take what was given; its errors are raised."""
        self.is_taken = True
        return self.given.result()


@dataclass(eq=False, slots=True)
class _Bell:
    """Somebody who wants to hear that there is something."""

    at_least: int
    heard: asyncio.Queue[Backlog | PawnQueueError] = field(default_factory=asyncio.Queue)


class Poll:
    """That of a topic. It runs in the loop of its queue, while anybody waits."""

    def __init__(self, queue: PawnQueue, topic: str) -> None:
        self._queue = queue
        self._topic = topic
        self._waiters: list[Waiter] = []
        self._bells: list[_Bell] = []
        self._came = asyncio.Event()
        self._looks = False
        self._task: asyncio.Task[None] | None = None
        self._errands: set[asyncio.Task[None]] = set()
        self._janitor = JanitorWatch(queue, topic)
        self._has_looked = False
        self._denied_since: float | None = None  # by the loop's time

    # --- who waits ---

    def join(self, terms: ClaimTerms) -> Waiter:
        """Wait from now on, until something is given; who joins has to :meth:`leave`."""
        waiter = Waiter(terms, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self._wake()
        return waiter

    def last_call(self, waiter: Waiter) -> None:
        """Let somebody go who has enough: with what there is for it by now, or without."""
        if waiter.was_seen and not self._looks:
            _give(waiter, None)
        waiter.is_leaving = True
        self._wake()

    def leave(self, waiter: Waiter) -> None:
        """Wait no more; what was given and not taken is given back."""
        # ⚑ by identity: of a task that was cleared, two wait for a moment, and the one that goes is the old one
        self._waiters = [other for other in self._waiters if other is not waiter]
        if not waiter.given.done():
            waiter.given.cancel()
        elif not waiter.is_taken and waiter.has_something_new:
            errand = asyncio.create_task(self._give_back(waiter.terms), name=f"pawnqueue-back-{self._topic}")
            self._errands.add(errand)
            errand.add_done_callback(self._errands.discard)

    @asynccontextmanager
    async def bell(self, at_least: int = 1) -> AsyncIterator[asyncio.Queue[Backlog | PawnQueueError]]:
        """Hear of each look that finds so many messages."""
        bell = _Bell(at_least)
        self._bells.append(bell)
        self._wake()
        try:
            yield bell.heard
        finally:
            self._bells = [other for other in self._bells if other is not bell]

    async def _give_back(self, terms: ClaimTerms) -> None:
        try:
            await claiming.released(self._queue, terms, NOBODY_WAITS)
        except PawnQueueError as error:
            logger.warning("What nobody waits for any more is given back when its time is over: %s", error)

    # --- looking ---

    def _wake(self) -> None:
        self._came.set()
        if self._task is None or self._task.done():
            _POLLS.setdefault(self._queue, {}).setdefault(self._topic, self)
            self._task = asyncio.create_task(self._run(), name=f"pawnqueue-poll-{self._topic}")

    async def _run(self) -> None:
        pause = FIRST_PAUSE
        while self._waiters or self._bells:
            self._came.clear()
            longest = max(self._queue.settings.polling.interval_seconds, FIRST_PAUSE)
            try:
                found = await self._look()
            except StoreError as error:
                if not (error.transient or self._may_be_mended(error)):
                    self._fail(error)
                    continue
                logger.warning("Topic %s is looked at again, as the store did not answer: %s", self._topic, error)
                found, longest = False, LONGEST_PAUSE_DENIED if error.denied else LONGEST_PAUSE
            except PawnQueueError as error:
                self._fail(error)
                continue
            except Exception as error:  # noqa: BLE001 - a defect of ours; those who wait have retries
                self._fail(self._unforeseen(error, "Looking for messages"))
                continue
            else:
                self._denied_since, self._has_looked = None, True
            if not found:
                await self._janitor.look()
            pause = FIRST_PAUSE if found else min(pause * 2, longest)
            if self._waiters or self._bells:
                pause = await self._rest(pause)
        # Nothing of a queue is kept that nobody uses.
        _POLLS.get(self._queue, {}).pop(self._topic, None)

    def _may_be_mended(self, error: StoreError) -> bool:
        """Return whether those who wait are to wait on although the store denies what it has allowed before.

        Keys are being replaced: the new ones may be in the connection only after the store refuses the old ones.
        """
        if not (error.denied and self._has_looked):
            return False
        now = asyncio.get_running_loop().time()
        if self._denied_since is None:
            self._denied_since = now
        return now - self._denied_since < OF_A_TRIGGER

    async def _rest(self, pause: float) -> float:
        """Wait until it is time to look again, and say how long the next pause is to be doubled from."""
        await asyncio.sleep(FIRST_PAUSE / 2)  # those who come together are looked for together
        left = pause - FIRST_PAUSE / 2 + random.uniform(0, 0.1)  # noqa: S311 - against looking in step, no secret
        try:
            await asyncio.wait_for(self._came.wait(), max(0.0, left))
        except TimeoutError:
            return pause
        return FIRST_PAUSE

    async def _look(self) -> bool:
        """Give what there is to whom it belongs; return whether there was anything."""
        self._looks = True
        waiters = list(self._waiters)
        try:
            found = await self._look_for(waiters)
            for waiter in waiters:
                waiter.was_seen = True
        finally:
            self._looks = False
            for waiter in waiters:
                if waiter.is_leaving:
                    _give(waiter, None)
        return found

    async def _look_for(self, waiters: list[Waiter]) -> bool:
        await self._find_old_claims(waiters)
        backlog: Backlog | None = None
        if self._bells or any(waiter.terms.min_messages > 1 for waiter in waiters):
            at_least = max([bell.at_least for bell in self._bells] + [one.terms.min_messages for one in waiters])
            backlog = await self._queue.backlog(self._topic, at_least=at_least, claims=bool(self._bells))
            self._ring(backlog)
        pending = 0 if backlog is None else backlog.pending
        now = asyncio.get_running_loop().time()
        outdated = _outdated(waiters)
        found = is_empty = False
        for waiter in waiters:
            if waiter.given.done() or waiter.busy_until > now or waiter in outdated:
                continue
            if not waiter.is_known and (is_empty or not claiming.is_worth_it(waiter.terms, pending, backlog)):
                continue
            outcome = await self._serve(waiter)
            if isinstance(outcome, int):
                found = True
                pending -= outcome
            elif outcome == "nothing":
                is_empty = True  # for everybody: only claims that are there already are to be had
        return found

    async def _find_old_claims(self, waiters: list[Waiter]) -> None:
        """Find out, by one LIST for all who are new here, whose claim is there from before a restart."""
        new = [waiter for waiter in waiters if waiter.is_new]
        if not new:
            return
        known = await self._queue.known_claims(self._topic, {claiming.claim_id_of(waiter.terms) for waiter in new})
        for waiter in new:
            waiter.is_new, waiter.is_known = False, claiming.claim_id_of(waiter.terms) in known

    async def _serve(self, waiter: Waiter) -> int | Literal["nothing", "not now"]:
        """Claim for one; return how many messages it was given. What befalls its claim concerns nobody else."""
        waiter.was_known, waiter.busy_until = waiter.is_known, 0.0
        try:
            claim = await claiming.claimed(self._queue, waiter.terms, is_known=waiter.is_known)
            waiter.is_known = False  # if it had ended, it is one like any other now
            if not claim:
                return "nothing"
            return await self._hand(waiter, claim)
        except ClaimBusyError as busy:
            logger.info("Task %s waits: %s", waiter.terms.owner, busy)
            waiter.busy_until = asyncio.get_running_loop().time() + min(busy.retry_after, LONGEST_PAUSE) + FIRST_PAUSE
            waiter.is_known = True
        except LeaseLostError as error:
            logger.warning(
                "What was claimed for task %s was lost at once, so it waits on: %s", waiter.terms.owner, error
            )
            waiter.is_known = True
        except StoreError as error:
            waiter.is_known = True  # it may have been claimed
            if not await self._is_of_its_claim(waiter, error):
                raise
            waiter.fail(error)
        except (TopicNotFoundError, QueueClosedError):
            waiter.is_known = True
            raise
        except PawnQueueError as error:
            waiter.fail(error)
        except Exception as error:  # noqa: BLE001 - a defect of ours, or of one message: it concerns nobody else
            waiter.fail(self._unforeseen(error, f"Claiming for task {waiter.terms.owner}"))
        return "not now"

    async def _is_of_its_claim(self, waiter: Waiter, error: StoreError) -> bool:
        """Return whether only the claim that one task has already is refused. ⚑ §5.6: then it is that task's error.

        :raises StoreError: the store refuses to list the topic's claims, too: it concerns all who wait.
        """
        if error.transient or not waiter.was_known:
            return False
        await self._queue.known_claims(self._topic, {claiming.claim_id_of(waiter.terms)})
        return True

    def _unforeseen(self, error: Exception, what: str) -> UnforeseenError:
        found = UnforeseenError.of(error, what, self._topic)
        logger.error("%s", found)
        return found

    async def _hand(self, waiter: Waiter, claim: Claim) -> int:
        count = len(claim)
        if waiter.given.done() and not waiter.was_known:  # it was cancelled meanwhile
            await self._queue.requeue(claim, reason=NOBODY_WAITS)
            return count
        reference = await claiming.handed_over(self._queue, claim)
        if not waiter.given.done():
            waiter.given.set_result(reference)
        elif not waiter.was_known:
            await self._give_back(waiter.terms)
        return count

    def _ring(self, backlog: Backlog) -> None:
        for bell in self._bells:
            if backlog.pending >= bell.at_least:
                bell.heard.put_nowait(backlog)

    def _fail(self, error: PawnQueueError) -> None:
        """Tell all who wait what only a person can mend."""
        for waiter in self._waiters:
            waiter.fail(error)
        self._waiters = []
        for bell in self._bells:
            bell.heard.put_nowait(error)
        self._bells = []


def _give(waiter: Waiter, what: dict[str, Any] | None) -> None:
    if not waiter.given.done():
        waiter.given.set_result(what)


def _outdated(waiters: list[Waiter]) -> list[Waiter]:
    """Return those whose task was cleared while its successor waits here: they are about to be ended."""
    owners = [(waiter, claiming.owner_of(waiter.terms)) for waiter in waiters]
    newest: dict[str, int] = {}
    for _, owner in owners:
        if owner is not None:
            newest[owner.claim_id] = max(owner.clear_number, newest.get(owner.claim_id, 0))
    return [waiter for waiter, owner in owners if owner is not None and owner.clear_number < newest[owner.claim_id]]


#: Those of each queue of this process, by topic.
_POLLS: Final[WeakKeyDictionary[PawnQueue, dict[str, Poll]]] = WeakKeyDictionary()


def poll_of(queue: PawnQueue, topic: str) -> Poll:
    """Return the one poll of a topic. Called in the loop of the queue."""
    known = _POLLS.get(queue, {}).get(topic)
    return known if known is not None else Poll(queue, topic)
